# SPDX-License-Identifier: GPL-3.0-or-later
"""Many files, read by several processes."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from rdm_log import parallel


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Two processors, and no threads of other tests; returns the numbers of processes started."""
    started: list[int] = []
    real = parallel._processes

    def make(workers: int) -> ProcessPoolExecutor:
        started.append(workers)
        return real(workers)

    monkeypatch.setattr(parallel, "_processes", make)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("threading.active_count", lambda: 1)
    return started


def _length(reader: int, path: Path) -> int:
    if path.name == "77" and os.getpid() == reader:
        raise OSError
    return len(path.name)


def _length_or_death(reader: int, path: Path) -> int:
    if path.name == "77" and os.getpid() != reader:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(path.name)


@pytest.mark.parametrize("length", [_length, _length_or_death])
def test_many_files_are_read_by_several_processes_or_by_one_when_another_is_killed(
    processes: list[int], length: Callable[[int, Path], int]
) -> None:
    paths = [Path(str(number)) for number in range(200)]
    found = parallel.of_each(functools.partial(length, os.getpid()), paths)
    assert found == [len(path.name) for path in paths]
    assert processes == [2]
