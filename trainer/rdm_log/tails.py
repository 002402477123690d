# SPDX-License-Identifier: GPL-3.0-or-later
"""The ends of files, and how many lines they have."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["count_lines", "tail"]

_BLOCK = 1024 * 1024


def tail(path: Path, lines: int, *, most: int = 64 * 1024, since: int = 0) -> list[str]:
    """Return the last LINES lines of a file, of its last MOST bytes and beyond byte SINCE."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(since, file.tell() - most))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-lines:] if lines else []


def count_lines(path: Path) -> int:
    """Return how many newlines a file has, as ``wc -l`` does; 0 of one that cannot be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return sum(block.count(b"\n") for block in iter(lambda: file.read(_BLOCK), b""))
    except OSError:
        return 0
