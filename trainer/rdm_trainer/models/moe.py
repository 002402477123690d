# SPDX-License-Identifier: GPL-3.0-or-later
"""Mixture of Experts: a router sends each token to some of a block's experts.

The ranks of the tensor and expert axes share the experts; each expert is whole on one rank. A rank sends the
rows of its tokens to the ranks with their experts and gets them back (two all-to-alls). Tensor ranks have the
same tokens unless they are sequence parallel, so each sends a part of them. No row is padded, and none is
dropped unless there is a capacity.

Load and capacity are those of a whole micro-batch. Ranks with different tokens of it, on the context axis and
with sequence parallelism on the tensor axis, route only their own, and gather the chosen experts.

Source: Switch Transformer (Fedus et al. 2021) for the load-balancing loss and the capacity; Mixtral (Jiang
et al. 2024) and Qwen3 (2025) for the router; MegaBlocks (Gale et al. 2022) for products without padding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from rdm_core.model_spec import ModelSpec
from rdm_trainer.distributed.context_parallel import SequencePart
from rdm_trainer.distributed.parameters import ShardSpec, parameter
from rdm_trainer.distributed.tensor_parallel.layers import (
    VocabParallelEmbedding,
    gathered,
    shared_tensor,
    summed_output,
)
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.transformer import Block, Norm, activated, residual_std

_States = torch.Tensor | tuple[torch.Tensor, torch.Tensor]
"""Hidden states and, after the first block, the sum of the blocks' load-balancing losses, float32 scalar."""


def load_balancing_loss(probabilities: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """Return how unevenly tokens are routed to experts; it is top-k for even routing.

    The mean over ranks with equal parts of the tokens is the loss of all tokens, and so is its gradient.

    Args:
        probabilities: The router's probabilities of all experts for this rank's tokens, float32
            [own tokens, experts].
        experts: The chosen experts of all tokens, int64 [tokens, top-k].

    Source: Fedus et al. 2021, equation 4, and for k > 1 ``load_balancing_loss_func`` of transformers, which
    joins all layers before the product; for one layer it is the same.
    """
    count = probabilities.shape[1]
    shares = _counts(experts, count).to(probabilities.dtype) / len(experts)
    return count * (shares * probabilities.mean(dim=0)).sum()


def within_capacity(experts: torch.Tensor, count: int, capacity: int) -> torch.Tensor:
    """Return which choices are within the capacity of their experts, bool [tokens, top-k].

    First choices have priority over second ones, then earlier tokens over later ones.

    Args:
        experts: The chosen experts, int64 [tokens, top-k].
        count: Number of experts.
        capacity: Maximum tokens per expert.
    """
    chosen = experts.t().flatten()
    order = chosen.argsort(stable=True)
    counts = _counts(chosen, count)
    place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[chosen[order]]
    taken = torch.empty_like(order, dtype=torch.bool).scatter_(0, order, place < capacity)
    return taken.view(experts.shape[1], -1).t()


def _counts(experts: torch.Tensor, count: int) -> torch.Tensor:
    """Return how often each expert is chosen, int64 [count], without waiting for the device."""
    chosen = experts.flatten()
    return torch.zeros(count, dtype=torch.int64, device=chosen.device).index_add_(
        0, chosen, torch.ones_like(chosen)
    )


def _inverse(order: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


class _Permute(torch.autograd.Function):
    """Repeat and reorder rows; the backward pass sums gradients in a fixed order."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, order: torch.Tensor, inverse: torch.Tensor, times: int = 1
    ) -> torch.Tensor:
        ctx.save_for_backward(inverse)
        ctx.times = times
        return rows[order // times if times > 1 else order]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (inverse,) = ctx.saved_tensors
        gradient = gradients[0][inverse]
        if ctx.times > 1:
            gradient = gradient.unflatten(0, (-1, ctx.times)).sum(dim=1)
        return gradient, None, None, None


class _AllToAll(torch.autograd.Function):
    """Exchange rows between the ranks of a group; gradients go the other way."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int], group: Any
    ) -> torch.Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _exchange(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return _exchange(gradients[0], ctx.received, ctx.sent, ctx.group), None, None, None


def _exchange(rows: torch.Tensor, sent: list[int], received: list[int], group: Any) -> torch.Tensor:
    found = rows.new_empty(sum(received), *rows.shape[1:])
    dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
    return found


class Router(nn.Module):
    """A router that chooses experts for each token; every rank has the whole router."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.weight = parameter(ShardSpec((spec.experts, spec.hidden_size), std=spec.init_std, decays=True))
        self.top_k, self.normalises = spec.router_top_k, spec.norm_topk_prob

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Choose experts for [tokens, hidden].

        Returns:
            The probabilities of all experts, float32 [tokens, experts]; the weights of the chosen experts,
            [tokens, top-k]; and the chosen experts, int64 [tokens, top-k].
        """
        probabilities = functional.linear(tokens, self.weight).float().softmax(dim=-1)
        weights, experts = probabilities.topk(self.top_k, dim=-1)
        if self.normalises:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return probabilities, weights.to(tokens.dtype), experts


class Experts(nn.Module):
    """This rank's experts: MLPs of one shape, computed as grouped matrix products."""

    def __init__(self, spec: ModelSpec, topology: Topology) -> None:
        super().__init__()
        into = 2 if spec.ffn == "gated" else 1
        self.spec = spec
        self.fc1 = self._parameter(
            (spec.experts, into, spec.ffn_size, spec.hidden_size), topology, spec.init_std
        )
        self.fc2 = self._parameter(
            (spec.experts, spec.hidden_size, spec.ffn_size), topology, residual_std(spec)
        )

    @staticmethod
    def _parameter(shape: tuple[int, ...], topology: Topology, std: float) -> nn.Parameter:
        return parameter(
            ShardSpec(shape, 0, topology.model_rank, topology.model, std=std, decays=True, experts=True)
        )

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Map [rows, hidden] to the same shape.

        Args:
            rows: Rows sorted by expert.
            counts: Rows of each expert, int64 [experts of this rank].
        """
        # The kernel requires rows of a multiple of 16 bytes.
        aligned = self.fc1.shape[-1] % 8 == self.fc2.shape[-1] % 8 == 0
        sizes = None if aligned and _has_grouped_products(rows) else counts.tolist()
        wide = _grouped_linear(rows, self.fc1.flatten(1, 2), counts, sizes)
        return _grouped_linear(activated(self.spec, wide), self.fc2, counts, sizes)


def _has_grouped_products(rows: torch.Tensor) -> bool:
    """Tell whether the device has a kernel for grouped products: NVIDIA's from Hopper on, in bf16."""
    return (
        rows.is_cuda
        and rows.dtype == torch.bfloat16
        and rows.shape[0] > 0
        and torch.version.hip is None
        and torch.cuda.get_device_capability(rows.device) >= (9, 0)
        and hasattr(functional, "grouped_mm")
    )


def _grouped_linear(
    rows: torch.Tensor, weights: torch.Tensor, counts: torch.Tensor, sizes: list[int] | None
) -> torch.Tensor:
    """Multiply each group of rows [rows, inputs] by its matrix of [groups, outputs, inputs].

    With ``sizes``, the counts on the host, it loops over the groups, including empty ones, so that all ranks
    have the same backward pass.
    """
    if sizes is None:
        ends = counts.cumsum(0).to(torch.int32)
        return functional.grouped_mm(rows, weights.transpose(-2, -1), offs=ends)
    parts = zip(rows.split(sizes), weights, strict=True)
    return torch.cat([functional.linear(part, weight) for part, weight in parts])


class MoE(nn.Module):
    """A block's router and experts, in place of an MLP."""

    def __init__(self, spec: ModelSpec, topology: Topology) -> None:
        super().__init__()
        self.count, self.capacity_factor = spec.experts, spec.capacity_factor
        self.router = Router(spec)
        self.experts = Experts(spec, topology)
        self.tensor, self.tensor_rank = topology.tensor, topology.tensor_rank
        self.tensor_group = topology.tensor_group if topology.tensor > 1 else None
        self.sequence_parallel = topology.sequence_parallel
        self.part = SequencePart.of(topology)
        self.group = topology.model_group if topology.model > 1 else None
        self.ranks = topology.model

    # The number of an expert's rows varies, which does not suit a compiler of fixed shapes.
    @torch.compiler.disable
    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Map [batch, sequence, hidden] to the same shape, and return the load-balancing loss too.

        The loss's mean over ranks with different tokens is that of the micro-batch.
        """
        tokens = hidden_states.flatten(0, -2)
        probabilities, weights, experts = self.router(tokens)
        chosen = self._of_all(experts.unflatten(0, hidden_states.shape[:-1]))
        loss = load_balancing_loss(probabilities, chosen.flatten(0, 1))
        if self.capacity_factor is not None:
            capacity = math.ceil(self.capacity_factor * chosen.numel() / self.count)
            taken = within_capacity(chosen.flatten(0, 1), self.count, capacity)
            # Dropped choices go to an expert that does not exist.
            experts = experts.where(self._own(taken.view_as(chosen)).flatten(0, 1), self.count)
        if self.tensor_group is None or self.sequence_parallel:
            return self._mixed(tokens, weights, experts).view_as(hidden_states), loss
        first, last = (len(tokens) * rank // self.tensor for rank in (self.tensor_rank, self.tensor_rank + 1))
        mixed = self._mixed(
            shared_tensor(tokens, self.tensor_group)[first:last],
            shared_tensor(weights, self.tensor_group)[first:last],
            experts[first:last],
        )
        whole = functional.pad(mixed, (0, 0, first, len(tokens) - last))
        return summed_output(whole, self.tensor_group).view_as(hidden_states), loss

    def _of_all(self, own: torch.Tensor) -> torch.Tensor:
        """Return a micro-batch's [batch, sequence, ...] of the ranks' [batch, own tokens, ...]."""
        if self.sequence_parallel:
            own = gathered(own, self.tensor_group, 1)
        return own if self.part is None else self.part.gathered(own)

    def _own(self, whole: torch.Tensor) -> torch.Tensor:
        """Return this rank's [batch, own tokens, ...] of a micro-batch's [batch, sequence, ...]."""
        if self.part is not None:
            whole = self.part.own(whole)
        return whole.chunk(self.tensor, dim=1)[self.tensor_rank] if self.sequence_parallel else whole

    def _mixed(self, tokens: torch.Tensor, weights: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Return the weighted sum of the outputs of each token's experts, [tokens, hidden]."""
        top_k = experts.shape[1]
        chosen = experts.flatten()
        order = chosen.argsort(stable=True)
        inverse = _inverse(order)
        counts = _counts(chosen, self.count + 1)[: self.count]
        rows = _Permute.apply(tokens, order, inverse, top_k)
        dropped = 0 if self.capacity_factor is None else len(rows) - int(counts.sum())
        rows = rows[: len(rows) - dropped]
        rows = self.experts(rows, counts) if self.group is None else self._elsewhere(rows, counts)
        rows = _Permute.apply(functional.pad(rows, (0, 0, 0, dropped)), inverse, order)
        mixed: torch.Tensor = (rows.unflatten(0, (-1, top_k)) * weights.unsqueeze(-1)).sum(dim=1)
        return mixed

    def _elsewhere(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Compute rows, sorted by expert, on the ranks with their experts; ``counts`` has rows per expert."""
        there = torch.empty_like(counts)
        dist.all_to_all_single(there, counts, group=self.group)
        # Received rows are ordered by their source rank, then by expert.
        there = there.view(self.ranks, -1)
        sent, received = torch.stack((counts.view(self.ranks, -1).sum(1), there.sum(1))).tolist()
        rows = _AllToAll.apply(rows, sent, received, self.group)
        own = torch.arange(there.shape[1], device=rows.device).repeat(self.ranks)
        by_expert = own.repeat_interleave(there.flatten(), output_size=len(rows)).argsort(stable=True)
        by_rank = _inverse(by_expert)
        rows = self.experts(_Permute.apply(rows, by_expert, by_rank), there.sum(0))
        returned: torch.Tensor = _AllToAll.apply(
            _Permute.apply(rows, by_rank, by_expert), received, sent, self.group
        )
        return returned


class MoEBlock(Block):
    """Self-attention and experts; it adds its load-balancing loss to the sum so far."""

    def __init__(self, spec: ModelSpec, topology: Topology, **options: Any) -> None:
        super().__init__(spec, topology, feed_forward=MoE, **options)

    def forward(self, states: _States) -> _States:  # type: ignore[override]
        """Map the hidden states [batch, sequence, hidden] and the loss."""
        hidden_states, before = states if isinstance(states, tuple) else (states, None)
        return self.with_loss(hidden_states, before)

    def with_loss(
        self, states: torch.Tensor, before: torch.Tensor | None, starts: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the block's output states, and the sum of the losses up to this block.

        Args:
            states: The block's input states, [batch, sequence, hidden].
            before: The sum of the losses of earlier blocks; None for the first one.
            starts: Where each token's document begins, as for the attention.
        """
        states = states + self.dropped(self.self_attention(self.input_layernorm(states), None, starts))
        update, loss = self.mlp(self.pre_mlp_layernorm(states))
        return states + self.dropped(update), loss if before is None else before + loss


class DocumentMoEBlock(MoEBlock):
    """A block that knows where documents begin; their starts come between states and loss."""

    def forward(self, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        """Map the hidden states and the loss."""
        states, starts = inputs[:2]
        states, loss = self.with_loss(states, inputs[2] if len(inputs) > 2 else None, starts)
        return states, starts, loss


class MoENorm(Norm):
    """The last norm; the load-balancing loss passes through."""

    def forward(self, states: _States) -> _States:  # type: ignore[override]
        """Normalise the hidden states."""
        hidden_states, loss = states
        return super().forward(hidden_states), loss


class DocumentMoENorm(MoENorm):
    """The last norm; it drops the documents' starts."""

    def forward(self, inputs: tuple[torch.Tensor, ...]) -> _States:  # type: ignore[override]
        """Normalise the hidden states and return them with the loss."""
        states, _, loss = inputs
        return super().forward((states, loss))


class MoEEmbedding(VocabParallelEmbedding):
    """The vocabulary's matrix; in training its loss includes the load-balancing loss.

    Attributes:
        balance: Sum of the micro-batches' load-balancing losses, each the mean over blocks, since it was last
            set to None.
    """

    def __init__(self, spec: ModelSpec, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.blocks, self.coefficient = spec.layers, spec.aux_loss_coeff
        self.balance: torch.Tensor | None = None

    def forward(  # type: ignore[override]
        self, inputs: _States, labels: tuple[torch.Tensor, ...] | None = None
    ) -> torch.Tensor:
        """Embed tokens, or return the loss or the logits of the last states."""
        if not isinstance(inputs, tuple):
            return super().forward(inputs, labels)
        hidden_states, summed = inputs
        result = super().forward(hidden_states, labels)
        if labels is None or not torch.is_grad_enabled():
            return result
        balance = summed / self.blocks
        if self.sequence_parallel:
            # The mean over the tensor ranks; each adds the gradient of its own tokens to it.
            balance = summed_output(balance / dist.get_world_size(self.group), self.group)
        detached = balance.detach()
        self.balance = detached if self.balance is None else self.balance + detached
        return result + self.coefficient * balance


class DocumentMoEEmbedding(MoEEmbedding):
    """The embedding of tokens paired with the starts of their documents."""

    def forward(  # type: ignore[override]
        self, inputs: _States, labels: tuple[torch.Tensor, ...] | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Embed the tokens of a pair; given states and their loss, return the loss or the logits."""
        if isinstance(inputs, torch.Tensor) or inputs[0].is_floating_point():
            return super().forward(inputs, labels)
        tokens, starts = inputs
        return super().forward(tokens), starts
