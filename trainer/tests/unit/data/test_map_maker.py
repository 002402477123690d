# SPDX-License-Identifier: GPL-3.0-or-later
"""Index maps that take long, or fail, are waited for and told of."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rdm_trainer.data.index_maps import maker
from rdm_trainer.data.index_maps.maker import MapMaker, Progress
from rdm_trainer.errors import TrainerError

Arrays = Iterator[tuple[Path, np.ndarray]]


def fine() -> None:
    """Find nothing wrong."""


def test_what_takes_long_is_said_and_what_is_whole_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maker, "SAYS_EVERY_S", 0.0)
    lines: list[str] = []
    asked = threading.Event()

    def build(progress: Progress) -> Arrays:
        yield tmp_path / "a.npy", np.arange(3)
        progress(0.5)
        assert asked.wait(60)
        raise TrainerError("the split holds no token.")

    def wait_until(done: Callable[[float], bool]) -> None:
        while not done(0.05):
            if any("50%" in line for line in lines):
                asked.set()

    with pytest.raises(TrainerError, match=r"^corpus, split train: the split holds no token\.$"):
        MapMaker(wait_until=wait_until, say=lines.append).make(
            "corpus, split train", [tmp_path / "a.npy", tmp_path / "b.npy"], build, fine
        )
    assert lines[-1].startswith("making the index map of corpus, split train: 50% after ")
    assert np.load(tmp_path / "a.npy").tolist() == [0, 1, 2]


def test_another_process_error_is_ours(tmp_path: Path) -> None:
    def build(_: Progress) -> Arrays:
        raise AssertionError("this process writes none")

    with pytest.raises(TrainerError, match="disk full"):
        MapMaker(False, first_error=lambda _: "rank 0: disk full").make("x", [tmp_path / "x"], build, fine)
