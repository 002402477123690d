# SPDX-License-Identifier: GPL-3.0-or-later
"""Agents of two nodes on this machine, with real launchers, processes that fail, and agents that are lost.

The nodes are directories and addresses of the loopback network; agents, launchers and processes are real.
What the processes run is a small program, through ``launcher.program``, as somebody's own Megatron would.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rdm_job import processes
from rdm_job.directory import JobDirectory
from tests.waiting import DEADLINE_S, wait_until

PROGRAM = """
import os, pathlib, signal, sys, time

rank, place = int(os.environ["RANK"]), pathlib.Path(sys.argv[1])
print("rank", rank, "of", os.environ["WORLD_SIZE"], "at", os.environ["MASTER_ADDR"], flush=True)
job = os.environ["RDM_JOB_ID"].partition("@")[0]
attempt = place / f"{job}.{rank}.{os.environ['RDM_ATTEMPT']}"


def save(*_):
    (place / f"saved.{rank}").touch()
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
attempt.touch()
while not (place / f"end.{rank}").exists():
    time.sleep(0.05)
if (place / f"end.{rank}").read_text() == f"fail {os.environ['RDM_ATTEMPT']}":
    raise ValueError("the sky is falling")
"""
SOON_S = 60.0
"""Within which a fault has ended a job everywhere: five times the silence that agents bear."""


class Nodes:
    """Two nodes and what is asked of them."""

    def __init__(self, folder: Path, user: str | None = None) -> None:
        self.folder, self.user = folder, user
        self.addresses_in_environment = False
        self.program = [str(folder / "program.py"), str(folder)]
        (folder / "key").write_text("what the containers share")
        (folder / "program.py").write_text(PROGRAM)
        self.nodes: list[dict[str, Any]] = [
            {"name": "n1", "address": "127.0.0.1", "slots": 1},
            {"name": "n2", "address": "127.0.0.2", "slots": 1},
        ]
        for node in ("n1", "n2"):
            (folder / node).mkdir()

    def ask(self, node: str, *words: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        environment = {
            **os.environ,
            "HOME": str(self.folder if self.user else Path.home()),
            "RDM_JOBS": str(self.folder / node),
            "RDM_CLUSTER_KEY": str(self.folder / "key"),
        }
        if self.addresses_in_environment:
            environment["MY_IP"] = next(str(one["address"]) for one in self.nodes if one["name"] == node)
        done = subprocess.run(
            [*self._as_user(), sys.executable, "-m", "rdm_trainer", "job", *words],
            env=environment,
            input=json.dumps(request) if request else None,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if answer["ok"] else 3)
        return answer

    def _as_user(self) -> list[str]:
        """What makes a command an ordinary user's, who may only read more: this Python may be root's."""
        if self.user is None:
            return []
        may = "+dac_read_search"
        who = [f"--reuid={self.user}", "--regid=nogroup", "--clear-groups"]
        return ["setpriv", *who, f"--inh-caps={may}", f"--ambient-caps={may}"]

    def request(self, job: str, node: str, *overrides: str, **more: Any) -> dict[str, Any]:
        config = {"name": job, "launcher": {"program": self.program}}
        return {
            "version": 1,
            "name": job,
            "node": node,
            "nodes": self.nodes,
            "config": json.dumps(config),
            "overrides": list(overrides),
            **more,
        }

    def start(self, job: str, *overrides: str, **more: Any) -> None:
        for begun in self.folder.glob(f"{job}.*"):
            begun.unlink()
        checked = self.ask("n1", "check", request=self.request(job, "n1", *overrides, **more))
        assert checked["problems"] == []
        for node in (str(one["name"]) for one in self.nodes):
            request = self.request(job, node, *overrides, offer=checked["offer"], **more)
            assert self.ask(node, "start", request=request)["started"]

    def run(self, job: str, *overrides: str, **more: Any) -> None:
        """Start a job and wait until it runs: its processes have begun, and its agents say so."""
        self.start(job, *overrides, **more)
        self.wait_for_attempt(job, 0)
        for node in (str(one["name"]) for one in self.nodes):
            directory = JobDirectory(self.folder / node / job, node)
            wait_until(f"{job} runs on {node}", directory.read_state, lambda state: state.state == "running")

    def wait_for_attempt(self, job: str, attempt: int) -> None:
        def begun() -> list[str]:
            return sorted(path.name for path in self.folder.glob(f"{job}.*"))

        wanted = {f"{job}.{rank}.{attempt}" for rank in (0, 1)}
        wait_until(f"both processes of attempt {attempt} have begun", begun, wanted.issubset)

    def end(self, rank: int, how: str = "") -> None:
        """Let a process end. It must not see the file before there is something in it."""
        (self.folder / "end").write_text(how)
        (self.folder / "end").replace(self.folder / f"end.{rank}")

    def ended(self, job: str, node: str = "n1") -> dict[str, Any]:
        """Wait until a node says that a job has ended, and return what it says."""
        # The first look is at once, the next ones at news.
        patience = itertools.chain([[]], itertools.repeat(["--wait", "2"]))

        def look() -> dict[str, Any]:
            found: dict[str, Any] = self.ask(node, "state", job, *next(patience))["job"]
            return found

        return wait_until(f"{job} has ended on {node}", look, lambda state: state["ended"])

    def process_of(self, rank: int, job: str) -> int:
        node = self.nodes[rank]["name"]
        return int(json.loads((self.folder / f"{node}/{job}/ranks/{node}/{rank}.json").read_text())["pid"])

    def left(self, job: str) -> list[int]:
        """The processes of a job."""
        return processes.of_job(self.mark(job))

    def mark(self, job: str) -> str:
        """What a job's processes carry."""
        return JobDirectory(self.folder / "n1" / job, "n1").request().job_id

    def agent_of(self, node: str, job: str) -> int:
        found = subprocess.run(
            ["pgrep", "-f", f"rdm_job.agent {self.folder}/{node}/{job}$"],
            capture_output=True,
            text=True,
        )
        return int(found.stdout)


@contextlib.contextmanager
def running(nodes: Nodes) -> Iterator[Nodes]:
    """Nodes of which nothing runs any more afterwards."""
    try:
        yield nodes
    finally:
        agents = f"rdm_job.agent {nodes.folder}/n[12]/"
        subprocess.run(["pkill", "-KILL", "-f", agents], check=False)
        for path in nodes.folder.glob("n?/*/job.json"):
            processes.end_all(JobDirectory(path.parent, path.parent.parent.name).request().job_id)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with running(Nodes(tmp_path)) as made:
        yield made


@pytest.mark.parametrize("launcher", ["no_ssh", "torchrun"])
def test_a_job_runs_to_its_end(nodes: Nodes, launcher: str) -> None:
    # Ranks follow the order of the nodes and not that of their addresses.
    nodes.nodes[0]["address"], nodes.nodes[1]["address"] = "127.0.0.2", "127.0.0.1"
    job = f"to-the-end-{launcher.replace('_', '-')}"
    nodes.run(job, f"launcher.kind={launcher}")
    taken = nodes.ask("n1", "check", request=nodes.request(job, "n1"))
    assert "already" in taken["problems"][0]
    # A second start is no second agent.
    again = nodes.request(job, "n1", offer={"agent_port": 1, "master_port": 2})
    assert not nodes.ask("n1", "start", request=again)["started"]
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert (state["state"], state["failures"]) == ("finished", [])
    assert state["nodes"] == {"n1": "done", "n2": "done"}
    assert nodes.ended(job, "n2")["state"] == "finished"
    assert "rank 0 of 2 at 127.0.0.2\n" in nodes.ask("n1", "logs", job)["text"]
    assert "rank 1 of 2 at 127.0.0.2\n" in nodes.ask("n2", "logs", job)["text"]
    assert "MB |" in nodes.ask("n2", "logs", job, "--stream", "gpu")["text"]
    assert nodes.left(job) == []


def test_a_killed_process_ends_the_job_everywhere(nodes: Nodes) -> None:
    job = "killed"
    nodes.run(job)
    began = time.time()
    os.kill(nodes.process_of(1, job), signal.SIGKILL)
    state = nodes.ended(job)
    assert state["ended"] - began < SOON_S
    assert state["state"] == "failed"
    assert [(one["node"], one["rank"]) for one in state["failures"]] == [("n2", 1)]
    assert "killed" in state["reason"]
    assert nodes.ended(job, "n2")["reason"] == state["reason"]
    assert nodes.left(job) == []


@pytest.mark.parametrize("launcher", ["deepspeed", "mpirun"])
def test_of_two_processes_the_one_that_failed_is_named(nodes: Nodes, launcher: str) -> None:
    nodes.nodes[:] = [{"name": "n1", "address": "127.0.0.1", "slots": 2}]
    job = launcher
    nodes.run(job, f"launcher.kind={launcher}")
    assert {record.name for record in (nodes.folder / f"n1/{job}/ranks/n1").iterdir()} == {"0.json", "1.json"}
    nodes.end(1, "fail 0")
    state = nodes.ended(job)
    (failure,) = state["failures"]
    assert (failure["node"], failure["rank"]) == ("n1", 1)
    assert any("the sky is falling" in line for line in failure["lines"])
    assert nodes.left(job) == []


def test_nodes_may_share_the_directory_of_the_jobs(nodes: Nodes) -> None:
    (nodes.folder / "n2").rmdir()
    (nodes.folder / "n2").symlink_to("n1")
    nodes.addresses_in_environment = True
    job = "shared"
    nodes.run(job)
    nodes.end(0)
    nodes.end(1)
    assert nodes.ended(job)["nodes"] == {"n1": "done", "n2": "done"}
    assert nodes.ended(job, "n2")["state"] == "finished"
    assert "rank 1 of 2" in nodes.ask("n2", "logs", job)["text"]


def test_an_error_is_shown_with_its_last_lines_and_a_restart_goes_on(nodes: Nodes) -> None:
    job = "restarted"
    nodes.run(job, "launcher.max_restarts=1")
    nodes.end(1, "fail 0")
    nodes.wait_for_attempt(job, 1)
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert (state["state"], state["restarts"]) == ("finished", 1)
    (failure,) = state["failures"]
    assert (failure["node"], failure["rank"]) == ("n2", 1)
    assert any("the sky is falling" in line for line in failure["lines"])


def test_a_job_that_is_stopped_saves_first_and_another_job_goes_on(nodes: Nodes) -> None:
    first, second = "first", "second"
    nodes.run(first)
    nodes.run(second)
    answer = nodes.ask("n1", "stop", first)
    assert answer["stopped"]
    assert (answer["job"]["state"], answer["job"]["reason"]) == ("stopped", "It saved and ended, as asked.")
    assert (nodes.folder / "saved.0").exists()
    assert (nodes.folder / "saved.1").exists()
    # The other node's agent hears of the end a little later.
    assert nodes.ended(first, "n2")["state"] == "stopped"
    assert not nodes.ask("n2", "stop", first)["stopped"]
    assert nodes.left(first) == []
    assert nodes.ask("n1", "state", second)["job"]["state"] == "running"
    assert nodes.ask("n2", "stop", second, "--now")["stopped"]
    assert nodes.ended(second)["state"] == "stopped"
    assert nodes.left(second) == []
    assert {job["job"]: job["state"] for job in nodes.ask("n1", "list")["jobs"]} == {
        first: "stopped",
        second: "stopped",
    }
    # It goes on under its name.
    nodes.run(first, config="", resume=True)


def test_a_job_of_another_cluster_on_the_same_hosts_goes_on_though_its_name_is_the_same(
    nodes: Nodes, tmp_path: Path
) -> None:
    (tmp_path / "others").mkdir()
    others = Nodes(tmp_path / "others")
    job = "of-one-name"
    nodes.nodes[:], others.nodes[:] = nodes.nodes[:1], others.nodes[:1]
    for cluster in (nodes, others):
        for node in cluster.nodes:
            node["slots"] = 2
    with running(others):
        others.run(job)
        theirs = others.left(job)
        # Neither its start, nor its going on, nor its end may end the others'.
        nodes.run(job)
        assert nodes.ask("n1", "stop", job, "--now")["stopped"]
        mark = nodes.mark(job)
        nodes.run(job, config="", resume=True)
        assert nodes.mark(job) == mark
        assert nodes.ask("n1", "stop", job)["stopped"]
        assert nodes.left(job) == []
        assert theirs
        assert others.left(job) == theirs
        assert others.ask("n1", "state", job)["job"]["state"] == "running"


def test_two_users_of_the_same_hosts_are_not_in_each_others_way() -> None:
    """Two accounts that every Debian has, neither of them root, with jobs of one name at the same time."""
    users = ("daemon", "nobody")
    job = "of-two-users"
    with contextlib.ExitStack() as stack:
        both = []
        for user in users:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"rdm-{user}-")))
            made = stack.enter_context(running(Nodes(folder, user)))
            made.nodes[:] = [{"name": "n1", "address": "127.0.0.1", "slots": 2}]
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, user, "nogroup")
            (folder / "key").chmod(0o600)
            both.append(made)
        for made in both:
            made.run(job)
        one, other = both
        offers = [JobDirectory(made.folder / "n1" / job, "n1").request().offer for made in both]
        ports = [{offer.agent_port, offer.master_port} for offer in offers if offer]
        assert len(ports) == 2
        assert ports[0].isdisjoint(ports[1])
        for made, user in zip(both, users, strict=True):
            assert {psutil.Process(pid).username() for pid in made.left(job)} == {user}
            assert {path.owner() for path in (made.folder / "n1" / job).rglob("*")} == {user}
        theirs = other.left(job)
        assert one.ask("n1", "stop", job)["stopped"]
        assert one.left(job) == []
        assert other.left(job) == theirs
        assert other.ask("n1", "state", job)["job"]["state"] == "running"


def test_a_lost_agent_ends_the_job_on_the_other_node(nodes: Nodes) -> None:
    cases = {"n2": ("n1", "n2 has not been heard"), "n1": ("n2", "nothing from the master n1")}
    # Side by side, because most of it is silence.
    jobs = {lost: f"lost-{lost}" for lost in cases}
    for job in jobs.values():
        nodes.run(job)
    agents = {lost: nodes.agent_of(lost, job) for lost, job in jobs.items()}
    began = time.time()
    for agent in agents.values():
        # A frozen agent is what a cut cable looks like from the other side.
        os.kill(agent, signal.SIGSTOP)
    for lost, (other, words) in cases.items():
        state = nodes.ended(jobs[lost], other)
        assert state["ended"] - began < SOON_S
        assert state["state"] == "failed"
        assert words in state["reason"]
        os.kill(agents[lost], signal.SIGKILL)
    for lost, job in jobs.items():
        # Processes end without their agent.
        left = functools.partial(nodes.left, job)
        wait_until("no process of the job is left", left, lambda found: not found)
        assert "is gone" in nodes.ended(job, lost)["reason"]
        assert nodes.ask(lost, "revive")["revived"] == [], "a job without restarts does not come back"


@pytest.mark.parametrize("how", ["frozen", "restarted"])
def test_a_restart_waits_for_a_node_that_comes_back(nodes: Nodes, how: str) -> None:
    job = f"back-{how}"
    nodes.run(job, "launcher.max_restarts=1")
    agent = nodes.agent_of("n2", job)
    directory = JobDirectory(nodes.folder / "n1" / job, "n1")
    os.kill(agent, signal.SIGSTOP if how == "frozen" else signal.SIGKILL)
    lost = wait_until("n2 is lost", directory.read_state, lambda state: state.nodes["n2"] == "lost")
    assert not lost.has_ended
    if how == "frozen":
        os.kill(agent, signal.SIGCONT)
    else:
        # What the container does when it has been restarted.
        assert nodes.ask("n2", "revive")["revived"] == [job]
    nodes.wait_for_attempt(job, 1)
    nodes.end(0)
    nodes.end(1)
    state = nodes.ended(job)
    assert (state["state"], state["restarts"]) == ("finished", 1)
    assert [failure["node"] for failure in state["failures"]] == ["n2"]
    assert nodes.ended(job, "n2")["state"] == "finished"
    assert nodes.left(job) == []


def test_what_is_wrong_is_said_before_anything_starts(nodes: Nodes) -> None:
    request = nodes.request("bad", "n1", "launcher.kind=torchrum", "optimisation.lr=fast")
    answer = nodes.ask("n1", "check", request=request)
    assert len(answer["problems"]) == 2
    assert "torchrun" in answer["problems"][0] + answer["problems"][1]
    (nodes.folder / "key").unlink()
    nodes.nodes[0]["address"] = "203.0.113.7"
    problems = nodes.ask("n1", "check", request=nodes.request("bad", "n1"))["problems"]
    assert any("203.0.113.7" in problem for problem in problems)
    assert any("key" in problem for problem in problems)
    assert "no job 'bad'" in nodes.ask("n1", "state", "bad")["problems"][0]
    assert not (nodes.folder / "n1/bad").exists()
