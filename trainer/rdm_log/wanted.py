# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of a log that somebody looks for."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path

from rdm_log.errors import without_prefix
from rdm_log.tails import text_lines

__all__ = ["Wanted"]


class Wanted:
    """Tells which lines are wanted.

    Args:
        grep: A regular expression that is found in them; empty for any line.
        rank: The rank whose number stands before them, as ``[rank3]:`` or ``3: ``; None for any line.

    Raises:
        re.error: What is to be found is none.
    """

    def __init__(self, grep: str = "", rank: int | None = None) -> None:
        self._pattern = re.compile(grep) if grep else None
        self._rank = rank

    @property
    def is_all(self) -> bool:
        """Every line is wanted."""
        return self._pattern is None and self._rank is None

    def __contains__(self, line: str) -> bool:
        """Whether a line is wanted."""
        if self._pattern is not None and not self._pattern.search(line):
            return False
        return self._rank is None or without_prefix(line)[1] == self._rank

    def of(self, text: str) -> str:
        """Return the wanted ones of whole lines."""
        return text if self.is_all else "".join(one for one in text.splitlines(keepends=True) if one in self)

    def last(self, path: Path, lines: int, *, most: int) -> list[str]:
        """Return the last wanted lines of a log, in bounded memory.

        Args:
            path: The log.
            lines: How many.
            most: So many characters of them.
        """
        found: deque[str] = deque()
        size = 0
        try:
            for line in text_lines(path):
                if line not in self:
                    continue
                found.append(line.rstrip("\n"))
                size += len(line)
                while len(found) > lines or (size > most and len(found) > 1):
                    size -= len(found.popleft()) + 1
        except OSError:
            return []
        return list(found)
