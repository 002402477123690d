# SPDX-License-Identifier: GPL-3.0-or-later
"""What two processes measure is what tune predicts from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml
from click.testing import CliRunner

from rdm_planner.profile import Profile
from rdm_trainer.cli import cli
from tests.waiting import DEADLINE_S

CONFIG = {
    "name": "tiny",
    "model": {
        "layers": 4,
        "hidden_size": 32,
        "attention_heads": 4,
        "seq_length": 16,
        "vocab_size": 98,
        "make_vocab_size_divisible_by": 8,
    },
    "optimisation": {
        "micro_batch_size": 2,
        "global_batch_size": 8,
        "train_iterations": 4,
        "precision": "fp32",
    },
    "data": {"mock": True},
}


def test_two_ranks_measure_layers_and_links(tmp_path: Path) -> None:
    job, file = tmp_path / "tiny.yaml", tmp_path / "cpu.json"
    job.write_text(yaml.safe_dump(CONFIG))
    arguments = ["profile", str(job), "--output", str(file), "--micro-batch", "2", "--blocks", "1", "2"]
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--log-dir",
        str(tmp_path),
    ]
    result = subprocess.run(
        [*launcher, "-m", "rdm_trainer", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    found = Profile.read(file)
    assert found.gpu == "cpu"
    assert found.links["within"].keys() == {"point_to_point", "all_reduce"}
    assert found.layers.keys() == {1, 2}
    for kinds in found.layers.values():
        assert kinds.keys() == {"Block", "Embedding", "Head"}
        assert all(points.keys() == {1, 2} for points in kinds.values())
    tuned = CliRunner().invoke(
        cli, ["tune", str(job), "--nodes", "1xcpu:2", "--profile", str(file), "--json"]
    )
    best = json.loads(tuned.output)["best"]
    assert {row["tensor"] for row in best} == {1, 2}
