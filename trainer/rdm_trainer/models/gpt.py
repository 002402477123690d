# SPDX-License-Identifier: GPL-3.0-or-later
"""A decoder: GPT with learned positions, Llama and Qwen3 with rotary ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from rdm_core.config import Config
from rdm_trainer.distributed.pipeline_parallel.pipeline import Layer
from rdm_trainer.distributed.tensor_parallel.layers import VocabParallelEmbedding
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.rope import RotaryPositions
from rdm_trainer.models.transformer import Block, Norm, PositionEmbedding, word_embedding

__all__ = ["layers"]


def layers(config: Config, topology: Topology, device: torch.device | None = None) -> list[Layer]:
    """Return the model's layers: tokens int64 [batch, sequence] go in, the head makes logits or the loss.

    Blocks have the same numbers whatever the positions are: with rotary ones, the layer of the learned ones
    has only their dropout.
    """
    spec = config.spec
    embedding = word_embedding(VocabParallelEmbedding, config, topology)
    tied = "embed" if spec.tied_embeddings else None
    rotary = None if spec.positions else RotaryPositions(spec, device)
    positions: Callable[[], nn.Module] = partial(PositionEmbedding, spec)
    if rotary is not None:
        positions = partial(nn.Dropout, spec.hidden_dropout)
    return [
        Layer("Embedding", embedding, tied),
        Layer("Positions", positions, joined=True),
        *[Layer("Block", partial(Block, spec, topology, rotary=rotary))] * spec.layers,
        Layer("FinalNorm", partial(Norm, spec)),
        Layer("Head", embedding, tied),
    ]
