# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a job while it runs: what all nodes' agents saw, put together by the master's.

What a node's report has of it is ``Watch.report``.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rdm_core.config import Config, JobConfig, workload_of
from rdm_job.info import requested as requested_of
from rdm_job.protocol import Request, State
from rdm_log import peers
from rdm_log.errors import Finding
from rdm_log.peers import RankHeartbeat
from rdm_log.signs import Sign
from rdm_log.verdict import DONE, Observed, evaluate

__all__ = ["Health", "newest_progress", "observed", "of_state"]

_BUSY_S = 60.0
"""That others use a node is reported after so long; to name a rank, its window suffices."""
_NAMED = 8
"""So many nodes are named in a sentence."""


class Health:
    """Evaluates a job again and again. Of an attempt it remembers what only time tells.

    Args:
        request: The job.
        config: Its configuration.
    """

    def __init__(self, request: Request, config: JobConfig) -> None:
        self._config = config
        self._requested = requested_of(request, config)
        self._word = ""
        self._since = 0.0
        self._not_evaluated = ""
        self.begin()

    def begin(self) -> None:
        """Begin an attempt."""
        self._began = time.monotonic()
        self._steps = -1
        self._moved = time.monotonic()
        self._busy_since: dict[str, float] = {}
        self._telling = 0
        self._first_nan: list[Sign] = []

    def summary(self, state: State, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return what a state has of its nodes' reports: ``gpu``, ``progress`` and ``verdict``.

        Args:
            state: The job's.
            reports: The newest of each node.
        """
        return {
            "gpu": {name: report["gpu"] for name, report in sorted(reports.items()) if report["gpu"]},
            "progress": newest_progress(state, reports),
            "verdict": self.verdict(state, reports) or state.verdict,
        }

    def verdict(self, state: State, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the verdict as plain data, with ``since``: when its word became this one.

        Nothing is returned when the job cannot be evaluated, which must never end it.

        Args:
            state: The launcher's word.
            reports: The newest of each node.
        """
        try:
            return self._evaluate(state, reports)
        except Exception as error:
            if repr(error) != self._not_evaluated:
                self._not_evaluated = repr(error)
                traceback.print_exc()
        return {}

    def _evaluate(self, state: State, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        watches = {node: report["watch"] for node, report in reports.items() if report.get("watch")}
        now = time.monotonic()
        ranks = [RankHeartbeat.of(node, one) for node, watch in watches.items() for one in watch["ranks"]]
        top = max((one.iteration for one in ranks), default=-1)
        if top != self._steps:
            self._steps, self._moved = top, now
        if len(ranks) >= self._telling:
            # Those that have ended tell no more, and the others alone would name somebody else.
            self._telling, self._first_nan = len(ranks), peers.first_nan(ranks)
        seen = observed(
            state,
            watches,
            ranks,
            self._config,
            requested=self._requested,
            running_s=now - self._began,
            step_s=now - self._moved if ranks else None,
            first_nan=self._first_nan,
            slow=self._lasting(
                peers.slow(
                    ranks,
                    {node: watch["held_back"] for node, watch in watches.items()},
                    {node: watch["quota"] for node, watch in watches.items() if watch["quota"]},
                ),
                now,
            ),
        )
        found = evaluate(seen)
        if found.word != self._word:
            self._word, self._since = found.word, time.time()
        return {**found.to_json(), "since": self._since}

    def _lasting(self, found: Iterable[Sign], now: float) -> list[Sign]:
        """Return the signs without notes that are new: somebody else may use a node for a moment."""
        current = list(found)
        nodes = {one.node for one in current if one.is_note}
        self._busy_since = {node: self._busy_since.get(node, now) for node in nodes}
        return [one for one in current if not one.is_note or now - self._busy_since[one.node] >= _BUSY_S]


def newest_progress(state: State, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how far a training is: what it says itself, or else what a node read in its log. Pure.

    Args:
        state: What was known before.
        reports: The newest of each node.
    """
    said = [report["progress"] for report in reports.values() if report["progress"]]
    read = [report["watch"]["progress"] for report in reports.values() if report["watch"].get("progress")]
    newest: dict[str, Any] = max(
        said or read, key=lambda progress: float(progress.get("time") or 0), default=state.progress
    )
    return newest


def observed(
    state: State,
    watches: Mapping[str, Mapping[str, Any]],
    ranks: Sequence[RankHeartbeat],
    config: JobConfig,
    *,
    requested: Mapping[str, str],
    running_s: float,
    step_s: float | None,
    first_nan: Sequence[Sign] = (),
    slow: Sequence[Sign] = (),
) -> Observed:
    """Return what is known of a job. Pure.

    Args:
        state: The launcher's word.
        watches: What each node saw; see ``Watch.report``.
        ranks: All of them.
        config: Of the job.
        requested: What its processes are to say of themselves; see ``info.requested``.
        running_s: Since the attempt began.
        step_s: Since any rank has begun a step; None where ranks do not say it.
        first_nan: Whose loss was no number first.
        slow: Ranks that are slow, for some time now.
    """
    runs = [watch["run"] for watch in watches.values() if watch["run"] and watch["run"]["lines"]]
    run = max(runs, key=lambda one: int(one["last_iteration"]), default=None)
    findings = [
        Finding.of({**one, "node": node}) for node, watch in watches.items() for one in watch["findings"]
    ]
    since = [float(watch["since_s"]) for watch in watches.values()]
    if step_s is not None:
        since.append(step_s)
    is_ours = workload_of(config).tells_progress
    padded = next((watch["vocabulary"] for watch in watches.values() if watch["vocabulary"]), None)
    last = state.failures[-1] if state.failures else None
    phase = next((str(watch["phase"]) for watch in watches.values() if watch["phase"]), "")
    signs = [Sign.of(one) for watch in watches.values() for one in watch["signs"]]
    if phase == "saving":
        # The master's node knows it, and the disks of all fill.
        signs = [one for one in signs if one.kind != "disk"]
    return Observed(
        state=state.state,
        reason=state.reason,
        failure=Sign("failure", state.reason or last.reason, last.node, last.rank) if last else None,
        runs=[run] if run else [],
        findings=findings,
        requested=requested,
        reported={node: watch["arguments"] for node, watch in watches.items()},
        versions={node: watch["versions"] for node, watch in watches.items()},
        gpu_processes={node: watch["gpu_processes"] for node, watch in watches.items()},
        seconds_running=running_s,
        seconds_since_step=min(since, default=None),
        phase=phase,
        tells_phases=any(watch["tells_phases"] for watch in watches.values()),
        tells_steps=is_ours,
        sees_steps=step_s is not None,
        vocabulary=_vocabulary(config) if is_ours else padded,
        signs=[
            *first_nan,
            *slow,
            *peers.strained(ranks),
            *signs,
            *_unwatched(watches),
        ],
        holding=peers.holding(ranks),
    )


def _vocabulary(config: JobConfig) -> int | None:
    return config.model.vocab_size + config.model.vocab_extra_ids if isinstance(config, Config) else None


def _unwatched(watches: Mapping[str, Mapping[str, Any]]) -> Iterator[Sign]:
    """Yield what is not known of GPUs that nodes should have: a note for all nodes that say the same."""
    nodes: dict[str, list[str]] = {}
    for node, watch in watches.items():
        if why := watch.get("unwatched"):
            nodes.setdefault(str(why), []).append(node)
    for why, those in nodes.items():
        more = f" and {len(those) - _NAMED} more" * (len(those) > _NAMED)
        where = "all nodes" if 1 < len(those) == len(watches) else ", ".join(those[:_NAMED]) + more
        yield Sign("unwatched", f"On {where}: {why}", is_note=True)


def of_state(state: State) -> dict[str, Any]:
    """Return the verdict on a job of which no agent tells: it waits in a queue, or has ended."""
    last = state.failures[-1] if state.failures else None
    failure = Sign("failure", state.reason or last.reason, last.node, last.rank) if last else None
    run = _run_of(state.progress)
    found = evaluate(
        Observed(
            state=state.state,
            reason=state.reason,
            failure=failure if state.has_ended else None,
            runs=[run] if run["last_iteration"] and state.has_ended else [],
        )
    )
    return {**found.to_json(), "since": state.ended or state.started or time.time()}


def _run_of(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return the run that what a training says of its progress is of."""
    iteration = int(progress.get("iteration") or 0)
    lines = [int(step) for step, _ in progress.get("losses") or ()][-2:]
    return {
        "lines": 2,
        "first_iteration": lines[0] if len(lines) == 2 else iteration - 1,
        "last_iteration": iteration,
        "train_iterations": int(progress.get("train_iterations") or 0),
        "loss": {"name": "loss", "curve": [], "not_finite": 0},
        "skipped": 0,
        "nan": 0,
        # It says so itself, also where it ends before its last step because it was told to.
        "milestones": {DONE: ""} if progress.get("phase") == "done" else {},
    }
