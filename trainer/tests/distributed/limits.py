# SPDX-License-Identifier: GPL-3.0-or-later
"""What processes may have of this machine: cgroups of both versions, for which tests must be root's."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.waiting import wait_until

__all__ = ["Delays", "Limits", "first_of_all", "limited"]

CGROUPS = Path("/sys/fs/cgroup")
_IS_NEW = (CGROUPS / "cgroup.controllers").exists()


class Delays(NamedTuple):
    """For how long threads did not run, in seconds.

    Attributes:
        threads: Each, when it was ready: others had the processor, or its own limit held it back.
        throttled: All, because of their limit, on all processors together.
        at: When.
    """

    threads: dict[str, float]
    throttled: float
    at: float


class Limits:
    """A cgroup for processes. Of version 2 it lies in the topmost, of version 1 in one of each controller.

    What others do on this machine is not planted: processes in it come first, as far as its limits let them.

    Args:
        name: Its own.
        controllers: What it limits.
    """

    def __init__(self, name: str, *controllers: str) -> None:
        if _IS_NEW:
            (CGROUPS / "cgroup.subtree_control").write_text(" ".join(f"+{one}" for one in controllers))
        tops = [CGROUPS] if _IS_NEW else [CGROUPS / one for one in controllers]
        self._places = [top / name for top in tops]
        for place in self._places:
            place.mkdir()
        weight, most = ("cpu.weight", 10_000) if _IS_NEW else ("cpu.shares", 262_144)
        (self._places[0] / weight).write_text(str(most))

    def take(self, process: int) -> None:
        """Put a process into it, and with it all that it starts from now on."""
        # It may have ended meanwhile.
        with contextlib.suppress(ProcessLookupError):
            for place in self._places:
                (place / "cgroup.procs").write_text(str(process))

    def take_all(self, process: int) -> None:
        """Put a process, and all that it has started, into it."""
        first = psutil.Process(process)
        for one in [first, *first.children(recursive=True)]:
            self.take(one.pid)

    def processors(self, count: float | None) -> None:
        """Limit the processors."""
        quota = int(100_000 * count) if count else None
        if _IS_NEW:
            (self._places[0] / "cpu.max").write_text(f"{quota or 'max'} 100000")
        else:
            (self._places[0] / "cpu.cfs_quota_us").write_text(str(quota or -1))

    def memory(self, size: int) -> None:
        """Limit the memory, in bytes."""
        (self._places[-1] / ("memory.max" if _IS_NEW else "memory.limit_in_bytes")).write_text(str(size))

    def delays(self) -> Delays:
        """Return for how long its threads did not run, until now.

        Source: the second field of ``schedstat`` (Documentation/scheduler/sched-stats.rst).
        """
        threads = {}
        for process in (self._places[0] / "cgroup.procs").read_text().split():
            for task in Path("/proc", process, "task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    threads[task.parent.name] = int(task.read_text().split()[1]) / 1e9
        told = dict(line.split() for line in (self._places[0] / "cpu.stat").read_text().splitlines())
        throttled = int(told["throttled_usec"]) / 1e6 if _IS_NEW else int(told["throttled_time"]) / 1e9
        return Delays(threads, throttled, time.monotonic())

    def delayed_since(self, before: Delays) -> float:
        """Return for how many seconds others' work kept a thread in it from a processor, at most.

        What its own limit may have done is none of it: of a cgroup that is often throttled it is too little.
        """
        now = self.delays()
        both = now.threads.keys() & before.threads.keys()
        most = max((now.threads[task] - before.threads[task] for task in both), default=0.0)
        return max(0.0, most - min(now.throttled - before.throttled, now.at - before.at))

    def remove(self) -> None:
        """Take it away, when nothing is in it any more."""
        for place in self._places:
            wait_until("it is empty", (place / "cgroup.procs").read_text, lambda text: not text)
            place.rmdir()


@contextlib.contextmanager
def limited(*controllers: str) -> Iterator[Limits]:
    """Have a cgroup that nothing is in yet."""
    limits = Limits(f"rdm-test-{os.getpid()}-{time.time_ns()}", *controllers)
    try:
        yield limits
    finally:
        limits.remove()


@contextlib.contextmanager
def first_of_all() -> Iterator[Limits]:
    """Let this process, and all that it starts meanwhile, come first on this machine."""
    top = CGROUPS if _IS_NEW else CGROUPS / "cpu"
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    before = next(path for _, names, path in lines if names == ("" if _IS_NEW else "cpu"))
    with limited("cpu") as limits:
        # Not what it has started: a forkserver of other tests stays.
        limits.take(os.getpid())
        try:
            yield limits
        finally:
            (top / before.strip("/") / "cgroup.procs").write_text(str(os.getpid()))
