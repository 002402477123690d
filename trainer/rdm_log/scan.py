# SPDX-License-Identifier: GPL-3.0-or-later
"""Files → records, in bounded memory and at the speed of a byte search.

In a log of gigabytes few lines matter. They are found by searching blocks for words that every such line
contains, which runs in C; other lines cost nothing more.
"""

from __future__ import annotations

import errno
import functools
import itertools
import math
import operator
import os
import re
import stat
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rdm_log.grammars import BAR, MILLISECONDS
from rdm_log.lines import NEEDLES, TIME, of_steps, parse
from rdm_log.records import RankTimes, Record, Step

BLOCK = 1024 * 1024
"""Bytes that are searched at once."""
END = sys.maxsize
"""A position beyond the end of any file."""
_LONGEST = 4 * BLOCK
"""The most bytes of a line. A longer one is read in parts."""
_GAP = 64 * 1024
"""The most bytes of other output between two lines of the timers of all ranks."""
_NEAR = 4 * 1024
"""Bytes before a line in which a progress bar gives its step."""

_BAR_WORD = b"%|"
"""Text in every progress bar."""
_COLOURS = re.compile(rb"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
TIMERS = b"times across ranks (ms):"
"""The heading of the timers of all ranks."""
_NUMBERED = re.compile(r"(.+)\.(\d{1,6})")
_KINDS = {
    stat.S_IFDIR: "is a directory",
    stat.S_IFIFO: "is a named pipe",
    stat.S_IFSOCK: "is a socket",
    stat.S_IFCHR: "is a device",
    stat.S_IFBLK: "is a device",
}


def pieces(paths: Iterable[Path]) -> list[list[Path]]:
    """Group files into the pieces of each log, the oldest first: ``n1.out.2``, ``n1.out.1``, ``n1.out``."""
    found: dict[Path, list[tuple[int, Path]]] = {}
    given = list(dict.fromkeys(paths))
    for path in given:
        match = _NUMBERED.fullmatch(path.name)
        whole = path.with_name(match[1]) if match else path
        is_piece = match is not None and (whole in given or whole.with_name(f"{whole.name}.1") in given)
        key, number = (whole, int(match[2])) if match and is_piece else (path, 0)
        found.setdefault(key, []).append((number, path))
    return [[path for _, path in sorted(group, reverse=True)] for group in found.values()]


def piece(path: Path, number: int) -> Path:
    """Return the path of a rotated piece of a log; 1 is the newest."""
    return path.with_name(f"{path.name}.{number}")


def with_pieces(path: Path) -> list[Path]:
    """Return the existing pieces of a log, the oldest first, and the log itself."""
    found = itertools.takewhile(Path.exists, (piece(path, number) for number in itertools.count(1)))
    return [*reversed(list(found)), path]


def regular(path: Path) -> Path:
    """Return a path, if it is a regular file: opening a named pipe may block for ever.

    Raises:
        OSError: It is another kind of file, or ``stat`` fails; ``strerror`` says which.
    """
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, _KINDS.get(kind, "is no file"), str(path))
    return path


def read(paths: Sequence[Path], block: int = BLOCK, *, begin: int = 0, end: int = END) -> Iterator[bytes]:
    """Yield the bytes of the pieces of one log, block by block.

    Args:
        paths: The pieces, the oldest first.
        block: The most bytes of a block.
        begin: The first byte, counted over all files.
        end: The byte after the last.

    Raises:
        OSError: A file cannot be read.
    """
    position = 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if position + size <= begin > position:
                position += size
                continue
            if begin > position:
                file.seek(begin - position)
                position = begin
            while data := file.read(min(block, end - position)):
                position += len(data)
                yield data


def records(blocks: Iterable[bytes]) -> Iterator[Record]:
    """Yield the records of a log, in order.

    Args:
        blocks: Its bytes, split anywhere. Carriage returns end lines like newlines: progress bars use them.
    """
    timers, above = RankTimers(), b""
    for lines, whole in whole_lines(blocks):
        yield from _of(lines, timers, whole=whole, above=above)
        above = (above + lines[-_NEAR:])[-_NEAR:]


def whole_lines(blocks: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield blocks of whole lines, without colours.

    Yields:
        The lines, and whether the last one has its newline.
    """
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
        data = data[:end] if rest else data
        yield _COLOURS.sub(b"", data) if b"\x1b" in data else data, True
    if rest:
        yield _COLOURS.sub(b"", rest) if b"\x1b" in rest else rest, False


def _of(data: bytes, timers: RankTimers, *, whole: bool, above: bytes) -> Iterator[Record]:
    """Yield the records in some lines.

    Args:
        data: The lines.
        timers: The timers that may continue from the bytes before.
        whole: The last line has its newline.
        above: The last bytes before the lines.
    """
    if timers.are_open:
        data = b"\n" + data
    found: list[tuple[int, Step | None]] = []
    others: dict[int, int] = {}
    gaps: list[tuple[int, int]] = []
    begin = 0
    for start, end, step in of_steps(data, whole=whole):
        if step is None:
            others[start] = end
            continue
        found.append((start, step))
        if begin < start:
            gaps.append((begin, start))
        begin = end + 1
    gaps.append((begin, len(data)))
    headers: list[int] = []
    for needle, (begin, stop) in itertools.product(NEEDLES, gaps):
        position = _next(needle, data, begin, stop)
        while position >= 0:
            end = data.find(b"\n", position)
            if end < 0:
                end = len(data)
            start = data.rfind(b"\n", 0, position) + 1
            others[start] = end
            if needle is TIME and TIMERS in data[start:end]:
                headers.append(start)
            position = _next(needle, data, end, stop)
    ends = iter([*headers, len(data)])
    yield from timers.times(data, 0, next(ends))
    found += zip(others, itertools.repeat(None))
    found.sort(key=operator.itemgetter(0))
    for start, step in found:
        if step is not None:
            yield step
            continue
        end = others[start]
        line = data[start:end]
        if headers and TIMERS in line:
            timers.begin(line[: line.index(TIMERS)])
            yield from timers.times(data, end, next(ends))
        for one in parse(line, whole=whole or end < len(data)):
            if isinstance(one, Step) and not one.is_numbered:
                yield _by_bar(one, (above + data[max(0, start - _NEAR) : end])[-_NEAR:])
            else:
                yield one


def _by_bar(step: Step, text: bytes) -> Step:
    """Return a step with the number, the total and the time of the last progress bar in a text."""
    bar = _last_bar(text)
    if bar is None:
        return step
    number, total, rate, unit = bar.groups()
    milliseconds = 1000.0 * float(rate) if unit == b"s/it" else 1000.0 / (float(rate) or math.inf)
    values = {MILLISECONDS: milliseconds, **step.values}
    return step._replace(iteration=int(number), train_iterations=int(total), values=values)


def _last_bar(text: bytes) -> re.Match[bytes] | None:
    """Return the last progress bar in a text. A line has one at most."""
    position = len(text)
    while (position := text.rfind(_BAR_WORD, 0, position)) >= 0:
        position = max(0, text.rfind(b"\n", 0, position))
        if bar := BAR.match(text, position):
            return bar
    return None


def _next(needle: bytes | re.Pattern[bytes], data: bytes, position: int, end: int) -> int:
    """Return the next position of a needle before an end; -1 if there is none."""
    if isinstance(needle, bytes):
        return data.find(needle, position, end)
    found = needle.search(data, position, end)
    return found.start() if found else -1


class RankTimers:
    """Parses the timers of all ranks, over many lines: a name, then a line for each rank.

    Forks may list the start and end times after a rank's time.

    Args:
        moments: Find these lists, too.
    """

    def __init__(self, *, moments: bool = False) -> None:
        self._moments = moments
        self._pattern: re.Pattern[bytes] | None = None
        self._name = ""
        self._silence = 0

    def begin(self, tag: bytes) -> None:
        """Begin at a heading. A launcher's tag before it stands before each line of timers, too."""
        self._pattern = _rank_timer(tag.rstrip(), self._moments)
        self._name = ""
        self._silence = 0

    @property
    def are_open(self) -> bool:
        """The next lines may be timers."""
        return self._pattern is not None

    def lines(self, data: bytes, position: int, end: int) -> Iterator[re.Match[bytes]]:
        """Yield the lines of timers between two positions, until other lines come.

        Args:
            data: Lines.
            position: Where to begin, at a newline.
            end: Where to end.

        Yields:
            Matches with the groups rank, milliseconds and name; with moments also start or end, and the list.
        """
        if self._pattern is None:
            return
        last = position - self._silence
        for match in self._pattern.finditer(data, position, end):
            if match.start() - last > _GAP:
                self._pattern = None
                return
            last = match.end()
            yield match
        # The newline at the end is also the first byte of the next call's data.
        self._silence = end - last - 1
        if self._silence > _GAP:
            self._pattern = None

    def times(self, data: bytes, position: int, end: int) -> Iterator[RankTimes]:
        """Yield the times in these lines; see :meth:`lines`."""
        times = RankTimes(self._name, array("q"), array("d"))
        for match in self.lines(data, position, end):
            rank, milliseconds, name = match.groups()
            if name:
                if times.ranks:
                    yield times
                times = RankTimes(name.decode("utf-8", "replace"), array("q"), array("d"))
            elif times.name:
                times.ranks.append(int(rank))
                times.milliseconds.append(float(milliseconds))
        if times.ranks:
            yield times
        self._name = times.name


@functools.lru_cache(maxsize=256)
def _rank_timer(tag: bytes, moments: bool) -> re.Pattern[bytes]:
    # At least two spaces: lists of moments have one, and there are many of them.
    # A log may end within a line: a time with both of its decimals is whole, a list's last moment may be cut.
    more = rb"| .{1,80}? (start|end) time lst:(.*)(?=\n| [^ \n]*\Z)" if moments else b""
    return re.compile(
        rb"\n"
        + re.escape(tag)
        + rb"(?: {2,}+(?:rank +(\d{1,9}): +(\d+\.?\d*)|([A-Za-z][\w ./-]{0,80}+):)[ \t]*+(?=\n|(?<=\.\d\d)\Z)"
        + more
        + rb")"
    )
