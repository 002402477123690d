# SPDX-License-Identifier: GPL-3.0-or-later
"""GPT: a decoder with learned positions."""

from __future__ import annotations

from functools import partial

from rdm_core.config import Config
from rdm_trainer.distributed.pipeline_parallel.pipeline import Layer
from rdm_trainer.distributed.tensor_parallel.layers import VocabParallelEmbedding
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.transformer import Block, LayerNorm, PositionEmbedding, word_embedding

__all__ = ["layers"]


def layers(config: Config, topology: Topology) -> list[Layer]:
    """Return the model's layers: tokens int64 [batch, sequence] go in, the head makes the loss."""
    model = config.model
    embedding = word_embedding(VocabParallelEmbedding, config, topology)
    tied = "embed" if model.tied_embeddings else None
    return [
        Layer("Embedding", embedding, tied),
        Layer("Positions", partial(PositionEmbedding, model), joined=True),
        *[Layer("Block", partial(Block, model, topology))] * model.layers,
        Layer("FinalNorm", partial(LayerNorm, model)),
        Layer("Head", embedding, tied),
    ]
