# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs: check every node, start a training job, and watch it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rdm_provision.cli.common import Options, emit_json, limited_run_options
from rdm_provision.cli.render.commands import inventory_flag
from rdm_provision.constants import LAUNCHERS

if TYPE_CHECKING:
    from rdm_provision.api.cluster import Cluster
    from rdm_provision.results.events import RunResult
    from rdm_provision.results.job_state import JobState


@click.command(
    epilog="""\b
Examples:
  rdm-provision train trainer/configs/demo.yaml
  rdm-provision train gpt.yaml parallel.pipeline=2 optimisation.lr=3e-4
  rdm-provision train gpt.yaml --layout auto            in the fastest layout, as `tune` finds it
  rdm-provision train gpt.yaml --launcher torchrun --max-restarts 3 --detach
  rdm-provision train gpt.yaml --launcher slurm launcher.slurm.gres=gpu:a10:4    through Slurm
  rdm-provision train --resume gpt-1121-081512          from its newest checkpoint
  rdm-provision train --resume gpt-1121-081512 parallel.tensor=2    in another layout
  rdm-provision train gpt.yaml --check                  only check every node
"""
)
@click.argument("config", required=False, default=None, metavar="[CONFIG.yaml]")
@click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]...")
@click.option(
    "--name", default="", metavar="NAME", help="Name of the job.  [default: CONFIG's, and the time]"
)
@click.option("--resume", metavar="JOB", help="Go on with this job from its newest checkpoint.")
@click.option("--launcher", type=click.Choice(LAUNCHERS), help="How the processes are started.")
@click.option(
    "--layout",
    type=click.Choice(["auto"]),
    help="auto: search the fastest layout first, as `rdm-provision tune`, and train in it.",
)
@click.option(
    "--max-restarts",
    type=click.IntRange(min=0),
    metavar="N",
    help="Go on from the newest checkpoint up to N times when a process fails.",
)
@click.option("--detach", is_flag=True, help="Return when the job has started.")
@click.option("--check", is_flag=True, help="Check every node; start nothing.")
@click.option("--print-config", is_flag=True, help="Print the configuration with every key; start nothing.")
@limited_run_options
def train(
    options: Options,
    config: str | None,
    overrides: tuple[str, ...],
    name: str,
    resume: str | None,
    launcher: str | None,
    layout: str | None,
    max_restarts: int | None,
    detach: bool,
    check: bool,
    print_config: bool,
) -> int:
    """Train with CONFIG.yaml on the cluster, with KEY.SUB=VALUE over it.

    Checks every node first, and refuses with all problems at once before anything is started. The job then
    does not need this program: Ctrl-C ends the watching, `rdm-provision jobs JOB --watch` watches it again,
    and `rdm-provision stop JOB` stops it.
    """
    if config is not None and "=" in config and not Path(config).is_file():
        # With --resume, values may come without a configuration before them.
        overrides, config = (config, *overrides), None
    if resume == "":
        raise click.UsageError("--resume is empty; name a job, or leave it out to start a new one.")
    words = [*overrides]
    if launcher is not None:
        words.append(f"launcher.kind={launcher}")
    if max_restarts is not None:
        words.append(f"launcher.max_restarts={max_restarts}")
    cluster = options.cluster()
    if layout is not None:
        if config is None or resume:
            raise click.UsageError(
                "--layout auto is for a new job of a CONFIG.yaml; one that goes on has its layout."
            )
        is_started = not (options.show_command or print_config)
        words += _fastest(options, cluster, Path(config), words, is_checked=is_started)
    if print_config:
        return _print_config(options, cluster, config, words)
    run = cluster.train(
        config,
        words,
        name=name,
        resume=resume or "",
        watch=not detach,
        check=check,
        **options.run,
    )
    if options.show_command:
        click.echo(run.command)
        return 0
    from rdm_provision.cli.render import job_view

    result, state = job_view.watch(run, cluster.name, silent=options.as_json)
    if options.as_json:
        emit_json({**result.to_json(), "job": state.to_json() if state else None})
        return result.exit_code
    return _recap(result, state, inventory_flag(), check=check, detach=detach)


def _fastest(
    options: Options, cluster: Cluster, config: Path, words: list[str], *, is_checked: bool
) -> list[str]:
    """Search for the fastest layout, print it on stderr, and return its values."""
    from rdm_provision.api import tuning
    from rdm_provision.cli.verbs.tune import searched_fleet

    wanted = tuning.TuneOptions(config, tuple(words), top=2, as_json=options.as_json)
    with tuning.user_errors():
        job = tuning.read_job(wanted)
        if job.launcher.kind == "slurm":
            raise click.UsageError(
                "--layout auto is for the inventory's nodes, and Slurm chooses this job's; rdm-trainer tune "
                "takes them from the command line: --nodes 7xA10:4"
            )
        fleet = searched_fleet(options, cluster, wanted, job, is_checked=is_checked)
        found = tuning.searched(wanted, job, fleet)
    click.echo(found.chosen(), err=True)
    return list(found.rows[0]["overrides"])


def _print_config(options: Options, cluster: Cluster, config: str | None, words: list[str]) -> int:
    if config is None:
        raise click.UsageError("--print-config needs a CONFIG.yaml.")
    result = options.carry_out(cluster, cluster.job_config(config, words, **options.run), brief=True)
    if result is None:
        return 0
    resolved = cluster.resolved_config(result)
    if options.as_json:
        emit_json({**result.to_json(), "config": resolved})
        return result.exit_code
    from rdm_provision.cli.render import job_view, view

    if not view.unhappy_end(result) and not result.ok:
        job_view.unanswered(view.err(), result)
    click.echo(resolved, nl=False)
    return result.exit_code


def _recap(result: RunResult, state: JobState | None, flag: str, *, check: bool, detach: bool) -> int:
    from rdm_provision.cli.render import job_view, view

    console = view.out()
    if state is None or (result.cancelled and not state.ended):
        if state is not None:
            job_view.left(console, state, flag)
        elif check and result.ok:
            console.print("Every node can run this job. Nothing was started.")
        elif not view.unhappy_end(result):
            view.recap(console, result)
        return result.exit_code
    if state.ended:
        job_view.ending(console, state)
        view.next_steps(console, job_view.next_steps(state, flag))
    elif detach and result.ok:
        job_view.started(console, state, flag)
    elif any(node.failed for node in result.nodes.values()):
        # Some nodes have not started their part.
        view.recap(console, result)
        view.next_steps(console, job_view.next_steps(state, flag))
    else:
        # The queried node is lost; the job may be fine.
        view.recap(console, result)
        job_view.left(console, state, flag)
    return result.exit_code
