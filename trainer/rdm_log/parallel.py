# SPDX-License-Identifier: GPL-3.0-or-later
"""Long logs, and many files, read by several processes.

Of a long log each says what a part of it says, and the parts are put in order. What comes out is what one
process would have read, to the last record. A part begins with a line; only timers of all ranks go on from
line to line, so it begins with their heading where there is one near. Where they go on into a part
nevertheless, it is read again.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rdm_log.bulk import Many, Steps
from rdm_log.lines import Record, Step
from rdm_log.runs import RECENT
from rdm_log.scan import BLOCK, END, TIMERS, RankTimers, read, records_together

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

__all__ = ["of_each", "records_of"]

PART = 8 * BLOCK
"""Bytes that a process reads at a time. With those that wait to be noted it says how much memory is used."""
REACH = 2 * BLOCK
"""The heading of timers is looked for in so many bytes behind the place where a part could begin."""
_GLANCE = 64 * 1024
"""In so many where there were none lately."""
_MOST = 4
"""So many processes are the most: what they say is noted by one."""

_FEW = 32
"""So few files are read by one process."""

_One = TypeVar("_One")
_Told = TypeVar("_Told")
_Found = tuple[list[Record | Many], RankTimers]


def _workers(work: int) -> int:
    """Return how many processes share so many pieces of work; less than 2 when it is this one alone."""
    # A process that has threads cannot be copied safely.
    return min(_MOST, len(os.sched_getaffinity(0)), work) if threading.active_count() == 1 else 1


def _processes(workers: int) -> ProcessPoolExecutor:
    # To import them takes as long as to read some megabytes, and most logs have fewer.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"))


def of_each(read_one: Callable[[_One], _Told], items: Sequence[_One]) -> list[_Told]:
    """Return what a function returns for each of some items, such as files. It and they can be pickled."""
    workers = _workers(len(items) // _FEW)
    if workers < 2:
        return list(map(read_one, items))
    from concurrent.futures.process import BrokenProcessPool

    try:
        with _processes(workers) as pool:
            return list(pool.map(read_one, items, chunksize=_FEW // 4))
    except BrokenProcessPool:
        # One was killed, perhaps for want of memory: this one alone takes less.
        return list(map(read_one, items))


class _Part(NamedTuple):
    """Bytes of a log, from one position to another; sure when no timers from before go on in it."""

    begin: int
    end: int
    is_sure: bool


def records_of(paths: Sequence[Path], *, every: bool) -> Iterator[Record | Many]:
    """Yield what files say that are pieces of one log, in its order.

    Args:
        paths: The files, the oldest first.
        every: As for ``together``.

    Raises:
        OSError: One cannot be read.
    """
    size = sum(path.stat().st_size for path in paths)
    workers = _workers(size // (4 * PART))
    if workers < 2:
        yield from records_together(read(paths), every=every)
        return
    from concurrent.futures.process import BrokenProcessPool

    told = functools.partial(_told, tuple(paths), every)
    waiting: deque[tuple[_Part, Future[_Found]]] = deque()
    timers = RankTimers()
    parts = _Parts(paths, PART, REACH)
    begin = 0
    try:
        with _processes(workers) as pool:
            for part in parts:
                waiting.append((part, pool.submit(told, part)))
                break
            while waiting:
                for part in itertools.islice(parts, workers + 1 - len(waiting)):
                    waiting.append((part, pool.submit(told, part)))
                part, future = waiting.popleft()
                if timers.are_open and not part.is_sure:
                    # Not cancelled: once a process is killed, Python 3.11 would tell no part after it.
                    blocks = read(paths, begin=part.begin, end=part.end)
                    yield from records_together(blocks, every=every, timers=timers)
                else:
                    found, timers = future.result()
                    yield from found
                parts.has_timers |= timers.are_open
                begin = part.end
    except BrokenProcessPool:
        # One was killed, perhaps for want of memory: this one alone takes less.
        blocks = read(paths, begin=begin)
        yield from records_together(blocks, every=every, timers=timers)


def _told(paths: tuple[Path, ...], every: bool, part: _Part) -> _Found:
    """Return what a part of a log says.

    Lines are most of the bytes. They are left out of steps that are sure to go on with their run, and have
    no figure that is no number: those ``Run.add_steps`` takes. They cannot be read again later, when the log
    may have been rotated.
    """
    timers = RankTimers()
    # The run is at this step or before it; None: that is not known.
    last: int | None = None
    blocks = read(paths, begin=part.begin, end=part.end)
    found: list[Record | Many] = []
    for one in records_together(blocks, every=every, timers=timers):
        if isinstance(one, Steps):
            begin, end = one.iterations[0], one.iterations[-1]
            go_on = last is not None and begin > last
            if len(one.iterations) > RECENT:
                # More than can repeat others: the run is at the last one.
                last = end
            elif last is not None:
                last = max(last, end)
            if go_on and all(math.isfinite(of.total) for of in one.ranges.values()):
                one = one.ends(RECENT)
        elif isinstance(one, Step) and last is not None:
            last = max(last, one.iteration)
        found.append(one)
    return found, timers


class _Parts(Iterator[_Part]):
    """The parts of a log, each of about so many bytes.

    Attributes:
        has_timers: Whether to look far for headings: where there are none, that reads a quarter of the log.
    """

    def __init__(self, paths: Sequence[Path], size: int, reach: int) -> None:
        self._paths, self._size, self._reach = paths, size, reach
        self._next: tuple[int, bool] | None = (0, True)
        self.has_timers = True

    def __next__(self) -> _Part:
        """Return the next one."""
        if self._next is None:
            raise StopIteration
        begin, is_sure = self._next
        reach = self._reach if self.has_timers else min(self._reach, _GLANCE)
        self._next = _border(self._paths, begin + self._size, reach)
        if self._next is None:
            # What is written meanwhile is read, too.
            return _Part(begin, END, is_sure)
        self.has_timers = self._next[1]
        return _Part(begin, self._next[0], is_sure)


def _border(paths: Sequence[Path], position: int, reach: int) -> tuple[int, bool] | None:
    """Return where a line begins behind a position, and whether that is a heading of timers."""
    seen = b""
    for data in read(paths, min(BLOCK, reach), begin=position):
        seen += data
        heading = seen.find(TIMERS)
        newline = max(seen.rfind(b"\n", 0, heading), seen.rfind(b"\r", 0, heading)) if heading > 0 else -1
        if newline >= 0:
            return position + newline + 1, True
        if len(seen) >= reach and b"\n" in seen:
            return position + seen.index(b"\n") + 1, False
    return None
