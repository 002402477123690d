# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer tune``: the fastest layout of a job on nodes of given GPUs."""

from __future__ import annotations

import contextlib
import shlex
from importlib import metadata
from pathlib import Path

import click

from rdm_core.errors import DONE, TrainerError
from rdm_planner.tune.options import TuneOptions, tune_options

__all__ = ["tune"]

_EPILOG = """
\b
16 nodes with 8 H100 each:        rdm-trainer tune gpt-5b.yaml --nodes 16xH100:8
As measured there:                rdm-trainer tune gpt-5b.yaml --nodes 16xH100:8 --profile h100.json
An A100 node and seven of A10:    rdm-trainer tune gpt2-xl.yaml --nodes 1xA100-40:4 --nodes 7xA10:4
The winner into the file:         rdm-trainer tune gpt2-xl.yaml --nodes 8xA10:4 --write
"""


@click.command(epilog=_EPILOG)
@click.option(
    "--nodes",
    "groups",
    multiple=True,
    required=True,
    metavar="COUNTxGPU:GPUS",
    help="Nodes of a kind, as 2xH100:8; again for another kind.",
)
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What rdm-trainer profile measured on a kind of GPU, again for another kind; or a cluster's file.",
)
@tune_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON; times are seconds.")
def tune(options: TuneOptions, groups: tuple[str, ...], profiles: tuple[Path, ...]) -> int:
    """Say which layout of CONFIG is the fastest on these nodes.

    That is the tensor, data and pipeline degree, the micro-batch, which blocks are on which stage, and which
    kind of node is at which place.

    Without a profile, times are guesses from published peaks. Exits with 1 when no layout fits.
    """
    from rdm_planner.cluster_profile import ClusterProfile
    from rdm_planner.tune import verb
    from rdm_planner.tune.answer import read_job
    from rdm_planner.tune.fleet import Fleet, NodeGroup, by_gpu
    from rdm_trainer.engine_step import engine_step

    job = read_job(options)
    measure = shlex.join(["rdm-trainer", "profile", str(options.config)])
    # What is not installed here, where nothing is trained, cannot differ.
    versions = {}
    for package in ("torch", "deepspeed"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    read = ((str(path), one) for path in profiles for one in ClusterProfile.read(path).of_job(job))
    measured = by_gpu(read, job, versions, measure)
    nodes = [NodeGroup(gpu, gpus, [""] * count) for count, gpu, gpus in map(_group, groups)]
    verb.tune(
        options,
        job,
        Fleet(nodes, measured, measure),
        lambda overrides: shlex.join(["rdm-trainer", "dry-run", str(options.config), *overrides]),
        statement=engine_step,
    )
    return DONE


def _group(text: str) -> tuple[int, str, int]:
    """Return count, GPU and GPUs of a node of one ``--nodes``."""
    count, _, rest = text.partition("x")
    name, _, gpus = rest.rpartition(":")
    if not (
        count.isdecimal() and gpus.isdecimal() and name and 0 < int(count) <= 4096 and 0 < int(gpus) <= 64
    ):
        raise TrainerError(
            f"--nodes is {text[:60]!r}; write how many, which GPU and how many in each: 2xH100:8."
        )
    return int(count), name, int(gpus)
