# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs: find the fastest layout of a training on the cluster."""

from __future__ import annotations

import functools
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rdm_provision.api import tuning
from rdm_provision.api.tuning import TuneOptions, tune_options
from rdm_provision.cli.common import Options, search_options
from rdm_provision.cli.render.commands import inventory_flag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rdm_provision.api.cluster import Cluster

_ALL = 1000
"""More layouts than any search finds."""


@click.command(
    epilog="""\b
Examples:
  rdm-provision tune trainer/configs/gpt2-xl.yaml
  rdm-provision tune gpt.yaml --write               and put the winner into the file
  rdm-provision tune gpt.yaml --limit node1,node2   on some of the nodes
  rdm-provision tune gpt.yaml --pareto --price H100=2.5 --price A10=0.6
  rdm-provision tune gpt.yaml --validate 3          compare with six short jobs
  rdm-provision tune gpt.yaml optimisation.global_batch_size=512 --json | jq '.best[0]'
"""
)
@click.option(
    "--validate",
    "best",
    type=click.IntRange(1, 50),
    metavar="N",
    help="Run the N best layouts and N others for a few steps each, and compare.",
)
@click.option("--guess", is_flag=True, help="Ignore the profile; use published peaks.")
@search_options
@tuning.user_errors()
@tune_options  # type: ignore[untyped-decorator]  # it is the trainer's
def tune(options: Options, wanted: TuneOptions, best: int | None, guess: bool) -> int:
    """Find the fastest layout of CONFIG.yaml on the cluster. Touches no node, except with --validate.

    A layout is the degree of each parallelism, the micro-batch, which blocks are on which stage, and which
    node is at which rank. Times come from `rdm-provision profile`, which measures them; without a profile
    they are guesses from published peaks, for the GPUs that the inventory names (rdm_gpu, rdm_slots,
    rdm_gpu_price).
    """
    cluster = options.cluster()
    wanted = replace(wanted, as_json=options.as_json)
    job = tuning.read_job(wanted)
    fleet = searched_fleet(options, cluster, wanted, job, guess=guess, is_checked=bool(best))
    tuning.tune(
        wanted,
        job,
        fleet,
        lambda winner: _training(options, wanted, winner),
        more=lambda: _validated(options, cluster, wanted, fleet, best) if best else {},
    )
    return 0


def _validated(
    options: Options, cluster: Cluster, wanted: TuneOptions, fleet: tuning.Fleet, best: int
) -> dict[str, Any]:
    """Run layouts, print and save how far predictions are off, and return that for JSON."""
    from rdm_provision.cli.render import view
    from rdm_provision.cli.verbs import validate

    # After --write the file has the winner's keys, such as its partition; other layouts need their own.
    job = tuning.read_job(wanted)
    rows = tuning.searched(wanted, job, fleet, keep=_ALL).rows
    found = validate.validate(options, cluster, wanted, job, rows, best)
    path = tuning.keep_profile(cluster, tuning.profile_of(cluster).with_validation(found))
    if not options.as_json:
        validate.show(view.out(), found)
        click.echo(f"Kept in {path}.")
    return {"validation": found}


def searched_fleet(
    options: Options,
    cluster: Cluster,
    wanted: TuneOptions,
    job: Any,
    *,
    guess: bool = False,
    is_checked: bool = False,
) -> tuning.Fleet:
    """Return the nodes to search a layout for.

    Args:
        options: the common ones; their limit selects the nodes.
        cluster: the nodes' cluster.
        wanted: the options of ``tune``.
        job: the job, as it was read.
        guess: leave out what was measured.
        is_checked: check the nodes, and compare the profile with what the check finds.

    Raises:
        click.exceptions.Exit: the nodes cannot run the job.
    """
    from rdm_provision.cli.verbs.measuring_jobs import check_nodes

    search = functools.partial(tuning.fleet, cluster, options.limit, job, _measure_command(wanted))
    # Report errors of the inventory before any node is contacted.
    fleet = search(guess=guess)
    if not fleet.profiles:
        return fleet
    if not is_checked:
        train = f"rdm-provision train{inventory_flag()} {shlex.quote(str(wanted.config))} --layout auto"
        what = "torch and DeepSpeed of the nodes"
        return replace(
            fleet, unverified=f"Not compared with the profile: {what}. To compare them and train: {train}"
        )
    return search(facts=check_nodes(options, cluster, wanted.config, wanted.overrides))


def _measure_command(wanted: TuneOptions) -> str:
    """Return the command that measures for a job, as the user names the cluster."""
    words = shlex.join([str(wanted.config), *wanted.of_profile])
    return f"rdm-provision profile{inventory_flag()} {words}"


def _training(options: Options, wanted: TuneOptions, winner: Sequence[str]) -> str:
    """Return the command that trains with a layout, as the user names the cluster and its nodes."""
    limit = f" --limit {shlex.quote(options.limit)}" if options.limit else ""
    values = [] if wanted.write else [*wanted.overrides, *winner]
    return f"rdm-provision train{inventory_flag()}{limit} {shlex.join([str(wanted.config), *values])}"
