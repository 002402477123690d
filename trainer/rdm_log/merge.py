# SPDX-License-Identifier: GPL-3.0-or-later
"""The runs of a job from several logs, each of which may have a part of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rdm_log.runs import Run


def merged(logs: Sequence[Sequence[Run]]) -> list[Run]:
    """Return the runs in several logs of one job, each once.

    One rank logs the steps, others log starts and memory. Logs without steps are added to the runs with
    steps, matched from the last run backwards. Logs with the same steps are copies, and so is a log whose
    lines are all in another one.
    """
    with_steps = [log for log in logs if any(run.lines for run in log)] or list(logs[:1])
    by_steps: dict[tuple[object, ...], Run] = {}
    for log in with_steps:
        for run in log:
            key = (run.lines, run.first_iteration, run.last_iteration, run.loss.first, run.loss.last)
            if run.lines and key in by_steps:
                _enrich(by_steps[key], run)
            else:
                by_steps[key if run.lines else (id(run),)] = run
    # Equal runs within one log are not copies: the steps ran twice.
    log_of = {id(run): number for number, log in enumerate(with_steps) for run in log}
    found_runs = _without_parts(list(by_steps.values()), log_of)
    if all(run.first_time for run in found_runs):
        found_runs.sort(key=lambda run: run.first_time)
    for log in logs:
        if all(log is not one for one in with_steps):
            for run, other in zip(reversed(found_runs), reversed(log), strict=False):
                _enrich(run, other)
    return found_runs


def _without_parts(found: list[Run], log_of: Mapping[int, int]) -> list[Run]:
    """Return runs without those that copy part of a run in another log; the copies enrich that run.

    Args:
        found: The runs.
        log_of: The number of each run's log, by the run's ``id``.
    """
    kept: list[Run] = []
    for run in sorted(found, key=lambda one: -one.lines):
        others = (one for one in kept if log_of[id(one)] != log_of[id(run)])
        whole = next((one for one in others if _has_part(one, run)), None)
        if whole is None:
            kept.append(run)
        else:
            _enrich(whole, run)
    return [run for run in found if any(run is one for one in kept)]


def _has_part(whole: Run, part: Run) -> bool:
    """Whether the steps in another log belong to a run: as a copy, or from another rank with its own times.

    The latter must overlap in time, because steps that run again later may have the same losses.
    """
    if whole.marks.has(part.marks):
        return True
    begin, end = max(whole.first_time, part.first_time), min(whole.last_time, part.last_time)
    is_at_once = bool(whole.first_time and part.first_time) and begin < end
    return is_at_once and whole.marks.has(part.marks, second_only=True)


def _enrich(run: Run, other: Run) -> None:
    """Add to a run what another log has about it except steps."""
    for rank, sizes in other.memory.items():
        run.memory.setdefault(rank, sizes)
    for name, time in other.milestones.items():
        run.milestones.setdefault(name, time)
    for name, figures in other.timers.items():
        run.timers.setdefault(name, figures)
    run.arguments = {**other.arguments, **run.arguments}
    run.evaluations = run.evaluations or other.evaluations
    run.loaded = run.loaded if run.loaded is not None else other.loaded
    run.saved = run.saved if run.saved is not None else other.saved
    run.checkpoints = run.checkpoints or other.checkpoints
    run.add_time(other.first_time)
    run.add_time(other.last_time)
