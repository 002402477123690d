# SPDX-License-Identifier: GPL-3.0-or-later
"""How a job is, in one word and one sentence. Pure: what is known of the job → the verdict.

The rules are the document's four (the scheduler's state; running without a process on the GPUs; errors beyond
warnings; another configuration than was asked for) and what the steps themselves show.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rdm_log.errors import Finding

__all__ = ["EXIT_CODES", "Observed", "Verdict", "Word", "judge"]

Word = Literal["healthy", "starting", "stalled", "suspect", "failed", "finished"]

EXIT_CODES: dict[Word, int] = {
    "healthy": 0,
    "starting": 0,
    "finished": 0,
    "failed": 1,
    "stalled": 4,
    "suspect": 4,
}

# The launcher's states and Slurm's, in small letters.
_FINISHED = {"finished", "completed"}
_STOPPED = {"stopped", "cancelled"}
_FAILED = {"failed", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline", "preempted"}
_WAITING = {"starting", "restarting", "pending", "configuring", "requeued"}
_PAUSES = {"saving", "loading", "evaluating"}

_START_S = 900.0
"""A training may take so long until its first step: building, loading, and the first kernels."""
_IDLE_S = 120.0
"""So long may it run before a process is on its GPUs."""
_LATE = 5.0
"""It stalls when the next line takes so many times the usual time…"""
_LATE_S = 20.0
"""… and this many seconds at least."""
_PAUSE_S = 1800.0
"""So long may it save, load or evaluate."""
_POINTS = 20
"""So many points of the loss curve say whether it falls."""
_FLAT = 0.01
"""The loss of a training that learns nothing is the logarithm of the vocabulary, to this share."""
_SLOWER = 1.5
"""The last steps are slower than usual when they take so many times the median."""


@dataclass(frozen=True)
class Observed:
    """What is known of a job; what is not known is left out, and no rule asks for it.

    Attributes:
        state: The launcher's state or the scheduler's; empty when only logs are there.
        reason: Why it ended, in the launcher's or scheduler's words.
        runs: Its runs, as ``Summary.runs`` has them; the last one counts.
        findings: What is wrong on its standard error, since its newest run began.
        asked: Its configuration, by the names of the job info; see ``sections``.
        told: The same, as the job itself wrote it.
        versions: Of packages that must be equal on all nodes, by node.
        gpu_processes: Processes on its GPUs.
        seconds_running: Since it, or its newest run, began.
        seconds_since_step: Since its last training line.
        phase: What the training does just now, such as ``saving``.
        vocabulary: Entries of the vocabulary, padded.
    """

    state: str = ""
    reason: str = ""
    runs: Sequence[Mapping[str, Any]] = ()
    findings: Sequence[Finding] = ()
    asked: Mapping[str, str] = field(default_factory=dict)
    told: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpu_processes: int | None = None
    seconds_running: float | None = None
    seconds_since_step: float | None = None
    phase: str = ""
    vocabulary: int | None = None

    @property
    def run(self) -> Mapping[str, Any] | None:
        """The newest run that has steps."""
        return next((run for run in reversed(self.runs) if run["lines"]), None)


@dataclass(frozen=True)
class Verdict:
    """How a job is.

    Attributes:
        word: In one word.
        reason: Why, in one sentence.
        evidence: All that speaks for it, a sentence each; the first one is the reason.
    """

    word: Word
    reason: str
    evidence: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """For scripts."""
        return EXIT_CODES[self.word]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {"verdict": self.word, "reason": self.reason, "evidence": list(self.evidence)}


def judge(seen: Observed) -> Verdict:
    """Return how a job is, from what is known of it."""
    state = seen.state.lower().split()[0].rstrip("+") if seen.state.strip() else ""
    errors = list(_errors(seen.findings))
    run = seen.run
    if state in _FAILED or (not state and errors and not _is_done(run)):
        reasons = [seen.reason] if seen.reason else []
        return _verdict("failed", [*reasons, *errors] or [f"Its state is {seen.state}."])
    if state in _STOPPED:
        return _verdict("finished", [seen.reason or "It was stopped."])
    if state in _FINISHED or (not state and _is_done(run)):
        end = f"It came to iteration {run['last_iteration']}." if run else "It has ended."
        return _verdict("finished", [end, *errors])
    suspicious = [*errors, *_differences(seen), *(_of_steps(run, seen.vocabulary) if run else ())]
    late = list(_late(seen, state))
    if late:
        return _verdict("stalled", [*late, *suspicious])
    if suspicious:
        return _verdict("suspect", suspicious)
    if run is None or state in _WAITING:
        return _verdict("starting", ["It has not come to a step yet."])
    return _verdict("healthy", [_progress(run)])


def _verdict(word: Word, evidence: Sequence[str]) -> Verdict:
    return Verdict(word, evidence[0], tuple(dict.fromkeys(evidence)))


def _is_done(run: Mapping[str, Any] | None) -> bool:
    if run is None:
        return False
    return "after training is done" in run["milestones"] or run["last_iteration"] == run["train_iterations"]


def _errors(findings: Sequence[Finding]) -> Iterator[str]:
    for one in findings:
        if one.kind == "error":
            who = f"rank {one.ranks[0]}: " if len(one.ranks) == 1 else ""
            many = f", {one.count} times" if one.count > 1 else ""
            cause = one.cause[0].upper() + one.cause[1:]
            yield f"{cause}{many} ({who}{one.line[:200]})."


def _differences(seen: Observed) -> Iterator[str]:
    """Yield how what runs differs from what was asked for, and nodes from each other."""
    for key, asked in seen.asked.items():
        told = seen.told.get(key, asked)
        if told != asked:
            yield f"{key} is {told}, and {asked} was asked for."
    packages = {package for versions in seen.versions.values() for package in versions}
    for package in sorted(packages):
        by_version: dict[str, list[str]] = {}
        for node, versions in seen.versions.items():
            if package in versions:
                by_version.setdefault(versions[package], []).append(node)
        if len(by_version) > 1:
            rare = min(by_version, key=lambda version: (len(by_version[version]), version))
            usual = max(by_version, key=lambda version: (len(by_version[version]), version))
            if rare == usual:
                rare = next(version for version in by_version if version != usual)
            yield f"{', '.join(by_version[rare])} has {package} {rare}, others have {usual}."


def _of_steps(run: Mapping[str, Any], vocabulary: int | None) -> Iterator[str]:
    """Yield what is wrong with the steps."""
    loss = run["loss"]
    points = [value for _, value in loss["curve"]]
    name = loss["name"]
    if loss["not_finite"] or run["nan"]:
        count = loss["not_finite"] or run["nan"]
        yield f"The loss was not a number {count} time{'s' if count > 1 else ''}."
    last = points[-_POINTS:]
    if len(last) == _POINTS:
        end = statistics.median(last[-5:])
        if end > 1.5 * loss["lowest"] and end > loss["lowest"] + 1.0:
            yield (
                f"The {name} diverges: it was {loss['lowest']:.3f} at iteration {loss['lowest_at']}"
                f" and is {end:.3f}."
            )
        nothing_learnt = math.log(vocabulary) if vocabulary else math.inf
        if all(abs(value / nothing_learnt - 1) < _FLAT for value in last):
            yield (
                f"The {name} stays at {end:.3f}, the logarithm of the vocabulary of {vocabulary}: nothing is"
                " learnt."
            )
    steps = run["last_iteration"] - run["first_iteration"] + 1
    if run["skipped"] > max(_POINTS, steps / 2):
        yield f"{run['skipped']} of {steps} steps were skipped."
    recent, median = run["step_ms"]["recent"], run["step_ms"]["median"]
    if run["lines"] > 2 * _POINTS and median and statistics.median(recent) > _SLOWER * median:
        slower = statistics.median(recent) / median
        yield f"The last steps took {slower:.1f} times as long as usual ({statistics.median(recent):.0f} ms)."


def _late(seen: Observed, state: str) -> Iterator[str]:
    """Yield why a job does not get on."""
    running = seen.seconds_running
    if seen.gpu_processes == 0 and state not in _WAITING and (running is None or running > _IDLE_S):
        yield "It runs, but no process is on its GPUs."
    run = seen.run
    if run is None:
        if running is not None and running > _START_S and state not in ("pending", "configuring"):
            yield f"It has not come to a step in {running:.0f} s."
        return
    usual = _usual_s(run)
    if seen.seconds_since_step is None or usual is None or state in _WAITING:
        return
    limit = max(_LATE * usual, _LATE_S)
    if seen.phase in _PAUSES:
        limit = max(limit, _PAUSE_S)
    if seen.seconds_since_step > limit:
        yield (
            f"No step for {seen.seconds_since_step:.0f} s after iteration {run['last_iteration']}: usual are"
            f" {usual:.1f} s."
        )


def _usual_s(run: Mapping[str, Any]) -> float | None:
    """Return how many seconds there usually are between two training lines."""
    median: float | None = run["step_ms"]["median"]
    if median is None:
        return None
    interval: float = (run["last_iteration"] - run["first_iteration"]) / max(1, run["lines"] - 1)
    if run["lines"] < 2:
        interval = run["first_iteration"]
    return median / 1000.0 * max(1.0, interval)


def _progress(run: Mapping[str, Any]) -> str:
    total = f" of {run['train_iterations']}" if run["train_iterations"] else ""
    median = run["step_ms"]["median"]
    speed = f", {median / 1000:.2f} s a step" if median else ""
    loss = run["loss"]["last"]
    value = f", {run['loss']['name']} {loss:.4f}" if loss is not None else ""
    return f"Iteration {run['last_iteration']}{total}{speed}{value}."
