# SPDX-License-Identifier: GPL-3.0-or-later
"""A job's verdict, in one word and one sentence. Pure functions: observations → verdict.

The rules are the four of the original document (the scheduler's state; a running job without a process on the
GPUs; errors, not just warnings; a configuration other than requested) and others about the steps.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rdm_log import states
from rdm_log.errors import Finding
from rdm_log.peers import RankHeartbeat
from rdm_log.records import DONE
from rdm_log.signs import Sign
from rdm_log.summary import newest_run
from rdm_log.wording import NAMES_SHOWN, duration, listed

Word = Literal["healthy", "starting", "stalled", "suspect", "failed", "finished"]

EXIT_CODES: dict[Word, int] = {
    "healthy": 0,
    "starting": 0,
    "finished": 0,
    "failed": 1,
    "stalled": 4,
    "suspect": 4,
}

_EXITING = "exiting program"
"""How Megatron's milestone begins if it exits before its last step on request."""
_PAUSES = {"saving", "loading", "evaluating"}

_START_S = 900.0
"""The most time until the first step: building, loading, and the first kernels."""
_IDLE_S = 120.0
"""The most time until a process is on the GPUs."""
_LATE = 5.0
"""A job stalls when the next line takes this multiple of the usual time…"""
_LATE_S = 20.0
"""… and at least this long…"""
_SILENT_S = 300.0
"""… or this long, for a program that does not report when it saves and evaluates."""
_PAUSE_S = 1800.0
"""The most time to save, load or evaluate."""
_POINTS = 20
"""The number of last points of the loss curve that are evaluated."""
_FLAT = 0.01
"""A training learns nothing if its loss is within this share of the vocabulary's logarithm…"""
_FLAT_STEPS = 300
"""… after this many steps. During the warm-up of the learning rate, that is normal."""
_SLOWER = 1.5
"""The last steps are slow when they take this multiple of the median…"""
_SLOWER_S = 60.0
"""… for this long. Shorter slowdowns come from other load on a node."""


@dataclass(frozen=True)
class Observed:
    """What is known of a job. Rules skip what is not known.

    Attributes:
        state: The launcher's or scheduler's state; empty if there are only logs.
        reason: Why it ended or waits, in the launcher's or scheduler's words.
        failure: The same, with the node and rank that it names.
        runs: Its runs, as in ``Summary.runs``; the last one counts.
        findings: Errors and warnings, mostly from standard error, since its newest run began.
        requested: Its configuration, by the names of the job info; see ``sections``.
        reported: The configuration that the job itself logged, by node ("" if unknown).
        versions: Versions of packages that must be equal on all nodes, by node.
        gpu_processes: The number of processes on its GPUs, by node ("" if unknown); None if a node does not
            report it.
        seconds_running: The time since it, or its newest run, began.
        seconds_since_step: The time since its last training line.
        phase: What the training is doing, such as ``saving``.
        reports_phases: It reports when it saves and evaluates; otherwise a pause may be either.
        sees_steps: Each step is seen, also between two lines.
        logs_steps: It logs steps in a format that is understood.
        vocabulary: The padded size of the vocabulary.
        signs: Signs from nodes' samples and from comparing ranks.
        holding: Ranks that the others wait for at this moment.
        awaited: The collective that they wait in; see ``collectives.awaited``.
        silent_since: When its logs were last written, if that is long ago and no state says that it runs.
        watched: The verdict of the job's observer, during the job or at its end. It knows more than the logs.
    """

    state: str = ""
    reason: str = ""
    failure: Sign | None = None
    runs: Sequence[Mapping[str, Any]] = ()
    findings: Sequence[Finding] = ()
    requested: Mapping[str, str] = field(default_factory=dict)
    reported: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    gpu_processes: Mapping[str, int | None] = field(default_factory=dict)
    seconds_running: float | None = None
    seconds_since_step: float | None = None
    phase: str = ""
    reports_phases: bool = True
    logs_steps: bool = True
    sees_steps: bool = False
    vocabulary: int | None = None
    signs: Sequence[Sign] = ()
    holding: Sequence[RankHeartbeat] = ()
    awaited: Sequence[Sign] = ()
    silent_since: str = ""
    watched: Verdict | None = None

    @property
    def run(self) -> Mapping[str, Any] | None:
        """The newest run that has steps."""
        return newest_run(self.runs)

    @property
    def is_unknown(self) -> bool:
        """Nothing is known: no file has anything of a training, and no state says that it runs."""
        known = (self.state, self.reason, self.watched, self.reported, self.runs)
        counted = any(count is not None for count in self.gpu_processes.values())
        if any(known) or counted or any(not one.is_note for one in self.signs):
            return False
        return self.vocabulary is None and not any(_errors(self.findings))


@dataclass(frozen=True)
class Verdict:
    """The verdict on a job.

    Attributes:
        word: The verdict in one word.
        reason: The reason in one sentence.
        evidence: All evidence, a sentence each; the first is the reason.
        culprits: The signs that name a node or rank, the first of each kind for each of them.
        since: When ``word`` last changed, in seconds since 1970; None if there are only logs.
    """

    word: Word
    reason: str
    evidence: tuple[str, ...] = ()
    culprits: tuple[Sign, ...] = ()
    since: float | None = None

    @property
    def exit_code(self) -> int:
        """The exit code for scripts."""
        return EXIT_CODES[self.word]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Verdict | None:
        """Return the verdict from ``to_json``'s plain data; None for any other data.

        Its culprits have no text: that is in the evidence.
        """
        word, reason = data.get("verdict"), data.get("reason")
        if word not in EXIT_CODES or not isinstance(reason, str):
            return None
        culprits = tuple(
            Sign(str(one.get("kind") or ""), "", str(one.get("node") or ""), one.get("rank"))
            for one in data.get("culprits") or ()
        )
        return cls(word, reason, tuple(map(str, data.get("evidence") or ())), culprits, data.get("since"))

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data, with ``since`` where it is known."""
        return {
            **({} if self.since is None else {"since": self.since}),
            "verdict": self.word,
            "exit_code": self.exit_code,
            "reason": self.reason,
            "evidence": list(self.evidence),
            "culprits": [{"kind": one.kind, "node": one.node, "rank": one.rank} for one in self.culprits],
        }


def evaluate(seen: Observed) -> Verdict:
    """Return the verdict on a job."""
    if seen.silent_since:
        # The last GPU samples are too old to be evidence about a running job.
        seen = dataclasses.replace(seen, gpu_processes={}, seconds_since_step=None)
    found = _evaluated(seen)
    if (known := seen.watched) is not None:
        if states.state_of(seen.state) not in states.ENDED:
            return known
        if (known.word, found.word) == ("finished", "suspect"):
            known, found = found, known
        elif known.word != found.word:
            return known
        # First the reason why it ended, then the evidence in its logs.
        return dataclasses.replace(known, evidence=tuple(dict.fromkeys(known.evidence + found.evidence)))
    if seen.silent_since and found.word in ("healthy", "starting", "suspect"):
        last = f"end at iteration {seen.run['last_iteration']}" if seen.run else "have no step"
        text = f"Its logs {last}, were written last at {seen.silent_since}, and do not say why."
        return dataclasses.replace(found, word="suspect", reason=text, evidence=(text, *found.evidence))
    return found


def _evaluated(seen: Observed) -> Verdict:
    state = states.state_of(seen.state)
    errors = list(_errors(_own_findings(seen)))
    run = seen.run
    # Always report what could not be compared or read.
    unknown = [sign for sign in seen.signs if sign.is_note and sign.kind in ("configuration", "files")]
    if state in states.FAILED or (not state and errors and not _is_done(run)):
        reasons = [seen.failure or Sign("state", seen.reason)] if seen.failure or seen.reason else []
        evidence = [*reasons, *errors] or [Sign("state", f"Its state is {_deciding_state(seen.state)}.")]
        return _verdict("failed", [*evidence, *unknown])
    if state in states.STOPPED:
        return _verdict("finished", [Sign("state", seen.reason or "It was stopped."), *unknown])
    if state in states.FINISHED or (not state and _is_done(run)):
        end, against = Sign("state", _end(run)), list(_against(seen, run))
        if run is not None and _is_short(run):
            return _verdict("suspect", [end, *against, *errors, *unknown])
        return _verdict("suspect" if against else "finished", [*against, end, *errors, *unknown])
    idle = _idle(seen, state)
    signs = [
        *errors,
        *_differences(seen),
        *(sign for sign in idle if sign.node),
        *seen.signs,
        *(_of_steps(run, seen.vocabulary) if run else ()),
    ]
    suspicious = [sign for sign in signs if not sign.is_note]
    notes = _few([sign for sign in signs if sign.is_note])
    late = [*(sign for sign in idle if not sign.node), *_late(seen, state)]
    if late:
        return _verdict("stalled", [*late, *suspicious, *notes])
    if run is not None and run.get("is_torn"):
        text = f"Its last line, of iteration {run['last_iteration']}, breaks off in its middle."
        notes.append(Sign("state", text, is_note=True))
    if _is_done(run) and state not in states.WAITING:
        notes.append(Sign("state", "Its training is done, and its program has yet to end.", is_note=True))
    if suspicious:
        return _verdict("suspect", [*suspicious, *notes])
    if run is None or state in states.WAITING:
        return _verdict("starting", [Sign("progress", _beginning(seen, state)), *notes])
    return _verdict("healthy", [Sign("progress", _progress(run)), *notes])


def _verdict(word: Word, evidence: Sequence[Sign]) -> Verdict:
    texts = tuple(dict.fromkeys(sign.text for sign in evidence))
    named: dict[tuple[str, str, int | None], Sign] = {}
    for sign in evidence:
        if sign.node and not sign.is_note:
            named.setdefault((sign.kind, sign.node, sign.rank), sign)
    return Verdict(word, texts[0], texts, tuple(named.values()))


def _few(notes: Sequence[Sign]) -> list[Sign]:
    """Return the first notes of each kind: each of a thousand nodes may have one."""
    kinds = collections.Counter(sign.kind for sign in notes)
    seen: collections.Counter[str] = collections.Counter()
    found = []
    for sign in notes:
        seen[sign.kind] += 1
        if seen[sign.kind] <= NAMES_SHOWN:
            found.append(sign)
        elif seen[sign.kind] == kinds[sign.kind]:
            text = f"{kinds[sign.kind] - NAMES_SHOWN} more notes are about {sign.kind}."
            found.append(Sign(sign.kind, text, is_note=True))
    return found


def _beginning(seen: Observed, state: str) -> str:
    if state in states.WAITING and seen.reason:
        return seen.reason
    if state in states.WAITING and seen.run:
        waits = "It restarts" if state in states.STARTING else "It waits in the queue again"
        return f"{waits}; its logs go to iteration {seen.run['last_iteration']}."
    if seen.logs_steps:
        return "It has not come to a step yet."
    return "Its program runs, and has written no line of a step that is understood."


def _deciding_state(state: str) -> str:
    """Return the deciding state, as reported, from those of several parts of a job."""
    return next(
        line.strip() for line in state.splitlines() if states.state_of(line) == states.state_of(state)
    )


def _is_done(run: Mapping[str, Any] | None) -> bool:
    if run is None:
        return False
    is_reported = any(name == DONE or name.startswith(_EXITING) for name in run["milestones"])
    return is_reported or (run["last_iteration"] == run["train_iterations"] and not run.get("is_torn"))


def _is_short(run: Mapping[str, Any]) -> bool:
    """Whether it ended before its last step without logging why."""
    left = run["train_iterations"] - run["last_iteration"]
    # The last steps have no line if the logging interval does not divide the number of steps.
    return not _is_done(run) and (left >= _interval(run) or bool(run.get("is_torn")))


def _end(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return "It has ended."
    last, total = run["last_iteration"], run["train_iterations"]
    if run.get("is_torn") and not _is_done(run):
        return f"It ended in the middle of the line of iteration {last}, and does not say why."
    if _is_short(run):
        return f"It ended at iteration {last} of {total}, and does not say why."
    why = next((name for name in run["milestones"] if name.startswith(_EXITING)), "")
    of = f" of {total}" if total and total != last else ""
    return f"It reached iteration {last}{of}{f': {why}' if why else ''}."


def _against(seen: Observed, run: Mapping[str, Any] | None) -> Iterator[Sign]:
    """Yield evidence against the result of a finished job.

    The state of its nodes does not count, nor do errors that did not end it.
    """
    yield from _differences(seen)
    yield from (sign for sign in seen.signs if sign.kind == "nan")
    if run is not None:
        yield from (Sign("steps", text) for text in _about_loss(run, seen.vocabulary))


def _own_findings(seen: Observed) -> list[Finding]:
    """Return the findings but those of nodes whose launchers were ended because another node had failed."""
    culprits = seen.watched.culprits if seen.watched else ()
    failed = {one.node for one in culprits if one.kind == "failure"}
    return [one for one in seen.findings if one.name != "interrupted" or not failed or one.node in failed]


def _errors(findings: Sequence[Finding]) -> Iterator[Sign]:
    """Yield a sign for each error. If many nodes have the same one, only the first are named."""
    errors = [one for one in findings if one.kind == "error"]
    nodes = collections.Counter(one.name for one in errors)
    seen: collections.Counter[str] = collections.Counter()
    for one in errors:
        seen[one.name] += 1
        cause = one.cause[0].upper() + one.cause[1:]
        if seen[one.name] == NAMES_SHOWN + 1:
            yield Sign("error", f"{cause}, on {nodes[one.name] - NAMES_SHOWN} more nodes.")
        elif seen[one.name] <= NAMES_SHOWN:
            rank = one.ranks[0] if len(one.ranks) == 1 else None
            who = ", ".join(filter(None, (one.node, "" if rank is None else f"rank {rank}")))
            line = f"{who}: {one.line[:200]}" if who else one.line[:200]
            many = f", {one.count} times" if one.count > 1 else ""
            yield Sign("error", f"{cause}{many} ({line}).", one.node, rank)


def _differences(seen: Observed) -> Iterator[Sign]:
    """Yield differences between the requested and the reported configuration, and between nodes."""
    for key, requested in seen.requested.items():
        others: dict[str, list[str]] = {}
        for node, reported in seen.reported.items():
            if not _same(reported.get(key, requested), requested):
                others.setdefault(reported[key], []).append(node)
        for value, nodes in others.items():
            where = f" on {listed(nodes)}" if any(nodes) else ""
            # If all nodes report it, no single one is at fault.
            faulty = nodes[0] if len(nodes) < len(seen.reported) else ""
            text = f"{key} is {value}{where}, and {requested} was requested."
            yield Sign("configuration", text, faulty)
    packages = {package for versions in seen.versions.values() for package in versions}
    for package in sorted(packages):
        by_version: dict[str, list[str]] = {}
        for node, versions in seen.versions.items():
            if package in versions:
                by_version.setdefault(versions[package], []).append(node)
        if len(by_version) > 1:
            # Of equally frequent versions, the first is the master's.
            usual = max(by_version, key=lambda version: len(by_version[version]))
            for version, nodes in by_version.items():
                if version != usual:
                    verb = "has" if len(nodes) == 1 else "have"
                    text = f"{listed(nodes)} {verb} {package} {version}, others have {usual}."
                    yield Sign("version", text, nodes[0])


def _same(reported: str, requested: str) -> bool:
    """Whether two values are equal, even if written differently: 1e-4 and 0.0001."""
    if reported == requested:
        return True
    try:
        return float(reported) == float(requested)
    except ValueError:
        return False


def _of_steps(run: Mapping[str, Any], vocabulary: int | None) -> Iterator[Sign]:
    """Yield signs of problems in the steps."""
    for text in _about_loss(run, vocabulary):
        yield Sign("steps", text)
    recent = [one for one in run["step_ms"]["recent"] if one is not None]
    median = run["step_ms"]["median"]
    if not recent or not median or run["lines"] <= 2 * _POINTS:
        return
    steps, last = run["last_iteration"] - run["first_iteration"] + 1, statistics.median(recent)
    is_long = sum(recent) / 1000.0 * max(1.0, steps / run["lines"]) > _SLOWER_S
    if is_long and last > _SLOWER * median:
        # Longer sequences and other load on nodes do that, too. Other signs name the root cause.
        text = f"The last steps took {last / median:.1f} times as long as usual ({last:.0f} ms)."
        yield Sign("steps", text, is_note=True)


def _about_loss(run: Mapping[str, Any], vocabulary: int | None) -> Iterator[str]:
    loss = run["loss"]
    points = [value for _, value in loss["curve"]]
    name = loss["name"]
    if loss["not_finite"] or run["nan"]:
        count = loss["not_finite"] or run["nan"]
        where = f", first at iteration {loss['not_finite_at']}" if loss.get("not_finite_at") else ""
        yield f"The loss was not a number {count} time{'s' if count > 1 else ''}{where}."
    last = points[-_POINTS:]
    if len(last) == _POINTS:
        end = statistics.median(last[-5:])
        if end > 1.5 * loss["lowest"] and end > loss["lowest"] + 1.0:
            yield (
                f"The {name} diverges: it was {loss['lowest']:.3f} at iteration {loss['lowest_at']}"
                f" and is {end:.3f}."
            )
        nothing_learnt = math.log(vocabulary) if vocabulary else math.inf
        is_long = run["last_iteration"] - run["first_iteration"] >= _FLAT_STEPS
        if is_long and all(abs(value / nothing_learnt - 1) < _FLAT for value in last):
            yield (
                f"The {name} stays at {end:.3f}, the logarithm of the vocabulary of {vocabulary}: nothing is"
                " learnt."
            )
    steps = run["last_iteration"] - run["first_iteration"] + 1
    if run["skipped"] > max(_POINTS, steps / 2):
        yield f"{run['skipped']} of {steps} steps were skipped."


def _idle(seen: Observed, state: str) -> list[Sign]:
    """Return a sign for each node without a process on its GPUs, or one without a node if that is all nodes.

    Before its first step a training may still read its data. Nodes that report nothing may have a process.
    """
    running = seen.seconds_running
    grace = _IDLE_S if seen.run else _START_S
    if state == "stopping" or state in states.WAITING or (running is not None and running <= grace):
        return []
    nodes = [node for node, count in seen.gpu_processes.items() if count == 0]
    if nodes and len(nodes) == len(seen.gpu_processes):
        return [Sign("idle", "It runs, but no process is on its GPUs.")]
    return [Sign("idle", f"No process is on the GPUs of {listed(nodes)}.", node) for node in nodes]


def _late(seen: Observed, state: str) -> Iterator[Sign]:
    """Yield a sign if a job makes no progress."""
    if state == "stopping":
        return
    running = seen.seconds_running
    run = seen.run
    if run is None:
        may_be_late = state not in ("pending", "configuring") and seen.logs_steps
        if running is not None and running > _START_S and may_be_late:
            yield from _held_up(seen, f"It has not come to a step in {running:.0f} s", "")
        return
    usual, since = _usual_s(run, seen.sees_steps), seen.seconds_since_step
    if since is None or state in states.WAITING:
        return
    # A program that does not log step times may take minutes between lines.
    limit = _PAUSE_S if usual is None else max(_LATE * usual, _LATE_S if seen.reports_phases else _SILENT_S)
    if seen.phase in _PAUSES or _is_done(run):
        limit = max(limit, _PAUSE_S)
    if since <= limit:
        return
    if _is_done(run):
        yield Sign("late", f"Its training is done, and its program has not ended for {duration(since)}.")
    else:
        text = f"No step for {since:.0f} s after iteration {run['last_iteration']}"
        yield from _held_up(seen, text, "" if usual is None else f"usual are {usual:.1f} s")


def _held_up(seen: Observed, text: str, usual: str) -> Iterator[Sign]:
    """Yield that a job makes no progress, with the ranks that the others wait for, and in what, if known."""
    if seen.holding:
        first, names = seen.holding[0], (f"rank {one.rank} on {one.node}" for one in seen.holding)
        text += f" ({usual})" if usual else ""
        yield Sign("late", f"{text}: the others wait for {listed(names, 1)}.", first.node, first.rank)
    else:
        yield Sign("late", f"{text}: {usual}." if usual else f"{text}.")
    yield from seen.awaited


def _usual_s(run: Mapping[str, Any], sees_steps: bool) -> float | None:
    """Return the usual seconds between two steps that are seen, which are mostly two lines."""
    median: float | None = run["step_ms"]["median"]
    if median is None or sees_steps:
        return median and median / 1000.0
    return median / 1000.0 * _interval(run)


def _interval(run: Mapping[str, Any]) -> float:
    """Return the number of steps from one line to the next."""
    if run["lines"] < 2:
        return max(1.0, float(run["first_iteration"]))
    steps: float = (run["last_iteration"] - run["first_iteration"]) / (run["lines"] - 1)
    return max(1.0, steps)


def _progress(run: Mapping[str, Any]) -> str:
    total = f" of {run['train_iterations']}" if run["train_iterations"] else ""
    median = run["step_ms"]["median"]
    speed = f", {median / 1000:.2f} s a step" if median else ""
    loss = run["loss"]["last"]
    value = f", {run['loss']['name']} {loss:.4f}" if loss is not None else ""
    curve = run["loss"]["curve"]
    if value and curve and curve[-1][0] < run["last_iteration"]:
        value += f" at iteration {curve[-1][0]}"
    return f"Iteration {run['last_iteration']}{total}{speed}{value}."
