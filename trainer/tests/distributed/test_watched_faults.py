# SPDX-License-Identifier: GPL-3.0-or-later
"""Faults that are planted in a training of two nodes with real agents: each is named, with node and rank.

What the processes run is our trainer, with a model whose forward sleeps when it is told to.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdm_job.directory import JobDirectory
from tests.distributed.nodes import Nodes, running
from tests.waiting import wait_until

PROGRAM = """
import os, pathlib, sys, time

from rdm_trainer.cli import main
from rdm_trainer.engine import Engine

rank, place = int(os.environ["RANK"]), pathlib.Path(sys.argv.pop(1))
(place / f"{os.environ['RDM_JOB_ID'].partition('@')[0]}.{rank}.{os.environ['RDM_ATTEMPT']}").touch()
made = Engine.__init__


def init(self, config, topology, **more):
    tell = more.pop("on_loss")

    def on_loss(loss):
        tell(loss * float("nan") if (place / f"nan.{rank}").exists() else loss)

    made(self, config, topology, on_loss=on_loss, **more)
    self.deepspeed.module.register_forward_pre_hook(
        lambda *_: time.sleep(0.8 if (place / f"slow.{rank}").exists() else 0)
    )


Engine.__init__ = init
main()
"""
KINDS = ("slow", "nan")
CONFIGURATION = {
    "name": "tiny",
    "model": {"layers": 2, "hidden_size": 64, "attention_heads": 2, "seq_length": 64, "vocab_size": 90},
    "optimisation": {
        "micro_batch_size": 1,
        "global_batch_size": 4,
        "train_iterations": 1000000,
        "precision": "fp32",
        "lr": 1e-4,
    },
    "data": {"mock": True, "workers": 0},
    "logging": {"interval": 1, "eval_interval": 0, "tensorboard": False},
    "checkpoint": {"interval": 0},
}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    made.program += ["train", str(tmp_path / "tiny.json"), "--job-dir", str(tmp_path / "trained")]
    (tmp_path / "tiny.json").write_text(json.dumps(CONFIGURATION))
    (tmp_path / "program.py").write_text(PROGRAM)
    with running(made) as nodes:
        yield nodes


def test_who_is_slow_and_whose_loss_is_no_number_is_named(nodes: Nodes) -> None:
    job = "watched"
    nodes.run(job)
    master = JobDirectory(nodes.folder / "n1" / job, "n1")
    seen: list[dict[str, Any]] = []

    def judged(word: str, culprit: dict[str, Any] | None = None) -> dict[str, Any]:
        def look() -> dict[str, Any]:
            seen.append(master.read_state().verdict)
            return seen[-1]

        def accept(found: dict[str, Any]) -> bool:
            return found.get("verdict") == word and (culprit is None or culprit in found["culprits"])

        return wait_until(f"{job} is {word}", look, accept)

    judged("healthy")
    (nodes.folder / "slow.1").touch()
    slow = judged("suspect", {"kind": "slow", "node": "n2", "rank": 1})
    planted = [
        one for found in [*seen[:-1], slow] for one in found.get("culprits", ()) if one["kind"] in KINDS
    ]
    # Until it is sure, it says nothing. What else is said is of this machine, which others use.
    assert len(planted) == 1, planted
    (nodes.folder / "nan.0").touch()
    judged("suspect", {"kind": "nan", "node": "n1", "rank": 0})
    assert nodes.ask("n1", "stop", job, "--now")["stopped"]
    assert nodes.ended(job)["verdict"]["verdict"] == "finished"
