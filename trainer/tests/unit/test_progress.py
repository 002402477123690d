# SPDX-License-Identifier: GPL-3.0-or-later
"""The progress file is complete at every moment, and small however long the training is."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from rdm_core.progress import POINTS, Progress, thin


@given(st.integers(0, 2000), st.integers(2, 400))
def test_thinning_keeps_the_ends_and_the_order(length: int, most: int) -> None:
    curve = [[float(i), 1.0] for i in range(length)]
    thinned = thin(curve, most)
    assert len(thinned) == min(length, most)
    assert thinned == sorted(thinned)
    if length:
        assert thinned[0] == curve[0]
        assert thinned[-1] == curve[-1]


def test_the_file_stays_small_and_has_the_last_point(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "job" / "progress.json", 5000)
    for iteration in range(1, 5001):
        progress.add_loss(iteration, 1.0 / iteration)
    progress.write(iteration=5000, phase="training")
    state = json.loads((tmp_path / "job" / "progress.json").read_text())
    assert state["iteration"] == 5000
    assert state["phase"] == "training"
    assert len(state["losses"]) == POINTS
    assert state["losses"][-1] == [5000, 1.0 / 5000]
    assert [path.name for path in (tmp_path / "job").iterdir()] == ["progress.json"]


def test_resuming_drops_progress_after_the_checkpoint(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress.json", 10)
    progress.begin(4, [[2, 5.0], [4, 4.0], [6, 3.0]])
    progress.write()
    assert json.loads((tmp_path / "progress.json").read_text())["losses"] == [[2, 5.0], [4, 4.0]]


def test_refused_run_keeps_the_recorded_progress(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "progress.json", 10)
    progress.add_loss(1, 5.0)
    progress.write(iteration=1, checkpoint=1, validation={"loss": float("nan")})
    Progress(tmp_path / "progress.json", 10).write(phase="starting")
    state = json.loads((tmp_path / "progress.json").read_text())
    assert state["losses"] == [[1, 5.0]]
    assert state["checkpoint"] == 1
    assert state["validation"] == {"loss": None}
    assert state["phase"] == "starting"


def test_unwritable_directory_does_not_stop_the_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Progress(tmp_path / "file" / "progress.json", 10).write()
