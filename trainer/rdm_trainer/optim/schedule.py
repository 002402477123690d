# SPDX-License-Identifier: GPL-3.0-or-later
"""The learning rate as a pure function of the samples that have moved the weights.

Counting samples and not steps is Megatron's way: the schedule stays the same when the batch changes, and
steps that were skipped for an overflow do not move it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rdm_trainer.config import Config

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

    Source: the published description of Megatron-LM's ``OptimizerParamScheduler``.
    """

    highest: float
    lowest: float
    warmup: float
    decay: float
    form: Literal["cosine", "linear", "constant"] = "cosine"

    @classmethod
    def of(cls, config: Config) -> LearningRate:
        """Read the schedule from a job's configuration; lengths in steps become samples."""
        optimisation = config.optimisation
        batch = optimisation.global_batch_size
        if optimisation.decay_samples is not None:
            decay = optimisation.decay_samples
        elif optimisation.decay_iterations is not None:
            decay = optimisation.decay_iterations * batch
        else:
            decay = optimisation.train_samples or config.train_iterations * batch
        if optimisation.warmup_fraction is not None:
            warmup = optimisation.warmup_fraction * decay
        elif optimisation.warmup_samples is not None:
            warmup = optimisation.warmup_samples
        else:
            warmup = (optimisation.warmup_iterations or 0) * batch
        return cls(optimisation.lr, optimisation.min_lr, warmup, decay, optimisation.schedule)

    def at(self, samples: int) -> float:
        """Return the rate after so many samples have moved the weights.

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
