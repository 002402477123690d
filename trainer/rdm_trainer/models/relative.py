# SPDX-License-Identifier: GPL-3.0-or-later
"""T5's relative positions: what is added to the scores of attention, by head and distance.

Near distances have a row of the table each, farther ones share rows that grow with the logarithm. A stack's
table is one parameter, of the layer behind its embedding. It goes with the states from block to block, and so
through a pipeline's stages, and its gradient comes back the same way: no stage has a copy to keep the same.

Source: Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer"
(2020), section 2.1, and Mesh TensorFlow's ``_relative_position_bucket``.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional

from rdm_core.model_spec import ModelSpec
from rdm_trainer.distributed.parameters import Placement, parameter
from rdm_trainer.distributed.topology import Topology

__all__ = ["RelativePositions", "bucket_of", "score_bias"]


class RelativePositions(nn.Module):
    """A stack's table, of which a tensor rank has its heads' columns, and the dropout after the embedding."""

    def __init__(self, spec: ModelSpec, topology: Topology) -> None:
        super().__init__()
        self.weight = parameter(
            Placement(
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
        # ZeRO-3 frees the parameter behind this layer, and not what was made of it.
        return functional.dropout(hidden_states, self.dropout, self.training), self.weight.clone()


def bucket_of(distances: torch.Tensor, buckets: int, farthest: int, *, causal: bool) -> torch.Tensor:
    """Return the row of each distance, int64 of the same shape.

    Args:
        distances: Of a key from its query, int64: below 0 where it is before it.
        buckets: Rows of the table.
        farthest: From here on, all distances have the last row.
        causal: Keys behind a query are not seen; else either direction has half of the rows.
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


def score_bias(table: torch.Tensor, queries: int, keys: int, farthest: int, *, causal: bool) -> torch.Tensor:
    """Return what is added to the scores, [1, heads, queries, keys].

    Args:
        table: [buckets, heads].
        queries: How many; they are the last of the keys' tokens.
        keys: How many.
        farthest: As for :func:`bucket_of`.
        causal: As there.
    """
    distances = torch.arange(-(keys - 1), queries, device=table.device)
    by_distance = table[bucket_of(distances, table.shape[0], farthest, causal=causal)]
    # A query's keys are a run of distances that begins one earlier for each token before it.
    return by_distance.t().unfold(1, keys, 1).flip(1)[None]
