# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-provision jobs``: the training jobs of the cluster, and one in full."""

from __future__ import annotations

import time

import click

from rdm_provision.cli.common import Options, emit_json, inventory_flag, limited_run_options, unknown_job

__all__ = ["jobs"]


@click.command(
    epilog="""\b
Examples:
  rdm-provision jobs                             all of them, the newest first
  rdm-provision jobs gpt-1121-081512             one, with its nodes, curve and failures
  rdm-provision jobs gpt-1121-081512 --watch     until it has ended
  rdm-provision jobs --json | jq -r '.jobs[] | select(.state == "running").job'
"""
)
@click.argument("job", required=False, default="", metavar="[JOB]")
@click.option("-w", "--watch", is_flag=True, help="Watch the job until it has ended.")
@limited_run_options
def jobs(options: Options, job: str, watch: bool) -> int:
    """Show the jobs of the cluster, or all about JOB. The nodes know them: nothing is kept here.

    With --watch it exits with 1 when the job failed or was stopped. Ctrl-C ends the watching, not the job.
    """
    cluster = options.cluster()
    run = cluster.jobs(job, watch=watch, **options.run)
    if options.show_command:
        click.echo(run.command)
        return 0
    from rdm_provision.cli import job_view, view

    result, state = job_view.watch(run, cluster.name, silent=options.as_json, brief=not watch)
    found = cluster.job_states(result) if state is None or not watch else (state,)
    if job and result.ok and not found:
        raise unknown_job(job)
    if options.as_json:
        emit_json({**result.to_json(), "jobs": [one.to_json() for one in found]})
        return result.exit_code
    console = view.out()
    flag = inventory_flag(options)
    if watch and found and result.cancelled:
        job_view.left(console, found[0], flag)
        return result.exit_code
    if view.unhappy_end(result):
        return result.exit_code
    if job and found:
        job_view.ending(console, found[0])
        view.next_steps(console, job_view.next_steps(found[0], flag))
    elif found:
        job_view.table(console, found, time.time())
    elif result.ok:
        console.print("There is no job.")
    if not result.ok:
        job_view.unheard(console, result)
    return result.exit_code
