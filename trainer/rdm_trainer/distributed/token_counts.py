# SPDX-License-Identifier: GPL-3.0-or-later
"""The number that each micro-batch's loss is divided by, so that every token of a step counts alike.

Engines average over micro-batches and replicas. Where masks leave different numbers of tokens, the mean of
the micro-batches' means would weigh a token by how few others its micro-batch has. So each sum is divided by
the mean count of all micro-batches of the step, and the average of these is the sum over all tokens, divided
by their number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from rdm_trainer.distributed.topology import Topology

__all__ = ["Batch", "with_counts"]

Batch = tuple[Any, tuple[torch.Tensor, ...]]


def with_counts(
    batches: Iterator[Batch], micro_batches: int, topology: Topology, device: torch.device
) -> Iterator[Batch]:
    """Yield a step's micro-batches, the loss's divisor behind labels and mask.

    All of them are read before the first is given, and the replicas that compute losses exchange one number.

    Args:
        batches: (inputs, (labels, loss mask float32)) on the CPU.
        micro_batches: That a step takes on each replica.
        topology: This rank's place; in a pipeline only the last stage's ranks have a loss.
        device: Where the exchange takes place.
    """
    taken = list(itertools.islice(batches, micro_batches))
    if len(taken) < micro_batches:
        # The data are at their end, as they are on every replica.
        return
    count = torch.stack([mask.sum() for _, (_, mask) in taken]).sum().to(device)
    if topology.data > 1 and topology.pipeline_rank == topology.pipeline - 1:
        dist.all_reduce(count, group=topology.data_group)
    divisor = count.clamp_min(1.0) / (micro_batches * topology.data)
    for inputs, labels in taken:
        yield inputs, (*labels, divisor)
