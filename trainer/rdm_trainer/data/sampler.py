# SPDX-License-Identifier: GPL-3.0-or-later
"""Which samples a rank takes: a pure function of the seed and of the samples consumed.

The batch after c consumed samples holds samples [c, c + g) of the order; in its micro-step i, data rank r of
d takes the rows [(i * d + r) * m, + m), for a global batch size g and a micro-batch size m. So a training
that goes on with another global batch goes on exactly where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Sampler"]


@dataclass(frozen=True)
class Sampler:
    """The order of a split's samples, and one rank's part in it.

    Attributes:
        samples: In the split.
        global_batch_size: Samples per step.
        micro_batch_size: Samples per micro-batch.
        data_rank: Of this rank.
        data_size: Ranks that share a step.
        cyclic: Go through the samples again and again, each time in a new order, a batch's end with the next
            order's beginning where it must; otherwise once, as they come.
        seed: Of the cyclic orders.
    """

    samples: int
    global_batch_size: int
    micro_batch_size: int
    data_rank: int
    data_size: int
    cyclic: bool
    seed: int

    def micro_batches(self, consumed_samples: int) -> Iterator[npt.NDArray[np.int64]]:
        """The micro-batches from a point on.

        Args:
            consumed_samples: Samples that all ranks together have taken before.

        Yields:
            Numbers of samples, int64 [micro_batch_size]. Only whole global batches are taken.
        """
        stride = self.data_size * self.micro_batch_size
        start = self.data_rank * self.micro_batch_size
        for batch in self._batches(consumed_samples):
            for row in range(start, self.global_batch_size, stride):
                yield batch[row : row + self.micro_batch_size]

    def _batches(self, begin: int) -> Iterator[npt.NDArray[np.int64]]:
        """The global batches from a sample of the order on."""
        if not self.cyclic:
            while begin + self.global_batch_size <= self.samples:
                yield np.arange(begin, begin + self.global_batch_size, dtype=np.int64)
                begin += self.global_batch_size
            return
        if not self.samples:
            return
        epoch, begin = divmod(begin, self.samples)
        rest = self._order(epoch)[begin:]
        while True:
            while len(rest) < self.global_batch_size:
                epoch += 1
                rest = np.concatenate((rest, self._order(epoch)))
            yield rest[: self.global_batch_size]
            rest = rest[self.global_batch_size :]

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The order of a cyclic epoch."""
        return np.random.RandomState([self.seed % 2**32, epoch]).permutation(self.samples).astype(np.int64)
