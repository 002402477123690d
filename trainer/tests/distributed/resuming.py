# SPDX-License-Identifier: GPL-3.0-or-later
"""Whole trainings that stop and are resumed, for tests: what every rank of a launch runs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from rdm_core.config import CheckpointConfig, Config, DataConfig, LoggingConfig, RampupConfig
from rdm_log import lines, records
from rdm_trainer import metrics
from rdm_trainer.train import Training
from tests.distributed import deepspeed_files, processes, training


def _job(base: Config, name: str) -> Config:
    return dataclasses.replace(
        base,
        name=name,
        optimisation=dataclasses.replace(
            base.optimisation, train_iterations=8, lr=5e-3, warmup_iterations=2, min_lr=5e-4
        ),
        data=DataConfig(mock=True, workers=0),
        logging=LoggingConfig(interval=1, tensorboard=False, eval_interval=0, eval_iterations=0),
        checkpoint=CheckpointConfig(interval=0),
    )


GPT = _job(training.GPT, "gpt")
QWEN = training.configure(_job(training.QWEN, "qwen"), {"model.biases": "none"})
MOE = _job(training.MOE, "moe")
T5 = _job(training.configure(training.T5, {"model.lm_head_bias": True}), "t5")
# Five steps of 4 samples, then three of 8.
RAMP = training.configure(
    _job(training.GPT, "ramp"),
    {
        "optimisation.train_iterations": None,
        "optimisation.train_samples": 44,
        "optimisation.warmup_iterations": None,
        "optimisation.warmup_samples": 12,
        "optimisation.rampup_batch_size": RampupConfig(start=4, increment=4, samples=20),
    },
)


def parallel(**values: Any) -> dict[str, Any]:
    """Return changes of the section ``parallel``."""
    return {f"parallel.{key}": value for key, value in values.items()}


def node(root: str, shift: int = 0) -> Path:
    """Return this rank's own disk, or that of the rank ``shift`` further on."""
    return Path(root) / f"node{(dist.get_rank() + shift) % dist.get_world_size()}"


def alone(action: Any, *arguments: Any) -> None:
    """Make rank 0 do something between two runs."""
    if dist.get_rank() == 0:
        action(*arguments)
    dist.barrier()


class Log:
    """Lines that this rank wrote. Its methods combine all ranks' lines, and all ranks must call them."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    def losses(self) -> dict[int, float]:
        """Return the losses by iteration, which the last rank wrote; skipped steps have none."""
        found = (record for line in self.lines for record in lines.parse(line.encode()))
        steps = (record for record in found if isinstance(record, records.Step))
        gathered = _gather(
            {step.iteration: step.values[metrics.LM_LOSS] for step in steps if metrics.LM_LOSS in step.values}
        )
        last: dict[int, float] = gathered[-1]
        return last

    def find(self, words: str) -> list[str]:
        """Return all ranks' lines that contain these words."""
        return [line for gathered in _gather(self.lines) for line in gathered if words in line]


def _gather(value: Any) -> list[Any]:
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


@processes.own_groups()
def train(
    config: Config,
    job_dir: Path,
    *,
    stop_after: int | None = None,
    prepare: Callable[[Training], None] | None = None,
) -> Log:
    """Train in this launch, to the end or for some steps, and return the log."""
    log = Log()
    changes: dict[str, Any] = {} if stop_after is None else {"checkpoint.exit_interval": stop_after}
    trained = Training(training.configure(config, changes), job_dir, write=log)
    if prepare is not None:
        prepare(trained)
    trained.run()
    trained.close()
    return log


@dataclasses.dataclass(frozen=True)
class Case:
    """Save under one layout, resume under another.

    Attributes:
        name: The job's name.
        base: What both have in common.
        saved: What the first run changes.
        resumed: What the second run changes; None ends after the first.
        earlier: The first run saves DeepSpeed's own files, as earlier releases did.
    """

    name: str
    base: Config
    saved: Mapping[str, Any]
    resumed: Mapping[str, Any] | None
    earlier: bool = False


def run_cases(cases: list[Case], root: str) -> dict[str, dict[int, float]]:
    """Run each case in this launch: three steps, a checkpoint, and the rest under the other layout.

    Returns:
        The losses of both runs, by case.
    """
    answers = {}
    for case in cases:
        job_dir = Path(root) / case.name
        with deepspeed_files.saving() if case.earlier else contextlib.nullcontext():
            found = train(training.configure(case.base, case.saved), job_dir, stop_after=3).losses()
        if case.resumed is not None:
            found |= train(training.configure(case.base, case.resumed), job_dir).losses()
        answers[case.name] = found
    return answers
