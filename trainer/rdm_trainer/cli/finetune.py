# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer finetune``: one rank of a fine-tuning. Launchers start it once per device."""

from __future__ import annotations

from pathlib import Path

import click

_EPILOG = """
\b
On this machine:  rdm-trainer finetune trainer/configs/qwen3-8b-finetune.yaml data.train=[alpaca.parquet]
On its 8 GPUs:    torchrun --nproc-per-node 8 -m rdm_trainer finetune job.yaml
An adapter:       rdm-trainer finetune job.yaml lora.rank=16 lora.merge=true
Preferences:      rdm-trainer finetune job.yaml method=dpo data.train=[pairs.jsonl]
On four hosts:    rdm-trainer rendezvous -- finetune job.yaml
"""


@click.command(epilog=_EPILOG)
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("overrides", nargs=-1, metavar="[KEY.SUB=VALUE]...")
@click.option(
    "--job-dir",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where logs, checkpoints and the model go.  [default: jobs/NAME]",
)
@click.option("--print-config", is_flag=True, help="Print the configuration with every key, and do nothing.")
# DeepSpeed's launcher adds this to every rank's command line; the rank takes it from LOCAL_RANK.
@click.option("--local_rank", "--local-rank", "local_rank", type=int, hidden=True)
def finetune(
    config: Path,
    overrides: tuple[str, ...],
    job_dir: Path | None,
    print_config: bool,
    local_rank: int | None,
) -> int:
    """Fine-tune a published model as CONFIG says, with KEY.SUB=VALUE over it.

    Without a launcher this is one process on one device. The job's directory gets `model`, which transformers
    and vLLM load, or `adapter`. The same command again goes on from the last checkpoint.
    """
    import os

    from rdm_core import config as configuration
    from rdm_core.config.finetune import FinetuneConfig
    from rdm_job.environment import adopt_launcher_environment, require_launcher_environment
    from rdm_job.processes import allow_files
    from rdm_trainer.finetune.packages import require_packages

    job = configuration.load_as(FinetuneConfig, config, overrides)
    if print_config:
        configuration.require(job)
        click.echo(configuration.dump(job))
        return 0
    if local_rank is not None:
        os.environ.setdefault("LOCAL_RANK", str(local_rank))
    # Before torch is imported: it reads the environment while it loads.
    adopt_launcher_environment(os.environ)
    require_launcher_environment(os.environ)
    configuration.require(job, int(os.environ.get("WORLD_SIZE", "1")))
    require_packages()
    allow_files()

    from rdm_trainer.finetune.run import run

    return run(job, job_dir or Path("jobs") / job.name)
