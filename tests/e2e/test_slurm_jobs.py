# SPDX-License-Identifier: GPL-3.0-or-later
"""A training job through a lab's Slurm with accounting: the tiny GPT on two nodes, and refused jobs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import tuning
from tests.e2e.product import ROOT, changed, problems
from tests.e2e.slurm_lab import NODES, USER, SlurmLab
from tests.printed_hints import follow
from trainer.tests.waiting import wait_until

pytestmark = pytest.mark.long

CONFIG = ROOT / "trainer/configs/demo.yaml"
OPTIONS = (
    "launcher.slurm.partition=gpu2",
    "launcher.slurm.mem=2G",
    "launcher.slurm.gres=gpu:a10:4",
    "launcher.nodes=2",
    "launcher.devices_per_node=1",
    "logging.interval=1",
    "data.mock=true",
    "data.blend=[]",
)
"""Two nodes of the lab, which has no data."""
PEFT = "/shared/python/lib/python3*/site-packages/peft*"
"""A package that only a fine-tuning needs."""


@pytest.fixture(scope="module")
def trained(slurm: SlurmLab) -> SlurmLab:
    """The lab with the environment of its jobs, made as docs/slurm.md says."""
    slurm.json("env", "up")
    slurm.idle()
    return slurm


def job(lab: SlurmLab, name: str) -> dict[str, Any]:
    """Return the job in ``jobs NAME --json``."""
    found = json.loads(lab.rdm("jobs", name, "--json").stdout)
    (one,) = found["jobs"]
    return dict(one)


def wait_for_state(lab: SlurmLab, name: str, *states: str) -> dict[str, Any]:
    return wait_until(f"{name} is {states}", lambda: job(lab, name), lambda found: found["state"] in states)


def number(lab: SlurmLab, name: str) -> str:
    return str(json.loads(lab.user("cat", f"jobs/{name}/slurm.json"))["job"])


def train(lab: SlurmLab, name: str, *more: str) -> None:
    lab.rdm("train", str(CONFIG), "--launcher", "slurm", "--name", name, "--detach", *OPTIONS, *more)


def test_job_is_stopped_with_a_checkpoint_and_resumes_in_another_layout(trained: SlurmLab) -> None:
    train(trained, "tiny", "optimisation.train_iterations=2000")
    wait_until("it trains", lambda: job(trained, "tiny"), lambda tiny: tiny["iteration"] > 0)
    trained.ends(number(trained, "tiny"), "RUNNING")
    # The output of a rank is in the log a moment later.
    logs = ("logs", "tiny", "--tail", "0")
    wait_until("the log tells of steps", lambda: "iteration" in trained.rdm(*logs).stdout)
    # It waits for the nodes of the first job.
    train(trained, "waits")
    queued = job(trained, "waits")
    assert (queued["state"], "in the queue" in queued["reason"]) == ("queued", True)
    trained.rdm("stop", "waits")
    trained.rdm("stop", "tiny")
    stopped = job(trained, "tiny")
    assert (stopped["state"], stopped["reason"]) == ("stopped", "It saved and ended, as requested.")
    assert stopped["checkpoint"] == stopped["iteration"]
    end = stopped["iteration"] + 5
    # Two replicas until now, and two stages from here on.
    goes_on = (f"optimisation.train_iterations={end}", "parallel.pipeline=2")
    trained.rdm("train", "--resume", "tiny", "--detach", *goes_on)
    finished = wait_for_state(trained, "tiny", "finished", "failed")
    assert (finished["state"], finished["iteration"]) == ("finished", end)
    trained.ends(number(trained, "tiny"))


def test_user_who_cancelled_a_job_is_named(trained: SlurmLab) -> None:
    train(trained, "other", "optimisation.train_iterations=2000")
    wait_for_state(trained, "other", "running")
    trained.on("n1", "scancel", number(trained, "other"))
    stopped = wait_for_state(trained, "other", "stopped", "failed")
    assert "not by rdm-provision stop" in stopped["reason"]
    trained.ends(number(trained, "other"), "CANCELLED")


def test_states_are_known_while_accounting_is_down(trained: SlurmLab) -> None:
    trained.on("n1", "pkill", "-x", "slurmdbd")
    try:
        # It writes its data before it ends.
        wait_until("slurmdbd has ended", lambda: not trained.on("n1", "pidof", "slurmdbd", check=False))
        train(trained, "blind", "optimisation.train_iterations=2000")
        wait_for_state(trained, "blind", "running")
        trained.on("n1", "scancel", number(trained, "blind"))
        stopped = wait_for_state(trained, "blind", "stopped", "failed")
        assert "It was cancelled by somebody, not by rdm-provision stop" in stopped["reason"]
    finally:
        trained.json("slurm", "up")
    assert "slurmdbd" in trained.on("n1", "ps", "-e", "-o", "comm")


def test_a_fine_tuning_has_the_losses_of_one_process(trained: SlurmLab) -> None:
    runtime = (trained.user, "/shared/python/bin/python", "/shared/jobs")
    file = trained.product.directory / "tune.json"
    file.write_text(json.dumps(tuning.CONFIG), encoding="utf-8")
    trained.on("n1", "sh", "-c", f"rm -r {PEFT}")
    result = trained.json("train", str(file), "--launcher", "slurm", "--name", "tuned", expect=2)
    # One node makes it on the shared disk.
    assert changed(follow(problems(result), "env up", trained.json)) == [*NODES]
    tuning.made(*runtime)
    expected = tuning.alone(*runtime)
    data = [one for one in OPTIONS if not one.startswith("data.")]
    trained.rdm("train", str(file), "--launcher", "slurm", "--name", "tuned", "--detach", *data)
    result = wait_for_state(trained, "tuned", "finished", "failed")
    assert (result["state"], result["iteration"]) == ("finished", len(expected)), result
    assert dict(result["losses"]) == pytest.approx(expected, rel=1e-3)
    assert trained.there("n1", "/shared/jobs/tuned/model/model.safetensors")


ACCOUNT = "physics"
MORE = "request no more, or Slurm lets it wait for ever."


def sacctmgr(lab: SlurmLab, *words: str, check: bool = True) -> None:
    lab.on("n1", "sacctmgr", "--immediate", "--quiet", *words, check=check)


@pytest.fixture
def enforced(trained: SlurmLab) -> Iterator[SlurmLab]:
    """The lab with a Slurm that enforces its accounting, in which there is no account yet."""
    options = {**trained.variables()["slurm_options"], "AccountingStorageEnforce": "associations,limits,qos"}
    trained.json("slurm", "up", "-e", json.dumps({"slurm_options": options}))
    try:
        yield trained
    finally:
        trained.idle()
        for words in (["user", USER], ["account", ACCOUNT], ["qos", "long"]):
            sacctmgr(trained, "delete", *words, check=False)
        trained.json("slurm", "up")


def refused(lab: SlurmLab, *more: str) -> list[str]:
    """Why a job of two nodes is refused; nothing is in the queue or on the disk then."""
    words = ("--launcher", "slurm", "--name", "refused", "--detach", *OPTIONS, *more)
    result = lab.json("train", str(CONFIG), *words, expect=2)
    assert lab.user("squeue", "--noheader") == ""
    assert not lab.there("n1", "/shared/jobs/refused")
    return [problem["reason"] for problem in result["problems"]]


def waits(lab: SlurmLab, why: str, *options: str) -> None:
    """Submit a job without our checks, and wait until Slurm holds it for this reason."""
    number = lab.sbatch("true", "-pgpu2", *options)

    def reported() -> str:
        return lab.user("squeue", "--noheader", "--format=%T %r", f"--jobs={number}").strip()

    wait_until(f"job {number} waits: {why}", reported, lambda state: state == f"PENDING {why}")


def test_job_over_an_accounting_limit_is_refused(enforced: SlurmLab) -> None:
    assert refused(enforced) == [
        f"Slurm takes jobs only of users who have an account, and {USER} has none on the cluster "
        f"{enforced.name}; whoever runs it adds one with: sacctmgr add user {USER} account=ACCOUNT."
    ]

    sacctmgr(enforced, "add", "account", ACCOUNT)
    sacctmgr(enforced, "add", "user", USER, f"account={ACCOUNT}")
    sacctmgr(enforced, "add", "qos", "long")
    account = "launcher.slurm.account"
    assert refused(enforced, f"{account}=phisics") == [
        f"{account} phisics is none of yours; did you mean {ACCOUNT}?"
    ]
    assert refused(enforced, "launcher.slurm.qos=long") == [
        f"Account {ACCOUNT} may not use the QOS long; there is normal."
    ]
    assert refused(enforced, "launcher.slurm.qos=lang") == ["Slurm has no QOS lang; did you mean long?"]

    limits = ("maxnodes=1", "maxwall=01:00:00")
    sacctmgr(enforced, "modify", "user", USER, "set", *limits)
    few = f"The job requests 2 nodes, and a job of account {ACCOUNT} may have 1 (MaxTRES): {MORE}"
    time = "launcher.slurm.time"
    assert refused(enforced) == [few]
    long = f"{time} 02:00:00 is more than the 01:00:00 of your jobs of account {ACCOUNT} (MaxWall): {MORE}"
    assert refused(enforced, f"{time}=02:00:00", "launcher.nodes=1") == [long]
    assert refused(enforced, f"{time}=02:00:00") == [long, few]

    # Without our checks these jobs would wait, as the refusals say, and they do.
    waits(enforced, "AssocMaxNodePerJobLimit", "-N2", "-t10")
    waits(enforced, "AssocMaxWallDurationPerJobLimit", "-N1", "-t120")
    enforced.idle()

    # A job within the limits is accepted.
    train(enforced, "allowed", "launcher.nodes=1", f"{time}=00:30:00")
    assert job(enforced, "allowed")["state"] in ("queued", "starting", "running", "finished")
    enforced.rdm("stop", "allowed", "--now")
