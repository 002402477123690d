# SPDX-License-Identifier: GPL-3.0-or-later
"""Divisors of micro-batch losses, so that every token of a step has the same weight.

Engines average over micro-batches and replicas. If masks leave different numbers of tokens, the mean of
micro-batch means would give more weight to tokens of micro-batches with fewer tokens. So each sum is divided
by the mean count over all micro-batches of the step. The average is then the mean over all tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from rdm_trainer.distributed.topology import Topology

Batch = tuple[Any, tuple[torch.Tensor, ...]]


def with_counts(
    batches: Iterator[Batch], micro_batches: int, topology: Topology, device: torch.device
) -> Iterator[Batch]:
    """Yield a step's micro-batches with the loss's divisor after labels and mask.

    It reads all of them before it yields the first. The replicas that compute losses exchange one number.

    Args:
        batches: (inputs, (labels, loss mask float32)) on the CPU.
        micro_batches: Micro-batches of a step on each replica.
        topology: This rank's place; in a pipeline only the last stage's ranks have a loss.
        device: Where the exchange takes place.
    """
    taken = list(itertools.islice(batches, micro_batches))
    if len(taken) < micro_batches:
        # The data have ended, on every replica.
        return
    count = torch.stack([mask.sum() for _, (_, mask) in taken]).sum().to(device)
    if topology.data > 1 and topology.pipeline_rank == topology.pipeline - 1:
        dist.all_reduce(count, group=topology.data_group)
    divisor = count.clamp_min(1.0) / (micro_batches * topology.data)
    for inputs, labels in taken:
        yield inputs, (*labels, divisor)
