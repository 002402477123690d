# SPDX-License-Identifier: GPL-3.0-or-later
"""The execution environments on this machine, all with the same methods."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tests.distributed.nodes import PLANTED, Nodes
from tests.distributed.slurm_cluster import PROGRAM, Slurm
from tests.tiny import CONFIG
from tests.waiting import wait_until


class Environment(Protocol):
    """Two nodes with a process on each.

    Attributes:
        folder: A directory that both see.
        kind: The launcher.
    """

    folder: Path
    kind: str

    def submit(self, job: str, *overrides: str, **more: Any) -> None:
        """Check and start a job: the small program, unless ``config`` says otherwise."""

    def run_verb(self, *words: str) -> dict[str, Any]:
        """Run a verb of ``rdm-trainer job`` where the job was started."""

    def logs(self, job: str) -> list[str]:
        """Return the lines that all nodes wrote."""

    def directories(self, job: str) -> Sequence[Path]:
        """Return the job's directory on each node."""

    def watcher(self, job: str) -> subprocess.Popen[bytes]:
        """Return a process that waits for news of a job."""

    def node_dies(self, job: str) -> str:
        """Kill all of a job's processes on its last node, as a loss of power does; return the node's name."""

    def node_returns(self, job: str, node: str) -> None:
        """Start a dead node again, after its loss has been noticed."""


class Agents:
    """Agents that are started on each node, as in containers and on bare hosts."""

    kind = "no_ssh"

    def __init__(self, nodes: Nodes) -> None:
        self.folder, self._nodes = nodes.folder, nodes
        program = nodes.folder / "small.py"
        program.write_text(PROGRAM)
        nodes.program = [str(program)]

    def submit(self, job: str, *overrides: str, **more: Any) -> None:
        self._nodes.start(job, *overrides, **more)

    def run_verb(self, *words: str) -> dict[str, Any]:
        return self._nodes.run_verb("n1", *words)

    def logs(self, job: str) -> list[str]:
        logs = [self._nodes.run_verb(node, "logs", job, "--tail", "0")["text"] for node in ("n1", "n2")]
        return "".join(logs).splitlines()

    def directories(self, job: str) -> Sequence[Path]:
        return [self.folder / node / job for node in ("n1", "n2")]

    def watcher(self, job: str) -> subprocess.Popen[bytes]:
        return _watcher(job, {**os.environ, "RDM_JOBS": str(self.folder / "n1")})

    def node_dies(self, job: str) -> str:
        for number in (self._nodes.agent_of("n2", job), self._nodes.process_of(1, job)):
            os.kill(number, signal.SIGKILL)
        return "n2"

    def node_returns(self, job: str, node: str) -> None:
        wait_until(
            f"{job} misses {node}",
            lambda: state(self, job)["nodes"],
            lambda nodes: nodes[node] == "lost",
        )
        # A container does this when it starts.
        assert self._nodes.run_verb(node, "revive")["revived"] == [job]


class InSlurm:
    """Two nodes of a Slurm's partition.

    Args:
        slurm: The cluster.
        options: Options that make the job run in an image.
    """

    kind = "slurm"

    def __init__(self, slurm: Slurm, options: Sequence[str] = ()) -> None:
        self.folder, self._slurm = slurm.folder, slurm
        self._options = ["launcher.nodes=2", *options]

    def submit(self, job: str, *overrides: str, **more: Any) -> None:
        self._slurm.submit(job, *self._options, *overrides, **more)

    def run_verb(self, *words: str) -> dict[str, Any]:
        return self._slurm.run_verb(*words)

    def logs(self, job: str) -> list[str]:
        return "".join(self.run_verb("logs", job, "--tail", "0")["parts"].values()).splitlines()

    def directories(self, job: str) -> Sequence[Path]:
        return [self._slurm.jobs / job]

    def watcher(self, job: str) -> subprocess.Popen[bytes]:
        return _watcher(job, self._slurm.environment)

    def node_dies(self, job: str) -> str:
        node = str(max(state(self, job)["nodes"]))
        self._slurm.node_dies(node)
        return node

    def node_returns(self, job: str, node: str) -> None:
        words = ("sinfo", "-h", "-n", node, "-p", "gpu2", "-o", "%T")
        wait_until(
            f"Slurm misses {node}",
            lambda: self._slurm.slurm(*words),
            lambda output: output.startswith("down"),
        )
        self._slurm.node_up(node)


def _watcher(job: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "rdm_trainer", "job", "state", job, "--wait", "600"]
    return subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL)


def tiny(folder: Path, kind: str, **sections: dict[str, Any]) -> str:
    """Return the tiny GPT's configuration: 12 steps, with a pause after each as ``FOLDER/pause`` says."""
    path = os.pathsep.join(filter(None, (str(PLANTED), os.environ.get("PYTHONPATH"))))
    planted = {"PYTHONPATH": path, "PLANTED": str(folder)}
    launcher = CONFIG["launcher"]
    own = {
        "launcher": {**launcher, "kind": kind, "env": {**launcher["env"], **planted}},
        "optimisation": {"train_iterations": 12},
    }
    wanted = {key: dict(value) if isinstance(value, dict) else value for key, value in CONFIG.items()}
    for given in (own, sections):
        for name, keys in given.items():
            wanted.setdefault(name, {}).update(keys)
    return json.dumps(wanted)


def state(environment: Environment | Slurm, job: str) -> dict[str, Any]:
    """Return a job's state."""
    found: dict[str, Any] = environment.run_verb("state", job)["job"]
    return found


def wait_for_state(environment: Environment | Slurm, job: str, *states: str) -> dict[str, Any]:
    """Wait until a job is in one of these states, and return its state."""
    return wait_until(
        f"{job} is {' or '.join(states)}", lambda: state(environment, job), lambda one: one["state"] in states
    )


def wait_for_iteration(
    environment: Environment | Slurm, job: str, iteration: int, key: str = "iteration"
) -> dict[str, Any]:
    """Wait until a job has reached this iteration, or has a checkpoint of it; return its state."""
    return wait_until(
        f"{job} has reached {iteration}",
        lambda: state(environment, job),
        lambda one: (one["progress"].get(key) or 0) >= iteration or one["ended"],
    )
