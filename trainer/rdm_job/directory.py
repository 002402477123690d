# SPDX-License-Identifier: GPL-3.0-or-later
"""A job's directory on one node, which holds all of its files."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from rdm_core.atomic_file import write_atomically
from rdm_core.data_paths import JOBS
from rdm_core.errors import TrainerError
from rdm_core.execution_environment import is_bare_host
from rdm_core.heartbeat import NODE_VARIABLE
from rdm_job import processes
from rdm_job.agent_lock import AgentLock, holder
from rdm_job.protocol import JOB_NAME, Request, State

TIME = "time"
SLURM = "slurm"
"""What stops a job, if not the user: ``TIME``, its time limit, after which it may continue; or ``SLURM``,
which knows the reason."""


def jobs_root() -> Path:
    """Return the directory of all jobs."""
    return Path(os.environ.get("RDM_JOBS") or JOBS)


def here() -> str:
    """Return where the job runs, as a word for messages: ``container`` or ``host``."""
    return "host" if is_bare_host() else "container"


def this_node(request: Request) -> str:
    """Return the name of the node that this process is on.

    The stored request names it, unless the nodes share the job's directory.
    """
    if name := os.environ.get(NODE_VARIABLE):
        return name
    # A Slurm task may run on one of several nodes of a host.
    if (name := os.environ.get("SLURMD_NODENAME", "")) in {node.name for node in request.nodes}:
        return name
    mine = os.environ.get("MY_IP")
    for node in request.nodes:
        if node.address == mine:
            return node.name
    for node in sorted(request.nodes, key=lambda node: node.name != request.node):
        # Only this machine's addresses can be bound.
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((node.address, 0))
            return node.name
    return request.node


class JobDirectory:
    """The directory of one job. Each node may have its own, or all share one.

    Args:
        path: The directory, which need not exist.
        node: The node that this process is on, if known.
    """

    def __init__(self, path: Path, node: str | None = None) -> None:
        self.path = path
        self._node = node
        self.config = path / "config.yaml"
        self.resolved = path / "resolved.yaml"
        self.hostfile = path / "hostfile"
        self.exports = path / ".deepspeed_env"
        self.logs = path / "logs"
        self.ranks = path / "ranks"
        self._job = path / "job.json"
        self._stop = path / ".stop.json"
        self.key = path / ".key"
        self.script = path / "job.sbatch"
        self.slurm = path / "slurm.json"

    @classmethod
    def named(cls, name: str) -> JobDirectory:
        """Return the directory of a job, which must exist."""
        job = cls(jobs_root() / name)
        if not JOB_NAME.fullmatch(name) or not job.exists:
            raise TrainerError(cls.missing(name))
        return job

    @classmethod
    def missing(cls, name: str) -> str:
        """Return the message that no job has a name, with similar names or the last jobs."""
        known = [job.path.name for job in cls.all()]
        near = difflib.get_close_matches(name, known)
        there = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known[-5:]) or 'none'}."
        return f"There is no job {name!r} on this node; {there}"

    @classmethod
    def of_master(cls, path: Path) -> JobDirectory:
        """Return an existing directory that all nodes share, from the master's point of view."""
        return cls(path, cls(path).stored().master.name)

    @classmethod
    def all(cls) -> list[JobDirectory]:
        """Return the directories of all jobs."""
        # A name with a leading dot is a directory that is being removed.
        return [cls(path.parent) for path in sorted(jobs_root().glob("[!.]*/job.json"))]

    @property
    def exists(self) -> bool:
        """Whether a job was started here."""
        return self._job.is_file()

    @functools.cached_property
    def node(self) -> str:
        """The node that this process is on."""
        return self._node or this_node(self.stored())

    @property
    def _state(self) -> Path:
        """The state file: on the master that of the whole job, elsewhere the node's own."""
        is_master = self.node == self.stored().master.name
        return self.path / ("state.json" if is_master else f"state.{self.node}.json")

    @property
    def _lock(self) -> Path:
        return self.path / f".agent.{self.node}.lock"

    def log(self, node: str, stream: str) -> Path:
        """Return the path of a log.

        Args:
            node: The node's name.
            stream: out, err, gpu or gpu.jsonl.
        """
        return self.logs / f"{node}.{stream}"

    def make(self, request: Request) -> None:
        """Make the directory, and write the files with which the job's processes find each other.

        Only the owner may read files that may hold secrets, such as ``launcher.env``.
        """
        for path in (self.path, self.logs, self.ranks):
            path.mkdir(parents=True, exist_ok=True)
        for name in (".out", ".err", ".gpu"):
            (self.logs / f"{request.node}{name}").touch()
        lines = [f"{node.address} slots={node.slots}\n" for node in request.nodes]
        write_atomically(self.hostfile, "".join(lines))
        write_atomically(self._job, json.dumps(request.to_json(), indent=1) + "\n", mode=0o600)

    def request(self) -> Request:
        """Return the request that made the job, as this node got it."""
        return dataclasses.replace(self.stored(), node=self.node)

    def stored(self) -> Request:
        """Return the request that made the job, as stored."""
        return Request.of(json.loads(self._job.read_text()))

    def write_config(self, text: str) -> None:
        """Write the configuration as the user gave it."""
        write_atomically(self.config, text, mode=0o600)

    def write_resolved(self, text: str) -> None:
        """Write the configuration with every key."""
        write_atomically(self.resolved, text, mode=0o600)

    def write_exports(self, text: str) -> None:
        """Write the variables that DeepSpeed passes on with pdsh."""
        write_atomically(self.exports, text, mode=0o600)

    # The state.

    def read_state(self) -> State:
        """Return the state that the agent last wrote."""
        try:
            return State.of(json.loads(self._state.read_text()))
        except FileNotFoundError:
            return State(job=self.path.name, directory=str(self.path))

    def write_state(self, state: State) -> None:
        """Replace the agent's state. A full disk does not end the job."""
        with contextlib.suppress(OSError):
            write_atomically(self._state, json.dumps(state.to_json()) + "\n")

    @property
    def version(self) -> int:
        """A number that changes with the state."""
        try:
            return self._state.stat().st_mtime_ns
        except FileNotFoundError:
            return 0

    def progress(self) -> dict[str, Any]:
        """Return the trainer's last progress record."""
        try:
            found = json.loads((self.path / "progress.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    # The ranks.

    def write_rank(self, rank: int, record: dict[str, Any]) -> None:
        """Write the record of a process of this node."""
        self._own_ranks.mkdir(parents=True, exist_ok=True)
        write_atomically(self._own_ranks / f"{rank}.json", json.dumps(record) + "\n")

    def read_ranks(self) -> list[dict[str, Any]]:
        """Return the records of this node's processes, by rank."""
        found, paths = [], list[Path]()
        # A temporary error of the file system does not end the job.
        with contextlib.suppress(OSError):
            paths.extend(self._own_ranks.glob("*.json"))
        for path in paths:
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads(path.read_text()))
        return sorted(found, key=lambda record: int(record["rank"]))

    def heartbeat(self, rank: int) -> Path:
        """Return the heartbeat file of a process of this node; see ``rdm_core.heartbeat``."""
        return self._own_ranks / f"{rank}.heartbeat"

    def forget_ranks(self, files: str = "*") -> None:
        """Remove what this node's processes of earlier attempts have left, and which attempts were ended.

        Args:
            files: Pattern of their names, such as ``3.*`` for rank 3.
        """
        for path in self._own_ranks.glob(files):
            path.unlink(missing_ok=True)

    def end_attempt(self, number: int) -> None:
        """Note that no process of this attempt, or of an earlier one, may begin on this node."""
        with contextlib.suppress(OSError):
            self._own_ranks.mkdir(parents=True, exist_ok=True)
            write_atomically(self._own_ranks / "ended", str(number))

    @property
    def ended_attempt(self) -> int:
        """The last attempt that was ended on this node; -1 if none was."""
        try:
            return int((self._own_ranks / "ended").read_text())
        except (OSError, ValueError):
            return -1

    @property
    def _own_ranks(self) -> Path:
        # One directory per node: many nodes may share the job's.
        return self.ranks / self.node

    # Stop requests.

    def request_stop(self, grace: float, by: str = "", run: str = "") -> None:
        """Request the agent to let the processes save and end.

        Args:
            grace: How many seconds they have for it.
            by: The source of the request, if not the user: ``TIME`` or ``SLURM``.
            run: The run of the job under Slurm that is to end; empty for a user's request.
        """
        write_atomically(self._stop, json.dumps({"grace": grace, "by": by, "run": run}))

    def stop_requested(self) -> float | None:
        """Return the seconds that the processes have to save and end; None without a stop request."""
        try:
            return float(json.loads(self._stop.read_text())["grace"])
        except (OSError, ValueError, KeyError):
            return None

    def stop_requested_by(self) -> str:
        """Return the source of a stop request, ``TIME`` or ``SLURM``; empty for a user's, or without one."""
        return self._of_stop("by")

    def run_to_stop(self) -> str:
        """Return the run of the job under Slurm that ``TIME`` or ``SLURM`` stops; empty without one."""
        return self._of_stop("run")

    def _of_stop(self, key: str) -> str:
        try:
            return str(json.loads(self._stop.read_text()).get(key) or "")
        except (OSError, ValueError):
            return ""

    def forget_stop(self) -> None:
        """Remove the stop request."""
        self._stop.unlink(missing_ok=True)

    # The agent.

    @property
    def sharing(self) -> list[str]:
        """The nodes that have had an agent in this directory: several if they share it."""
        return [path.name[len(".agent.") : -len(".lock")] for path in self.path.glob(".agent.*.lock")]

    def lock(self) -> AgentLock | None:
        """Take and return the agent's lock; None if an agent holds it."""
        return AgentLock.take(self._lock)

    @property
    def agent(self) -> str:
        """The identity (``processes.identity``) of the job's agent, running or ended; empty without one."""
        return holder(self._lock)

    @property
    def has_agent(self) -> bool:
        """Whether an agent runs for the job."""
        return processes.is_alive(self.agent)

    def wait_for_change(self, seconds: float) -> None:
        """Wait until the state changes or no agent runs, at most ``seconds``."""
        before, deadline = self.version, time.monotonic() + seconds
        while time.monotonic() < deadline and self.version == before and self.has_agent:
            time.sleep(0.2)
