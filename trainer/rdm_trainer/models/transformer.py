# SPDX-License-Identifier: GPL-3.0-or-later
"""The modules that the models share: attention, MLP, norms, positions, block.

Source: pre-norm blocks as in GPT-2 (Radford et al., 2019): ``x + f(norm(x))``, residual outputs initialised
with the standard deviation divided by the root of twice the number of blocks. RMSNorm: Zhang and Sennrich
(2019); SwiGLU: Shazeer (2020); grouped-query attention: Ainslie et al. (2023).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rdm_core.config import Config
from rdm_core.model_spec import ModelSpec
from rdm_trainer.distributed.context_attention import context_attention, kernel_for
from rdm_trainer.distributed.context_parallel import SequencePart
from rdm_trainer.distributed.parameters import ShardSpec, parameter
from rdm_trainer.distributed.tensor_parallel.halves import Part, parts_of, whole_of
from rdm_trainer.distributed.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
    gathered,
    shared_tensor,
)
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.relative import score_bias
from rdm_trainer.models.rope import RotaryPositions
from rdm_trainer.models.seen_tokens import attention_of_last, first_seen, flex_attention, mask_of

States = torch.Tensor | list[Part]


def residual_std(spec: ModelSpec) -> float:
    """Return the initial standard deviation of layers that add to the residual stream."""
    return spec.init_std / math.sqrt(2.0 * spec.layers)


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the features, replicated on every tensor rank."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.weight = parameter(ShardSpec((spec.hidden_size,), constant=1.0))
        self.bias = parameter(ShardSpec((spec.hidden_size,))) if spec.norm == "layer" else None
        self.epsilon = spec.norm_epsilon

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalise [..., hidden]."""
        if self.bias is None:
            return functional.rms_norm(hidden_states, self.weight.shape, self.weight, self.epsilon)
        return functional.layer_norm(hidden_states, self.weight.shape, self.weight, self.bias, self.epsilon)


class HeadNorm(nn.Module):
    """RMSNorm over the features of each head; every tensor rank has the whole weight for its own heads."""

    def __init__(self, spec: ModelSpec, group: Any) -> None:
        super().__init__()
        self.weight = parameter(ShardSpec((spec.head_size,), constant=1.0))
        self.epsilon = spec.norm_epsilon
        self.group = group

    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        """Normalise [..., head size]."""
        weight = shared_tensor(self.weight, self.group)
        return functional.rms_norm(heads, weight.shape, weight, self.epsilon)


class Past:
    """The keys and values of earlier tokens during text generation.

    Attributes:
        length: Number of earlier tokens.
    """

    def __init__(self) -> None:
        self.length = 0
        self._kept: dict[nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}

    def extended(
        self, owner: nn.Module, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a layer's keys and values of all tokens so far, [batch, tokens, heads, head size]."""
        if owner in self._kept:
            before = self._kept[owner]
            key, value = torch.cat((before[0], key), dim=1), torch.cat((before[1], value), dim=1)
        self._kept[owner] = key, value
        return key, value


class PositionEmbedding(nn.Module):
    """Learned positions, and the dropout after the embedding."""

    def __init__(self, spec: ModelSpec, topology: Topology) -> None:
        super().__init__()
        self.part = SequencePart.of(topology)
        self.shard, self.shards = (
            (topology.tensor_rank, topology.tensor) if topology.sequence_parallel else (0, 1)
        )
        self.weight = parameter(ShardSpec((spec.positions, spec.hidden_size), std=spec.init_std))
        self.dropout = spec.hidden_dropout
        self.past: Past | None = None

    def forward(self, hidden_states: torch.Tensor, starts: torch.Tensor | None = None) -> torch.Tensor:
        """Add the positions to [batch, sequence, hidden], from 0 or continuing after a past.

        Args:
            hidden_states: The tokens' states.
            starts: Where each token's document begins if positions restart there, int64 [batch, sequence].
        """
        tokens = hidden_states.shape[1] * self.shards
        places = _positions(tokens, hidden_states.device, self.past, starts, self.part)
        rows = self.weight[places].chunk(self.shards, dim=-2)[self.shard]
        return functional.dropout(hidden_states + rows, self.dropout, self.training)


def _positions(
    tokens: int,
    device: torch.device,
    past: Past | None,
    starts: torch.Tensor | None,
    part: SequencePart | None,
) -> slice | torch.Tensor:
    """Return the positions of tokens, continuing after a past, or counted per document."""
    if part is None and starts is None:
        first = past.length if past is not None else 0
        return slice(first, first + tokens)
    places = torch.arange(tokens, device=device) if part is None else part.places(tokens, device)
    return places if starts is None else places - starts


class _Attention(nn.Module):
    """Attention with heads sharded over the tensor ranks, and the output projection that joins them."""

    def __init__(self, spec: ModelSpec, topology: Topology) -> None:
        super().__init__()
        sharing = spec.ranks_of_key_value_head(topology.tensor)
        self.key_value_heads = spec.key_value_heads * sharing // topology.tensor
        self.group_size = spec.heads // spec.key_value_heads // sharing
        self.head_size = spec.head_size
        self.scale = spec.softmax_scale
        self.dropout = spec.attention_dropout
        self.part = SequencePart.of(topology)
        # With sequence parallelism no state is replicated, and ranks draw different numbers anyway.
        shares_state = topology.tensor > 1 and not topology.sequence_parallel
        self.tensor_rank = topology.tensor_rank if shares_state else None
        self.out_proj = RowParallelLinear(
            spec.attention_size, spec.hidden_size, topology, residual_std(spec), bias=spec.has_biases
        )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
        causal: bool = False,
        first: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend, up to the projection.

        Args:
            query: [batch, queries, heads of this rank, head size].
            key: [batch, keys, key-value heads of this rank, head size].
            value: Values, of the keys' shape.
            mask: bool, broadcast over [batch, heads, queries, keys]; True where a query attends to a key.
            causal: Queries do not attend to later keys; the queries are the last keys.
            first: The first key that each query attends to; its own key is the last.
            places: Positions of the queries among the keys, int64 [queries]; by default the last ones.
            bias: Bias on the scores, [1, heads of this rank, queries, keys].

        Returns:
            [batch, queries, features of this rank's heads].
        """
        dropout = self.dropout if self.training else 0.0
        if first is not None:
            queries, keys = query.shape[1], key.shape[1]
            if query.is_cuda and (queries == keys or places is not None) and not dropout:
                kernel = flex_attention(
                    query.transpose(1, 2),
                    key.transpose(1, 2),
                    value.transpose(1, 2),
                    first,
                    places,
                    self.scale,
                )
                return kernel.transpose(1, 2).flatten(2)
            if places is None:
                places = torch.arange(keys - queries, keys, device=query.device)
            mask = mask_of(first, places, keys)
        if bias is not None:
            seen = mask
            if causal:
                queries, keys = bias.shape[2:]
                seen = torch.ones(queries, keys, dtype=torch.bool, device=bias.device).tril(keys - queries)
            mask, causal = bias if seen is None else bias.masked_fill(~seen, float("-inf")), False
        with self._own_random_state(query.device) if dropout else contextlib.nullcontext():
            if causal and query.shape[1] < key.shape[1]:
                last = attention_of_last(
                    query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), dropout, self.scale
                )
                return last.transpose(1, 2).flatten(2)
            mixed = functional.scaled_dot_product_attention(
                query.transpose(1, 2),
                key.transpose(1, 2),
                value.transpose(1, 2),
                attn_mask=mask,
                dropout_p=dropout,
                is_causal=causal,
                scale=self.scale,
                enable_gqa=self.group_size > 1,
            )
        return mixed.transpose(1, 2).flatten(2)

    def whole(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values of whole sequences, [batch, keys, heads, head size], of this rank's part."""
        if self.part is None:
            return key, value
        keys, values = self.part.gathered(torch.cat((key, value))).chunk(2)
        return keys, values

    @contextlib.contextmanager
    def _own_random_state(self, device: torch.device) -> Iterator[None]:
        """Draw different random numbers on each tensor rank.

        The ranks share their random state, so that replicated states are dropped alike. Their heads must be
        dropped differently. The seed is drawn from the shared state, so that checkpointing's recomputation
        draws the same one.
        """
        if self.tensor_rank is None:
            yield
            return
        seed = int(torch.randint(1 << 62, ())) + self.tensor_rank
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            yield


class SelfAttention(_Attention):
    """Attention of a sequence to itself.

    Args:
        spec: The model.
        topology: This rank's place; the heads are sharded over its tensor axis.
        causal: Tokens do not attend to later ones.
        rotary: The rotary positions; ``None`` if positions are learned.
        separates_documents: Tokens do not attend to other documents.
        resets: Positions restart in each document.
    """

    def __init__(
        self,
        spec: ModelSpec,
        topology: Topology,
        *,
        causal: bool,
        rotary: RotaryPositions | None = None,
        separates_documents: bool = False,
        resets: bool = False,
    ) -> None:
        super().__init__(spec, topology)
        self.causal = causal
        self.rotary = rotary
        self.separates_documents, self.resets = separates_documents, resets
        self.window = spec.window
        self.relative_max_distance = spec.relative_max_distance
        # Rows are grouped by key-value head: its queries, its key, its value. Sharding the rows shards the
        # heads. Ranks that share a head gather their features; each takes its queries, the key and the value.
        self.sharing = spec.ranks_of_key_value_head(topology.tensor)
        self.first_query = topology.tensor_rank % self.sharing * self.group_size
        self.key_value_group = topology.key_value_group
        self.qkv_proj = ColumnParallelLinear(
            spec.hidden_size,
            spec.attention_size + 2 * spec.key_value_size,
            topology,
            spec.init_std,
            bias=spec.has_qkv_biases,
        )
        # With sequence parallelism, the engine sums the gradients of these and other replicated weights.
        group = topology.tensor_group if topology.tensor > 1 and not topology.sequence_parallel else None
        self.q_norm = HeadNorm(spec, group) if spec.qk_norm else None
        self.k_norm = HeadNorm(spec, group) if spec.qk_norm else None
        self.past: Past | None = None

    def forward(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | None = None,
        starts: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Map [batch, sequence, hidden] to the same shape.

        Args:
            hidden_states: The tokens' states.
            mask: As for :meth:`attend`.
            starts: Where each token's document begins, int64 [batch, sequence]; None if it does not matter.
            table: The table of relative positions, [buckets, heads of this rank].
        """
        whole: torch.Tensor = self.out_proj(self.inner(hidden_states, mask, starts, table))
        return whole

    def inner(
        self,
        hidden_states: torch.Tensor,
        mask: torch.Tensor | None = None,
        starts: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the input of the output projection."""
        query, key, value = self.qkv(hidden_states, starts if self.resets else None)
        causal = self.causal
        if self.past is not None:
            key, value = self.past.extended(self, key, value)
        keys = key.shape[1] * (1 if self.part is None else self.part.ranks)
        window = self.window if self.window is not None and self.window < keys else None
        if not self.separates_documents:
            starts = None
        if self.part is not None:
            kernel = kernel_for(query.device, query.dtype, self.head_size)
            is_plain = starts is None and window is None and not (self.dropout and self.training)
            if kernel is not None and is_plain and causal and table is None:
                return context_attention(query, key, value, self.part, kernel, self.scale).flatten(2)
            # A view would keep the whole projection alive.
            query = query.contiguous()
        key, value = self.whole(key, value)
        tokens = query.shape[1]
        if starts is not None or window is not None:
            own = None if self.part is None else self.part.places(tokens, query.device)
            last = torch.arange(keys - tokens, keys, device=query.device) if own is None else own
            return self.attend(query, key, value, first=first_seen(last, starts, window), places=own)
        # A single token attends to all tokens so far.
        causal = causal and (self.past is None or tokens > 1)
        if self.part is None or (table is None and not causal):
            begins = [keys - tokens]
        else:
            begins = self.part.before(query)
        mixed = []
        for chunk, begin in zip(query.chunk(len(begins), dim=1), begins, strict=True):
            size, bias = chunk.shape[1], None
            end = begin + size if causal else keys
            if table is not None:
                bias = score_bias(table, begin, size, end, self.relative_max_distance, causal=causal)
            mixed.append(self.attend(chunk, key[:, :end], value[:, :end], mask, causal, bias=bias))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed, dim=1)

    def qkv(
        self, hidden_states: torch.Tensor, starts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the queries, keys and values of [batch, sequence, hidden] for :meth:`attend`."""
        mixed = self.qkv_proj(hidden_states)
        if self.sharing > 1:
            whole = gathered(mixed, self.key_value_group, 2).unflatten(-1, (-1, self.head_size))
            queries = whole[..., self.first_query : self.first_query + self.group_size, :]
            # A copy, because a view would keep the rest alive.
            mixed = torch.cat((queries, whole[..., -2:, :]), dim=-2).flatten(-2)
        mixed = mixed.unflatten(-1, (self.key_value_heads, self.group_size + 2, self.head_size))
        if self.group_size == 1:
            query, key, value = mixed.unbind(dim=3)
        else:
            query = mixed[..., : self.group_size, :].flatten(2, 3)
            key, value = mixed[..., self.group_size, :], mixed[..., self.group_size + 1, :]
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        if self.rotary is not None:
            places = _positions(query.shape[1], query.device, self.past, starts, self.part)
            query, key = self.rotary.rotate(query, places), self.rotary.rotate(key, places)
        return query, key, value


class CrossAttention(_Attention):
    """Attention of the decoder's tokens to the encoder's states."""

    def __init__(self, spec: ModelSpec, topology: Topology) -> None:
        super().__init__(spec, topology)
        make = partial(
            ColumnParallelLinear,
            spec.hidden_size,
            topology=topology,
            std=spec.init_std,
            bias=spec.has_qkv_biases,
        )
        self.q_proj = make(spec.attention_size)
        self.kv_proj = make(2 * spec.attention_size)

    def inner(self, hidden_states: torch.Tensor, memory: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Map the decoder's [batch, queries, hidden], with the encoder's [batch, keys, hidden].

        Returns:
            The input of the output projection.
        """
        heads = self.key_value_heads
        query = self.q_proj(hidden_states).unflatten(-1, (heads, self.head_size))
        key, value = self.kv_proj(memory).unflatten(-1, (heads, 2, self.head_size)).unbind(dim=3)
        return self.attend(query, *self.whole(key, value), mask)


def activated(spec: ModelSpec, wide: torch.Tensor) -> torch.Tensor:
    """Return the activated output of an MLP's first layer, the input of its second."""
    if spec.ffn == "gated":
        gate, up = wide.chunk(2, dim=-1)
        return _activation(spec, gate) * up
    return _activation(spec, wide)


def _activation(spec: ModelSpec, wide: torch.Tensor) -> torch.Tensor:
    if spec.activation == "silu":
        return functional.silu(wide)
    if spec.activation == "relu":
        return functional.relu(wide)
    return functional.gelu(wide, approximate="tanh")


class MLP(nn.Module):
    """Two linear layers with an activation in between; with gating, the first layer includes the gate."""

    def __init__(self, spec: ModelSpec, topology: Topology) -> None:
        super().__init__()
        self.spec = spec
        self.fc1 = ColumnParallelLinear(
            spec.hidden_size,
            spec.ffn_size,
            topology,
            spec.init_std,
            bias=spec.has_biases,
            stacked=2 if spec.ffn == "gated" else None,
        )
        self.fc2 = RowParallelLinear(
            spec.ffn_size, spec.hidden_size, topology, residual_std(spec), bias=spec.has_biases
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map [..., hidden] to the same shape."""
        whole: torch.Tensor = self.fc2(self.inner(hidden_states))
        return whole

    def inner(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the input of the second layer."""
        return activated(self.spec, self.fc1(hidden_states))


class Block(nn.Module):
    """Self-attention and MLP, each applied to the normalised states and added to the residual stream."""

    def __init__(
        self,
        spec: ModelSpec,
        topology: Topology,
        *,
        causal: bool = True,
        rotary: RotaryPositions | None = None,
        separates_documents: bool = False,
        resets: bool = False,
        feed_forward: Callable[[ModelSpec, Topology], nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.input_layernorm = Norm(spec)
        self.self_attention = SelfAttention(
            spec,
            topology,
            causal=causal,
            rotary=rotary,
            separates_documents=separates_documents,
            resets=resets,
        )
        self.pre_mlp_layernorm = Norm(spec)
        self.mlp: Any = (feed_forward or MLP)(spec, topology)
        self.dropout = spec.hidden_dropout
        self.divided = topology.tensor > 1

    def forward(
        self,
        hidden_states: States,
        mask: torch.Tensor | None = None,
        starts: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
    ) -> Any:
        """Map [batch, sequence, hidden], or its parts, to the same; the rest is as for the attention."""
        attention, mlp = self.self_attention, self.mlp
        return self.added(
            hidden_states,
            (self.input_layernorm, partial(attention.inner, table=table), attention.out_proj, mask, starts),
            (self.pre_mlp_layernorm, mlp.inner, mlp.fc2),
        )

    def added(self, hidden_states: States, *branches: tuple[Any, ...]) -> Any:
        """Add residual branches to the states [batch, sequence, hidden], one after the other.

        Args:
            hidden_states: The states, or parts of them, whose last updates may still be summed over the
                tensor ranks; so may those of the returned parts.
            branches: For each, its norm, its layers before the last projection, that projection, and other
                arguments of those layers, [batch, ...] or None.
        """
        if isinstance(hidden_states, torch.Tensor):
            if self.divided:
                return whole_of(self.added(parts_of(hidden_states), *branches))
            for norm, inner, projection, *arguments in branches:
                update = projection(inner(norm(hidden_states), *arguments))
                hidden_states = hidden_states + self.dropped(update)
            return hidden_states
        parts = hidden_states
        for norm, inner, projection, *arguments in branches:
            several = [[None] * len(parts) if one is None else one.chunk(len(parts)) for one in arguments]
            before, parts = parts, []
            try:
                for part, *own in zip(before, *several, strict=True):
                    parts.append(self._begun(part(), norm, inner, projection, own))
            except Exception:
                # A recomputation stops at the last activation, and torch keeps each sum until its end.
                for part in parts:
                    part()
                raise
        return parts

    def _begun(
        self, states: torch.Tensor, norm: Any, inner: Any, projection: Any, arguments: list[Any]
    ) -> Part:
        """Compute a branch, and begin to sum it over the tensor ranks."""
        pending = projection(inner(norm(states), *arguments), step="begin")
        return lambda: states + self.dropped(projection(pending, step="end"))

    def dropped(self, update: torch.Tensor) -> torch.Tensor:
        """Drop features of a residual update."""
        return functional.dropout(update, self.dropout, self.training)


def word_embedding(
    kind: Callable[..., VocabParallelEmbedding], config: Config, topology: Topology
) -> Callable[[], VocabParallelEmbedding]:
    """Return a factory of the vocabulary's embedding, which embeds tokens and, as the head, predicts them."""
    spec = config.spec
    return partial(
        kind,
        spec.vocabulary,
        spec.padded_vocab_size,
        spec.hidden_size,
        topology,
        spec.init_std,
        compiled=config.optimisation.compile,
    )
