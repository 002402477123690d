# SPDX-License-Identifier: GPL-3.0-or-later
"""Throughput, and a step's numbers for TensorBoard and other trackers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch

from rdm_core.config import Config
from rdm_core.cost import flops
from rdm_trainer import metrics, process
from rdm_trainer.writers import Writers


class Tracker:
    """Throughput of a job, and its writers.

    The tags are Megatron-DeepSpeed's: ``lm-loss-training/lm loss``, ``learning-rate/learning-rate`` and so
    on, each also ``vs samples``.

    Args:
        config: The job.
        job_dir: Where the writers' files go; None on a rank that writes none.
        world_size: Number of devices.
    """

    def __init__(self, config: Config, job_dir: Path | None, *, world_size: int) -> None:
        self._config, self._world_size = config, world_size
        self._recomputed = config.recomputed_share
        self._peak = config.logging.peak_tflops
        if self._peak is None and process.device().type == "cuda":
            self._peak = flops.peak_tflops(torch.cuda.get_device_name())
        self._writers = Writers(config, job_dir)

    def rates(self, seconds: float, batch: float) -> dict[str, float]:
        """Return the rates of a step, from its seconds and its samples.

        They are tokens per second of the whole job, and TFLOP/s per device by Megatron's formula.
        """
        return {
            "tokens_per_second": batch * self._config.spec.tokens_per_sample / seconds,
            "tflops": flops.megatron_tflops(
                self._config.spec,
                recomputed=self._recomputed,
                batch_size=batch,
                seconds=seconds,
                world_size=self._world_size,
            ),
        }

    def throughput(self, seconds: float, batch: float) -> dict[str, str]:
        """Return the fields at the end of the log line, from a step's seconds and samples.

        The first three are Megatron-DeepSpeed's. ``MFU (%)`` is ours, if the device's peak is known: the
        FLOPs that the model needs, without recomputation, as a share of those that the device could do.
        """
        rates = self.rates(seconds, batch)
        fields = {
            "samples per second": f"{batch / seconds:.3f}",
            "tokens per gpu per second (tgs)": f"{rates['tokens_per_second'] / self._world_size:.3f}",
            "TFLOPs": f"{rates['tflops']:.2f}",
        }
        if self._peak is not None:
            done = flops.flops_per_sample(self._config.spec) * batch / seconds / self._world_size
            fields["MFU (%)"] = f"{100 * done / (self._peak * 1e12):.2f}"
        return fields

    def step(self, step: metrics.Step) -> None:
        """Write a step's numbers."""
        values = {
            "learning-rate/learning-rate": step.learning_rate,
            "batch-size/batch-size": step.global_batch_size,
            "loss-scale/loss-scale": step.loss_scale,
            "iteration-time/iteration-time": step.milliseconds / 1000,
            **{f"lm-loss-training/{name}": value for name, value in step.losses.items()},
            **({} if step.grad_norm is None else {"grad-norm/grad-norm": step.grad_norm}),
            **{f"throughput/{name}": float(value) for name, value in step.throughput.items()},
        }
        self._writers.add(values, step.iteration, step.consumed_samples)

    def evaluation(self, iteration: int, split: str, losses: Mapping[str, float]) -> None:
        """Write an evaluation's numbers."""
        kind = "validation" if split == "valid" else split
        values = {}
        for name, value in losses.items():
            values[f"lm-loss-{kind}/{name} {kind}"] = value
            values[f"lm-loss-{kind}/{name} {kind} ppl"] = math.exp(min(20.0, value))
        self._writers.add(values, iteration)

    def close(self) -> None:
        """Write what is left."""
        self._writers.close()
