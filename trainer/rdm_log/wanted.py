# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter the lines of a log by text and rank."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rdm_log.errors import without_prefix
from rdm_log.tails import text_lines

# Megatron begins lines with it; DeepSpeed writes it after the time, the level and the source line.
_NAMED = re.compile(r"(?:\[[^\]]*\] )*\[Rank (\d{1,9})\]")
_TRACEBACK = "Traceback (most recent call last)"
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")


class Wanted:
    """Selects lines.

    Args:
        grep: A regular expression to search for; empty for any line.
        rank: The rank that wrote the lines, None for any. Marks name it: ``[rank3]:`` of torch,
            ``[default3]:`` of torchrun, ``3: `` of ``srun --label``, ``[1,3]<stdout>:`` of
            ``mpirun --tag-output``, ``[Rank 3]`` of Megatron and DeepSpeed.
        is_alone: The log has no other rank, so lines without a mark are from this rank, too.
        nodes: The name and the address of the rank's node if it has no other rank: launchers such as pdsh
            begin lines with either.
        others: The same for the other nodes. Lines that begin so are not from this rank.
        first: The first rank of the log's node, to which torchrun's local ranks are added.

    Raises:
        re.error: ``grep`` is not a regular expression.
    """

    def __init__(
        self,
        grep: str = "",
        rank: int | None = None,
        *,
        is_alone: bool = False,
        nodes: Sequence[str] = (),
        others: Sequence[str] = (),
        first: int = 0,
    ) -> None:
        self._pattern = re.compile(grep) if grep else None
        self._rank = rank
        self._is_alone = is_alone
        self._marks, self._others = (tuple(f"{node}: " for node in names) for names in (nodes, others))
        self._first = first
        # The rank whose traceback continues in lines without a mark; whether its exception has come, and
        # whether another traceback is chained to it.
        self._owner: int | None = None
        self._is_raised = self._is_chained = False

    @property
    def is_all(self) -> bool:
        """Every line is selected."""
        return self._pattern is None and self._rank is None

    def lines(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the selected lines. The given lines continue those of the call before."""
        for line in lines:
            is_own = self._rank is None or self._is_own(line)
            if is_own and (self._pattern is None or self._pattern.search(line)):
                yield line

    def of(self, text: str) -> str:
        """Return the selected lines of a text of whole lines."""
        return text if self.is_all else "".join(self.lines(text.splitlines(keepends=True)))

    def is_in(self, path: Path) -> bool:
        """Return whether a log has a selected line. Stops reading at the first."""
        try:
            return any(True for _ in self.lines(text_lines(path)))
        except OSError:
            return False

    def last(self, path: Path, lines: int, *, most: int) -> list[str]:
        """Return the last selected lines of a log, in bounded memory.

        Args:
            path: The log.
            lines: How many.
            most: The most characters of all lines together.
        """
        found: deque[str] = deque()
        size = 0
        try:
            for line in self.lines(text_lines(path)):
                found.append(line.rstrip("\n"))
                size += len(line)
                while len(found) > lines or (size > most and len(found) > 1):
                    size -= len(found.popleft()) + 1
        except OSError:
            return []
        return list(found)

    def _is_own(self, line: str) -> bool:
        """Return whether the rank wrote a line."""
        if line.startswith(self._marks):
            return True
        if line.startswith(self._others):
            return False
        text, rank = without_prefix(line, self._first)
        if rank is None and (named := _NAMED.match(text)):
            text, rank = text[named.end() :].lstrip(), int(named[1])
        if rank is not None:
            if text.startswith(_TRACEBACK):
                self._owner, self._is_raised, self._is_chained = rank, False, False
            elif rank == self._owner:
                # The lines of this traceback have marks, so lines without one do not belong to it.
                self._owner = None
            return rank == self._rank
        if self._is_alone:
            return True
        return self._goes_on(text) and self._owner == self._rank

    def _goes_on(self, text: str) -> bool:
        """Return whether a line without a mark belongs to the traceback above it or a chained one."""
        if self._owner is None:
            return False
        if text.startswith(_TRACEBACK):
            if not self._is_chained:
                self._owner = None
                return False
            self._is_raised = self._is_chained = False
        elif text.startswith(_CHAIN):
            self._is_chained = True
        elif text and text[0] not in " \t":
            if self._is_raised:
                self._owner = None
                return False
            self._is_raised = True
        return True
