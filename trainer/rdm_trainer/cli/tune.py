# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer tune``: the fastest layout of a job on nodes of given GPUs."""

from __future__ import annotations

import functools
import json
import shlex
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from rdm_core.errors import DONE, TrainerError
from rdm_planner.tune.options import TuneOptions, tune_options

if TYPE_CHECKING:
    from rdm_planner.tune.fleet import NodeGroup

_EPILOG = """
\b
16 nodes with 8 H100 each:        rdm-trainer tune trainer/configs/gpt-5b.yaml --nodes 16xH100:8
As measured there:                rdm-trainer tune gpt.yaml --nodes 16xH100:8 --profile h100.json
An A100 node and seven of A10:    rdm-trainer tune gpt.yaml --nodes 1xA100-40:4 --nodes 7xA10:4
The winner into the file:         rdm-trainer tune gpt.yaml --nodes 8xA10:4 --write
A case of FASOP's paper:          rdm-trainer tune gpt2XL --model fasop --nodes 1xA100:4 --nodes 7xA10:4
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--nodes",
    "groups",
    multiple=True,
    metavar="COUNTxGPU:GPUS",
    help="Nodes of a kind, as 2xH100:8; again for another kind.",
)
@click.option(
    "--cluster",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Instead: nodes, prices and bandwidths from a YAML file; docs/tune.md shows one.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What rdm-trainer profile measured on a kind of GPU, again for another kind; or a cluster's file.",
)
@click.option(
    "--model",
    type=click.Choice(["trainer", "fasop"]),
    default="trainer",
    show_default=True,
    help="The trainer's own cost model, or FASOP's as published; CONFIG is then gpt2XL, bert or T5.",
)
@tune_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON; times are seconds.")
def tune(
    options: TuneOptions,
    groups: tuple[str, ...],
    cluster: Path | None,
    profiles: tuple[Path, ...],
    model: str,
) -> int:
    """Find the fastest layout of CONFIG on these nodes.

    That is the tensor, data and pipeline degree, the micro-batch, which blocks are on which stage, and which
    kind of node has which ranks.

    Without a profile, times are guesses from published peaks. Exits with 1 when no layout fits.
    """
    if bool(groups) == (cluster is not None):
        raise click.UsageError("say which nodes there are: either --nodes 2xH100:8 or --cluster FILE.")
    if model == "fasop":
        return _fasop(options, groups, cluster, profiles)
    from rdm_planner.cluster_profile import ClusterProfile
    from rdm_planner.profile import packages_of
    from rdm_planner.tune import cluster_file, verb
    from rdm_planner.tune.answer import read_job
    from rdm_planner.tune.fleet import Fleet, by_gpu
    from rdm_trainer.engine_step import engine_step

    job = read_job(options)
    measure = shlex.join(["rdm-trainer", "profile", str(options.config), *options.of_profile])
    read = ((str(path), one) for path in profiles for one in ClusterProfile.read(path).of_job(job))
    measured = by_gpu(read, job, measure)
    versions, missing = _versions(packages_of(job.engine))
    for source, one in measured.values():
        one.require_versions(versions, where="here is", source=source, command=measure)
    unverified = ""
    if measured and missing:
        unverified = (
            f"Not compared with the profile: the version of {' and '.join(missing)}, not installed here."
        )
    nodes = cluster_file.read(cluster) if cluster else list(map(_group, groups))
    verb.tune(
        options,
        job,
        Fleet(nodes, measured, measure, unverified),
        functools.partial(_following, options),
        statement=engine_step,
    )
    return DONE


def _following(options: TuneOptions, winner: Sequence[str]) -> str:
    """Return the command that describes the job with the winner's layout."""
    overrides = [] if options.write else [*options.overrides, *winner]
    return shlex.join(["rdm-trainer", "dry-run", str(options.config), *overrides])


def _versions(packages: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Return the packages' versions, and which are not installed here."""
    versions, missing = {}, []
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            missing.append(package)
    return versions, missing


def _fasop(
    options: TuneOptions, groups: tuple[str, ...], cluster: Path | None, profiles: tuple[Path, ...]
) -> int:
    """Answer with FASOP's cost model, for its own models and nodes."""
    from rdm_planner.fasop.answer import answer, show

    context = click.get_current_context()
    for name, given in (
        ("KEY.SUB=VALUE", options.overrides),
        *(
            (f"--{name}", context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
            for name in ("inter", "intra", "efficiency")
        ),
        ("--cluster", cluster),
        ("--profile", profiles),
        ("--pareto", options.pareto),
        ("--price", options.prices),
        ("--html", options.html),
        ("--write", options.write),
    ):
        if given:
            raise TrainerError(
                f"{name} is not for --model fasop, whose models and times are published; leave it out."
            )
    kinds = [(len(group.names), group.gpu, group.gpus) for group in map(_group, groups)]
    found = answer(str(options.config), kinds, options.top)
    if options.as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        show(found)
    return DONE


def _group(text: str) -> NodeGroup:
    """Return the nodes of one ``--nodes``."""
    from rdm_planner.tune.cluster_file import MOST_GPUS, MOST_NODES
    from rdm_planner.tune.fleet import NodeGroup

    count, _, rest = text.partition("x")
    name, _, gpus = rest.rpartition(":")
    is_whole = count.isdecimal() and gpus.isdecimal() and name
    if not (is_whole and 0 < int(count) <= MOST_NODES and 0 < int(gpus) <= MOST_GPUS):
        raise TrainerError(
            f"--nodes is {text[:60]!r}; write how many, which GPU and how many in each: 2xH100:8. "
            f"There can be {MOST_NODES} nodes with {MOST_GPUS} GPUs."
        )
    return NodeGroup(name, int(gpus), [""] * int(count))
