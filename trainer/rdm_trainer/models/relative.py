# SPDX-License-Identifier: GPL-3.0-or-later
"""T5's relative positions: a bias on the attention scores, by head and distance.

Each near distance has its own row of the table; farther distances share rows on a logarithmic scale. The
table of a stack is one parameter of the layer after its embedding. It travels with the states from block to
block, and so through a pipeline's stages. Its gradient comes back the same way, so no stage has a copy to
synchronise.

Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(2020), section 2.1, and Mesh TensorFlow's ``_relative_position_bucket``.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from rdm_core.model_spec import ModelSpec
from rdm_trainer.distributed.parameters import ShardSpec, parameter
from rdm_trainer.distributed.topology import Topology


class RelativePositions(nn.Module):
    """A stack's table, with this tensor rank's heads as columns, and the dropout after the embedding."""

    def __init__(self, spec: ModelSpec, topology: Topology) -> None:
        super().__init__()
        self.weight = parameter(
            ShardSpec(
                (spec.relative_buckets, spec.heads),
                1,
                topology.tensor_rank,
                topology.tensor,
                std=spec.init_std,
            )
        )
        self.dropout = spec.hidden_dropout

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states [batch, sequence, hidden], and the table's rows [buckets, heads of this rank]."""
        # Clone it, because ZeRO-3 frees the parameter after this layer.
        return functional.dropout(hidden_states, self.dropout, self.training), self.weight.clone()


def bucket_of(distances: torch.Tensor, buckets: int, farthest: int, *, causal: bool) -> torch.Tensor:
    """Return the row of each distance, int64 of the same shape.

    Args:
        distances: Distance of a key from its query, int64; negative if the key comes first.
        buckets: Rows of the table.
        farthest: Distances from here on share the last row.
        causal: Later keys are masked; otherwise each direction has half of the rows.
    """
    rows = torch.zeros_like(distances)
    if causal:
        distances = (-distances).clamp_min(0)
    else:
        buckets //= 2
        rows = rows + (distances > 0) * buckets
        distances = distances.abs()
    single = buckets // 2
    grown = torch.log(distances.clamp_min(1).float() / single) / math.log(farthest / single)
    far = (single + (grown * (buckets - single)).long()).clamp_max(buckets - 1)
    return rows + torch.where(distances < single, distances, far)


def score_bias(
    table: torch.Tensor, first: int, queries: int, keys: int, farthest: int, *, causal: bool
) -> torch.Tensor:
    """Return the bias on the scores, [1, heads, queries, keys].

    Args:
        table: [buckets, heads].
        first: Position of the first query among the keys.
        queries: Number of queries, which follow each other.
        keys: Number of keys.
        farthest: As for :func:`bucket_of`.
        causal: As for :func:`bucket_of`.
    """
    distances = torch.arange(1 - first - queries, keys - first, device=table.device)
    by_distance = table[bucket_of(distances, table.shape[0], farthest, causal=causal)]
    # A query's distances are a contiguous range, shifted by one for each earlier token.
    return by_distance.t().unfold(1, keys, 1).flip(1)[None]
