# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs: stop a job: its own processes, after a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, emit_json, limited_run_options, unknown_job
from rdm_provision.cli.render.commands import inventory_flag
from rdm_provision.constants import JOB_MODULE

if TYPE_CHECKING:
    from rdm_provision.results.events import RunResult
    from rdm_provision.results.job_state import JobState


@click.command(
    epilog="""\b
Examples:
  rdm-provision stop gpt-1121-081512          after a checkpoint
  rdm-provision stop gpt-1121-081512 --now    at once
"""
)
@click.argument("job", metavar="JOB")
@click.option("--now", is_flag=True, help="At once: without a checkpoint.")
@limited_run_options
def stop(options: Options, job: str, now: bool) -> int:
    """Stop JOB on every node: its own processes and no others. Its files stay.

    It saves a checkpoint first, from which `rdm-provision train --resume JOB` goes on.
    """
    cluster = options.cluster()
    result = options.carry_out(cluster, cluster.stop(job, now=now, **options.run), brief=True)
    if result is None:
        return 0
    if result.ok and not cluster.knows_job(result):
        raise unknown_job(cluster, result, job)
    state = next(iter(cluster.job_states(result)), None)
    if options.as_json:
        emit_json({**result.to_json(), "job": state.to_json() if state else None})
        return result.exit_code
    from rdm_provision.cli.render import job_view, view

    if view.unhappy_end(result):
        return result.exit_code
    console = view.out()
    if not result.ok:
        job_view.unanswered(console, result)
        return result.exit_code
    flag = inventory_flag()
    output = f"{job} is stopped." if result.changed else f"{job} had ended already."
    console.print(f"{output}{_saved(result, state)}", soft_wrap=True)
    view.next_steps(
        console,
        [
            ("go on with it", f"rdm-provision train{flag} --resume {job}"),
            ("what it wrote", f"rdm-provision logs{flag} {job}"),
        ],
    )
    return result.exit_code


def _saved(result: RunResult, state: JobState | None) -> str:
    """Return what a job can resume from; empty if no node that answered knows of its checkpoints.

    Only the master does, and a command of the user's own saves where and what it likes.
    """
    if state is None:
        return ""
    # Slurm's jobs are queried on the host that submitted them, which is none of their nodes.
    if not any(
        "checkpoint" in ((one.get("job") or {}).get("progress") or {})
        for node, one in result.answers(JOB_MODULE)
        if state.launcher == "slurm" or node == state.master
    ):
        return ""
    if state.checkpoint is None:
        return " It has no checkpoint: it would start from the beginning."
    return f" Its newest checkpoint is of iteration {state.checkpoint}."
