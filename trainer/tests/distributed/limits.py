# SPDX-License-Identifier: GPL-3.0-or-later
"""Limits on processes' use of this machine, by cgroups of both versions; tests must run as root."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.waiting import wait_until

__all__ = ["Delays", "Limits", "limited", "with_precedence"]

CGROUPS = Path("/sys/fs/cgroup")
_IS_NEW = (CGROUPS / "cgroup.controllers").exists()


class Delays(NamedTuple):
    """How long threads did not run, in seconds.

    Attributes:
        threads: Each thread's time ready but waiting: for other work, or because of its own limit.
        throttled: All threads' time throttled by their limit, on all processors together.
        at: When this was read.
    """

    threads: dict[str, float]
    throttled: float
    at: float


class Limits:
    """A cgroup for processes: in version 2 below the root, in version 1 below each controller's root.

    Other work on this machine is no planted fault: within its limits, the cgroup's processes come first.

    Args:
        name: The cgroup's name.
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
        """Put a process, and everything that it starts from now on, into the cgroup."""
        # It may have ended meanwhile.
        with contextlib.suppress(ProcessLookupError):
            for place in self._places:
                (place / "cgroup.procs").write_text(str(process))

    def take_all(self, process: int) -> None:
        """Put a process, and everything that it has started, into the cgroup."""
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
        """Return how long its threads did not run, until now.

        Source: the second field of ``schedstat`` (Documentation/scheduler/sched-stats.rst).
        """
        threads = {}
        for process in (self._places[0] / "cgroup.procs").read_text().split():
            for task in Path("/proc", process, "task").glob("*/schedstat"):
                with contextlib.suppress(OSError):
                    threads[task.parent.name] = int(task.read_text().split()[1]) / 1e9
        stat = dict(line.split() for line in (self._places[0] / "cpu.stat").read_text().splitlines())
        throttled = int(stat["throttled_usec"]) / 1e6 if _IS_NEW else int(stat["throttled_time"]) / 1e9
        return Delays(threads, throttled, time.monotonic())

    def delayed_since(self, before: Delays) -> float:
        """Return the most seconds that other work kept one of its threads from a processor.

        Time that its own limit may explain is subtracted, so this is too low for an often throttled cgroup.
        """
        now = self.delays()
        both = now.threads.keys() & before.threads.keys()
        most = max((now.threads[task] - before.threads[task] for task in both), default=0.0)
        return max(0.0, most - min(now.throttled - before.throttled, now.at - before.at))

    def remove(self) -> None:
        """Remove it once it is empty."""
        for place in self._places:
            wait_until("it is empty", (place / "cgroup.procs").read_text, lambda text: not text)
            place.rmdir()


@contextlib.contextmanager
def limited(*controllers: str) -> Iterator[Limits]:
    """Provide an empty cgroup."""
    limits = Limits(f"rdm-test-{os.getpid()}-{time.time_ns()}", *controllers)
    try:
        yield limits
    finally:
        limits.remove()


@contextlib.contextmanager
def with_precedence() -> Iterator[Limits]:
    """Give this process, and everything that it starts meanwhile, precedence on this machine."""
    top = CGROUPS if _IS_NEW else CGROUPS / "cpu"
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    before = next(path for _, names, path in lines if names == ("" if _IS_NEW else "cpu"))
    with limited("cpu") as limits:
        # Not its existing children: other tests' forkserver stays where it is.
        limits.take(os.getpid())
        try:
            yield limits
        finally:
            (top / before.strip("/") / "cgroup.procs").write_text(str(os.getpid()))
