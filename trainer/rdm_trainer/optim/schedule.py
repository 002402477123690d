# SPDX-License-Identifier: GPL-3.0-or-later
"""The learning rate as a pure function of what has moved the weights.

Samples are counted, as Megatron does; steps that were skipped for an overflow do not count. Where the lengths
are given in steps, each step counts as many samples as the present batch has, whatever batch it had: the rate
of a step then does not depend on the batches, and does not jump where a training goes on with another one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rdm_core.config import Config

__all__ = ["LearningRate"]


@dataclass(frozen=True)
class LearningRate:
    """A rise from 0 to the highest rate, then a decay to the lowest one, which stays.

    Args:
        highest: The rate at the end of the warm-up.
        lowest: The rate from the end of the decay.
        warmup: Samples of the rise; 0 begins at the highest rate.
        decay: Samples until the lowest rate, those of the warm-up included.
        form: The decay's form. ``constant`` keeps the highest rate, also after ``decay``.
        per_step: Samples that each step counts; 0 counts those that it took.

    Source: the published description of Megatron-LM's ``OptimizerParamScheduler``.
    """

    highest: float
    lowest: float
    warmup: float
    decay: float
    form: Literal["cosine", "linear", "constant"] = "cosine"
    per_step: int = 0

    @classmethod
    def of(cls, config: Config, steps: int = 0, samples: int = 0) -> LearningRate:
        """Read the schedule from a job's configuration; the decay's unit is the schedule's.

        Args:
            config: Of the job.
            steps: Those that have moved the weights already, maybe with another batch.
            samples: What these took.
        """
        optimisation = config.optimisation
        batch = optimisation.global_batch_size
        per_step = 0
        if optimisation.decay_samples is not None:
            decay = optimisation.decay_samples
        elif optimisation.decay_iterations is None and optimisation.train_samples is not None:
            decay = optimisation.train_samples
        else:
            per_step = batch
            decay = (optimisation.decay_iterations or config.train_iterations) * batch
        warmup: float
        if optimisation.warmup_fraction is not None:
            warmup = optimisation.warmup_fraction * decay
        elif optimisation.warmup_samples is not None:
            warmup = optimisation.warmup_samples
            if per_step:
                warmup = _moved(warmup, samples, steps * batch)
        else:
            warmup = (optimisation.warmup_iterations or 0) * batch
            if not per_step:
                warmup = _moved(warmup, steps * batch, samples)
        return cls(optimisation.lr, optimisation.min_lr, warmup, decay, optimisation.schedule, per_step)

    def after(self, steps: int, samples: int) -> float:
        """Return the rate after so many steps have moved the weights, with so many samples."""
        return self.at(steps * self.per_step if self.per_step else samples)

    def at(self, samples: int) -> float:
        """Return the rate after so many counted samples.

        The first step runs at ``at(0)``, which is 0 when there is a warm-up: so does Megatron's.
        """
        if self.warmup > 0 and samples <= self.warmup:
            return self.highest * samples / self.warmup
        if self.form == "constant":
            return self.highest
        if samples >= self.decay:
            return self.lowest
        done = (samples - self.warmup) / (self.decay - self.warmup)
        part = 1.0 - done if self.form == "linear" else 0.5 * (math.cos(math.pi * done) + 1.0)
        return self.lowest + part * (self.highest - self.lowest)


def _moved(length: float, passed: int, counted: int) -> float:
    """Return a length in another count, in which what has passed is longer or shorter; the rest is not."""
    return counted + length - passed if length >= passed else counted * length / passed
