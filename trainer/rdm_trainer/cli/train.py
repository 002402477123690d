# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer train``: one rank of a training job. Launchers start it once per device."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command(
    epilog="""\b
On this machine:  rdm-trainer train trainer/configs/demo.yaml data.mock=true data.blend=[]
On its 8 GPUs:    torchrun --nproc-per-node 8 -m rdm_trainer train job.yaml
On a cluster:     rdm-provision train job.yaml
"""
)
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]...")
@click.option(
    "--job-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where logs, checkpoints and progress go.  [default: jobs/NAME]",
)
@click.option(
    "--init-from",
    metavar="DIR",
    help="Begin with the weights of this model alone: checkpoint.init_from.",
)
@click.option("--print-config", is_flag=True, help="Print the configuration with every key, and do nothing.")
# DeepSpeed's launcher adds this to every rank's command line; the rank takes it from LOCAL_RANK.
@click.option("--local_rank", "--local-rank", "local_rank", type=int, hidden=True)
def train(
    config: Path,
    overrides: tuple[str, ...],
    job_dir: Path | None,
    init_from: str | None,
    print_config: bool,
    local_rank: int | None,
) -> int:
    """Train as CONFIG says, with KEY.SUB=VALUE over it.

    Without a launcher this is one process on one device.
    """
    from rdm_core import config as configuration

    if init_from is not None:
        # Quoted, because YAML reads an empty text as none, and 1 as a number.
        overrides = (*overrides, f"checkpoint.init_from={json.dumps(init_from, ensure_ascii=False)}")
    job = configuration.load(config, overrides)
    if print_config:
        configuration.require(job)
        click.echo(configuration.dump(job.resolved()))
        return 0
    import os

    from rdm_core.errors import ConfigError
    from rdm_job.environment import adopt_launcher_environment, require_launcher_environment
    from rdm_job.processes import allow_files
    from rdm_trainer.data.checks import checks as data_problems

    if local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(local_rank))
    # Before torch is imported: it reads the environment while it loads.
    adopt_launcher_environment(os.environ)
    require_launcher_environment(os.environ)
    configuration.require(job, int(os.environ.get("WORLD_SIZE", "1")))
    allow_files()
    # One process of each node looks: the others would read the same.
    checks_data = os.environ.get("LOCAL_RANK", "0") == "0" and not job.launcher.program
    problems = data_problems(job) if checks_data else []
    if problems:
        raise ConfigError(problems, source="the data")

    from rdm_trainer.train import run

    return run(job, job_dir or Path("jobs") / job.name)
