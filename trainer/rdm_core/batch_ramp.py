# SPDX-License-Identifier: GPL-3.0-or-later
"""The global batch as a pure function of the samples consumed: it may grow at the beginning of a training."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BatchRamp"]


@dataclass(frozen=True)
class BatchRamp:
    """A global batch that grows in equal steps.

    Args:
        start: The first batch.
        increment: By which it grows, so that it meets ``final``.
        samples: Consumed in the course of which it grows; 0: it is ``final`` from the beginning.
        final: The batch from then on.

    Source: the published description of Megatron-LM's ``--rampup-batch-size``.
    """

    start: int
    increment: int
    samples: int
    final: int

    @classmethod
    def constant(cls, batch: int) -> BatchRamp:
        """Return what is the same batch all the time."""
        return cls(batch, 1, 0, batch)

    def at(self, consumed: int) -> int:
        """Return the batch of the step behind so many consumed samples."""
        if consumed >= self.samples:
            return self.final
        return self.start + self._level(consumed) * self.increment

    def steps(self, begin: int, end: int) -> int:
        """Return how many whole batches there are from a consumed sample to another."""
        count = 0
        while begin < self.samples:
            batch, level = self.at(begin), self._level(begin) + 1
            # The first sample behind which the batch is larger.
            above = min(-(-level * self.samples // self._levels), self.samples)
            taken = -(-(above - begin) // batch)
            if begin + taken * batch > end:
                return count + max(0, end - begin) // batch
            begin, count = begin + taken * batch, count + taken
        return count + max(0, end - begin) // self.final

    @property
    def _levels(self) -> int:
        return max(1, (self.final - self.start) // self.increment)

    def _level(self, consumed: int) -> int:
        return consumed * self._levels // self.samples
