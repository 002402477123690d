# SPDX-License-Identifier: GPL-3.0-or-later
"""The global batch as a pure function of the consumed samples. It may grow at the start of a training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BatchRamp:
    """A global batch that grows in equal steps.

    Args:
        start: The first batch.
        increment: The growth per step; must divide ``final - start``.
        samples: The consumed samples over which it grows; 0 if it is ``final`` from the beginning.
        final: The batch after that.

    Source: the published description of Megatron-LM's ``--rampup-batch-size``.
    """

    start: int
    increment: int
    samples: int
    final: int

    @classmethod
    def constant(cls, batch: int) -> BatchRamp:
        """Return a constant batch."""
        return cls(batch, 1, 0, batch)

    def at(self, consumed: int) -> int:
        """Return the batch of the step that begins after so many consumed samples."""
        if consumed >= self.samples:
            return self.final
        return self.start + self._level(consumed) * self.increment

    def steps(self, begin: int, end: int) -> int:
        """Return the number of whole batches between two numbers of consumed samples."""
        count = 0
        while begin < self.samples:
            batch, level = self.at(begin), self._level(begin) + 1
            # The number of consumed samples at which the batch grows next.
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
