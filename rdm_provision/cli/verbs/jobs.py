# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs: show the training jobs, or all about one."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import (
    Options,
    emit_json,
    is_here,
    limited_run_options,
    log_directory_options,
    unknown_job,
)
from rdm_provision.cli.render.commands import inventory_flag
from rdm_provision.cli.render.printable import printable
from rdm_provision.cli.verbs.prune import prune
from rdm_provision.errors import InputError
from rdm_provision.results.events import to_json

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster
    from rdm_provision.results.events import RunResult
    from rdm_provision.results.job_state import JobState
    from rdm_provision.runner.run import Run

_RULE = "*" * 19


@click.command(
    epilog="""\b
Examples:
  rdm-provision jobs                             all of them, the newest first
  rdm-provision jobs gpt-1121-081512             one, with its nodes, curve and failures
  rdm-provision jobs gpt-1121-081512 --watch     until it has ended
  rdm-provision jobs gpt-1121-081512 --verdict || mail -s "check it" me@example.org < /dev/null
  rdm-provision jobs gpt-1121-081512 --sections  the ends of its logs, as get_result shows them
  rdm-provision jobs log2/10932251 --sections    those of a directory here, of anybody's job
  rdm-provision jobs log2/10932251 --verdict     whether that job is healthy; also of a single log
  rdm-provision jobs --prune 30d                 remove those that ended a month ago
  rdm-provision jobs --json | jq -r '.jobs[] | select(.state == "running").job'
"""
)
@click.argument("job", required=False, default="", metavar="[JOB]")
@click.option("-w", "--watch", is_flag=True, help="Watch the job until it has ended.")
@click.option("--verdict", is_flag=True, help="Print only whether it is healthy; exit with 0, 1 or 4.")
@log_directory_options("With --verdict of a directory or log")
@click.option("--sections", is_flag=True, help="Show the ends of its logs, and the times of its steps.")
@click.option(
    "--prune",
    "older",
    default="",
    metavar="AGE",
    help="Remove jobs that ended longer ago than AGE: 30d, 12h.",
)
@click.option("--yes", is_flag=True, help="With --prune: do not prompt.")
@limited_run_options
def jobs(
    options: Options,
    job: str,
    watch: bool,
    verdict: bool,
    state: str,
    conf: Path | None,
    sections: bool,
    older: str,
    yes: bool,
) -> int:
    """Show the jobs of the cluster, or all about JOB. The nodes know them: nothing is kept here.

    JOB's state comes from the cluster's master, or from the host that submits jobs to Slurm. Other nodes are
    queried only when these do not answer or do not have the job.

    With --watch it exits with 1 when the job failed or was stopped, and says when the verdict changes. Ctrl-C
    ends the watching, not the job.

    With --verdict it exits with 0 when the job is healthy, starting or finished, with 1 when it has failed,
    with 4 when it stalls or is suspect.

    --prune shows the jobs that ended longer ago than AGE, prompts, and removes their directories from all
    nodes, with their checkpoints. With --json it removes only with --yes. A running job stays, and so
    does one whose master does not answer.

    With --sections and --verdict, JOB may be a directory on this machine: a job's, or one with NODE.out,
    NODE.err and NODE.gpu; with --verdict also a single log. That needs neither a cluster nor a trainer. A
    name with a `/`, or the name of a file or directory here, is taken as such a path. --state and --conf add
    what no log has: the scheduler's state of the job, and what was requested.
    """
    # An empty name means this directory.
    is_path = "/" in job or bool(job and is_here(job))
    is_read_here = (sections or verdict) and is_path and not (sections and verdict) and not watch
    if (state or conf) and not (is_read_here and verdict and not older):
        raise click.UsageError("--state and --conf are for --verdict of a directory, such as log2/10932251.")
    if older:
        if job or watch or verdict or sections:
            raise click.UsageError("--prune cannot be combined with JOB, --watch, --verdict or --sections.")
        return prune(options, older, yes=yes)
    if yes:
        raise click.UsageError("--yes is for --prune.")
    if is_read_here:
        words = ["sections"] if sections else ["verdict", f"--state={state}"]
        words += [f"--conf={conf}"] if conf else []
        return _read_here(Path(job), words, as_json=options.as_json)
    if verdict and (watch or sections or not job):
        raise click.UsageError("--verdict needs a JOB, and cannot be combined with --watch or --sections.")
    if "/" in job:
        if not is_here(job):
            hint = (
                "a path here goes with --verdict or --sections; rdm-provision jobs lists those of the cluster"
            )
            raise InputError(f"{job} is no name of a job", hint=hint)
        what = "is a path here, and no job of the cluster"
        hint = (
            f"a directory goes with --verdict or --sections, a log with --verdict; a page of it: "
            f"rdm-provision report {shlex.quote(job)}"
        )
        raise InputError(f"{job} {what}", hint=hint)
    cluster = options.cluster()
    if sections:
        return _sections(cluster, options, job)
    run = cluster.jobs(job, watch=watch, **options.run)
    if options.show_command:
        click.echo(run.command)
        return 0
    from rdm_provision.cli.render import job_view, view

    result, known = _query(cluster, options, job, run, watch=watch)
    found = cluster.job_states(result) if known is None or not watch else (known,)
    if job and result.ok and not found:
        raise unknown_job(cluster, result, job)
    if verdict and result.ok:
        return _verdict(found[0], as_json=options.as_json)
    if options.as_json:
        emit_json({**result.to_json(), "jobs": [one.to_json() for one in found]})
        return result.exit_code
    console = view.out()
    flag = inventory_flag()
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
        job_view.unanswered(console, result)
    return result.exit_code


def _query(
    cluster: Cluster, options: Options, job: str, everywhere: Run, *, watch: bool
) -> tuple[RunResult, JobState | None]:
    """Query jobs; one job first on the hosts that may know all of it, and on all nodes only if these do not.

    These are the cluster's master, whose agent hears all nodes of its jobs, and the host that submits jobs to
    Slurm.
    """
    from rdm_provision.cli.render import job_view

    def query(run: Run) -> tuple[RunResult, JobState | None]:
        return job_view.watch(run, cluster.name, silent=options.as_json, brief=not watch)

    if job and not options.limit and len(cluster.nodes) > 1:
        first = ",".join(dict.fromkeys(filter(None, (cluster.nodes[0].name, cluster.login))))
        result, state = query(cluster.jobs(job, watch=watch, **{**options.run, "limit": first}))
        if result.cancelled or cluster.heard_jobs(result):
            return result, state
    return query(everywhere)


def _verdict(state: JobState, *, as_json: bool) -> int:
    """Print the verdict on a job, and return its exit code."""
    found = state.verdict
    if found is None:
        hint = (
            "its agent is of an earlier version, or has only begun; "
            f"rdm-provision jobs {state.job} shows its state"
        )
        raise InputError(f"there is no verdict on {state.job}", hint=hint)
    if as_json:
        emit_json({"job": state.job, "state": state.state, **to_json(found)})
    else:
        click.echo(printable(f"{found.verdict}: {found.reason}"))
        for sentence in found.evidence[1:]:
            click.echo(printable(f"  {sentence}"))
    return found.exit_code


def _sections(cluster: Cluster, options: Options, job: str) -> int:
    """Print the sections of the job's logs on all nodes."""
    run = cluster.jobs(job, sections=True, **options.run)
    if options.show_command:
        click.echo(run.command)
        return 0
    from rdm_provision.cli.render import job_view, view

    result, _ = job_view.watch(run, cluster.name, silent=options.as_json, brief=True)
    if result.ok and not cluster.knows_job(result):
        raise unknown_job(cluster, result, job)
    found = cluster.job_sections(result)
    if options.as_json:
        emit_json({**result.to_json(), "sections": [to_json(section) for section in found]})
        return result.exit_code
    for section in found:
        click.echo(printable(f"{_RULE} {section.title} {_RULE}"))
        for line in section.lines:
            click.echo(printable(line))
        if section.total is not None:
            click.echo(f"{section.total} lines..")
    if not view.unhappy_end(result) and not result.ok:
        job_view.unanswered(view.err(), result)
    return result.exit_code


def _read_here(path: Path, words: Sequence[str], *, as_json: bool) -> int:
    """Run `rdm-trainer log` on a directory or a log; nothing of it is imported here.

    Args:
        path: A directory with NODE.out files, or a job's; for a verdict also a log.
        words: The verb and its options.
        as_json: Whether to print JSON.
    """
    from rdm_provision import environment

    # Unlike Path.is_file, it raises nothing if the parent directory may not be searched.
    if words[0] == "sections" and os.path.isfile(path):  # noqa: PTH113
        page = f"rdm-provision report {shlex.quote(str(path))}"
        hint = f"give the directory that it is in, or make a page of it: {page}"
        raise InputError(f"{path} is a file, and --sections is of a directory", hint=hint)
    if not is_here(path):
        hint = "give one with NODE.out files" + (", or a log" if words[0] == "verdict" else "")
        raise InputError(f"there is no directory {path}", hint=hint)
    options = [*words, *(["--json"] if as_json else [])]
    command = [sys.executable, "-P", "-m", "rdm_trainer", "log", *options, "--", str(path)]
    env = {**os.environ, "PYTHONPATH": str(environment.collection() / "trainer")}
    return subprocess.run(command, env=env, check=False).returncode
