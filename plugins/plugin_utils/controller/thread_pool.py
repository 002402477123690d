# SPDX-License-Identifier: GPL-3.0-or-later
"""Run many calls in a bounded number of threads, each with a timeout."""

from __future__ import annotations

import contextlib
import contextvars
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

GRACE_S = 1.0
"""Seconds that a call may take to return after its child processes were ended, before it is abandoned."""
_POLL_S = 0.2

Call = Callable[[], Any]


class Outcome(NamedTuple):
    """How a call ended.

    Attributes:
        name: of the call.
        value: what it returned.
        error: what it raised instead; TimeoutError if it took too long.
    """

    name: str
    value: Any
    error: BaseException | None


class _Running:
    """A call in its thread."""

    def __init__(self, name: str, call: Call, done: queue.SimpleQueue[tuple[_Running, Outcome]]) -> None:
        self.name = name
        self.began = time.monotonic()
        self.late = False
        self._call = call
        self._done = done
        # A daemon thread: a call that never ends must not keep the process alive.
        self._thread = threading.Thread(target=contextvars.copy_context().run, args=(self._run,), daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            outcome = Outcome(self.name, self._call(), None)
        except BaseException as error:
            outcome = Outcome(self.name, None, error)
        self._done.put((self, outcome))

    def end(self) -> None:
        """End the child processes that the thread has started."""
        end_children(self._thread)


def end_children(thread: threading.Thread) -> None:
    """End the child processes that a thread of this process has started."""
    children = Path(f"/proc/self/task/{thread.native_id}/children")
    with contextlib.suppress(OSError):
        for pid in children.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGTERM)


def run_all(
    calls: Iterable[tuple[str, Call]], threads: int, timeout: float, idle: Callable[[], None] = lambda: None
) -> Iterator[Outcome]:
    """Yield the outcome of each call, as they end.

    Args:
        calls: names and calls; each is taken when a thread is free.
        threads: the most calls at the same time.
        timeout: seconds for each call. If a call takes longer, its child processes are ended; if it still
            does not return, it is abandoned with its thread.
        idle: called whenever no call has ended for a fifth of a second.
    """
    done: queue.SimpleQueue[tuple[_Running, Outcome]] = queue.SimpleQueue()
    waiting = iter(calls)
    running: set[_Running] = set()
    while True:
        for name, call in waiting if len(running) < threads else ():
            running.add(_Running(name, call, done))
            if len(running) >= threads:
                break
        if not running:
            return
        try:
            one, outcome = done.get(timeout=_POLL_S)
        except queue.Empty:
            idle()
        else:
            if one in running:
                running.remove(one)
                yield Outcome(one.name, None, TimeoutError()) if one.late else outcome
        now = time.monotonic()
        for one in [one for one in running if now - one.began > timeout]:
            if one.late and now - one.began > timeout + GRACE_S:
                running.remove(one)
                yield Outcome(one.name, None, TimeoutError())
            else:
                one.late = True
                # Repeated, since it may have started another process in the meantime.
                one.end()
