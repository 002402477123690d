# SPDX-License-Identifier: GPL-3.0-or-later
"""The places of a lab where jobs run, and how a test looks at a job there, past the product."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.e2e.product import ROOT, Lab, changed, problems, wait_until

NODES = ("n1", "n2")
SOON = 120.0
"""Seconds within which a fault has ended a job everywhere: ten times the silence that agents bear."""

_TINY = json.loads((ROOT / "trainer/tests/tiny_gpt.json").read_text(encoding="utf-8"))
TINY: dict[str, Any] = _TINY["config"]
LOSSES: dict[int, float] = dict(_TINY["losses"])
"""Of each step, on one process: what every place and launcher has."""
STEPS = TINY["optimisation"]["train_iterations"]
ENDLESS = "optimisation.train_iterations=1000000"
# Where a job is what is tested, whatever it trains: without torch it begins at once.
WAITING = "/tmp/e2e_waiting.py"
PROGRAM_THAT_WAITS = """
import os, signal, socket, sys, time

place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
# Else torchrun itself listens there, as it tells torch.
listens = os.environ["RANK"] == "0" and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
if "connected" in sys.argv and listens:
    other, _ = socket.create_server(place).accept()
elif "connected" in sys.argv:
    while True:
        try:
            other = socket.create_connection(place)
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
class Place(Lab, ABC):
    """Two nodes of a lab, with one process of a job on each."""

    @abstractmethod
    def directory(self, node: str, job: str) -> str:
        """A job's directory on a node."""

    @abstractmethod
    def inside(self, node: str, *argv: str, check: bool = True) -> str:
        """Run a program where a node's part of jobs is; return what it wrote."""

    @abstractmethod
    def spares(self, job: str) -> str:
        """See that what would end the one job that runs is refused and changes nothing; return why."""


@dataclass(frozen=True)
class Containers(Place):
    """The nodes' training containers."""

    def directory(self, node: str, job: str) -> str:
        return f"/var/lib/rdm/{self.name}/{job}"

    def inside(self, node: str, *argv: str, check: bool = True) -> str:
        return self.on(node, "docker", "exec", "rdm", *argv, check=check)

    def spares(self, job: str) -> str:
        before = [self.container(node, "{{.Id}} {{.State.StartedAt}}") for node in NODES]
        for verb, *words in (
            ["down"],
            ["up", "--tags", "container", "--extra-vars", "container_env={NOTE: other}"],
        ):
            told = self.json(verb, *words, expect=2)
            assert [(problem["node"], problem["value"]) for problem in told["problems"]] == [
                (node, f"the job {job}") for node in NODES
            ]
            assert changed(told) == []
        # What would not end it goes through.
        assert changed(self.json("up", "--tags", "container")) == []
        assert [self.container(node, "{{.Id}} {{.State.StartedAt}}") for node in NODES] == before
        return problems(told)


def jobs(place: Place, *argv: str) -> dict[str, Any]:
    """The jobs that the nodes know, by name."""
    return {job["job"]: job for job in place.json("jobs", *argv)["jobs"]}


def read(place: Place, job: str, file: str) -> dict[str, Any]:
    """What a file of a job says on its master; empty when there is none."""
    text = place.on("n1", "cat", f"{place.directory('n1', job)}/{file}", check=False)
    found: dict[str, Any] = json.loads(text) if text else {}
    return found


def progress(place: Place, job: str) -> dict[str, Any]:
    """How far a job is."""
    return {"iteration": 0, **read(place, job, "progress.json")}


def start(place: Place, config: str, job: str, *argv: str) -> None:
    """Start a job that does not end by itself, and return when it trains."""
    place.json("train", config, ENDLESS, "--name", job, "--detach", *argv)
    trains(place, job)


def waiting(place: Place, *arguments: str) -> str:
    """Put the program that waits on every node; return the override that makes a job of it."""
    write = ["sh", "-c", 'printf %s "$1" >"$2"', "sh", PROGRAM_THAT_WAITS, WAITING]
    for node in NODES:
        place.inside(node, *write)
    return f"launcher.program=[{', '.join((WAITING, *arguments))}]"


def start_waiting(place: Place, config: str, job: str, *argv: str) -> None:
    """Start a job that only waits, and return when all its processes do."""
    place.json("train", config, waiting(place), "--name", job, "--detach", *argv)
    waits(place, job)


def waits(place: Place, job: str) -> None:
    """Wait until every process of a job that only waits does so, and the job is said to run."""

    def logs() -> dict[str, str]:
        files = {node: f"{place.directory(node, job)}/logs/{node}.out" for node in NODES}
        return {node: place.on(node, "cat", file, check=False) for node, file in files.items()}

    wait_until(lambda: all("at work" in log for log in logs().values()), f"{job} is at work", seen=logs)
    runs(place, job)


def trains(place: Place, job: str, beyond: int = 0) -> None:
    """Wait until a job has trained beyond a step, and is said to run."""
    wait_until(
        lambda: progress(place, job)["iteration"] > beyond,
        f"{job} trains beyond step {beyond}",
        seen=lambda: read(place, job, "state.json"),
    )
    # A rank tells of its steps, an agent of the state, a little later.
    runs(place, job)


def runs(place: Place, job: str) -> None:
    """Wait until a job is said to run."""
    wait_until(
        lambda: read(place, job, "state.json").get("state") == "running",
        f"{job} runs",
        seen=lambda: read(place, job, "state.json"),
    )


def restarted(place: Place, job: str, times: int) -> None:
    """Wait until a job has begun anew so many times."""
    wait_until(
        lambda: read(place, job, "state.json").get("restarts") == times,
        f"{job} restarts for the {times}. time",
        seen=lambda: read(place, job, "state.json"),
    )


def nothing_left(place: Place, job: str, nodes: Sequence[str] = NODES) -> None:
    """Wait until no process of a job is left, which is soon."""

    def left() -> dict[str, list[str]]:
        return {node: processes(place, node, job) for node in nodes}

    wait_until(lambda: not any(left().values()), f"no process of {job} is left", SOON, seen=left)


def processes(place: Place, node: str, job: str = ".*") -> list[str]:
    """The ids of a job's processes on a node, or of all jobs'."""
    script = f"grep -lz ^RDM_JOB_ID={job}@ /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
    return place.inside(node, "sh", "-c", script, check=False).split()


def pid(place: Place, job: str, node: str) -> str:
    """The id of a job's process on a node that has one of them; empty between two attempts."""
    record = f"{place.directory(node, job)}/ranks/{node}/{NODES.index(node)}.json"
    text = place.on(node, "cat", record, check=False)
    return str(json.loads(text)["pid"]) if text else ""


def gone(place: Place, job: str) -> bool:
    """Whether no process of a job is left on any node."""
    return not any(processes(place, node, job) for node in NODES)


def end(place: Place, job: str) -> dict[str, Any]:
    """Watch a job to an end that is no good one, and return how it was."""
    (ended,) = place.json("jobs", job, "--watch", expect=1)["jobs"]
    found: dict[str, Any] = ended
    return found
