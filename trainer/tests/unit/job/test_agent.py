# SPDX-License-Identifier: GPL-3.0-or-later
"""The state with which a restarted agent continues its job, a stop while processes begin, and the end."""

from __future__ import annotations

import os
import signal
import subprocess
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rdm_core import config as configuration
from rdm_job import network, processes
from rdm_job.agent import Agent, Master, Worker, after_restart
from rdm_job.directory import JobDirectory
from rdm_job.links import Links
from rdm_job.part import Part
from rdm_job.protocol import Failure, Node, Offer, Request
from tests.unit.job.two_nodes import REQUEST, STATE, config
from tests.waiting import wait_until


class Beginning(Part):
    """Stands in for a node whose process begins, and is stopped, just after the node's first report."""

    process = ""

    def start(self, number: int, port: int, network_cidr: str) -> None:
        self.attempt = number

    def report(self) -> dict[str, Any]:
        ended = 0 if self.process == "done" else None
        ranks = {"0": self.process} if self.process else {}
        found = {**super().report(), "ranks": ranks, "launcher": ended}
        if not self.process:
            self.process = "running"
            self.directory.request_stop(60.0)
        return found

    def request_end(self) -> None:
        self.process = "done"


class Hanging(Part):
    """Stands in for a node whose process is done, and whose launcher runs on; it is stopped later."""

    reports = 0

    def start(self, number: int, port: int, network_cidr: str) -> None:
        self.attempt = number

    def report(self) -> dict[str, Any]:
        self.reports += 1
        if self.reports == 4:
            self.directory.request_stop(0.0)
        return {**super().report(), "ranks": {"0": "done"}, "launcher": None}


def test_the_master_s_restart_is_one_more_failure_and_all_others_are_kept() -> None:
    failure = Failure("n2", 1, "Rank 1 on n2 failed.", ("ValueError",))
    known = replace(STATE, master="n1", failures=[failure], restarts=1)
    found = after_restart(known, "n1")
    assert found.restarts == 2
    assert found.failures[0] == failure
    assert [(one.node, one.rank) for one in found.failures] == [("n2", 1), ("n1", None)]
    assert "container was restarted" in found.failures[1].reason
    # The master records the restarts of other nodes.
    assert after_restart(known, "n2") == known


@pytest.fixture(autouse=True)
def _key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("shared by the nodes")
    monkeypatch.setenv("RDM_CLUSTER_KEY", str(tmp_path / "key"))


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    """The agent of a job on one node with one process."""
    ports = network.take_free_ports("127.0.0.1", 1, zlib.crc32(f"{os.getpid()} agent".encode()))
    assert ports
    job = JobDirectory(tmp_path / "gpt", "n1")
    job.make(Request("gpt", "n1", (Node("n1", "127.0.0.1", 1),), offer=Offer(agent_port=ports[0], mark="x")))
    job.write_resolved(configuration.dump(config(tmp_path)))
    return Agent(job)


def test_a_process_that_began_after_the_last_report_may_still_save(agent: Agent) -> None:
    agent.part = Beginning(agent.directory)
    agent.run()
    assert (agent.state.state, agent.state.reason) == ("stopped", "It saved and ended, as requested.")


@pytest.mark.parametrize(("limit", "state"), [(0.0, "finished"), (3600.0, "stopped")])
def test_job_ends_although_its_launcher_keeps_running(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, limit: float, state: str
) -> None:
    monkeypatch.setattr("rdm_job.agent.LAUNCHER_S", limit)
    agent.part = Hanging(agent.directory)
    agent.run()
    assert agent.state.state == state
    assert ("A launcher outlived" in agent.state.reason) == (state == "finished")


def test_restarted_master_ends_processes_of_the_last_attempt_alone(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordered = []
    monkeypatch.setattr(Master, "_send", lambda _, order: ordered.append((order["order"], order["attempt"])))
    known = after_restart(replace(STATE, master="n1"), "n1")
    restarted = Agent(agent.directory, known)
    restarted.restarts_left = 0
    restarted.part = Beginning(agent.directory)
    restarted.run()
    assert ordered[:2] == [("kill", 0), ("run", 1)]


def test_node_that_starts_an_attempt_late_reports_its_processes_and_output(tmp_path: Path) -> None:
    """The master's launcher may have begun them before a busy node obeys the order; some may have ended."""
    job = JobDirectory(tmp_path / "gpt", "n2")
    request = replace(REQUEST, node="n2")
    job.make(request)
    job.write_resolved(configuration.dump(config(tmp_path, launcher={"kind": "mpirun"})))
    part = Part(job)
    part.links = Links(request.job_id, tmp_path)
    errors = job.log("n2", "err")
    errors.write_text("ValueError: of attempt 0\n")
    part.kill(0)
    environment = {**os.environ, processes.JOB_VARIABLE: request.job_id, processes.ATTEMPT_VARIABLE: "1"}
    with subprocess.Popen(["sleep", "3600"], env=environment) as process, errors.open("a") as log:
        ended = subprocess.Popen(["true"])
        ended.wait()
        for rank, attempt, pid in ((1, 0, os.getppid()), (2, 1, process.pid), (3, 1, ended.pid)):
            record = {"rank": rank, "attempt": attempt, "pid": pid, "state": "running", "time": 1.0}
            job.write_rank(rank, {**record, "error": "", "lines": []})
        log.write("MemoryError: of attempt 1\n")
        log.flush()
        try:
            part.start(1, 29500, "127.0.0.0/8")
            part.kill(0)
            report = part.report()
            assert report["ranks"] == {"2": "running", "3": "failed"}
            assert [one["lines"] for one in report["failed"]] == [["MemoryError: of attempt 1"]]
            found = wait_until("the log is read", lambda: part.report()["watch"].get("findings"))
            assert [one["line"] for one in found] == ["MemoryError: of attempt 1"]
        finally:
            process.kill()
            part.clear()


def test_a_node_that_obeys_an_order_to_end_again_leaves_the_next_attempt_alone(tmp_path: Path) -> None:
    """The master repeats its orders, and its launcher may have begun the next attempt here by then."""
    job = JobDirectory(tmp_path / "gpt", "n2")
    # No other test's processes must have this id.
    request = replace(REQUEST, node="n2", offer=Offer(mark=f"again-{os.getpid()}"))
    job.make(request)
    job.write_resolved(configuration.dump(config(tmp_path, launcher={"kind": "mpirun"})))
    worker = Worker(Agent(job))
    mine = {processes.JOB_VARIABLE: request.job_id, processes.ATTEMPT_VARIABLE: "1"}
    with subprocess.Popen(["sleep", "3600"], env={**os.environ, **mine}) as process:
        try:
            worker._obey({"order": "kill", "attempt": 0})
            assert (process.poll(), job.ended_attempt) == (None, 0)
            worker._obey({"order": "kill", "attempt": 1})
            assert (process.wait(), job.ended_attempt) == (-signal.SIGKILL, 1)
        finally:
            process.kill()
            worker._heartbeat.close()
