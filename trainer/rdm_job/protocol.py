# SPDX-License-Identifier: GPL-3.0-or-later
"""What ``rdm-trainer job`` is asked and what it answers, as JSON; docs/launchers.md describes it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rdm_core.errors import TrainerError

__all__ = ["FINAL", "JOB_NAME", "VERSION", "Failure", "Node", "Offer", "Request", "State"]

VERSION = 1
JOB_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
FINAL = ("finished", "failed", "stopped")
"""States that a job does not leave by itself. The others: queued, starting, running, restarting, stopping."""


@dataclass(frozen=True)
class Node:
    """One node of a job.

    Attributes:
        name: Its name in the inventory.
        address: Its address on the fabric, MY_IP.
        slots: Processes on it.
    """

    name: str
    address: str
    slots: int


@dataclass(frozen=True)
class Offer:
    """What the master chose for all nodes of the job; nothing when none was asked.

    Attributes:
        agent_port: Where the master's agent listens.
        master_port: Where the first attempt's processes meet; attempt k takes ``master_port + k``.
        mark: What tells the job from others of its name; it stays when the job goes on.
    """

    agent_port: int = 0
    master_port: int = 0
    mark: str = ""


@dataclass(frozen=True)
class Request:
    """A job that is to be checked or started on one node.

    Attributes:
        name: The job's name and the name of its directory.
        node: The node that is asked.
        nodes: All of them; rank 0 is on the first, the master.
        config: The configuration, YAML; empty when the job goes on with what it has.
        overrides: ``key.sub=value``, over the configuration.
        resume: The job exists, has ended, and is to go on.
        accelerator: ``cuda``, ``rocm`` or ``cpu``.
        ssh_port: Where the containers' sshd listen.
        offer: What the master's check returned; only ``start`` needs it.
    """

    name: str
    node: str
    nodes: tuple[Node, ...]
    config: str = ""
    overrides: tuple[str, ...] = ()
    resume: bool = False
    accelerator: str = "cpu"
    ssh_port: int = 22
    offer: Offer = field(default_factory=Offer)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Request:
        """Return the request that JSON holds.

        Raises:
            TrainerError: It is of another version, or no request.
        """
        version = data.get("version")
        if version != VERSION:
            raise TrainerError(
                f"The request is of version {version}, this rdm-trainer speaks version {VERSION}: "
                "use the training image that belongs to this rdm-provision."
            )
        try:
            request = cls(
                name=str(data["name"]),
                node=str(data["node"]),
                nodes=tuple(Node(str(n["name"]), str(n["address"]), int(n["slots"])) for n in data["nodes"]),
                config=str(data.get("config") or ""),
                overrides=tuple(map(str, data.get("overrides") or ())),
                resume=bool(data.get("resume")),
                accelerator=str(data.get("accelerator") or "cpu"),
                ssh_port=int(data.get("ssh_port") or 22),
                offer=Offer(**(data.get("offer") or {})),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TrainerError(f"The request is none: {error!r}.") from None
        if not JOB_NAME.fullmatch(request.name):
            raise TrainerError(
                f"{request.name!r} is no name of a job: use lower-case letters, digits, '-', '_' and '.', "
                "and begin with a letter or digit."
            )
        if request.node not in [node.name for node in request.nodes]:
            raise TrainerError(f"The node {request.node} is none of the job's nodes.")
        return request

    @property
    def master(self) -> Node:
        """The first node: rank 0 is on it."""
        return self.nodes[0]

    @property
    def job_id(self) -> str:
        """What the job's processes carry, on all nodes the same, and no other job's.

        On a bare host, jobs of other clusters and users may have the same name.
        """
        return f"{self.name}@{self.offer.mark}" if self.offer.mark else self.name

    def to_json(self) -> dict[str, Any]:
        """The request as JSON."""
        return {"version": VERSION, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class Failure:
    """Something that ended an attempt.

    Attributes:
        node: Where it happened.
        rank: The process it happened to; None when it was the node or the launcher.
        reason: One sentence.
        lines: The last lines of its errors.
    """

    node: str
    rank: int | None
    reason: str
    lines: tuple[str, ...] = ()


@dataclass
class State:
    """How a job is: on the master the whole job, elsewhere what its agent knows.

    Attributes:
        job: Its name.
        state: queued (under Slurm), starting, running, restarting, stopping, finished, failed or stopped.
        reason: Why, in one sentence; empty where the state says it all.
        launcher: How its processes are started.
        master: Name of the node with rank 0.
        nodes: ``{name: state}``, by rank: waiting, running, done, failed or lost.
        failures: The newest last.
        restarts: How often it was restarted.
        started: Seconds since 1970.
        ended: Likewise; None while it goes on.
        directory: Its directory in the container.
        gpu: The newest line of each device, by node.
        progress: What ``progress.json`` holds.
        verdict: How it is: ``verdict``, ``reason``, ``evidence``, ``culprits`` and ``since``; on the master.
    """

    job: str
    state: str = "starting"
    reason: str = ""
    launcher: str = ""
    master: str = ""
    nodes: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    restarts: int = 0
    started: float = 0.0
    ended: float | None = None
    directory: str = ""
    gpu: dict[str, list[str]] = field(default_factory=dict)
    progress: dict[str, Any] = field(default_factory=dict)
    verdict: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> State:
        """Return the state that JSON holds; keys of later versions are left out."""
        names = {item.name for item in dataclasses.fields(cls)}
        known = {key: value for key, value in data.items() if key in names}
        known["failures"] = [
            Failure(item["node"], item["rank"], item["reason"], tuple(item.get("lines") or ()))
            for item in known.get("failures") or ()
        ]
        return cls(**known)

    @property
    def has_ended(self) -> bool:
        """It will not go on by itself."""
        return self.state in FINAL

    def to_json(self) -> dict[str, Any]:
        """The state as JSON."""
        return {"version": VERSION, **dataclasses.asdict(self)}
