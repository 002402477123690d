# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints of a fine-tuning whose nodes have a directory each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from rdm_core.errors import TrainerError
from rdm_trainer.finetune.checkpoints import Checkpoints


class Alone:
    """A collective of one rank."""

    def gather(self, value: Any) -> list[Any]:
        return [value]

    def barrier(self) -> None:
        pass


def checkpoints(directory: Path, devices: int = 2) -> Checkpoints:
    collective = cast(Any, Alone())
    return Checkpoints(directory, collective, keep=1, writes=True, layout={"devices": devices})


def test_each_node_writes_deepspeeds_latest_file(tmp_path: Path) -> None:
    """DeepSpeed writes ``latest`` where rank 0 is, and reads it everywhere."""
    for step in (2, 4):
        (tmp_path / f"checkpoint-{step}" / f"global_step{step}").mkdir(parents=True)
        checkpoints(tmp_path).commit(step)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]
    assert (tmp_path / "checkpoint-4/latest").read_text() == "global_step4"
    assert checkpoints(tmp_path).newest() == tmp_path / "checkpoint-4"
    # It was not written to its end.
    (tmp_path / "checkpoint-6").mkdir()
    with pytest.raises(TrainerError, match="was written with devices 2, and this job has 4"):
        checkpoints(tmp_path, devices=4).newest()
    assert (tmp_path / "checkpoint-6").exists()
    assert checkpoints(tmp_path).newest() == tmp_path / "checkpoint-4"
    assert not (tmp_path / "checkpoint-6").exists()
