# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's reply with the sections of a job's logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rdm_core import config as configuration
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Request
from tests.unit.conftest import Program

CONFIG = """
name: demo
model: {layers: 4, hidden_size: 64, attention_heads: 4}
parallel: {tensor: 1, pipeline: 2, partition: 3-1}
optimisation: {global_batch_size: 8, train_iterations: 10}
data: {mock: true}
"""
STEP = " iteration       10/      10 | elapsed time per iteration (ms): 1409.8 | lm loss: 1.0E+00 |\n"


def test_a_job_in_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    monkeypatch.setenv("RDM_NODE", "n2")
    nodes = (Node("n1", "10.0.0.100", 2), Node("n2", "10.0.0.101", 2))
    job = JobDirectory(tmp_path / "demo-1", "n2")
    job.make(Request("demo-1", "n2", nodes, CONFIG))
    (tmp_path / "demo.yaml").write_text(CONFIG)
    resolved = configuration.load(tmp_path / "demo.yaml").resolved(4)
    job.write_resolved(configuration.dump(resolved))
    job.log("n2", "out").write_text(STEP)
    # The nodes may share the directory.
    job.log("n1", "out").write_text("n1 wrote this\n")
    answer = json.loads(program("job", "sections", "demo-1")[1])
    assert answer["ok"], answer
    out, _, _, info, times = answer["sections"]
    assert out["lines"] == [str(job.log("n2", "out")), f"==> {job.log('n2', 'out')} <==", STEP.rstrip("\n")]
    assert {"NODE_RANK: 1", "NNODES: 2", "WORLD_SIZE: 4", "DP_SIZE: 2", "PARTITION: 3-1"} <= set(
        info["lines"]
    )
    assert times["lines"] == ["iteration 10 : 1.4098 s", "debug?  : 0"]
