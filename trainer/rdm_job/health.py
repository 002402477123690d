# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a running job: the master's agent evaluates the reports of all nodes' agents.

``Watch.report`` makes a node's report.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rdm_core.config import Config, JobConfig, workload_of
from rdm_job.info import requested as requested_of
from rdm_job.protocol import Request, State
from rdm_log import collectives, peers
from rdm_log.errors import Finding
from rdm_log.peers import RankHeartbeat
from rdm_log.records import DONE
from rdm_log.signs import Sign
from rdm_log.verdict import Observed, evaluate
from rdm_log.wording import listed

_BUSY_S = 60.0
"""How long others must use a node before it is reported; a slow rank is reported without this wait."""


class Health:
    """Evaluates a job repeatedly, and keeps what it needs of an attempt's history."""

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
        self._advanced_at = time.monotonic()
        self._busy_since: dict[str, float] = {}
        self._reporting = 0
        self._first_nan: list[Sign] = []

    def summary(self, state: State, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the parts of a state that come from reports: ``gpu``, ``progress`` and ``verdict``."""
        return {
            "gpu": {name: report["gpu"] for name, report in sorted(reports.items()) if report["gpu"]},
            "progress": newest_progress(state, reports),
            "verdict": self.verdict(state, reports) or state.verdict,
        }

    def verdict(self, state: State, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the verdict as plain data; ``since`` is when the job got this verdict.

        An error in the evaluation must not end the job: the result is then empty.
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
            self._steps, self._advanced_at = top, now
        if len(ranks) >= self._reporting:
            # Ended ranks report no more, and the remaining ones alone would point to the wrong rank.
            self._reporting, self._first_nan = len(ranks), peers.first_nan(ranks)
        facts = observed(
            state,
            watches,
            ranks,
            self._config,
            requested=self._requested,
            running_s=now - self._began,
            step_s=now - self._advanced_at if ranks else None,
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
        found = evaluate(facts)
        if found.word != self._word:
            self._word, self._since = found.word, time.time()
        return {**found.to_json(), "since": self._since}

    def _lasting(self, found: Iterable[Sign], now: float) -> list[Sign]:
        """Return the signs without recent notes: another user's short load on a node does not count."""
        current = list(found)
        nodes = {one.node for one in current if one.is_note}
        self._busy_since = {node: self._busy_since.get(node, now) for node in nodes}
        return [one for one in current if not one.is_note or now - self._busy_since[one.node] >= _BUSY_S]


def newest_progress(state: State, reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the newest progress: the trainer's own, or else the one read from a node's log. Pure.

    Args:
        state: Its progress is returned if no report has any.
        reports: The newest of each node.
    """
    reported = [report["progress"] for report in reports.values() if report["progress"]]
    read = [report["watch"]["progress"] for report in reports.values() if report["watch"].get("progress")]
    newest: dict[str, Any] = max(
        reported or read, key=lambda progress: float(progress.get("time") or 0), default=state.progress
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
    """Return everything that is observed of a job, for its evaluation. Pure.

    Args:
        state: The job's state, from its launcher.
        watches: The report of each node; see ``Watch.report``.
        ranks: The heartbeats of all ranks.
        config: The job's.
        requested: The values that its processes should report of themselves; see ``info.requested``.
        running_s: Seconds since the attempt began.
        step_s: Seconds since a rank last began a step; None if ranks do not report steps.
        first_nan: The first ranks whose loss was not a number.
        slow: Ranks that have been slow for some time.
    """
    runs = [watch["run"] for watch in watches.values() if watch["run"] and watch["run"]["lines"]]
    run = max(runs, key=lambda one: int(one["last_iteration"]), default=None)
    findings = [
        Finding.of({**one, "node": node}) for node, watch in watches.items() for one in watch["findings"]
    ]
    since = [float(watch["since_s"]) for watch in watches.values()]
    if step_s is not None:
        since.append(step_s)
    is_ours = workload_of(config).reports_progress
    padded = next((watch["vocabulary"] for watch in watches.values() if watch["vocabulary"]), None)
    phase = next((str(watch["phase"]) for watch in watches.values() if watch["phase"]), "")
    signs = [Sign.of(one) for watch in watches.values() for one in watch["signs"]]
    if phase == "saving":
        # Only the master's node knows that a checkpoint is being saved, but it fills all nodes' disks.
        signs = [one for one in signs if one.kind != "disk"]
    return Observed(
        state=state.state,
        reason=state.reason,
        failure=_failure_of(state),
        runs=[run] if run else [],
        findings=findings,
        requested=requested,
        reported={node: watch["arguments"] for node, watch in watches.items()},
        versions={node: watch["versions"] for node, watch in watches.items()},
        gpu_processes={node: watch["gpu_processes"] for node, watch in watches.items()},
        seconds_running=running_s,
        seconds_since_step=min(since, default=None),
        phase=phase,
        # `tells_phases` comes from a node with a trainer of 0.5 or older.
        reports_phases=any(
            watch.get("reports_phases", watch.get("tells_phases")) for watch in watches.values()
        ),
        logs_steps=is_ours,
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
        awaited=collectives.awaited(ranks),
    )


def _vocabulary(config: JobConfig) -> int | None:
    return config.model.vocab_size + config.model.vocab_extra_ids if isinstance(config, Config) else None


def _unwatched(watches: Mapping[str, Mapping[str, Any]]) -> Iterator[Sign]:
    """Yield why nodes do not watch their GPUs: one note for all nodes with the same reason."""
    nodes: dict[str, list[str]] = {}
    for node, watch in watches.items():
        if why := watch.get("unwatched"):
            nodes.setdefault(str(why), []).append(node)
    for why, those in nodes.items():
        where = "all nodes" if 1 < len(those) == len(watches) else listed(those)
        yield Sign("unwatched", f"On {where}: {why}", is_note=True)


def _failure_of(state: State) -> Sign | None:
    """Return the newest failure, with the reason why the job ended."""
    last = state.failures[-1] if state.failures else None
    return Sign("failure", state.reason or last.reason, last.node, last.rank) if last else None


def of_state(state: State) -> dict[str, Any]:
    """Return the verdict on a job without agents: it waits in a queue, or has ended."""
    run = _run_of(state.progress)
    found = evaluate(
        Observed(
            state=state.state,
            reason=state.reason,
            failure=_failure_of(state) if state.has_ended else None,
            runs=[run] if run["last_iteration"] and state.has_ended else [],
        )
    )
    return {**found.to_json(), "since": state.ended or state.started or time.time()}


def _run_of(progress: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a run from its progress alone."""
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
        # The trainer also reports "done" when it stops before its last step on request.
        "milestones": {DONE: ""} if progress.get("phase") == "done" else {},
    }
