# SPDX-License-Identifier: GPL-3.0-or-later
"""Files → records, in bounded memory and at the speed of searching bytes.

A log of gigabytes has few lines that say something. Those are found by searching blocks for the words that
each of them has, which C does; all other lines cost nothing more.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rdm_log.lines import NEEDLES, Record, Timer, parse

__all__ = ["BLOCK", "pieces", "read", "records"]

BLOCK = 1024 * 1024
"""Bytes that are searched at once."""
_LONGEST = 4 * BLOCK
"""A line may have as many bytes. One that has more is read in parts."""
_GAP = 64 * 1024
"""Bytes that others may have written between two lines of the timers of all ranks."""

_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
_TIMERS = b"times across ranks (ms):"
_NUMBERED = re.compile(r"(.+)\.(\d{1,6})")


def pieces(paths: Iterable[Path]) -> list[list[Path]]:
    """Group files that are pieces of one log, the oldest first: ``n1.out.2``, ``n1.out.1``, ``n1.out``."""
    found: dict[Path, list[tuple[int, Path]]] = {}
    given = list(dict.fromkeys(paths))
    for path in given:
        match = _NUMBERED.fullmatch(path.name)
        whole = path.with_name(match[1]) if match else path
        is_piece = match is not None and (whole in given or whole.with_name(f"{whole.name}.1") in given)
        key, number = (whole, int(match[2])) if match and is_piece else (path, 0)
        found.setdefault(key, []).append((number, path))
    return [[path for _, path in sorted(group, reverse=True)] for group in found.values()]


def read(paths: Sequence[Path], block: int = BLOCK) -> Iterator[bytes]:
    """Yield the bytes of files that are pieces of one log, block by block.

    Raises:
        OSError: One cannot be read.
    """
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while data := file.read(block):
                yield data


def records(blocks: Iterable[bytes]) -> Iterator[Record]:
    """Yield what a log says, in its order.

    Args:
        blocks: Its bytes, cut anywhere. Carriage returns end lines, as newlines do: progress bars use them.
    """
    timers = _RankTimers()
    rest = b""
    for block in blocks:
        data = rest + block if rest else block
        if b"\r" in block:
            data = data.replace(b"\r", b"\n")
        end = data.rfind(b"\n") + 1
        if not end and len(data) < _LONGEST:
            rest = data
            continue
        end = end or len(data)
        rest = data[end:]
        yield from _of(data[:end] if rest else data, timers, whole=True)
    if rest:
        yield from _of(rest, timers, whole=False)


def _of(data: bytes, timers: _RankTimers, *, whole: bool) -> Iterator[Record]:
    """Yield what some lines say. Only of the last can the newline be missing, when they are not WHOLE."""
    if b"\x1b" in data:
        data = _COLOURS.sub(b"", data)
    if timers.are_open:
        data = b"\n" + data
    lines: dict[int, int] = {}
    for needle, behind in NEEDLES.items():
        position = data.find(needle)
        while position >= 0:
            last = position + len(needle)
            if behind and data[last : last + 2] not in behind:
                position = data.find(needle, last)
                continue
            end = data.find(b"\n", position)
            if end < 0:
                end = len(data)
            lines[data.rfind(b"\n", 0, position) + 1] = end
            position = data.find(needle, end)
    starts = sorted(lines)
    headers = [start for start in starts if _TIMERS in data[start : lines[start]]] if _TIMERS in data else []
    ends = iter([*headers, len(data)])
    yield from timers.go_on(data, 0, next(ends))
    for start in starts:
        end = lines[start]
        line = data[start:end]
        if headers and _TIMERS in line:
            timers.begin(line)
            yield from timers.go_on(data, end, next(ends))
        yield from parse(line, whole=whole or end < len(data))


class _RankTimers:
    """The timers of all ranks, over many lines: a name, then a line for each rank.

    After a rank's time forks may write lists of when it began and ended; they are skipped.
    """

    def __init__(self) -> None:
        self._pattern: re.Pattern[bytes] | None = None
        self._name = ""

    def begin(self, header: bytes) -> None:
        """Take note of the line above them. What a launcher puts before it stands before each of them."""
        self._pattern = _rank_timer(header[: header.index(_TIMERS)].strip())
        self._name = ""

    @property
    def are_open(self) -> bool:
        """The lines that come may be theirs."""
        return self._pattern is not None

    def go_on(self, data: bytes, position: int, end: int) -> Iterator[Timer]:
        """Yield the timers between two positions, until other lines come. At POSITION is a newline."""
        if self._pattern is None:
            return
        last = position
        for match in self._pattern.finditer(data, position, end):
            if match.start() - last > _GAP:
                self._pattern = None
                return
            last = match.end()
            if match[3]:
                self._name = match[3].decode("utf-8", "replace")
            elif self._name:
                yield Timer(self._name, float(match[2]), int(match[1]))
        if end - last > _GAP:
            self._pattern = None


@functools.lru_cache(maxsize=256)
def _rank_timer(tag: bytes) -> re.Pattern[bytes]:
    return re.compile(
        rb"\n" + re.escape(tag) + rb" +(?:rank +(\d+): +(\d+\.?\d*)|([A-Za-z][\w ./-]{0,80}):)[ \t]*(?=\n)"
    )
