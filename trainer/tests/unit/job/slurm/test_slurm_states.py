# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of jobs, from recorded output of Slurm 22.05 and 24.11."""

from __future__ import annotations

import dataclasses
import errno
import importlib.metadata
import json
import os
import platform
import re
import signal
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_core.errors import TrainerError
from rdm_job import agent
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Failure, Node, Request, State
from rdm_job.rendezvous.roster import Member
from rdm_job.rendezvous.transports import FileClient
from rdm_job.slurm import commands, reasons, states, step, view
from rdm_job.slurm.states import SlurmJob
from rdm_job.slurm.step import before_this_run
from rdm_job.versions import versions as here

RECORDS = Path(__file__).parent / "records"
NOW = 1795321900.0


def record(name: str) -> str:
    return (RECORDS / name).read_text(encoding="utf-8")


def seen_in(name: str, number: int) -> SlurmJob:
    found = states.the_job(states.of_json(record(name)), number)
    assert found is not None
    return found


def test_squeue_of_22_05() -> None:
    found = seen_in("squeue-22.05.json", 9)
    assert (found.state, found.reason, found.start) == ("PENDING", "BeginTime", 1795318838)
    assert seen_in("squeue-22.05.json", 4).state == "FAILED"
    both = seen_in("squeue-22.05.json", 7)
    assert (both.state, both.nodes) == ("COMPLETED", "hs1,hs[2-3]")


def test_sacct_of_22_05_says_who_cancelled_a_job() -> None:
    found = seen_in("sacct-het-cancel-22.05.json", 72)
    assert (found.state, found.by, found.has_ended) == ("CANCELLED", "rdm", True)
    assert seen_in("sacct-het-cancel-22.05.json", 70).nodes == "hs1,hs[2-3]"


@pytest.mark.parametrize("name", ["sacct-24.11.json", "scontrol-24.11.json"])
def test_a_heterogeneous_job_of_24_11_is_one_job(name: str) -> None:
    found = seen_in(name, 1)
    assert (found.state, found.nodes, found.code) == ("COMPLETED", "ht1,ht[2-3]", 0)
    assert found.start == 1795320464


def test_an_empty_queue() -> None:
    assert states.of_json(record("squeue-24.11.json")) == []


def test_24_11_has_states_and_flags_in_one_list() -> None:
    job = '{"jobs": [{"job_id": 7, "job_state": ["RUNNING", "COMPLETING"], "priority": {"set": false}}]}'
    (found,) = states.of_json(job)
    assert (found.state, found.flags, found.priority, found.leader) == ("RUNNING", ("COMPLETING",), 0, 7)


def test_text_output_is_read_without_json() -> None:
    text = (
        "73|PENDING|gpu2||2026-11-22T05:00:00|12|1:00|Resources\n"
        "70+0|RUNNING|hgx|hs1|2026-11-22T04:30:42|9|1:00|None\n"
        "70+1|RUNNING|gpu2|hs[2-3]|2026-11-22T04:30:42|9|1:00|None\n"
        "10_[1-3]|PENDING|all||N/A|1|1:00|Priority\n"
        "99|COMPLETING|gpu2|hs2|N/A|1|1:00|None\nnonsense\n"
    )
    found = states.of_queue_text(text)
    assert [(one.job, one.leader, one.state) for one in found] == [
        (73, 73, "PENDING"),
        (70, 70, "RUNNING"),
        (71, 70, "RUNNING"),
        (99, 99, "RUNNING"),
    ]
    assert found[0].reason == "Resources"
    assert found[-1].flags == ("COMPLETING",)
    (ended,) = states.of_account_text(
        "5|CANCELLED by 1000|gpu2|None assigned|0:0|Unknown|Unknown\n5.0|COMPLETED|||0:0||"
    )
    assert (ended.state, ended.by, ended.nodes, ended.start) == ("CANCELLED", "1000", "", None)
    (killed,) = states.of_account_text(
        "39|OUT_OF_MEMORY|all|hs1|0:125|2026-11-22T04:30:42|2026-11-22T04:31:02"
    )
    assert (killed.state, killed.signal) == ("OUT_OF_MEMORY", 125)
    assert (killed.start, killed.end) != (None, None)
    assert (killed.end or 0) - (killed.start or 0) == 20


@given(st.text() | st.just('{"jobs": 1}') | st.just("[]"))
def test_json_without_a_list_of_jobs_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        states.of_json(text)


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    states.of_queue_text(text)
    states.of_account_text(text)


def waiting(job: int, priority: int = 1, partition: str = "gpu2") -> SlurmJob:
    return SlurmJob(job, job, "PENDING", reason="Priority", partition=partition, priority=priority)


def test_the_position_in_the_queue_is_by_priority_and_then_by_age() -> None:
    queue = [waiting(1, 5), waiting(2, 5), waiting(3, 9), waiting(4, 5), waiting(5, 99, "hgx")]
    assert [states.queue_position(queue, job) for job in queue] == [2, 3, 1, 4, 1]
    assert states.queue_position(queue, dataclasses.replace(queue[0], state="RUNNING")) is None


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("Resources", "the nodes that it needs are in use (Resources)"),
        ("(Priority)", "jobs of higher priority are before it (Priority)"),
        (
            "ReqNodeNotAvail, UnavailableNodes:n[1-2]",
            "a node that it requests is down, drained or reserved (ReqNodeNotAvail, UnavailableNodes:n[1-2])",
        ),
        ("PartitionNodeLimit", "more nodes than the partition has"),
        (
            "AssocGrpGRES",
            "its account uses all the generic resources, such as GPUs, that it may (AssocGrpGRES)",
        ),
        ("AssocMaxJobsLimit", "its user runs as many jobs as the account allows"),
        ("AssocGrpCPURunMinutesLimit", "its account uses all the minutes of CPUs that it may"),
        (
            "QOSMaxWallDurationPerJobLimit",
            "it requests more time than a job of its QOS may have: it will never",
        ),
        ("QOSMaxGRESPerUser", "its user uses all the generic resources, such as GPUs, that the QOS allows"),
        ("QOSMaxMemoryPerNode", "it requests more memory of a node than a job of its QOS may have"),
        ("QOSMinGRES", "a job of its QOS must request more generic resources, such as GPUs: it will never"),
        ("MaxJobsPerAccount", "its account runs as many jobs as the QOS allows"),
        ("QOSGrpWallLimit", "its QOS has used up its time"),
        ("QOSMaxSomethingNew", "qosmax something new (QOSMaxSomethingNew)"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "nodes that it needs are down, drained, or reserved",
        ),
        ("None", ""),
        ("", ""),
    ],
)
def test_pending_reasons_are_explained(reason: str, message: str) -> None:
    found = reasons.why(reason)
    assert message in found if message else found == ""


def test_every_limit_of_slurm_is_explained() -> None:
    known = (RECORDS / "limits-22.05.txt").read_text().split()
    assert len(known) > 100
    assert [word for word in known if not re.match("(it|its|a job|as many) ", reasons.why(word))] == []


def test_permanent_pending_reason_is_reported_as_such() -> None:
    assert reasons.never("AssocMaxGRESPerJob")
    assert not reasons.never("AssocGrpGRES")
    assert reasons.NEVER in reasons.why("PartitionTimeLimit")
    assert reasons.NEVER not in reasons.why("Resources")


RUNNING = State("gpt", "running", master="n1", progress={"checkpoint": 40})
QUEUED = State("gpt", "queued")


def current(
    known: State, seen: SlurmJob | None, *, is_stopped: bool = False, completed: float | None = None
) -> tuple[str, str]:
    words = ["srun: error: n2: no such file"]
    found = view.current(known, seen, [seen] if seen else [], is_stopped, NOW, words, completed)
    return found.state, found.reason


def test_pending_job_reports_its_partition_and_reason() -> None:
    seen = SlurmJob(9, 9, "PENDING", (), "Resources", "gpu2", start=NOW + 3600)
    state, reason = current(QUEUED, seen)
    assert state == "queued"
    assert reason.startswith(
        "It waits in partition gpu2, 1st in the queue: the nodes that it needs are in use"
    )
    assert "Slurm expects to start it 20" in reason


@pytest.mark.parametrize(
    ("seen", "is_stopped", "state", "message"),
    [
        (
            SlurmJob(9, 9, "CANCELLED", by="alice"),
            False,
            "stopped",
            "cancelled by alice, not by rdm-provision stop",
        ),
        (SlurmJob(9, 9, "CANCELLED"), True, "stopped", "It was cancelled, as requested."),
        (
            SlurmJob(9, 9, "CANCELLED", reason="Resources"),
            False,
            "stopped",
            "by somebody, not by rdm-provision stop.",
        ),
        (SlurmJob(9, 9, "CANCELLED", reason="PartitionNodeLimit"), False, "stopped", reasons.NEVER),
        (
            SlurmJob(9, 9, "TIMEOUT"),
            False,
            "failed",
            "time limit and was ended; its newest checkpoint is of iteration 40",
        ),
        (SlurmJob(9, 9, "NODE_FAIL", nodes="n[1-2]"), False, "failed", "a node of it failed (n[1-2])"),
        (
            SlurmJob(9, 9, "PREEMPTED"),
            False,
            "failed",
            "not put it back into the queue (PreemptMode, or no restarts)",
        ),
        (SlurmJob(9, 9, "OUT_OF_MEMORY", nodes="n2"), False, "failed", "launcher.slurm.mem"),
        (
            SlurmJob(9, 9, "FAILED", code=127),
            False,
            "failed",
            "with exit code 127 before its agents said how it went: srun",
        ),
        (SlurmJob(9, 9, "COMPLETED"), False, "failed", "with exit code 0"),
        (None, False, "failed", "Slurm does not know the job any more"),
        (SlurmJob(9, 9, "PENDING", reason="BeginTime"), False, "queued", "after a requeue"),
        (SlurmJob(9, 9, "RUNNING"), False, "running", ""),
        (SlurmJob(9, 9, "CANCELLED", ("COMPLETING",)), False, "running", ""),
        (SlurmJob(9, 9, "SUSPENDED"), False, "running", "suspended"),
    ],
)
def test_end_reasons_of_a_running_job(
    seen: SlurmJob | None, is_stopped: bool, state: str, message: str
) -> None:
    found, reason = current(RUNNING, seen, is_stopped=is_stopped)
    assert found == state
    assert message in reason


def test_agents_final_state_wins_over_slurms() -> None:
    ended = dataclasses.replace(RUNNING, state="finished", ended=NOW)
    assert current(ended, SlurmJob(9, 9, "TIMEOUT")) == ("finished", "")


def test_final_state_may_be_late_on_a_shared_file_system() -> None:
    # The controller's clock does not matter.
    seen = SlurmJob(9, 9, "COMPLETED", end=NOW - 9999)
    state, reason = current(RUNNING, seen, completed=NOW - view.LATE_S / 2)
    assert (state, "not here yet" in reason) == ("running", True)
    assert current(RUNNING, seen, completed=NOW - view.LATE_S - 1)[0] == "failed"
    # This host's clock was put back.
    assert current(RUNNING, seen, completed=NOW + 1)[0] == "failed"


def test_starting_nodes_are_reported() -> None:
    assert current(QUEUED, SlurmJob(9, 9, "RUNNING")) == ("starting", "")
    assert current(QUEUED, SlurmJob(9, 9, "RUNNING", ("CONFIGURING",)))[0] == "starting"


def test_restarts_are_counted_and_limited() -> None:
    assert view.goes_on(QUEUED, 1)
    assert view.goes_on(RUNNING, 1)
    assert not view.goes_on(RUNNING, 0)
    assert not view.goes_on(dataclasses.replace(RUNNING, state="stopping"), 3)
    assert not view.goes_on(dataclasses.replace(RUNNING, state="failed"), 3)
    # Agents that requeued the job have counted the restart themselves.
    assert before_this_run(QUEUED, True, 0, NOW) == QUEUED
    assert before_this_run(RUNNING, False, 0, NOW) == RUNNING
    again = before_this_run(RUNNING, True, 1, NOW)
    assert (again.restarts, again.has_ended) == (1, False)
    over = before_this_run(again, True, 1, NOW)
    assert (over.state, over.restarts) == ("failed", 1)
    assert "No restarts are left" in over.reason
    assert isinstance(over.failures[-1], Failure)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDirectory:
    """A job on one node, in which this process is srun's first task."""
    job = JobDirectory(tmp_path / "gpt", "n1")
    job.make(Request("gpt", "n1", (Node("n1", "127.0.0.1", 1),)))
    job.write_resolved("{launcher: {kind: slurm, max_restarts: 1, slurm: {interface: lo}}}")
    job.write_state(State("gpt", "queued", master="n1"))
    variables = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURMD_NODENAME": "n1", "RDM_SLURM_RUN": "7.0"}
    ours = ("RDM_NODE", "RDM_CLUSTER_KEY", "RDM_JOBS", "RDM_EXECUTION_ENVIRONMENT", "RDM_PLACE")
    for name in (*variables, *ours):
        monkeypatch.setenv(name, variables.get(name, ""))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return job


def test_a_run_whose_agents_end_at_once_costs_a_restart(
    task: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(agent, "work", ended)
    for run, goes_on in enumerate((True, False)):
        monkeypatch.setenv("RDM_SLURM_RUN", f"7.{run}")
        with pytest.raises(SystemExit):
            step.run(task.path)
        assert (task.read_state().restarts, step.again(task.path)) == (run, goes_on)


def test_former_name_of_the_environment_variable_is_set_too(
    task: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "work", lambda *_: None)
    step.run(task.path)
    assert os.environ["RDM_EXECUTION_ENVIRONMENT"] == os.environ["RDM_PLACE"] == "host"


def test_the_first_node_makes_the_links_of_the_mdx_scripts(
    task: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.write_resolved("{launcher: {kind: slurm, slurm: {interface: lo}}, logging: {names: mdx}}")
    monkeypatch.setattr(agent, "work", lambda *_: None)
    step.run(task.path)
    outputs = task.path.parent / "outputs"
    (log,) = (outputs / "log").glob("*.log")
    assert log.resolve() == task.log("n1", "out")
    (checkpoints,) = (outputs / "checkpoint").iterdir()
    assert checkpoints.resolve() == task.path / "checkpoints"


def test_write_error_on_the_first_node_does_not_block_the_others(
    task: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(JobDirectory, "write_state", full)
    with pytest.raises(OSError, match="No space left"):
        step.run(task.path)
    assert messages_of_the_first(task, "7.0")[-1] == ("end", "[Errno 28] No space left on device")


def messages_of_the_first(task: JobDirectory, run: str) -> list[tuple[str, str]]:
    """Return the type and the reason of each message of the first node."""
    lines = (task.path / "nodes" / run / "0.jsonl").read_text().splitlines()
    return [(message["type"], message.get("reason", "")) for message in map(json.loads, lines)]


def test_nodes_whose_environments_differ_are_named_with_their_versions(
    task: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "3")
    task.write_resolved("{launcher: {kind: slurm, slurm: {nodes: 3, gpus_per_node: 1, interface: lo}}}")
    torch = importlib.metadata.version("torch")
    versions = {**here(), "torch": "1.0"}
    for number in (1, 2):
        other = Member(f"n{number + 1}", "host", f"10.0.0.{number}", 1, versions=versions)
        FileClient(task.path / "nodes/7.0", number).send({"type": "join", "member": other.to_dict()})
    why = f"The environments differ: n1 has torch {torch}, and n2, n3 1.0; make them the same on all nodes."
    with pytest.raises(TrainerError) as refused:
        step.run(task.path)
    assert str(refused.value) == why
    assert messages_of_the_first(task, "7.0")[-1] == ("end", why), "the others do not wait"
    assert not step.again(task.path)


def test_missing_nodes_are_named(task: JobDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "3")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-3]")
    monkeypatch.setattr(commands, "nodes", lambda listed: ["n1", "n2", "n3"])
    monkeypatch.setattr(step, "MEET_S", 0.5)
    FileClient(task.path / "nodes/7.0", 2).send({"type": "join", "member": member("n3").to_dict()})
    with pytest.raises(TrainerError, match=r"1 of 3 members have not come \(n2\); here are n1 \(.*n3 \("):
        step.run(task.path)


def test_node_that_cannot_take_part_keeps_all_from_starting(
    task: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    FileClient(task.path / "nodes/7.0", 1).send({"type": "cannot", "reason": "n2 has no image."})
    with pytest.raises(TrainerError, match=r"^n2 has no image\.$"):
        step.run(task.path)


def member(name: str) -> Member:
    return Member(name, "host", "10.0.0.7", 1)


def test_only_launch_versions_must_match_for_other_programs(
    task: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    task.write_resolved(
        "{launcher: {kind: slurm, program: [train.py], slurm: {nodes: 2, gpus_per_node: 1, interface: lo}}}"
    )
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "11", "99"))
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setattr(step, "MEET_S", 0.1)
    with pytest.raises(TrainerError, match="nothing answers at the job's first node"):
        step.run(task.path)
    (message,) = map(json.loads, (task.path / "nodes/7.0/1.jsonl").read_text().splitlines())
    expected = {"Python": "3.11", "rdm-trainer": importlib.metadata.version("rdm-trainer")}
    assert message["member"]["versions"] == expected
