# SPDX-License-Identifier: GPL-3.0-or-later
"""Records of a node that do not grow for ever: the older, the fewer of them are kept."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rdm_core.atomic_file import write_atomically

__all__ = ["MOST", "thin", "thinned"]

MOST = 32 * 1024 * 1024
"""Bytes of a file of records: at eight devices and a record each five seconds, some days."""
_FIRST = "[0] "


def thinned(records: Sequence[str]) -> list[str]:
    """Return every second one of the older half, and all of the newer. Done again and again, age thins."""
    half = len(records) // 2
    return [*records[:half:2], *records[half:]]


def thin(path: Path, most: int = MOST) -> None:
    """Thin a file of records when it has become too long. Nobody else may write it meanwhile.

    Args:
        path: JSON lines, or gpustat's lines, of which a record has one for each device.
        most: Bytes.
    """
    with contextlib.suppress(OSError):
        if path.stat().st_size <= most:
            return
        records = list(_records(path.read_text(encoding="utf-8", errors="replace")))
        write_atomically(path, "".join(thinned(records)))


def _records(text: str) -> Iterator[str]:
    """Yield records: a line each, or those from one first device to the next."""
    record = ""
    for line in text.splitlines(keepends=True):
        if record and (line.startswith(("{", _FIRST))):
            yield record
            record = ""
        record += line
    if record:
        yield record
