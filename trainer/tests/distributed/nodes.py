# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes of a job on this machine: directories and loopback addresses; everything else is real."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rdm_job import processes
from rdm_job.directory import JobDirectory
from rdm_job.links import Links
from tests.distributed.processes import run_job_verb
from tests.waiting import wait_until

__all__ = ["PROGRAM", "TINY", "Nodes", "running"]

PLANTED = Path(__file__).parent / "planted"
"""Plants faults in each process that has it on PYTHONPATH."""
LIGHT = Path(__file__).parent / "light"
"""Lets the per-node launcher start without torch, in jobs whose launcher is not under test."""
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
how, _, when = (place / f"end.{rank}").read_text().partition(" ")
if when == os.environ["RDM_ATTEMPT"]:
    raise {"fail": ValueError("the sky is falling"), "lose": ConnectionResetError("reset by peer")}[how]
"""

TINY: dict[str, Any] = {
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
"""A training that does not end by itself."""


class Nodes:
    """Two nodes, and requests to them.

    Args:
        folder: Their directory.
        config: A configuration for our trainer, with planted faults; without it, jobs run ``PROGRAM``.
        user: The user who runs the jobs; by default, this process's.

    Attributes:
        environments: Each node's additions to this process's environment.
    """

    def __init__(self, folder: Path, config: dict[str, Any] | None = None, user: str | None = None) -> None:
        self.folder, self.user = folder, user
        self.config = config
        self.addresses_in_environment = False
        self.program = [str(folder / "program.py"), str(folder)]
        self.environments: dict[str, dict[str, str]] = {"n1": {}, "n2": {}}
        (folder / "key").write_text(f"what the containers of {folder} share")
        (folder / "program.py").write_text(PROGRAM)
        self.nodes: list[dict[str, Any]] = [
            {"name": "n1", "address": "127.0.0.1", "slots": 1},
            {"name": "n2", "address": "127.0.0.2", "slots": 1},
        ]
        for node in ("n1", "n2"):
            (folder / node).mkdir()

    def run_verb(self, node: str, *words: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        environment = {
            **os.environ,
            "HOME": str(self.folder if self.user else Path.home()),
            "RDM_JOBS": str(self.folder / node),
            "RDM_CLUSTER_KEY": str(self.folder / "key"),
            **self.environments[node],
        }
        if self.addresses_in_environment:
            environment["MY_IP"] = next(str(one["address"]) for one in self.nodes if one["name"] == node)
        answer, code = run_job_verb(*words, environment=environment, request=request, within=self._within())
        assert code == (0 if answer["ok"] else 3)
        return answer

    def _within(self) -> list[str] | None:
        """Return the command that starts others on a node.

        This process starts trainings itself, so that they are in its cgroup. An ordinary user gets the right
        to read everything, because this Python may belong to root.
        """
        if self.user is None:
            return None if self.config is None else []
        may = "+dac_read_search"
        who = [f"--reuid={self.user}", "--regid=nogroup", "--clear-groups"]
        return ["setpriv", *who, f"--inh-caps={may}", f"--ambient-caps={may}"]

    def request(self, job: str, node: str, *overrides: str, **more: Any) -> dict[str, Any]:
        launcher: dict[str, Any] = {"program": self.program}
        if self.config is not None:
            launcher = {"env": {"PYTHONPATH": _first(PLANTED), "PLANTED": str(self.folder)}}
        elif not any(one.startswith("launcher.kind=") for one in overrides):
            launcher["env"] = {"PYTHONPATH": _first(LIGHT)}
        config = {**(self.config or {}), "name": job, "launcher": launcher}
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
        checked = self.run_verb("n1", "check", request=self.request(job, "n1", *overrides, **more))
        assert checked["problems"] == []
        for node in (str(one["name"]) for one in self.nodes):
            # Stopping a job on its master does not wait for the other node's agent.
            agent = JobDirectory(self.folder / node / job, node)
            wait_until(f"no agent of {job} is left on {node}", lambda: not agent.has_agent)  # noqa: B023
            request = self.request(job, node, *overrides, offer=checked["offer"], **more)
            started = self.run_verb(node, "start", request=request)
            assert (started["started"], started["job"]["job"]) == (True, job)

    def run(self, job: str, *overrides: str, **more: Any) -> None:
        """Start a job and wait until it runs: its processes have begun, and its agents say so."""
        self.start(job, *overrides, **more)
        self.wait_for_attempt(job, 0)
        for node in (str(one["name"]) for one in self.nodes):
            directory = JobDirectory(self.folder / node / job, node)
            wait_until(f"{job} runs on {node}", directory.read_state, lambda state: state.state == "running")

    def wait_for_attempt(self, job: str, attempt: int) -> None:
        """Wait until all processes of an attempt have begun, or fail because the attempt has failed."""
        name = str(self.nodes[0]["name"])
        master = JobDirectory(self.folder / name / job, name)
        wanted = {f"{job}.{rank}.{attempt}" for rank in range(sum(one["slots"] for one in self.nodes))}

        def begun() -> list[str]:
            failures = master.read_state().failures
            assert len(failures) <= attempt, f"attempt {attempt} of {job} has failed: {failures}"
            return sorted(path.name for path in self.folder.glob(f"{job}.*"))

        wait_until(f"all processes of attempt {attempt} have begun", begun, wanted.issubset)

    def end(self, rank: int, how: str = "") -> None:
        """Let a process end. It must not see the file while that is still empty."""
        (self.folder / "end").write_text(how)
        (self.folder / "end").replace(self.folder / f"end.{rank}")

    def ended(self, job: str, node: str = "n1") -> dict[str, Any]:
        """Wait until a node reports that a job has ended, and return the report."""
        # The first query returns at once, the others wait for news.
        options = itertools.chain([[]], itertools.repeat(["--wait", "2"]))

        def query() -> dict[str, Any]:
            found: dict[str, Any] = self.run_verb(node, "state", job, *next(options))["job"]
            return found

        # The query itself waits.
        return wait_until(
            f"{job} has ended on {node}", query, lambda state: state["ended"], pause=lambda: None
        )

    def process_of(self, rank: int, job: str) -> int:
        node = self.nodes[rank]["name"]
        return int(json.loads((self.folder / f"{node}/{job}/ranks/{node}/{rank}.json").read_text())["pid"])

    def left(self, job: str) -> list[int]:
        """Return the remaining processes of a job."""
        return processes.of_job(self.mark(job))

    def mark(self, job: str) -> str:
        """Return the mark that a job's processes carry."""
        return JobDirectory(self.folder / "n1" / job, "n1").request().job_id

    def agent_of(self, node: str, job: str) -> int:
        found = subprocess.run(
            ["pgrep", "-f", f"rdm_job.agent {self.folder}/{node}/{job}( goes-on)?$"],
            capture_output=True,
            text=True,
        )
        return int(found.stdout)


def _first(folder: Path) -> str:
    """Return PYTHONPATH with a folder before all others."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


@contextlib.contextmanager
def running(nodes: Nodes) -> Iterator[Nodes]:
    """Provide nodes, and end all their processes afterwards."""
    try:
        yield nodes
    finally:
        agents = f"rdm_job.agent {nodes.folder}/n[12]/"
        subprocess.run(["pkill", "-KILL", "-f", agents], check=False)
        for path in nodes.folder.glob("n?/*/job.json"):
            job = JobDirectory(path.parent, path.parent.parent.name).request().job_id
            processes.end_all(job)
            Links(job).remove()
