"""The state of a training job."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from rdm_provision.constants import FINAL_STATES
from rdm_provision.results.events import Event, to_json


@dataclass(frozen=True, slots=True)
class JobNode:
    """A node of a job and its state: ``waiting``, ``running``, ``done``, ``failed`` or ``lost``."""

    name: str
    state: str


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Something that ended a job, or made it restart.

    Attributes:
        node: where it happened.
        rank: the failed process, or None for the node as a whole.
        reason: one sentence.
        lines: the last lines of its errors.
    """

    node: str
    rank: int | None
    reason: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobVerdict:
    """How a job is, as its master's agent evaluates it by the rules in docs/watching-jobs.md.

    Attributes:
        verdict: ``healthy``, ``starting``, ``stalled``, ``suspect``, ``failed`` or ``finished``.
        reason: why, in one sentence.
        evidence: all evidence, a sentence each; the first is the reason.
        culprits: faulty nodes and ranks, and their faults: ``{"kind": "slow", "node": "n2", "rank": 5}``.
        since: since when it holds, in seconds since 1970.
        exit_code: for scripts: 0 if all is well, 1 if the job failed, 4 if somebody should check it.
    """

    verdict: str
    reason: str = ""
    evidence: tuple[str, ...] = ()
    culprits: tuple[Mapping[str, Any], ...] = ()
    since: float | None = None
    exit_code: int = 0

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> JobVerdict | None:
        """Return the verdict of an agent; None if it gave none, as older agents do."""
        if not data.get("verdict"):
            return None
        return cls(
            str(data["verdict"]),
            str(data.get("reason") or ""),
            tuple(map(str, data.get("evidence") or ())),
            tuple(data.get("culprits") or ()),
            data.get("since"),
            int(data.get("exit_code") or 0),
        )


@dataclass(frozen=True, slots=True)
class JobState:
    """A training job's state, now or when it ended.

    Attributes:
        job: its name.
        state: ``queued`` (under Slurm), ``starting``, ``running``, ``restarting``, ``stopping``, or final:
            ``finished``, ``failed`` or ``stopped``.
        reason: why, in a sentence or two; empty if it runs or has finished.
        launcher: how its processes are started.
        master: the node with rank 0.
        nodes: its nodes, by rank.
        failures: what has failed so far, the newest last.
        restarts: how often it was restarted.
        started: seconds since 1970.
        seconds: how long it has run, or ran.
        iteration: steps done.
        train_iterations: steps of the whole training, 0 while unknown.
        loss: the last one.
        lr: learning rate of the last step.
        step_seconds: how long a step takes.
        tokens_per_second: of all processes together.
        tflops: of each accelerator.
        losses: points (iteration, loss) of the curve.
        checkpoint: iteration of the newest checkpoint.
        exported: directories of a fine-tuning's results, ``model`` or ``adapter``.
        phase: what the training does: ``starting``, ``training``, ``evaluating``…
        gpu: the use of each accelerator, a line each, by node.
        directory: its directory on each node.
        verdict: see :class:`JobVerdict`; None while unknown.
    """

    job: str
    state: str
    reason: str = ""
    launcher: str = ""
    master: str = ""
    nodes: tuple[JobNode, ...] = ()
    failures: tuple[JobFailure, ...] = ()
    restarts: int = 0
    started: float | None = None
    seconds: float | None = None
    iteration: int = 0
    train_iterations: int = 0
    loss: float | None = None
    lr: float | None = None
    step_seconds: float | None = None
    tokens_per_second: float | None = None
    tflops: float | None = None
    losses: tuple[tuple[int, float], ...] = field(default=(), repr=False)
    checkpoint: int | None = None
    exported: tuple[str, ...] = ()
    phase: str = ""
    gpu: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    directory: str = ""
    verdict: JobVerdict | None = None

    @classmethod
    def of(cls, data: Mapping[str, Any], jobs_directory: str, now: float) -> JobState:
        """Return the state that a node reported.

        Args:
            data: the answer of the job's agent; docs/launchers.md describes it.
            jobs_directory: the parent of the jobs' directories on the node.
            now: seconds since 1970.
        """
        progress: Mapping[str, Any] = data.get("progress") or {}
        started, ended = data.get("started") or None, data.get("ended")
        # Slurm jobs have the same path on all hosts, which may be outside the directory of other jobs.
        own = str(data.get("directory") or "") if data.get("launcher") == "slurm" else ""
        directory = own or f"{jobs_directory}/{data['job']}"
        return cls(
            job=str(data["job"]),
            state=str(data["state"]),
            reason=str(data.get("reason") or ""),
            launcher=str(data.get("launcher") or ""),
            master=str(data.get("master") or ""),
            nodes=tuple(JobNode(name, str(state)) for name, state in (data.get("nodes") or {}).items()),
            failures=tuple(
                JobFailure(
                    str(one["node"]), one.get("rank"), str(one["reason"]), tuple(one.get("lines") or ())
                )
                for one in data.get("failures") or ()
            ),
            restarts=int(data.get("restarts") or 0),
            started=started,
            seconds=max(0.0, (ended or now) - started) if started else None,
            iteration=int(progress.get("iteration") or 0),
            train_iterations=int(progress.get("train_iterations") or 0),
            loss=progress.get("loss"),
            lr=progress.get("lr"),
            step_seconds=progress.get("step_seconds"),
            tokens_per_second=progress.get("tokens_per_second"),
            tflops=progress.get("tflops"),
            losses=tuple((int(step), float(loss)) for step, loss in progress.get("losses") or ()),
            checkpoint=progress.get("checkpoint"),
            exported=tuple(map(str, progress.get("exported") or ())),
            phase=str(progress.get("phase") or ""),
            gpu={node: tuple(lines) for node, lines in (data.get("gpu") or {}).items()},
            directory=directory,
            verdict=JobVerdict.of(data.get("verdict") or {}),
        )

    @property
    def ended(self) -> bool:
        """Whether it will not go on by itself."""
        return self.state in FINAL_STATES

    @property
    def remaining(self) -> float | None:
        """Seconds until the training ends, at the speed of the last steps; None without a speed.

        The speed is of the last steps because this run may have resumed: its own number of steps is unknown.
        """
        if not (self.step_seconds and self.train_iterations):
            return None
        return self.step_seconds * max(0, self.train_iterations - self.iteration)

    def places(self) -> list[tuple[str, str]]:
        """Return the paths of its files on the nodes: (what, path)."""
        found = [("logs", f"{self.directory}/logs on each node: <node>.out, .err, .gpu")]
        if self.checkpoint is not None:
            where = f"{self.directory}/checkpoints on each node, the newest of iteration {self.checkpoint}"
            found.append(("checkpoints", where))
        found += [(name, f"{self.directory}/{name} on {self.master}") for name in self.exported]
        return found

    def to_json(self) -> dict[str, Any]:
        """The state as ``--json`` prints it."""
        return {field.name: to_json(getattr(self, field.name)) for field in dataclasses.fields(self)}


@dataclass(frozen=True, slots=True)
class JobUpdate(Event):
    """News of a watched job, as ``node`` reported it."""

    node: str
    job: JobState


@dataclass(frozen=True, slots=True)
class JobLines(Event):
    """A job's output on a node: whole lines, or the end of one."""

    node: str
    stream: str
    text: str


def job_news(at: float, node: str, result: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events in a result of the module ``job``."""
    if isinstance(result.get("job"), Mapping):
        yield JobUpdate(at, node, JobState.of(result["job"], str(result.get("directory", "")), time.time()))
    if result.get("text"):
        yield JobLines(at, node, str(result.get("stream", "")), str(result["text"]))
    # Under Slurm, one host has the logs of all nodes.
    for name, text in (result.get("parts") or {}).items():
        yield JobLines(at, str(name), str(result.get("stream", "")), str(text))
