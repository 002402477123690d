# SPDX-License-Identifier: GPL-3.0-or-later
"""Learning rate and weight decay as pure functions of the steps and samples that have updated the weights.

Schedules count samples, as Megatron's do; steps skipped for an overflow do not count. If the lengths are
given in steps, each step counts as many samples as the current batch has, whatever batch it had. The rate
then does not depend on earlier batches, and does not jump when a training goes on with another batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rdm_core.config import Config


@dataclass(frozen=True)
class LearningRate:
    """A warm-up from 0 to the highest rate, then a decay to the lowest rate, which stays.

    Args:
        highest: The rate at the end of the warm-up.
        lowest: The rate from the end of the decay.
        warmup: Samples of the warm-up; 0 begins at the highest rate.
        decay: Samples until the lowest rate, including those of the warm-up.
        form: The form of the decay. ``constant`` keeps the highest rate, even after ``decay``; ``wsd`` keeps
            it until the tail.
        tail: Samples of the decay at the end of ``wsd``.
        tail_form: The form of that decay.
        per_step: Samples that each step counts; 0 counts the samples that it took.

    Source: the published description of Megatron-LM's ``OptimizerParamScheduler``.
    """

    highest: float
    lowest: float
    warmup: float
    decay: float
    form: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    per_step: int = 0
    tail: float = 0
    tail_form: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"

    @classmethod
    def of(cls, config: Config, steps: int = 0, samples: int = 0) -> LearningRate:
        """Read the schedule from a job's configuration; it uses the unit of the decay.

        Args:
            config: The job's configuration.
            steps: Steps that have already updated the weights, maybe with another batch.
            samples: Samples of these steps.
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
                warmup = _converted(warmup, samples, steps * batch)
        else:
            warmup = (optimisation.warmup_iterations or 0) * batch
            if not per_step:
                warmup = _converted(warmup, steps * batch, samples)
        tail = optimisation.wsd_decay_samples or (optimisation.wsd_decay_iterations or 0) * batch
        return cls(
            optimisation.lr,
            optimisation.min_lr,
            warmup,
            decay,
            optimisation.schedule,
            per_step,
            tail,
            optimisation.wsd_decay_style,
        )

    def after(self, steps: int, samples: int) -> float:
        """Return the rate after these numbers of steps and samples have updated the weights."""
        return self.at(steps * self.per_step if self.per_step else samples)

    def at(self, samples: int) -> float:
        """Return the rate after a number of counted samples.

        The first step runs at ``at(0)``, which is 0 with a warm-up, as in Megatron.
        """
        if self.warmup > 0 and samples <= self.warmup:
            return self.highest * samples / self.warmup
        if self.form == "constant":
            return self.highest
        if samples >= self.decay:
            return self.lowest
        begin = self.warmup
        if self.form == "wsd":
            begin = self.decay - self.tail
            if samples <= begin:
                return self.highest
        done = (samples - begin) / (self.decay - begin)
        part = _remaining(self.tail_form if self.form == "wsd" else self.form, done)
        return self.lowest + part * (self.highest - self.lowest)


@dataclass(frozen=True)
class WeightDecay:
    """A weight decay that changes from one value to another over the training, and then stays.

    Args:
        start: The value of the first step.
        end: The value from ``length`` on.
        length: Samples of the training, or steps if ``in_steps``.
        form: The form of the change; ``constant`` is ``end`` from the beginning.
        in_steps: The training's length is given in steps.

    Source: as :class:`LearningRate`.
    """

    start: float
    end: float
    length: int
    form: Literal["constant", "linear", "cosine"] = "constant"
    in_steps: bool = False

    @classmethod
    def of(cls, config: Config) -> WeightDecay:
        """Read the schedule from a job's configuration."""
        optimisation = config.optimisation
        form = optimisation.weight_decay_incr_style
        samples = optimisation.train_samples
        length = config.train_iterations if samples is None else samples
        if form == "constant":
            return cls(optimisation.weight_decay, optimisation.weight_decay, length)
        start, end = optimisation.start_weight_decay, optimisation.end_weight_decay
        assert start is not None
        assert end is not None
        return cls(start, end, length, form, in_steps=samples is None)

    def after(self, steps: int, samples: int) -> float:
        """Return the value after these numbers of steps and samples have updated the weights."""
        taken = steps if self.in_steps else samples
        if self.form == "constant" or taken >= self.length:
            return self.end
        part = _remaining(self.form, taken / self.length)
        return self.end + part * (self.start - self.end)


def _remaining(form: str, done: float) -> float:
    """Return the remaining share of the change, from 1 to 0, when a share of its length is done."""
    if form == "linear":
        return 1.0 - done
    if form == "exponential":
        return 2.0 * math.pow(0.5, done) - 1.0
    if form == "minus_sqrt":
        return 1.0 - math.sqrt(done)
    return 0.5 * (math.cos(math.pi * done) + 1.0)


def _converted(length: float, passed: int, counted: int) -> float:
    """Convert a length to another count: only the part that has passed changes its length."""
    return counted + length - passed if length >= passed else counted * length / passed
