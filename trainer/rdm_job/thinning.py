# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits the size of a node's records: of older ones, fewer are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rdm_core.atomic_file import write_atomically

MOST = 32 * 1024 * 1024
"""Bytes in a file of records: a few days, at eight devices and one record every five seconds."""
_FIRST = "[0] "


def thinned(records: Sequence[str]) -> list[str]:
    """Return every second record of the older half, and all of the newer. Repeated, this thins with age."""
    half = len(records) // 2
    return [*records[:half:2], *records[half:]]


def thin(path: Path, most: int = MOST) -> None:
    """Thin a file of records if it is too long. No other process may write to it meanwhile.

    Args:
        path: JSON lines, or gpustat's lines, one per device in each record.
        most: The limit, in bytes.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size <= most:
            return
        records = list(_records(path.read_text(encoding="utf-8", errors="replace")))
        write_atomically(path, "".join(thinned(records)))


def _records(text: str) -> Iterator[str]:
    """Yield records: a JSON line, or gpustat's lines from one first device to the next."""
    record = ""
    for line in text.splitlines(keepends=True):
        if record and (line.startswith(("{", _FIRST))):
            yield record
            record = ""
        record += line
    if record:
        yield record
