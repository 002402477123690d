# SPDX-License-Identifier: GPL-3.0-or-later
"""Sequences sharded over the ranks of the context axis.

Each rank has its own tokens in every layer. Only attention needs those of other ranks, so it gathers their
keys and values. With a causal mask, later tokens attend to more tokens. To balance the work, a sequence is
split into twice as many chunks as ranks, and each rank takes one from the front and one from the back.

Source: Dubey et al., "The Llama 3 Herd of Models" (2024), section 3.3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from rdm_trainer.distributed.tensor_parallel import layers
from rdm_trainer.distributed.topology import Topology


@dataclass(frozen=True)
class SequencePart:
    """A rank's part of each sequence: two chunks, equally far from its beginning and its end.

    Args:
        rank: Rank on the context axis.
        ranks: Number of ranks of that axis.
        group: Their process group.
    """

    rank: int
    ranks: int
    group: Any

    @classmethod
    def of(cls, topology: Topology) -> SequencePart | None:
        """Return a rank's part; None if it has whole sequences."""
        if topology.context == 1:
            return None
        return cls(topology.context_rank, topology.context, topology.context_group)

    @property
    def chunks(self) -> tuple[int, int]:
        """The indices of this rank's two chunks."""
        return self.rank, 2 * self.ranks - 1 - self.rank

    def own(self, sequences: torch.Tensor) -> torch.Tensor:
        """Return this rank's tokens [batch, own tokens, ...] of [batch, tokens, ...]."""
        chunks = sequences.chunk(2 * self.ranks, dim=1)
        return torch.cat([chunks[index] for index in self.chunks], dim=1)

    def places(self, tokens: int, device: torch.device) -> torch.Tensor:
        """Return the positions of this rank's tokens in their sequence, int64 [own tokens]."""
        half = torch.arange(tokens // 2, device=device)
        return torch.cat([index * (tokens // 2) + half for index in self.chunks])

    def gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Return [batch, tokens, ...] of all ranks' [batch, own tokens, ...], in the sequence's order."""
        whole: torch.Tensor = _Gather.apply(own, self)
        return whole

    def before(self, own: torch.Tensor) -> list[int]:
        """Return how many tokens of the sequence precede each chunk of [batch, own tokens, ...]."""
        return [index * (own.shape[1] // 2) for index in self.chunks]

    def place(self, index: int) -> int:
        """Return a chunk's index when the chunks are ordered by rank."""
        return 2 * index if index < self.ranks else 2 * (2 * self.ranks - 1 - index) + 1

    def begin_gather(self, own: torch.Tensor) -> torch.Tensor:
        """Begin to gather the ranks' [batch, own tokens, ...]; only :meth:`end_gather` reads the tensor."""
        return layers.begin_gather(own.unflatten(1, (2, -1)).movedim(1, 0), self.group)

    def end_gather(self, pending: torch.Tensor) -> torch.Tensor:
        """Return [batch, tokens, ...] of all ranks, in the sequence's order."""
        chunks = layers.end_collective(pending)
        return torch.cat([chunks[self.place(index)] for index in range(2 * self.ranks)], dim=1)

    def begin_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        """Begin to sum [batch, tokens, ...] over the ranks; only :meth:`end_scatter` reads the tensor."""
        chunks = whole.chunk(2 * self.ranks, dim=1)
        by_place = sorted(range(2 * self.ranks), key=self.place)
        return layers.begin_scatter(torch.stack([chunks[index] for index in by_place]), self.group)

    def end_scatter(self, pending: torch.Tensor) -> torch.Tensor:
        """Return the sum for this rank's tokens, [batch, own tokens, ...]."""
        own: torch.Tensor = layers.end_collective(pending).movedim(0, 1).flatten(1, 2)
        return own


class _Gather(torch.autograd.Function):
    """Gather the ranks' chunks; a chunk's gradient is summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, part: SequencePart) -> torch.Tensor:
        ctx.part = part
        return part.end_gather(part.begin_gather(own))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        part = ctx.part
        return part.end_scatter(part.begin_scatter(gradients[0])), None
