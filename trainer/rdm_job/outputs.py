# SPDX-License-Identifier: GPL-3.0-or-later
"""Links to a job's outputs under the names that the mdx scripts of llm-jp/Megatron-DeepSpeed use.

Next to the jobs' directories: ``outputs/log/NAME_HOST_TIME.log``, ``outputs/checkpoint/NAME`` and
``outputs/tensorboard/NAME_HOST_TIME``. NAME describes the model, the number of tokens and the layout.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from rdm_core.config import Config, JobConfig
from rdm_core.cost import flops
from rdm_job.directory import JobDirectory

OUTPUTS = "outputs"
_TIME = "%Y.%m.%d_%H.%M.%S"


def name_of(config: Config, world: int) -> str:
    """Return the scripts' name for a training run; the mpirun and deepspeed scripts name it differently."""
    of, parallel, model = config.optimisation, config.parallel, config.model
    batch, length = of.global_batch_size, model.seq_length

    def tokens(samples: int | None, iterations: int | None) -> int:
        return length * (samples if samples is not None else batch * (iterations or 0))

    train = tokens(of.train_samples, of.train_iterations)
    decay = tokens(of.decay_samples, of.decay_iterations) or train
    size = f"{model.kind}_{_number(flops.parameters(config.spec) / 1e9, 2)}B"
    zero = f"_z{config.zero_stage}" if config.zero_stage else ""
    if config.launcher.kind != "mpirun":
        stage = f"_zero{config.zero_stage}" if config.zero_stage else ""
        tensor = f"_tp{parallel.tensor}" if parallel.tensor > 1 else ""
        pipeline = f"_pp{parallel.pipeline}" if parallel.pipeline > 1 else ""
        return (
            f"{size}_token{_number(decay / 1e9)}B_lr{_rate(of.lr)}_gbs{batch}_mbs{of.micro_batch_size}"
            f"_gpu{world}{stage}{tensor}{pipeline}"
        )
    warmup = tokens(of.warmup_samples, of.warmup_iterations) or int((of.warmup_fraction or 0) * decay)
    tensor = f"_mp{parallel.tensor}" if parallel.tensor > 1 else ""
    pipeline = f"_pp{parallel.pipeline}" if parallel.pipeline > 1 else ""
    return (
        f"{size}_tok{_number(decay / 1e9)}B_lr{_rate(of.lr)}_min{_rate(of.min_lr)}_w{_number(warmup / 1e6)}M"
        f"_d{_number(decay / 1e9)}B_{of.schedule}_gbs{batch}_mbs{of.micro_batch_size}_g{world}"
        f"{zero}{tensor}{pipeline}_seed{of.seed}_rebase"
    )


def _number(value: float, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if value < 10**digits else f"{value:.0f}"


def _rate(value: float) -> str:
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def link(job: JobDirectory, config: JobConfig, world: int, now: float) -> None:
    """Make this node's links for a training run that starts, if its configuration wants them.

    Args:
        job: The job, whose directory exists.
        config: Its configuration, with every key.
        world: How many processes it has.
        now: Seconds since 1970.
    """
    if not isinstance(config, Config) or config.logging.names != "mdx":
        return
    name = name_of(config, world)
    run = f"{name}_{os.uname().nodename}_{time.strftime(_TIME, time.localtime(now))}"
    for path, target in (
        (Path("log", f"{run}.log"), job.log(job.node, "out")),
        (Path("log", f"{run}.err"), job.log(job.node, "err")),
        (Path("checkpoint", name), job.path / "checkpoints"),
        (Path("tensorboard", run), job.path / "tensorboard"),
    ):
        path_of_link = job.path.parent / OUTPUTS / path
        path_of_link.parent.mkdir(parents=True, exist_ok=True)
        partial = path_of_link.with_name(f".{path_of_link.name}.{os.getpid()}")
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
        # Relative, because the jobs' directory may be mounted elsewhere in a container.
        partial.symlink_to(os.path.relpath(target, path_of_link.parent))
        partial.replace(path_of_link)
