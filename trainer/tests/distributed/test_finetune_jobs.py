# SPDX-License-Identifier: GPL-3.0-or-later
"""Fine-tunings as jobs: with agents, in Slurm, and with members that know no inventory."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdm_log.report.write import write
from tests.distributed.environments import Agents, Environment, InSlurm, wait_for_state
from tests.distributed.finetuning import finetunings, losses
from tests.distributed.members import Members, codes
from tests.distributed.nodes import Nodes, running
from tests.waiting import wait_until

pytestmark = pytest.mark.long

STEPS = 30
CONFIG: dict[str, Any] = {
    "workload": "finetune",
    "data": {"max_length": 64},
    "optimisation": {"train_iterations": STEPS, "global_batch_size": 8, "precision": "fp32", "lr": 1e-2},
    "logging": {"interval": 1, "tensorboard": False},
    "checkpoint": {"interval": 2},
    "evaluation": {"interval": 0},
    "launcher": {"env": {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[int, float]]:
    """A fine-tuning of a tiny model, and its losses in one process."""
    directory = tmp_path_factory.mktemp("tiny")
    config = {
        **CONFIG,
        "model": {"path": str(directory / "model")},
        "data": {**CONFIG["data"], "train": [str(directory / "train.jsonl")]},
    }
    (directory / "tune.yaml").write_text(json.dumps(config))
    with finetunings(directory) as tuning:
        code, _, errors = tuning.run("alone", "zero.stage=0", "optimisation.micro_batch_size=8")
    assert code == 0, errors
    return config, losses(directory / "alone")


@pytest.fixture(params=["agents", "slurm"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Environment]:
    if request.param == "agents":
        with running(Nodes(tmp_path)) as nodes:
            yield Agents(nodes)
    else:
        yield InSlurm(request.getfixturevalue("slurm"))


def test_killed_rank_costs_a_restart_and_losses_stay_the_same(
    environment: Environment, tiny: tuple[dict[str, Any], dict[int, float]]
) -> None:
    config, expected = tiny
    job = f"tuned-{environment.kind}"
    own = {**config, "name": job, "launcher": {**config["launcher"], "kind": environment.kind}}
    environment.submit(job, "launcher.max_restarts=1", config=json.dumps(own))

    def checkpoint() -> int:
        file = environment.directories(job)[0] / "progress.json"
        return int(json.loads(file.read_text()).get("checkpoint") or 0) if file.exists() else 0

    wait_until(f"{job} has a checkpoint", checkpoint, lambda step: step > 0)
    (record,) = (path for where in environment.directories(job) for path in where.glob("ranks/*/1.json"))
    os.kill(int(json.loads(record.read_text())["pid"]), signal.SIGKILL)
    report = wait_for_state(environment, job, "finished", "failed")
    assert (report["state"], report["restarts"]) == ("finished", 1), report
    assert report["progress"]["tokens_per_second"] > 0
    # For steps of both attempts, the losses are the last attempt's.
    assert dict(report["progress"]["losses"]) == pytest.approx(expected, rel=1e-3)
    first = environment.directories(job)[0]
    assert (first / "model/model.safetensors").is_file()
    (page,) = write([first], environment.folder / "page.html")
    assert page.verdict().word == "finished"


def test_rendezvous_members_have_the_losses_of_one_process(
    tiny: tuple[dict[str, Any], dict[int, float]],
    members: Members,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config, expected = tiny
    for name, value in config["launcher"]["env"].items():
        monkeypatch.setenv(name, value)
    (tmp_path / "tune.yaml").write_text(json.dumps({**config, "zero": {"stage": 2}}))
    command = ["finetune", str(tmp_path / "tune.yaml")]
    launcher = members.start("n0", command, "--gpus-per-node", "2", count=2)
    worker = members.start("n1", command, "--gpus-per-node", "2")
    assert codes(launcher, worker) == [0, 0], members.log("n0") + members.log("n1")
    job = tmp_path / "jobs/test"
    assert losses(job) == pytest.approx(expected, rel=1e-3)
    assert (job / "model/model.safetensors").is_file()
