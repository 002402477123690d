# SPDX-License-Identifier: GPL-3.0-or-later
"""The parts that GPT and T5 share: attention, feed-forward, norms, positions, block.

Source: pre-norm blocks as in GPT-2 (Radford et al., 2019): ``x + f(norm(x))``, residual outputs initialised
with the standard deviation divided by the root of twice the number of blocks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from rdm_core.config import Config, ModelConfig
from rdm_trainer.distributed.parameters import Placement, parameter
from rdm_trainer.distributed.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from rdm_trainer.distributed.topology import Topology

__all__ = [
    "MLP",
    "Block",
    "CrossAttention",
    "LayerNorm",
    "PositionEmbedding",
    "SelfAttention",
    "residual_std",
    "word_embedding",
]


def residual_std(model: ModelConfig) -> float:
    """Standard deviation of the layers that add to the residual stream."""
    return model.init_std / math.sqrt(2.0 * model.layers)


class LayerNorm(nn.Module):
    """Layer norm over the features, whole on every tensor rank."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.weight = parameter(Placement((model.hidden_size,), constant=1.0))
        self.bias = parameter(Placement((model.hidden_size,)))
        self.epsilon = model.layernorm_epsilon

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalise [..., hidden]."""
        return functional.layer_norm(hidden_states, self.weight.shape, self.weight, self.bias, self.epsilon)


class PositionEmbedding(nn.Module):
    """Learned positions, and the dropout after the embedding."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.weight = parameter(Placement((model.positions, model.hidden_size), std=model.init_std))
        self.dropout = model.hidden_dropout

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Add the first positions to [batch, sequence, hidden]."""
        return functional.dropout(
            hidden_states + self.weight[: hidden_states.shape[1]], self.dropout, self.training
        )


class _Attention(nn.Module):
    """Heads divided over the tensor ranks, and the projection that puts them together."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.heads = model.attention_heads // topology.tensor
        self.head_size = model.head_size
        self.dropout = model.attention_dropout
        self.tensor_rank = topology.tensor_rank if topology.tensor > 1 else None
        self.out_proj = RowParallelLinear(
            model.attention_size, model.hidden_size, topology, residual_std(model)
        )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
        causal: bool = False,
    ) -> torch.Tensor:
        """Attend, up to the projection.

        Args:
            query: [batch, queries, heads of this rank, head size]; key and value alike over the keys.
            key: What is compared with the query.
            value: What is averaged.
            mask: bool, broadcast over [batch, heads, queries, keys]; True where attention may look.
            causal: No query looks at later keys.

        Returns:
            [batch, queries, features of this rank's heads].
        """
        dropout = self.dropout if self.training else 0.0
        with self._own_random_state(query.device) if dropout else contextlib.nullcontext():
            mixed = functional.scaled_dot_product_attention(
                query.transpose(1, 2),
                key.transpose(1, 2),
                value.transpose(1, 2),
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=causal,
            )
        return mixed.transpose(1, 2).flatten(2)

    @contextlib.contextmanager
    def _own_random_state(self, device: torch.device) -> Iterator[None]:
        """Draw differently on each tensor rank.

        The ranks share their random state, so that what is whole on each is dropped alike; their heads must
        not be. The seed is drawn from it, so that a recomputation under checkpointing repeats itself.
        """
        if self.tensor_rank is None:
            yield
            return
        seed = int(torch.randint(1 << 62, ())) + self.tensor_rank
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield


class SelfAttention(_Attention):
    """Attention of a sequence to itself."""

    def __init__(self, model: ModelConfig, topology: Topology, *, causal: bool) -> None:
        super().__init__(model, topology)
        self.causal = causal
        # Rows lie head by head, and query, key and value within a head: dividing the rows divides the heads.
        self.qkv_proj = ColumnParallelLinear(
            model.hidden_size, 3 * model.attention_size, topology, model.init_std
        )

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Map [batch, sequence, hidden] to the same shape."""
        whole: torch.Tensor = self.out_proj(self.inner(hidden_states, mask))
        return whole

    def inner(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Return what :meth:`forward` projects."""
        mixed = self.qkv_proj(hidden_states).unflatten(-1, (self.heads, 3, self.head_size))
        query, key, value = mixed.unbind(dim=3)
        return self.attend(query, key, value, mask, self.causal)


class CrossAttention(_Attention):
    """Attention of the decoder's sequence to the encoder's."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__(model, topology)
        self.q_proj = ColumnParallelLinear(model.hidden_size, model.attention_size, topology, model.init_std)
        self.kv_proj = ColumnParallelLinear(
            model.hidden_size, 2 * model.attention_size, topology, model.init_std
        )

    def forward(self, hidden_states: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Map the decoder's [batch, queries, hidden], with the encoder's [batch, keys, hidden]."""
        query = self.q_proj(hidden_states).unflatten(-1, (self.heads, self.head_size))
        key, value = self.kv_proj(memory).unflatten(-1, (self.heads, 2, self.head_size)).unbind(dim=3)
        whole: torch.Tensor = self.out_proj(self.attend(query, key, value, mask))
        return whole


class MLP(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, model: ModelConfig, topology: Topology) -> None:
        super().__init__()
        self.fc1 = ColumnParallelLinear(model.hidden_size, model.ffn_size, topology, model.init_std)
        self.fc2 = RowParallelLinear(model.ffn_size, model.hidden_size, topology, residual_std(model))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map [..., hidden] to the same shape."""
        whole: torch.Tensor = self.fc2(self.inner(hidden_states))
        return whole

    def inner(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return what the second layer takes."""
        return functional.gelu(self.fc1(hidden_states), approximate="tanh")


class Block(nn.Module):
    """Self-attention and feed-forward, each on the normalised states and added to them."""

    def __init__(self, model: ModelConfig, topology: Topology, *, causal: bool = True) -> None:
        super().__init__()
        self.input_layernorm = LayerNorm(model)
        self.self_attention = SelfAttention(model, topology, causal=causal)
        self.pre_mlp_layernorm = LayerNorm(model)
        self.mlp = MLP(model, topology)
        self.dropout = model.hidden_dropout
        self.divided = topology.tensor > 1

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Map [batch, sequence, hidden] to the same shape."""
        if self.divided and hidden_states.shape[0] % 2 == 0:
            return self._in_halves(hidden_states, mask)
        hidden_states = hidden_states + self.dropped(
            self.self_attention(self.input_layernorm(hidden_states), mask)
        )
        return hidden_states + self.dropped(self.mlp(self.pre_mlp_layernorm(hidden_states)))

    def _in_halves(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Compute one half of the batch while the other's sums go over the tensor ranks."""
        halves = hidden_states.chunk(2)
        masks = (None, None) if mask is None else mask.chunk(2)
        attention, mlp = self.self_attention, self.mlp
        sums = [
            attention.out_proj(attention.inner(self.input_layernorm(half), part), step="begin")
            for half, part in zip(halves, masks, strict=True)
        ]
        attended, more_sums = [], []
        for half, pending in zip(halves, sums, strict=True):
            attended.append(half + self.dropped(attention.out_proj(pending, step="end")))
            inner = mlp.inner(self.pre_mlp_layernorm(attended[-1]))
            more_sums.append(mlp.fc2(inner, step="begin"))
        return torch.cat(
            [
                half + self.dropped(mlp.fc2(pending, step="end"))
                for half, pending in zip(attended, more_sums, strict=True)
            ]
        )

    def dropped(self, update: torch.Tensor) -> torch.Tensor:
        """Drop features of a residual update."""
        return functional.dropout(update, self.dropout, self.training)


def word_embedding(
    kind: type[VocabParallelEmbedding], config: Config, topology: Topology
) -> Callable[[], VocabParallelEmbedding]:
    """Return what makes the table of the vocabulary, which looks tokens up and, as the head, predicts them.

    Args:
        kind: The model's own form of it.
        config: The job.
        topology: This rank's place.
    """
    model = config.model
    return partial(
        kind,
        model.vocab_size + model.vocab_extra_ids,
        config.padded_vocab_size,
        model.hidden_size,
        topology,
        model.init_std,
        compiled=config.optimisation.compile,
    )
