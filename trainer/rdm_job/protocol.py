# SPDX-License-Identifier: GPL-3.0-or-later
"""Requests to ``rdm-trainer job`` and its replies, as JSON; docs/launchers.md describes them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rdm_core.errors import TrainerError

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
    """The master's choices for all nodes of the job; empty before the master has made them.

    Attributes:
        agent_port: Where the master's agent listens.
        master_port: Where the first attempt's processes meet; attempt k takes ``master_port + k``.
        mark: Distinguishes the job from others of its name; a resumed job keeps it.
    """

    agent_port: int = 0
    master_port: int = 0
    mark: str = ""


@dataclass(frozen=True)
class Request:
    """A request to check or start a job on one node.

    Attributes:
        name: The job's name and the name of its directory.
        node: The node that gets the request.
        nodes: All nodes; rank 0 is on the first, the master.
        config: The configuration, YAML; empty when the job resumes with its own.
        overrides: ``key.sub=value``, applied to the configuration.
        resume: Resume the job, which exists and has ended.
        accelerator: ``cuda``, ``rocm`` or ``cpu``.
        offer: What the master's check returned; only ``start`` needs it.
    """

    name: str
    node: str
    nodes: tuple[Node, ...]
    config: str = ""
    overrides: tuple[str, ...] = ()
    resume: bool = False
    accelerator: str = "cpu"
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
    def is_master(self) -> bool:
        """Whether the node that gets the request is the master."""
        return self.node == self.master.name

    @property
    def node_rank(self) -> int:
        """The place of the node that gets the request among all nodes."""
        return [node.name for node in self.nodes].index(self.node)

    @property
    def own(self) -> Node:
        """The node that gets the request."""
        return self.nodes[self.node_rank]

    @property
    def ranks(self) -> tuple[Node, ...]:
        """The node of each rank."""
        return tuple(node for node in self.nodes for _ in range(node.slots))

    @property
    def world_size(self) -> int:
        """The job's processes on all nodes."""
        return sum(node.slots for node in self.nodes)

    @property
    def job_id(self) -> str:
        """The id in the environment of the job's processes: the same on all nodes, and unique to the job.

        The name is not enough: on a bare host, jobs of other clusters and users may have the same one.
        """
        return f"{self.name}@{self.offer.mark}" if self.offer.mark else self.name

    def to_json(self) -> dict[str, Any]:
        """The request as JSON."""
        return {"version": VERSION, **dataclasses.asdict(self)}


@dataclass(frozen=True)
class Failure:
    """A failure that ended an attempt.

    Attributes:
        node: Where it happened.
        rank: The process that failed; None when the node or the launcher did.
        reason: One sentence.
        lines: The last lines of its errors.
    """

    node: str
    rank: int | None
    reason: str
    lines: tuple[str, ...] = ()


@dataclass
class State:
    """The state of a job: of the whole job on the master, of what the agent knows elsewhere.

    Attributes:
        job: Its name.
        state: queued (under Slurm), starting, running, restarting, stopping, finished, failed or stopped.
        reason: Why, in one sentence; empty where the state needs no explanation.
        launcher: How its processes are started.
        master: Name of the node with rank 0.
        nodes: ``{name: state}``, by rank: waiting, running, done, failed or lost.
        failures: The newest last.
        restarts: How often it was restarted.
        started: Seconds since 1970.
        ended: Likewise; None before it has ended.
        directory: Its directory in the container.
        gpu: The newest line of each device, by node.
        progress: What ``progress.json`` holds.
        verdict: On the master: ``verdict``, ``reason``, ``evidence``, ``culprits`` and ``since``.
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
        """Return the state that JSON holds; unknown keys, of later versions, are ignored."""
        names = {item.name for item in dataclasses.fields(cls)}
        known = {key: value for key, value in data.items() if key in names}
        known["failures"] = [
            Failure(item["node"], item["rank"], item["reason"], tuple(item.get("lines") or ()))
            for item in known.get("failures") or ()
        ]
        return cls(**known)

    @property
    def has_ended(self) -> bool:
        """Whether the job is over: it will not continue by itself."""
        return self.state in FINAL

    def to_json(self) -> dict[str, Any]:
        """The state as JSON."""
        return {"version": VERSION, **dataclasses.asdict(self)}
