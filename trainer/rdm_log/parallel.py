# SPDX-License-Identifier: GPL-3.0-or-later
"""Read long logs, and many files, with several processes.

Each process parses parts of a long log; the results are put in order, so the records are exactly those that
one process would have read. A part begins at a line. Only the timers of all ranks depend on lines before, so
a part begins at their heading if there is one near. If timers continue into a part nevertheless, that part is
read again.
"""

from __future__ import annotations

import functools
import itertools
import os
import pickle
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rdm_log.lines import Record
from rdm_log.scan import BLOCK, END, NEAR, TIMERS, RankTimers, read, records

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

__all__ = ["of_each", "records_of"]

PART = 8 * BLOCK
"""Bytes that a process reads at a time. It limits the memory."""
REACH = 2 * BLOCK
"""Bytes after the earliest start of a part in which the heading of timers is searched for…"""
_SHORT_REACH = 64 * 1024
"""… and fewer if the part before had no timers."""
_MOST = 4
"""The most processes: a single process collects their results."""

_FEW = 32
"""Files per process: fewer than twice as many are read by one process."""

_LINE_END = re.compile(rb"[\n\r]")

_One = TypeVar("_One")
_Result = TypeVar("_Result")


def _workers(work: int) -> int:
    """Return the number of processes for so many pieces of work; below 2 means this process alone."""
    # A process with threads cannot be forked safely.
    return min(_MOST, len(os.sched_getaffinity(0)), work) if threading.active_count() == 1 else 1


def _processes(workers: int) -> ProcessPoolExecutor:
    # Importing these takes as long as reading some megabytes, and most logs are shorter.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"))


def of_each(read_one: Callable[[_One], _Result], items: Sequence[_One]) -> list[_Result]:
    """Return a function's result for each item, such as a file; all three must be picklable."""
    workers = _workers(len(items) // _FEW)
    if workers < 2:
        return list(map(read_one, items))
    from concurrent.futures.process import BrokenProcessPool

    try:
        with _processes(workers) as pool:
            return list(pool.map(read_one, items, chunksize=_FEW // 4))
    except BrokenProcessPool:
        # A worker was killed, perhaps for lack of memory: one process needs less.
        return list(map(read_one, items))


class _Part(NamedTuple):
    """A range of bytes of a log; ``is_sure`` when no timers can continue into it."""

    begin: int
    end: int
    is_sure: bool


def records_of(paths: Sequence[Path]) -> Iterator[Record]:
    """Yield the records in the pieces of one log, in order.

    Args:
        paths: The pieces, the oldest first.

    Raises:
        OSError: A file cannot be read.
    """
    size = sum(path.stat().st_size for path in paths)
    workers = _workers(size // (4 * PART))
    if workers < 2:
        yield from _records(paths)
        return
    from concurrent.futures.process import BrokenProcessPool

    read_part = functools.partial(_read_part, tuple(paths))
    waiting: deque[tuple[_Part, Future[bytes]]] = deque()
    timers = RankTimers()
    parts = _Parts(paths, PART, REACH)
    begin = 0
    try:
        with _processes(workers) as pool:
            for part in parts:
                waiting.append((part, pool.submit(read_part, part)))
                break
            while waiting:
                for part in itertools.islice(parts, workers + 1 - len(waiting)):
                    waiting.append((part, pool.submit(read_part, part)))
                part, future = waiting.popleft()
                if timers.are_open and not part.is_sure:
                    # Do not cancel the future: if a worker is then killed, Python 3.11 reports no later part.
                    yield from _records(paths, timers, part.begin, part.end)
                else:
                    found, timers = pickle.loads(future.result())  # noqa: S301  # of our own process
                    yield from found
                    # Before the next part is unpickled.
                    del found
                parts.has_timers |= timers.are_open
                begin = part.end
    except BrokenProcessPool:
        # A worker was killed, perhaps for lack of memory: one process needs less.
        yield from _records(paths, timers, begin)


def _records(
    paths: Sequence[Path], timers: RankTimers | None = None, begin: int = 0, end: int = END
) -> Iterator[Record]:
    """Return the records between two positions of a log."""
    above = b"".join(read(paths, begin=max(0, begin - NEAR), end=begin))
    return records(read(paths, begin=begin, end=end), timers, above)


def _read_part(paths: tuple[Path, ...], part: _Part) -> bytes:
    """Return the records in a part of a log, and its timers that may continue, pickled.

    Records of training lines alone take five times the memory of their pickle, and several parts may wait.
    """
    timers = RankTimers()
    found = list(_records(paths, timers, part.begin, part.end))
    return pickle.dumps((found, timers))


class _Parts(Iterator[_Part]):
    """The parts of a log, each of about ``size`` bytes.

    Attributes:
        has_timers: Search far for headings. Without any in the log, that would read a quarter of it.
    """

    def __init__(self, paths: Sequence[Path], size: int, reach: int) -> None:
        self._paths, self._size, self._reach = paths, size, reach
        self._next: tuple[int, bool] | None = (0, True)
        self.has_timers = True

    def __next__(self) -> _Part:
        """Return the next part."""
        if self._next is None:
            raise StopIteration
        begin, is_sure = self._next
        reach = self._reach if self.has_timers else min(self._reach, _SHORT_REACH)
        self._next = _border(self._paths, begin + self._size, reach)
        if self._next is None:
            # To the end, so that what is written meanwhile is read, too.
            return _Part(begin, END, is_sure)
        self.has_timers = self._next[1]
        return _Part(begin, self._next[0], is_sure)


def _border(paths: Sequence[Path], position: int, reach: int) -> tuple[int, bool] | None:
    """Return where a line begins after a position, and whether it is a heading of timers."""
    seen = b""
    for data in read(paths, min(BLOCK, reach), begin=position):
        seen += data
        heading = seen.find(TIMERS)
        newline = max(seen.rfind(b"\n", 0, heading), seen.rfind(b"\r", 0, heading)) if heading > 0 else -1
        if newline >= 0:
            return position + newline + 1, True
        if len(seen) >= reach:
            if end := _LINE_END.search(seen):
                return position + end.end(), False
            # Forget the beginning of a line that may be longer than the memory.
            position, seen = position + len(seen), b""
    return None
