"""The events of a run and its result: small frozen records that turn into JSON.

A :class:`rdm_provision.runner.run.Run` yields events while it works; the last one, :class:`RunFinished`,
carries the :class:`RunResult`. Nothing here knows Ansible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from rdm_provision.errors import BAD_INPUT, CANCELLED, DONE, FAILED, REFUSED
from rdm_provision.problem import Problem


class Status(StrEnum):
    """How a task, or a whole run, ended on one node."""

    OK = "ok"
    CHANGED = "changed"
    FAILED = "failed"
    UNREACHABLE = "unreachable"
    SKIPPED = "skipped"


def to_json(value: Any) -> Any:
    """Return a value that :mod:`json` can write: records become objects with their class in ``event``."""
    if isinstance(value, Event):
        return {"event": value.kind(), **_fields(value)}
    if isinstance(value, RunResult):
        return value.to_json()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _fields(value)
    if isinstance(value, Problem):
        return value._asdict()
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value


def _fields(record: Any) -> dict[str, Any]:
    return {f.name: to_json(getattr(record, f.name)) for f in dataclasses.fields(record)}


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that was changed on a node (or would be, in a check).

    Attributes:
        phase: the role that did it.
        task: the task's name.
        diff: a unified diff; empty if the task shows none.
    """

    phase: str
    task: str
    diff: str


@dataclass(frozen=True, slots=True)
class InProgress:
    """A task that had started on a node when the run was cancelled."""

    node: str
    phase: str
    task: str


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """How long a phase (a role) took, in seconds of wall clock."""

    phase: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeRecap:
    """The result of a whole run on one node: counts of tasks, and why it failed."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    skipped: int = 0
    unreachable: bool = False
    phase: str = ""
    why: str = ""
    changes: tuple[Change, ...] = ()

    @property
    def status(self) -> Status:
        """The worst that happened on this node."""
        if self.unreachable:
            return Status.UNREACHABLE
        if self.failed:
            return Status.FAILED
        if self.changed:
            return Status.CHANGED
        return Status.OK if self.ok else Status.SKIPPED


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. ``at`` is in seconds since the run began."""

    at: float

    @classmethod
    def kind(cls) -> str:
        """The event's name in JSON: ``RunStarted`` is ``run_started``."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The run began. ``nodes`` are its nodes, after ``--limit``."""

    verb: str
    nodes: tuple[str, ...]
    check: bool


@dataclass(frozen=True, slots=True)
class PhaseStarted(Event):
    """A role began (or, outside roles, a play)."""

    phase: str


@dataclass(frozen=True, slots=True)
class Progress(Event):
    """How far the current task is, such as ``round 3 of 7``."""

    text: str


@dataclass(frozen=True, slots=True)
class WorkFound(Event):
    """All nodes have been checked. ``work`` is node → phase → why it has work there."""

    work: Mapping[str, Mapping[str, Sequence[str]]]


@dataclass(frozen=True, slots=True)
class TaskStarted(Event):
    """A task began, on all nodes of its play."""

    phase: str
    task: str


@dataclass(frozen=True, slots=True)
class TaskGoesOn(Event):
    """A task takes long; reported once, after some seconds."""

    phase: str
    task: str


@dataclass(frozen=True, slots=True)
class NodeStarted(Event):
    """A task began on one node."""

    node: str
    phase: str
    task: str


@dataclass(frozen=True, slots=True)
class NodeResult(Event):
    """A task ended on one node.

    Attributes:
        message: in one line why it failed or could not be reached; empty otherwise.
        diff: what was changed, as a unified diff; empty if there is nothing to show.
        seconds: how long the task took on this node.
        ignored: it failed, and the playbook goes on regardless.
        refused: the plan was refused. This ends the run on all nodes; its result has the problems.
    """

    node: str
    phase: str
    task: str
    status: Status
    changed: bool
    message: str
    diff: str
    seconds: float
    ignored: bool = False
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Notice(Event):
    """A warning for the user, in one line."""

    text: str


@dataclass(frozen=True, slots=True)
class Output(Event):
    """What ansible-playbook itself printed: one or more lines, without colours."""

    text: str


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """The run is over."""

    result: RunResult


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        verb: which verb ran (``up``, ``verify``…).
        check: nothing was changed; ``changed`` counts what would have been.
        nodes: node name → :class:`NodeRecap`, in the inventory's order.
        refused: ``""``, or the stage that refused: ``inventory`` (before any node was touched), ``nodes``,
            ``input``.
        problems: every reason of a precondition failure.
        message: why the run as a whole failed, in one line; empty for failures of single nodes.
        phases: time per phase, in order.
        warnings: each once, in order.
        work: node → phase → why it had work, for nodes that had any.
        plan: what the plan decided (``preflight_plan`` of the collection), or None.
        fabric: the fabric table (``nodes``, ``rtt_us``, ``verdicts``, ``slow``, ``sample``…), or None.
        rdma: what pairs measured over RDMA (``bandwidth_gbit``, ``by_node``, ``verdicts``…), or None.
        collective: the all-reduce over all nodes (``sizes``, ``busbw``, ``verdicts``…), or None.
        returned: results of the modules that the verb needs: module → node → its results.
        in_progress: tasks that had started but not ended when the run was cancelled.
        cancelled: the user stopped it.
        seconds: wall-clock time.
        record: folder with the run's log, or None if none could be written.
    """

    verb: str
    check: bool = False
    nodes: Mapping[str, NodeRecap] = field(default_factory=dict)
    refused: str = ""
    problems: Sequence[Problem] = ()
    message: str = ""
    phases: Sequence[PhaseTime] = ()
    warnings: Sequence[str] = ()
    work: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    fabric: Mapping[str, Any] | None = None
    rdma: Mapping[str, Any] | None = None
    collective: Mapping[str, Any] | None = None
    returned: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] = field(default_factory=dict)
    in_progress: Sequence[InProgress] = ()
    cancelled: bool = False
    seconds: float = 0.0
    record: Path | None = None

    @property
    def failed(self) -> tuple[str, ...]:
        """The nodes on which a task failed."""
        return tuple(name for name, recap in self.nodes.items() if recap.status is Status.FAILED)

    @property
    def unreachable(self) -> tuple[str, ...]:
        """The nodes that could not be reached."""
        return tuple(name for name, recap in self.nodes.items() if recap.status is Status.UNREACHABLE)

    @property
    def changed(self) -> tuple[str, ...]:
        """The nodes on which something was changed (or would be, in a check)."""
        return tuple(name for name, recap in self.nodes.items() if recap.changed)

    @property
    def ok(self) -> bool:
        """Whether everything is done."""
        return self.exit_code == DONE

    @property
    def exit_code(self) -> int:
        """0 done, 1 failed on some node, 2 refused before any change, 3 bad input, 130 cancelled."""
        if self.cancelled:
            return CANCELLED
        if self.refused == "nodes":
            return REFUSED
        if self.refused:
            return BAD_INPUT
        if self.message or self.failed or self.unreachable:
            return FAILED
        return DONE

    def answers(self, module: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield each result of a module in ``returned`` with its node, in the order of the nodes."""
        returned = self.returned.get(module, {})
        for node in dict.fromkeys([*self.nodes, *returned]):
            for one in returned.get(node, ()):
                yield node, one

    def to_json(self) -> dict[str, Any]:
        """The result as ``--json`` prints it, with the exit code and each node's status."""
        data = _fields(self)
        data.pop("returned")
        data["nodes"] = {
            name: {"status": str(recap.status), **_fields(recap)} for name, recap in self.nodes.items()
        }
        summary = {name: list(getattr(self, name)) for name in ("changed", "failed", "unreachable")}
        return {"ok": self.ok, "exit_code": self.exit_code, **summary, **data}
