# SPDX-License-Identifier: GPL-3.0-or-later
"""Decoders: GPT with learned positions, Llama and Qwen3 with rotary ones, each with or without experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from rdm_core.config import Config
from rdm_core.model_spec import ModelSpec
from rdm_trainer.distributed.pipeline_parallel.pipeline import Layer
from rdm_trainer.distributed.tensor_parallel.layers import VocabParallelEmbedding
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.moe import (
    DocumentMoEBlock,
    DocumentMoEEmbedding,
    DocumentMoENorm,
    MoEBlock,
    MoEEmbedding,
    MoENorm,
)
from rdm_trainer.models.rope import RotaryPositions
from rdm_trainer.models.transformer import Block, Norm, PositionEmbedding, word_embedding

Pair = tuple[torch.Tensor, torch.Tensor]
"""States [batch, sequence, hidden], and where each token's document begins, int64 [batch, sequence]."""


class DocumentEmbedding(VocabParallelEmbedding):
    """The word embedding of tokens paired with the starts of their documents."""

    def forward(  # type: ignore[override]
        self, inputs: torch.Tensor | Pair, labels: tuple[torch.Tensor, ...] | None = None
    ) -> torch.Tensor | Pair:
        """Embed the tokens of a pair; given states alone, return loss or logits."""
        if isinstance(inputs, torch.Tensor):
            return super().forward(inputs, labels)
        tokens, starts = inputs
        return super().forward(tokens), starts


class DocumentPositions(PositionEmbedding):
    """Learned positions, which may restart in each document."""

    def __init__(self, spec: ModelSpec, topology: Topology, *, resets: bool) -> None:
        super().__init__(spec, topology)
        self.resets = resets

    def forward(self, inputs: Pair) -> Pair:  # type: ignore[override]
        """Add the positions to the states."""
        states, starts = inputs
        return super().forward(states, starts if self.resets else None), starts


class DocumentDropout(nn.Dropout):
    """The embedding's dropout, in place of learned positions, for a model with rotary ones."""

    def forward(self, inputs: Pair) -> Pair:  # type: ignore[override]
        """Drop features of the states."""
        states, starts = inputs
        return super().forward(states), starts


class DocumentBlock(Block):
    """A block that knows where documents begin."""

    def forward(self, inputs: Pair) -> Pair:  # type: ignore[override]
        """Map the states; the documents' starts pass through."""
        states, starts = inputs
        return super().forward(states, starts=starts), starts


class DocumentNorm(Norm):
    """The last norm; it drops the documents' starts."""

    def forward(self, inputs: Pair) -> torch.Tensor:  # type: ignore[override]
        """Normalise the states and return only them."""
        return super().forward(inputs[0])


def layers(config: Config, topology: Topology, device: torch.device | None = None) -> list[Layer]:
    """Return the model's layers, from tokens int64 [batch, sequence] to logits or the loss.

    If documents matter, the input is (tokens, the start of each token's document), both int64. Block numbers
    do not depend on the kind of positions: with rotary ones, the layer of learned positions has only the
    dropout.
    """
    spec, data = config.spec, config.data
    rotary = None if spec.positions else RotaryPositions(spec, device)
    kind: Callable[..., VocabParallelEmbedding]
    positions: Callable[[], nn.Module]
    block: Callable[..., nn.Module]
    norm: Callable[[], nn.Module]
    if config.knows_documents:
        kind, block, norm = DocumentEmbedding, DocumentBlock, partial(DocumentNorm, spec)
        if spec.experts:
            kind, block = partial(DocumentMoEEmbedding, spec), DocumentMoEBlock
            norm = partial(DocumentMoENorm, spec)
        embedding = word_embedding(kind, config, topology)
        positions = partial(DocumentPositions, spec, topology, resets=data.reset_position_ids)
        if rotary is not None:
            positions = partial(DocumentDropout, spec.hidden_dropout)
        block = partial(block, separates_documents=data.reset_attention_mask, resets=data.reset_position_ids)
    else:
        embedding = word_embedding(VocabParallelEmbedding, config, topology)
        block, norm = Block, partial(Norm, spec)
        if spec.experts:
            embedding = word_embedding(partial(MoEEmbedding, spec), config, topology)
            block, norm = MoEBlock, partial(MoENorm, spec)
        positions = partial(PositionEmbedding, spec, topology)
        if rotary is not None:
            positions = partial(nn.Dropout, spec.hidden_dropout)
    tied = "embed" if spec.tied_embeddings else None
    return [
        Layer("Embedding", embedding, tied),
        Layer("Positions", positions, joined=True),
        *[Layer("Block", partial(block, spec, topology, rotary=rotary))] * spec.layers,
        Layer("FinalNorm", norm),
        Layer("Head", embedding, tied),
    ]
