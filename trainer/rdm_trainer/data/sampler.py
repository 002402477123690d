# SPDX-License-Identifier: GPL-3.0-or-later
"""Which samples a rank takes: a pure function of the seed and of the samples consumed.

Global batch k holds samples [k * g, (k + 1) * g) of the order; in its micro-step i, data rank r of d takes
the rows [(i * d + r) * m, + m), for a global batch size g and a micro-batch size m.
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
        cyclic: Go through the samples again and again, each time in a new order; otherwise once, as they
            come.
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
            consumed_samples: Samples of whole steps that all ranks have taken before.

        Yields:
            Numbers of samples, int64 [micro_batch_size]. Only whole global batches are taken.
        """
        per_epoch = self.samples // self.global_batch_size
        step = consumed_samples // self.global_batch_size
        epoch, order = -1, np.empty(0, np.int64)
        while per_epoch and (self.cyclic or step < per_epoch):
            first = step * self.global_batch_size
            if self.cyclic:
                if step // per_epoch != epoch:
                    epoch = step // per_epoch
                    order = np.random.RandomState([self.seed % 2**32, epoch]).permutation(self.samples)
                first = step % per_epoch * self.global_batch_size
                batch = order[first : first + self.global_batch_size]
            else:
                batch = np.arange(first, first + self.global_batch_size)
            stride = self.data_size * self.micro_batch_size
            start = self.data_rank * self.micro_batch_size
            for row in range(start, self.global_batch_size, stride):
                yield batch[row : row + self.micro_batch_size].astype(np.int64)
            step += 1
