# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer job``: a node's jobs, for rdm-provision. It answers with JSON; see docs/launchers.md."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from rdm_core.errors import BAD_INPUT, DONE, FAILED, TrainerError
from rdm_job.protocol import Request


def _answers(verb: Callable[..., dict[str, Any]]) -> Callable[..., int]:
    """Let a verb print what it returns, or its problems, as JSON."""

    @functools.wraps(verb)
    def answer(**arguments: Any) -> int:
        try:
            found = {"ok": True, "problems": [], **verb(**arguments)}
        except TrainerError as error:
            found = {"ok": False, "problems": list(error.problems)}
        click.echo(json.dumps(found))
        return DONE if found["ok"] else BAD_INPUT

    return answer


@click.group()
def job() -> None:
    """Start, watch and stop jobs on this node.

    `rdm-provision train` runs these verbs in each node's container. CHECK and START read a request from
    standard input; every verb prints one JSON object.
    """


@job.command()
@_answers
def check() -> dict[str, Any]:
    """Print what prevents the job that standard input describes."""
    from rdm_job.check import check

    return check(_request())


@job.command()
@_answers
def start() -> dict[str, Any]:
    """Start the job that standard input describes, and return when its agent runs."""
    from rdm_job.verbs import start

    return start(_request())


@job.command()
@_answers
def revive() -> dict[str, Any]:
    """Start the agents of jobs that were at work when this container was restarted."""
    from rdm_job.verbs import revive

    return revive()


@job.command()
@click.argument("name")
@click.option("--wait", type=click.FloatRange(min=0), default=0.0, help="Seconds to wait for news.")
@_answers
def state(name: str, wait: float) -> dict[str, Any]:
    """Print the state of the job NAME."""
    from rdm_job.verbs import state

    return state(name, wait)


@job.command()
@click.argument("name")
@click.option("--now", is_flag=True, help="Without a checkpoint.")
@click.option("--timeout", type=click.FloatRange(min=0), default=330.0, help="Seconds it may take.")
@_answers
def stop(name: str, now: bool, timeout: float) -> dict[str, Any]:
    """Stop the job NAME on all nodes, and end its processes on this one."""
    from rdm_job.verbs import stop

    return stop(name, now=now, timeout=timeout)


@job.command()
@click.argument("name")
@click.option("--stream", type=click.Choice(["out", "err", "gpu"]), default="out", help="Which log.")
@click.option("--tail", type=click.IntRange(min=0), default=20, help="The last lines; 0 for all.")
@click.option("--offset", help="What is beyond this instead, as an earlier answer said.")
@click.option("--wait", type=click.FloatRange(min=0), default=0.0, help="Seconds to wait for more.")
@click.option("--grep", default="", help="Only lines in which this regular expression is found.")
@click.option("--rank", type=click.IntRange(min=0), help="Only lines that name this rank.")
@_answers
def logs(
    name: str, stream: str, tail: int, offset: str | None, wait: float, grep: str, rank: int | None
) -> dict[str, Any]:
    """Return what the job NAME wrote on this node."""
    from rdm_job.verbs import logs

    return logs(name, stream=stream, lines=tail, offset=offset, wait=wait, grep=grep, rank=rank)


@job.command()
@click.argument("name")
@_answers
def sections(name: str) -> dict[str, Any]:
    """Return the ends of the job NAME's logs on this node, its configuration in short, and its times."""
    from rdm_job.verbs import sections

    return sections(name)


@job.command()
@click.argument("directory", type=click.Path(path_type=Path))
def step(directory: Path) -> int:
    """Be the agent of the job in DIRECTORY on this node, as a task of Slurm's srun."""
    from rdm_job.slurm.step import run

    return run(directory)


@job.command()
@click.argument("directory", type=click.Path(path_type=Path))
def image(directory: Path) -> int:
    """Make the image of the job in DIRECTORY ready. job.sbatch says so."""
    from rdm_job.slurm.image import prepare

    prepare(directory)
    return DONE


@job.command()
@click.argument("directory", type=click.Path(path_type=Path))
def enter(directory: Path) -> int:
    """Be the agent of the job in DIRECTORY on this node, in the job's image, as a task of Slurm's srun."""
    from rdm_job.slurm.image import enter
    from rdm_job.slurm.step import refuse

    try:
        enter(directory)
    except TrainerError as error:
        refuse(directory, str(error))
        raise


@job.command(name="time-is-up")
@click.argument("directory", type=click.Path(path_type=Path))
def time_is_up(directory: Path) -> int:
    """Let the job in DIRECTORY save and end: its time limit is near. job.sbatch says so."""
    from rdm_job.slurm.step import time_is_up

    time_is_up(directory)
    return DONE


@job.command()
@click.argument("directory", type=click.Path(path_type=Path))
def again(directory: Path) -> int:
    """Exit with 0 when the job in DIRECTORY, whose agents have ended, is to go on, else with 1."""
    from rdm_job.slurm.step import again

    return DONE if again(directory) else FAILED


@job.command()
@click.argument("name")
@_answers
def report(name: str) -> dict[str, Any]:
    """Return this node's data for a report of the job NAME."""
    from rdm_job.verbs import report

    return report(name)


@job.command()
@click.argument("names", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--look", is_flag=True, hidden=True, deprecated="Use --dry-run.")
@_answers
def remove(names: tuple[str, ...], dry_run: bool, look: bool) -> dict[str, Any]:
    """Remove the directories of the jobs NAMES from this node, of those that have ended.

    What is left of those whose removal was killed goes in any case.
    """
    from rdm_job.removal import remove

    return remove(names, dry_run=dry_run or look)


@job.command(name="list")
@_answers
def list_() -> dict[str, Any]:
    """Print the states of all jobs of this node."""
    from rdm_job.verbs import jobs

    return jobs()


def _request() -> Request:
    try:
        found = json.load(sys.stdin)
    except ValueError as error:
        raise TrainerError(f"The request on standard input is not JSON: {error}.") from None
    return Request.of(found if isinstance(found, dict) else {})
