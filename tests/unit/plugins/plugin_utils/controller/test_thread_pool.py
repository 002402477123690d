"""Calls in threads: all run, never more at once than allowed, and none blocks the others forever."""

from __future__ import annotations

import contextvars
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import thread_pool as module
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.thread_pool import run_all

FOREVER = 3600.0


def test_each_call_is_made_and_reported_by_its_name() -> None:
    def fails() -> None:
        raise ValueError("no")

    outcomes = {
        one.name: one for one in run_all({"a": lambda: 1, "b": fails, "c": lambda: 3}.items(), 2, FOREVER)
    }
    assert {name: one.value for name, one in outcomes.items()} == {"a": 1, "b": None, "c": 3}
    assert [str(one.error) for one in outcomes.values() if one.error] == ["no"]


def test_there_may_be_nothing_to_call() -> None:
    assert list(run_all([], 4, FOREVER)) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_no_more_calls_than_threads_run_at_a_time(threads: int) -> None:
    lock = threading.Lock()
    full = threading.Barrier(threads)
    now, most = [], [0]

    def call(number: int) -> None:
        with lock:
            now.append(number)
            most[0] = max(most[0], len(now))
        full.wait(240)  # as many as are allowed do run
        with lock:
            now.remove(number)

    calls = {str(number): lambda number=number: call(number) for number in range(4 * threads)}
    assert sorted(one.name for one in run_all(calls.items(), threads, FOREVER)) == sorted(calls)
    assert most == [threads]


def test_programs_of_a_call_that_takes_too_long_are_ended_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "GRACE_S", FOREVER)
    started: dict[str, subprocess.Popen[bytes]] = {}

    def wait(name: str, *argv: str) -> int:
        time.sleep(0.5)  # as on a busy machine: it times out before it has a child process
        started[name] = subprocess.Popen(argv, stdin=subprocess.PIPE)
        return started[name].wait()

    ended = []
    with subprocess.Popen(["sleep", "3600"]) as other:  # of this thread, which is none of theirs
        for one in run_all([("late", lambda: wait("late", "sleep", "3600"))], 1, 0.1):
            ended.append((one.name, type(one.error)))
        assert other.poll() is None
        other.kill()
    assert ended == [("late", TimeoutError)]
    assert started["late"].wait() < 0


def test_a_call_that_cannot_be_ended_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.0)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    release = threading.Event()
    calls = [("stuck", release.wait), ("next", lambda: 1)]
    # Nothing but the first call lasts as long as the clock says.
    late = run_all(calls, 1, FOREVER, idle=lambda: setattr(clock, "now", 2 * FOREVER))
    results = {one.name: one for one in late}
    release.set()
    assert isinstance(results["stuck"].error, TimeoutError)
    assert results["next"].value == 1


def test_a_call_is_taken_when_a_thread_is_free() -> None:
    made: list[int] = []

    def calls() -> Iterator[tuple[str, Callable[[], int]]]:
        for number in range(6):
            made.append(number)
            yield str(number), lambda: len(made)

    assert [one.value for one in run_all(calls(), 1, FOREVER)] == [1, 2, 3, 4, 5, 6]


def test_calls_run_in_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("mine")
    assert [one.value for one in run_all([("a", variable.get)], 1, FOREVER)] == ["mine"]


def test_waiting_callback_runs_while_no_call_ends() -> None:
    release = threading.Event()
    assert [one.name for one in run_all([("slow", release.wait)], 1, FOREVER, idle=release.set)] == ["slow"]
