# SPDX-License-Identifier: GPL-3.0-or-later
"""Read many files with several processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor

_MOST = 4
"""The most processes: a single process collects their results."""
_FEW = 32
"""Files per process: fewer than twice as many are read by one process."""

_One = TypeVar("_One")
_Result = TypeVar("_Result")


def _processes(workers: int) -> ProcessPoolExecutor:
    # Importing these takes as long as reading some megabytes, and most jobs have few files.
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"))


def of_each(read_one: Callable[[_One], _Result], items: Sequence[_One]) -> list[_Result]:
    """Return a function's result for each item, such as a file; all three must be picklable."""
    workers = min(_MOST, len(os.sched_getaffinity(0)), len(items) // _FEW)
    # A process with threads cannot be forked safely.
    if workers < 2 or threading.active_count() > 1:
        return list(map(read_one, items))
    from concurrent.futures.process import BrokenProcessPool

    try:
        with _processes(workers) as pool:
            return list(pool.map(read_one, items, chunksize=_FEW // 4))
    except BrokenProcessPool:
        # A worker was killed, perhaps for lack of memory: one process needs less.
        return list(map(read_one, items))
