# SPDX-License-Identifier: GPL-3.0-or-later
"""Which samples a rank takes: a pure function of the seed and of the samples consumed.

The batch after c consumed samples holds samples [c, c + g) of the order; in its micro-step i, data rank r of
d takes the rows [(i * d + r) * m, + m), for a global batch size g, which may depend on c, and a micro-batch
size m. So a training that is resumed with another global batch size continues exactly where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rdm_core.batch_ramp import BatchRamp


@dataclass(frozen=True)
class Sampler:
    """The order of a split's samples, and one rank's part in it.

    Attributes:
        samples: Samples in the split.
        batches: Samples of each step.
        micro_batch_size: Samples per micro-batch.
        data_rank: This rank's number among them.
        data_size: Ranks that share a step.
        cyclic: Repeat the samples forever, each time in a new order; a batch may span two of these orders.
            Otherwise take them once, in order.
        seed: Seed of the cyclic orders.
    """

    samples: int
    batches: BatchRamp
    micro_batch_size: int
    data_rank: int
    data_size: int
    cyclic: bool
    seed: int

    def micro_batches(self, consumed_samples: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the micro-batches from a point on.

        Args:
            consumed_samples: Samples that all ranks together have taken before.

        Yields:
            Numbers of samples, int64 [micro_batch_size]. Only whole global batches are taken.
        """
        stride = self.data_size * self.micro_batch_size
        start = self.data_rank * self.micro_batch_size
        for batch in self._batches(consumed_samples):
            for row in range(start, len(batch), stride):
                yield batch[row : row + self.micro_batch_size]

    def _batches(self, begin: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the global batches from sample ``begin`` of the order on."""
        if not self.cyclic:
            while (end := begin + self.batches.at(begin)) <= self.samples:
                yield np.arange(begin, end, dtype=np.int64)
                begin = end
            return
        if not self.samples:
            return
        epoch, used = divmod(begin, self.samples)
        rest = self._order(epoch)[used:]
        while True:
            batch = self.batches.at(begin)
            while len(rest) < batch:
                epoch += 1
                rest = np.concatenate((rest, self._order(epoch)))
            yield rest[:batch]
            rest, begin = rest[batch:], begin + batch

    def _order(self, epoch: int) -> npt.NDArray[np.int64]:
        """The order of a cyclic epoch."""
        return np.random.RandomState([self.seed % 2**32, epoch]).permutation(self.samples).astype(np.int64)
