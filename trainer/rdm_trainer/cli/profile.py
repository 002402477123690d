# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer profile``: measure what the planner predicts from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from rdm_core.errors import TrainerError

_EPILOG = """
\b
One GPU:            rdm-trainer profile trainer/configs/gpt2-xl.yaml --output h100.json
Its tensor degrees and links too:
                    torchrun --nproc-per-node 8 -m rdm_trainer profile gpt.yaml
What it is for:     rdm-trainer tune gpt.yaml --nodes 4xH100:8 --profile h100.json
"""


@click.command(epilog=_EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]...")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The profile.  [default: NAME.profile.json]",
)
@click.option(
    "--micro-batch",
    "largest",
    type=click.IntRange(1, 4096),
    help="The largest; powers of two up to it are measured.  [default: the job's, at least 8]",
)
@click.option(
    "--sizes",
    metavar="N,N",
    help="These micro-batches alone, as 8,16, instead of powers of two.",
)
@click.option(
    "--no-checkpointing",
    is_flag=True,
    help="Leave out passes that compute activations again; tune then needs "
    "parallel.activation_checkpointing=none.",
)
@click.option(
    "--blocks",
    nargs=2,
    type=click.IntRange(1, 1000),
    default=(4, 12),
    show_default=True,
    metavar="FEW MORE",
    help="How many blocks the two measured models have; less where these do not fit.",
)
@click.option("--links-only", is_flag=True, help="Measure only the links, and compare the nodes.")
@click.option("--local_rank", "--local-rank", "local_rank", type=int, hidden=True)
def profile(
    config: Path,
    overrides: tuple[str, ...],
    output: Path | None,
    largest: int | None,
    sizes: str | None,
    no_checkpointing: bool,
    blocks: tuple[int, int],
    links_only: bool,
    local_rank: int | None,
) -> int:
    """Measure how long the layers of CONFIG take on this host's devices.

    Forward and backward by micro-batch and tensor degree, with and without activation checkpointing, the
    optimiser, and the links between ranks. Launchers start this once per device; alone it is one process on
    one device. In a job's directory ($RDM_JOB_DIR) progress.json has the results, under `measured`.
    """
    import dataclasses
    import json
    import os
    import tempfile
    import time

    from rdm_core import config as configuration
    from rdm_job.environment import adopt_launcher_environment, require_launcher_environment
    from rdm_planner.profile import require_modelled

    context = click.get_current_context()
    for option in context.command.params if links_only else ():
        is_given = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        if is_given and option.name in ("output", "largest", "sizes", "no_checkpointing", "blocks"):
            raise click.UsageError(
                f"{option.opts[0]} is for a profile of the layers, which --links-only leaves out; give only "
                "one of them."
            )
    job = configuration.load(config, overrides)
    require_modelled(job)
    if blocks[0] >= blocks[1]:
        raise TrainerError(f"--blocks is {blocks[0]} {blocks[1]}; the second must be larger, as 4 12.")
    directory = os.environ.get("RDM_JOB_DIR")
    output = output or Path(directory or ".", f"{job.name}.profile.json")
    if not output.parent.is_dir():
        raise TrainerError(f"--output is {output}, and the directory {output.parent} does not exist.")
    most = largest or max(8, job.optimisation.micro_batch_size)
    measured = [2**power for power in range(most.bit_length()) if 2**power <= most]
    if sizes is not None:
        if largest is not None:
            raise TrainerError("--sizes and --micro-batch cannot be combined.")
        if not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", sizes):
            raise TrainerError(
                f"--sizes is {sizes[:60]!r}; it must be micro-batches joined by commas, as 8,16."
            )
        measured = sorted({int(size) for size in sizes.split(",")})
    if local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(local_rank))
    # Before torch is imported: it reads the environment while it loads.
    adopt_launcher_environment(os.environ)
    require_launcher_environment(os.environ)
    is_first = os.environ.get("RANK", "0") == "0"
    if is_first and not links_only:
        try:
            tempfile.TemporaryFile(dir=output.parent).close()
        except OSError as error:
            raise TrainerError(f"--output is {output}, which cannot be written: {error.strerror}.") from None

    import torch
    import torch.distributed as dist

    from rdm_core.atomic_file import write_atomically
    from rdm_trainer.profile_model import measure, measure_links, measure_nodes, start

    done = 0

    def publish(phase: str, **more: Any) -> None:
        """Write the job's progress."""
        nonlocal done
        if directory is not None and is_first:
            progress = {"iteration": done, "phase": phase, "time": time.time(), **more}
            write_atomically(Path(directory, "progress.json"), json.dumps(progress) + "\n")
        done += 1

    def report(line: str) -> None:
        if is_first:
            click.echo(f"Measuring: {line}", err=True)
        publish(line)

    device = start(job)
    if links_only:
        report("the links")
        links = {
            where: {what: dataclasses.asdict(link) for what, link in several.items()}
            for where, several in measure_links(device).items()
        }
        report("each node")
        found_here = {"links": links, "nodes": measure_nodes(job, device)}
        publish("done", measured=found_here)
        if is_first:
            click.echo(json.dumps(found_here))
        dist.barrier()
        dist.destroy_process_group()
        return 0
    try:
        found = measure(job, device, measured, blocks, report, checkpointing=not no_checkpointing)
    except torch.OutOfMemoryError:
        raise TrainerError(
            f"{blocks[1]} blocks do not fit the memory with the smallest micro-batch; take fewer: "
            "--blocks 1 2."
        ) from None
    publish("done", measured=found.plain())
    if is_first:
        write_atomically(output, found.text())
        click.echo(f"{output}: {found.gpu}, tensor degrees {', '.join(map(str, found.layers))}.")
    dist.barrier()
    dist.destroy_process_group()
    return 0
