# SPDX-License-Identifier: GPL-3.0-or-later
"""BERT: an encoder that predicts masked tokens.

It is Megatron's BERT without the next-sentence head and hence without token types
(``--bert-no-binary-head``). It is pre-norm like a GPT, which deep models need. Hugging Face calls it
MegatronBert.

Source: Devlin et al., "BERT" (2019); Shoeybi et al., "Megatron-LM" (2019), section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from rdm_core.config import Config
from rdm_core.model_spec import ModelSpec
from rdm_trainer.distributed.parameters import ShardSpec, parameter
from rdm_trainer.distributed.pipeline_parallel.pipeline import Layer
from rdm_trainer.distributed.tensor_parallel.layers import VocabParallelEmbedding
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.rope import RotaryPositions
from rdm_trainer.models.transformer import Block, Norm, PositionEmbedding, word_embedding


class _Dense(nn.Module):
    """A linear layer replicated on every tensor rank."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        width = spec.hidden_size
        self.weight = parameter(ShardSpec((width, width), std=spec.init_std, decays=True))
        self.bias = parameter(ShardSpec((width,))) if spec.has_biases else None

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map [..., hidden] to the same shape."""
        return functional.linear(hidden_states, self.weight, self.bias)


class FinalNorm(Norm):
    """The encoder's last norm, and the layers before the head: dense, activation and norm."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        self.dense = _Dense(spec)
        self.norm = Norm(spec)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map [..., hidden] to the same shape."""
        wide = self.dense(super().forward(hidden_states))
        normed: torch.Tensor = self.norm(functional.gelu(wide, approximate="tanh"))
        return normed


def layers(config: Config, topology: Topology, device: torch.device | None = None) -> list[Layer]:
    """Return the model's layers, from tokens int64 [batch, sequence] to logits or the loss."""
    spec = config.spec
    rotary = RotaryPositions(spec, device) if spec.is_rotary else None
    positions: Callable[[], nn.Module] = partial(PositionEmbedding, spec, topology)
    if rotary is not None:
        positions = partial(nn.Dropout, spec.hidden_dropout)
    embedding = word_embedding(VocabParallelEmbedding, config, topology)
    block = partial(Block, spec, topology, causal=False, rotary=rotary)
    tied = "embed" if spec.tied_embeddings else None
    return [
        Layer("Embedding", embedding, tied),
        Layer("Positions", positions, joined=True),
        *[Layer("Block", block)] * spec.layers,
        Layer("FinalNorm", partial(FinalNorm, spec)),
        Layer("Head", embedding, tied),
    ]
