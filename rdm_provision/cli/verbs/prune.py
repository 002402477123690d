# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-provision jobs --prune AGE``: list what goes, confirm, and remove."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, emit_json
from rdm_provision.results.events import to_json
from rdm_provision.results.pruning import Removal, age, ended, prunable
from rdm_provision.wording import size_text

if TYPE_CHECKING:
    from rich.console import Console

    from rdm_provision.results.events import RunResult
    from rdm_provision.results.job_state import JobState
    from rdm_provision.runner.run import Run


def prune(options: Options, older: str, *, yes: bool) -> int:
    """Remove the directories of jobs that ended some time ago.

    Args:
        options: the common ones.
        older: how long ago at least, such as ``30d``.
        yes: remove them at once, without a question.
    """
    seconds = age(older)
    cluster = options.cluster()
    query = cluster.jobs(**options.run)
    if options.show_command:
        click.echo(query.command)
        return 0
    from rdm_provision.cli.render import job_view, view

    result = _carried_out(options, query, cluster.name)
    now = time.time()
    old = prunable(cluster.heard_jobs(result), seconds, now)
    names = [state.job for state in old]
    unanswered = not result.ok
    removed = False
    console = view.out()
    # Also without names, since a killed removal may have left something.
    result = _carried_out(options, cluster.prune(names, check=True, **options.run), cluster.name)
    removals = cluster.removals(result)
    goes = sorted({*names, *(one.job for one in removals)})
    if goes:
        if not options.as_json:
            _show(console, old, removals, now)
        # A program cannot answer a question.
        if yes or (
            not options.as_json and click.confirm(f"Remove {view.count(len(goes), 'job')} from the nodes?")
        ):
            result = _carried_out(options, cluster.prune(names, **options.run), cluster.name)
            removals, removed = cluster.removals(result), True
    code = result.exit_code or int(unanswered or (removed and any(one.reason for one in removals)))
    if options.as_json:
        pruned = [{**to_json(state), "ended": ended(state)} for state in old]
        found = {"jobs": pruned, "removed": removed, "directories": [to_json(one) for one in removals]}
        emit_json({**result.to_json(), **found})
        return code
    if unanswered or not result.ok:
        job_view.unanswered(console, result)
    if not goes:
        console.print(f"No job ended {older} ago, or earlier.")
    elif removed:
        _report(console, removals)
    else:
        console.print("Nothing was removed.")
    return code


def _carried_out(options: Options, run: Run, title: str) -> RunResult:
    """Run to the end, and return the result.

    Raises:
        click.exceptions.Exit: it was cancelled or refused, or failed as a whole. Everything is printed, and
            it has the exit code.
    """
    from rdm_provision.cli.render import job_view, view

    result, _ = job_view.watch(run, title, silent=options.as_json, brief=True)
    if not (result.cancelled or result.refused or result.message):
        return result
    if options.as_json:
        emit_json(result.to_json())
    else:
        view.unhappy_end(result)
    raise click.exceptions.Exit(result.exit_code)


def _show(console: Console, jobs: Sequence[JobState], removals: Sequence[Removal], now: float) -> None:
    """Print what would be removed."""
    from rdm_provision.cli.render import view

    def sizes(job: str) -> str:
        own = [one for one in removals if one.job == job]
        return (
            ", ".join(
                f"{one.node} {f'keeps it: {one.reason}' if one.reason else size_text(one.bytes)}"
                for one in own
            )
            or "-"
        )

    made = view.table("job", "state", "ended", "on the nodes")
    for state in jobs:
        end = ended(state)
        made.add_row(state.job, state.state, f"{view.age(now - end)} ago" if end else "-", sizes(state.job))
    known = {state.job for state in jobs}
    for job in sorted({one.job for one in removals} - known):
        made.add_row(job, "half removed", "-", sizes(job))
    view.show(console, made)


def _report(console: Console, removals: Sequence[Removal]) -> None:
    from rdm_provision.cli.render import view

    for one in removals:
        if one.reason:
            console.print(f"{one.node} keeps {one.job}: {one.reason}.", highlight=False)
    gone = [one for one in removals if not one.reason]
    names = sorted({one.job for one in gone})
    size = size_text(sum(one.bytes for one in gone))
    nodes = view.count(len({one.node for one in gone}), "node")
    console.print(f"Removed {view.count(len(names), 'job')}, {size} on {nodes}.")
