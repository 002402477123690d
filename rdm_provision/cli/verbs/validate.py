# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-provision tune --validate``: run layouts for a few steps, and compare with the prediction."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rdm_provision.api import tuning
from rdm_provision.cli.common import Options
from rdm_provision.cli.verbs.measuring_jobs import job_stem, watch_to_end

if TYPE_CHECKING:
    from rich.console import Console

    from rdm_provision.api.cluster import Cluster

_STEPS, _TIMED = 15, 5
_RUN = (
    f"checkpoint.exit_interval={_STEPS}",
    f"logging.interval={_TIMED}",
    "logging.eval_interval=0",
    "logging.tensorboard=false",
    "logging.trackers=[]",
    "checkpoint.interval=0",
    "launcher.max_restarts=0",
)
"""The last steps are timed; those before are warm-up."""


def validate(
    options: Options,
    cluster: Cluster,
    wanted: tuning.TuneOptions,
    job: Any,
    rows: Sequence[Mapping[str, Any]],
    best: int,
) -> dict[str, Any]:
    """Run some layouts as jobs, one after the other, save their times in the profile, and return them.

    Args:
        options: the common ones.
        cluster: where they run.
        wanted: the options of ``tune``.
        job: the job, as it was read.
        rows: all layouts, the fastest first.
        best: how many of the fastest to run, and how many others.
    """
    stem = job_stem("tune", wanted.config)
    steps = list(_RUN)
    if job.train_iterations < _STEPS:
        steps += ["optimisation.train_samples=null", f"optimisation.train_iterations={_STEPS}"]
    results = []
    for index in tuning.chosen(len(rows), best):
        row = rows[index]
        words = [*wanted.overrides, *row["overrides"], *steps]
        measured, reason = _run(options, cluster, wanted, words, f"{stem}-{index}")
        result = {
            "rank": index + 1,
            "layout": row["overrides"],
            "predicted": row["seconds"],
            "measured": measured,
        }
        results.append(result | ({"reason": reason} if reason else {}))
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "config": wanted.config.name,
        **tuning.compared(results),
        "rows": results,
    }


def _run(
    options: Options, cluster: Cluster, wanted: tuning.TuneOptions, words: Sequence[str], name: str
) -> tuple[float | None, str]:
    """Return the seconds of a step, or None and the reason."""
    run = cluster.train(wanted.config, words, name=name, **options.run)
    result, state = watch_to_end(options, cluster, run, may_be_refused=True)
    if state is None:
        return None, str(result.problems[0]) if result.problems else result.message or "it did not start"
    if state.state != "finished":
        return None, state.reason or state.state
    if not state.step_seconds:
        return None, f"it finished after {state.iteration} steps without the time of one"
    # Its checkpoint is not needed.
    cluster.prune([name], **options.run).result()
    return state.step_seconds, ""


def show(console: Console, found: Mapping[str, Any]) -> None:
    """Print what was predicted beside what was measured."""
    from rdm_provision.cli.render import view

    view.heading(console, "Predicted and measured", "seconds of a step")
    figures = ("rank", "predicted", "measured", "error")
    made = view.table(*figures, "layout", right=figures)
    for row in found["rows"]:
        measured = row["measured"]
        error = f"{row['predicted'] / measured - 1:+.1%}" if measured else ""
        cell = f"{measured:.3f}" if measured else "-"
        layout = ", ".join(word.partition(".")[2] for word in row["layout"])
        made.add_row(str(row["rank"]), f"{row['predicted']:.3f}", cell, error, row.get("reason", layout))
    view.show(console, made)
    if found["mean_absolute_error"] is None:
        console.print("None of them ran to its end.")
        return
    line = f"Mean absolute error {found['mean_absolute_error']:.1%} over {found['layouts']} layouts"
    if found["rank_correlation"] is not None:
        line += f", rank correlation {found['rank_correlation']:.2f}"
    if found["layouts"] > 1:
        excess = found["winner_excess"]
        winner = f"took {excess:.1%} longer than the fastest" if excess else "was the fastest"
        line += f". Of these, the one predicted as the fastest {winner}"
    console.print(f"{line}.")
