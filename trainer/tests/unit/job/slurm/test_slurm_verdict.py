# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a Slurm job without agents: it waits for a reason, or has ended."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from rdm_core import config as configuration
from rdm_core.errors import TrainerError
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Request, State
from rdm_job.rendezvous.transports import FileServer
from rdm_job.slurm import commands, verbs, view
from rdm_job.slurm.commands import SlurmError
from rdm_job.slurm.script import RUN_VARIABLE
from rdm_job.slurm.states import SlurmJob
from rdm_job.slurm.step import again, refuse


@pytest.mark.parametrize(
    ("seen", "word", "words"),
    [
        (
            SlurmJob(7, 7, "PENDING", reason="Resources", partition="gpu"),
            "starting",
            "It waits in partition gpu",
        ),
        (SlurmJob(7, 7, "CONFIGURING", flags=("CONFIGURING",)), "starting", "Its nodes are being prepared."),
        (SlurmJob(7, 7, "TIMEOUT"), "failed", "It reached its time limit"),
    ],
)
def test_the_verdict_has_slurm_s_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: SlurmJob, word: str, words: str
) -> None:
    job = JobDirectory(tmp_path / "gpt", "login")
    job.make(Request("gpt", "login", (Node("login", "127.0.0.1", 1),)))
    # It has been requeued: its progress is from an earlier run.
    job.write_state(State("gpt", "queued", launcher="slurm", started=5.0, progress={"iteration": 40}))
    job.slurm.write_text(json.dumps({"job": 7}))
    monkeypatch.setattr(commands, "queue", lambda: [seen])
    monkeypatch.setattr(commands, "recorded", lambda number: None)
    found = verbs.state(job).verdict
    assert found["verdict"] == word
    assert found["reason"].startswith(words)


@pytest.mark.parametrize("skew", [-9999.0, 9999.0])
def test_final_state_is_waited_for_by_the_waiting_hosts_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    job = JobDirectory(tmp_path / "gpt", "login")
    job.make(Request("gpt", "login", (Node("login", "127.0.0.1", 1),)))
    job.write_state(State("gpt", "running", launcher="slurm", started=5.0))
    job.slurm.write_text(json.dumps({"job": 7}))
    now = time.time() + 60
    monkeypatch.setattr(time, "time", lambda: now)
    end = now + skew
    monkeypatch.setattr(commands, "queue", lambda: [SlurmJob(7, 7, "COMPLETED", end=end)])
    found_states = []
    for passed in (0, view.LATE_S - 1, 2):
        now += passed
        found_states.append(verbs.state(job).state)
    assert found_states == ["running", "running", "failed"]
    # It has been requeued, and ends a second time.
    job.write_state(State("gpt", "running", launcher="slurm", started=5.0))
    now, end = now + 60, end + 60
    assert verbs.state(job).state == "running"


def test_unreachable_slurm_is_queried_once_for_all_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = []

    def silent() -> list[SlurmJob]:
        queries.append("queue")
        raise SlurmError("Connection refused.")

    monkeypatch.setattr(commands, "queue", silent)
    jobs = [JobDirectory(tmp_path / name, "login") for name in ("one", "two", "three")]
    for job in jobs:
        job.make(Request(job.path.name, "login", (Node("login", "127.0.0.1", 1),)))
        job.write_state(State(job.path.name, "queued", launcher="slurm", started=5.0))
        job.slurm.write_text(json.dumps({"job": 7}))
    # Its agents have just written its state.
    jobs[2].write_state(State("three", "running", launcher="slurm", started=5.0))
    silence = "Slurm does not answer: Connection refused."
    assert [(one.state, one.reason) for one in verbs.states(jobs)] == [
        ("queued", silence),
        ("queued", silence),
        ("running", ""),
    ]
    assert queries == ["queue"]


def test_a_job_that_is_being_submitted_is_not_evaluated_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    job = JobDirectory(tmp_path / "gpt", "login")
    request = Request("gpt", "login", (Node("login", "127.0.0.1", 1),))
    monkeypatch.setattr(commands, "queue", list)
    monkeypatch.setattr(commands, "recorded", lambda number: None)
    found_states = []

    def submit(*_: object) -> int:
        found_states.append(verbs.state(job).state)
        with pytest.raises(TrainerError, match="is being submitted"):
            verbs.stop(job, now=True, timeout=300.0)
        return 7

    monkeypatch.setattr(commands, "submit", submit)
    config = configuration.from_dict({"launcher": {"kind": "slurm"}})
    # The files of another job that had the same id.
    (job.path / "nodes/7.0").mkdir(parents=True)
    reply = verbs.start(job, request, config)
    assert (reply["started"], reply["job"]["job"], reply["job"]["state"]) == (True, "gpt", "queued")
    assert found_states == ["queued"]
    assert not (job.path / "nodes").exists()
    # The submitting process was killed.
    job.slurm.write_text(json.dumps({"job": 0}))
    os.utime(job.slurm, (1.0, 1.0))
    found = verbs.state(job)
    assert (found.state, found.reason) == ("failed", "It was not submitted: whoever did it was ended.")


def test_job_whose_agents_never_started_is_not_requeued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_VARIABLE, "7.0")
    monkeypatch.setenv("SLURM_PROCID", "1")
    job = JobDirectory(tmp_path / "gpt", "login")
    job.make(Request("gpt", "login", (Node("login", "127.0.0.1", 1),)))
    job.write_resolved(configuration.dump(configuration.from_dict({"launcher": {"max_restarts": 1}})))
    job.write_state(State("gpt", "queued", launcher="slurm"))
    assert not again(job.path)
    # Its image does not run on one of the nodes: a restart would not help, and would not be counted.
    refuse(job.path, "n2 has no image.")
    assert not again(job.path)
    FileServer(job.path / "nodes/7.0", 2).send({"type": "start"})
    assert again(job.path)


def test_missing_library_is_reported_before_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    monkeypatch.setattr(commands, "is_there", lambda: False)
    request = Request("gpt", "login", (Node("login", "127.0.0.1", 1),))

    def is_reported(**launcher: Any) -> bool:
        options = {"data": {"mock": True}, "logging": {"trackers": ["wandb"]}}
        config = configuration.from_dict({**options, "launcher": {"kind": "slurm", **launcher}})
        return any("wandb, which is not installed" in one for one in verbs.check(request, config)["problems"])

    assert is_reported()
    # The packages in an image are unknown here.
    assert not is_reported(slurm={"image": "/i/x.sqsh"})
