# SPDX-License-Identifier: GPL-3.0-or-later
"""Ranks wait for index maps that take long, and report those that fail."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rdm_core.errors import TrainerError
from rdm_trainer.data.index_maps import files, maker
from rdm_trainer.data.index_maps.maker import MapMaker, Progress

Arrays = Iterator[tuple[Path, np.ndarray]]


def fine() -> None:
    """Find nothing wrong."""


def test_slow_map_is_reported_and_complete_map_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker, "LOG_EVERY_S", 0.0)
    lines: list[str] = []
    is_logged = threading.Event()

    def build(progress: Progress) -> Arrays:
        yield tmp_path / "a.npy", np.arange(3)
        progress(0.5)
        assert is_logged.wait(60)
        raise TrainerError("the split holds no token.")

    def wait_until(done: Callable[[float], bool]) -> None:
        while not done(0.05):
            if any("50%" in line for line in lines):
                is_logged.set()

    with pytest.raises(TrainerError, match=r"^corpus, split train: the split holds no token\.$"):
        MapMaker(wait_until=wait_until, log=lines.append).make(
            "corpus, split train", [tmp_path / "a.npy", tmp_path / "b.npy"], build, fine
        )
    assert lines[-1].startswith("making the index map of corpus, split train: 50% after ")
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2]


@pytest.mark.parametrize("leads", [True, False])
def test_writer_makes_the_map_without_collectives_in_between(tmp_path: Path, leads: bool) -> None:
    path, go, calls = tmp_path / "map.npy", threading.Event(), list[object]()

    def build(_: Progress) -> Arrays:
        go.wait()
        yield path, np.arange(5)

    def wait_until(done: Callable[[float], bool]) -> None:
        calls.append(done(0.01))
        go.set()
        while not done(1.0):
            pass
        calls.append(path.exists())

    def first_error(error: str | None) -> str | None:
        calls.append(error)
        return error

    def check() -> None:
        calls.append("checked")

    maps = MapMaker(leads=lambda _: leads, wait_until=wait_until, first_error=first_error)
    maps.make("corpus", [path], build, check)
    # A process that does not make the map does not wait by itself: wait_until does, for all.
    assert calls == ([False, "checked", True, None] if leads else [True, False, None])


def test_error_of_the_writer_is_raised_by_the_others(tmp_path: Path) -> None:
    def build(_: Progress) -> Arrays:
        raise AssertionError("this process writes none")

    with pytest.raises(TrainerError, match="disk full"):
        MapMaker(leads=lambda _: False, first_error=lambda _: "rank 0: disk full").make(
            "x", [tmp_path / "x"], build, fine
        )


def test_a_directory_that_cannot_be_written_is_refused_before_the_work() -> None:
    path = Path("/proc/maps/map.npy")

    def build(_: Progress) -> Arrays:
        raise AssertionError("this would be for nothing")

    message = rf"^corpus: {path} cannot be written \(No such file or directory\): give data\.index_cache "
    with pytest.raises(TrainerError, match=message):
        MapMaker().make("corpus", [path], build, fine)


def test_a_read_only_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    # Such a file system rejects the removal even of a file that does not exist.
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(TrainerError, match=r"written \(Read-only file system\): give data\.index_cache"):
        files.save(tmp_path / "map.npy", np.arange(3))


def test_two_writers_with_one_process_number_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in two containers on one file system: the second begins and ends while the first is writing.
    path, fsync = tmp_path / "map.npy", os.fsync

    def second(descriptor: int) -> None:
        monkeypatch.setattr(os, "fsync", fsync)
        files.save(path, np.arange(9))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", second)
    files.save(path, np.arange(3))
    assert np.load(path).tolist() == [0, 1, 2]
    assert list(tmp_path.iterdir()) == [path]
