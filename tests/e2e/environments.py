# SPDX-License-Identifier: GPL-3.0-or-later
"""The execution environments of a lab, and how a test inspects a job in them without the product."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.e2e.product import ROOT, Lab, changed, problems
from trainer.tests.waiting import wait_until

NODES = ("n1", "n2")
SOON = 120.0
"""Seconds within which a fault has ended a job on all nodes: ten times the agents' timeout."""

_TINY = json.loads((ROOT / "trainer/tests/tiny_gpt.json").read_text(encoding="utf-8"))
TINY: dict[str, Any] = _TINY["config"]
LOSSES: dict[int, float] = dict(_TINY["losses"])
"""Step -> loss on one process; every execution environment and launcher must have the same."""
STEPS = TINY["optimisation"]["train_iterations"]
ENDLESS = "optimisation.train_iterations=1000000"
# For tests of a job, whatever it trains: without torch it starts at once.
WAITING = "/tmp/e2e_waiting.py"
PROGRAM_THAT_WAITS = """
import os, signal, socket, sys, time

address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
# Else torchrun itself listens there, as it tells torch.
listens = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
if "connected" in sys.argv and listens:
    other, _ = socket.create_server(address).accept()
elif "connected" in sys.argv:
    while True:
        try:
            other = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
print("at work", flush=True)
signal.pause()
"""

OTHER_VERSION = """
import importlib.metadata, pathlib, re, sys
folder = pathlib.Path(importlib.metadata.distribution("deepspeed")._path)
record = folder / "METADATA"
text = record.read_text()
print(re.search(r"(?m)^Version: (.*)", text)[1])
record.unlink()  # uv's cache has the same file.
record.write_text(re.sub(r"(?m)^Version: .*", f"Version: {sys.argv[1]}", text, count=1))
folder.rename(folder.with_name(f"deepspeed-{sys.argv[1]}.dist-info"))
"""
"""Gives a node's DeepSpeed another version, as another image would, and prints the one that it had."""


@dataclass(frozen=True)
class Environment(Lab, ABC):
    """Two nodes of a lab, with one process of a job on each."""

    @abstractmethod
    def directory(self, node: str, job: str) -> str:
        """A job's directory on a node."""

    @abstractmethod
    def inside(self, node: str, *argv: str, check: bool = True) -> str:
        """Run a program in a node's execution environment; return its output."""

    @abstractmethod
    def protects(self, job: str) -> str:
        """Check that verbs that would end the running job are refused and change nothing; return why."""


@dataclass(frozen=True)
class Containers(Environment):
    """The nodes' training containers."""

    def directory(self, node: str, job: str) -> str:
        return f"/var/lib/rdm/{self.name}/{job}"

    def inside(self, node: str, *argv: str, check: bool = True) -> str:
        return self.on(node, "docker", "exec", "rdm", *argv, check=check)

    def protects(self, job: str) -> str:
        before = [self.container(node, "{{.Id}} {{.State.StartedAt}}") for node in NODES]
        for verb, *words in (
            ["down"],
            ["up", "--tags", "container", "--extra-vars", "container_env={NOTE: other}"],
        ):
            result = self.json(verb, *words, expect=2)
            assert [(problem["node"], problem["value"]) for problem in result["problems"]] == [
                (node, f"the job {job}") for node in NODES
            ]
            assert changed(result) == []
        # A verb that would not end it is accepted.
        assert changed(self.json("up", "--tags", "container")) == []
        assert [self.container(node, "{{.Id}} {{.State.StartedAt}}") for node in NODES] == before
        return problems(result)


def jobs(environment: Environment, *argv: str) -> dict[str, Any]:
    """The jobs that the nodes know, by name."""
    return {job["job"]: job for job in environment.json("jobs", *argv)["jobs"]}


def read(environment: Environment, job: str, file: str) -> dict[str, Any]:
    """The content of a job's file on its master; empty if there is none."""
    text = environment.on("n1", "cat", f"{environment.directory('n1', job)}/{file}", check=False)
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def progress(environment: Environment, job: str) -> dict[str, Any]:
    """The progress of a job."""
    return {"iteration": 0, **read(environment, job, "progress.json")}


def start(environment: Environment, config: str, job: str, *argv: str) -> None:
    """Start a training that does not end by itself, and return when it has trained a step."""
    environment.json("train", config, ENDLESS, "--name", job, "--detach", *argv)
    wait_for_step(environment, job)


def waiting(environment: Environment, *arguments: str) -> str:
    """Write the program that waits to every node; return the override with which a job runs it."""
    write = ["sh", "-c", 'printf %s "$1" >"$2"', "sh", PROGRAM_THAT_WAITS, WAITING]
    for node in NODES:
        environment.inside(node, *write)
    return f"launcher.program=[{', '.join((WAITING, *arguments))}]"


def start_waiting(environment: Environment, config: str, job: str, *argv: str) -> None:
    """Start a job that only waits, and return when all its processes wait."""
    environment.json("train", config, waiting(environment), "--name", job, "--detach", *argv)
    wait_until_waiting(environment, job)


def wait_until_waiting(environment: Environment, job: str) -> None:
    """Wait until every process of a job that only waits is waiting, and the job's state is running."""

    def logs() -> dict[str, str]:
        files = {node: f"{environment.directory(node, job)}/logs/{node}.out" for node in NODES}
        return {node: environment.on(node, "cat", file, check=False) for node, file in files.items()}

    wait_until(f"{job} is at work", logs, lambda texts: all("at work" in text for text in texts.values()))
    wait_until_running(environment, job)


def wait_for_step(environment: Environment, job: str, beyond: int = 0) -> None:
    """Wait until a job has trained beyond a step, and its state is running."""
    wait_until(
        f"{job} trains beyond step {beyond}",
        lambda: progress(environment, job),
        lambda now: now["iteration"] > beyond,
        why=partial(read, environment, job, "state.json"),
    )
    # A rank reports its steps; an agent reports the state, a little later.
    wait_until_running(environment, job)


def wait_until_running(environment: Environment, job: str) -> None:
    """Wait until a job's state is running."""
    state = partial(read, environment, job, "state.json")
    wait_until(f"{job} runs", state, lambda now: now.get("state") == "running")


def wait_for_restart(environment: Environment, job: str, times: int) -> None:
    """Wait until a job has restarted this many times."""
    what = f"{job} restarts for the {times}. time"
    state = partial(read, environment, job, "state.json")
    wait_until(what, state, lambda now: now.get("restarts") == times)


def wait_until_gone(environment: Environment, job: str, nodes: Sequence[str] = NODES) -> None:
    """Wait until no process of a job is left, for at most SOON seconds."""

    def left() -> dict[str, list[str]]:
        return {node: processes(environment, node, job) for node in nodes}

    wait_until(f"no process of {job} is left", left, lambda found: not any(found.values()), timeout=SOON)


def processes(environment: Environment, node: str, job: str = ".*") -> list[str]:
    """The ids of a job's processes on a node, or of all jobs'."""
    script = f"grep -lz ^RDM_JOB_ID={job}@ /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
    return environment.inside(node, "sh", "-c", script, check=False).split()


def pid(environment: Environment, job: str, node: str) -> str:
    """The id of a job's only process on a node; empty between two attempts."""
    record = f"{environment.directory(node, job)}/ranks/{node}/{NODES.index(node)}.json"
    text = environment.on(node, "cat", record, check=False)
    return str(json.loads(text)["pid"]) if text else ""


def gone(environment: Environment, job: str) -> bool:
    """Whether no process of a job is left on any node."""
    return not any(processes(environment, node, job) for node in NODES)


def end(environment: Environment, job: str) -> dict[str, Any]:
    """Watch a job until it fails or is stopped, and return its last state."""
    (ended,) = environment.json("jobs", job, "--watch", expect=1)["jobs"]
    found: dict[str, Any] = ended
    return found
