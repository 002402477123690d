# SPDX-License-Identifier: GPL-3.0-or-later
"""The output projection and its cross entropy as one operation, in chunks of tokens.

The logits are the largest tensor of a training step, and only their gradient outlives the loss. So each chunk
goes all the way from states to gradients while the forward pass runs, and the whole logits never exist. The
vocabulary may be divided over tensor ranks: each reduces its part to three numbers per token (largest logit,
sum of exponentials, the label's logit), and only those are exchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from rdm_core.cost.chunks import chunk_tokens

__all__ = ["linear_cross_entropy"]

# Of a gradient that is in fp32 at once.
_PART_ELEMENTS = 1 << 26


def linear_cross_entropy(
    hidden_states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor,
    count: torch.Tensor | None = None,
    *,
    first: int = 0,
    valid: int | None = None,
    group: Any = None,
    sums_gradient: bool = True,
    compiled: bool = False,
    chunk_elements: int | None = None,
) -> torch.Tensor:
    """Return the cross entropy of ``hidden_states @ weight.T``, summed over the tokens that the mask counts.

    Args:
        hidden_states: [..., hidden].
        weight: This rank's rows of the vocabulary's matrix, [vocabulary / tensor, hidden].
        labels: int64 [...], indices into the whole vocabulary.
        mask: float32 [...]; 0 where a token does not count.
        count: float32 scalar that the sum is divided by; the tokens that the mask counts by default.
        first: The token of this rank's first row.
        valid: Rows that are tokens; those after them are padding. All of them by default.
        group: The tensor ranks; ``None`` when the vocabulary is whole.
        sums_gradient: Sum the states' gradient over the tensor ranks; else each has what its rows add to it.
        compiled: Run the element-wise parts through ``torch.compile``.
        chunk_elements: Logits that may exist at once; as many as are fast by default.

    Returns:
        float32 scalar, the same on every rank of the group.
    """
    loss: torch.Tensor = _LinearCrossEntropy.apply(
        hidden_states.reshape(-1, hidden_states.shape[-1]),
        weight,
        labels.reshape(-1),
        mask.reshape(-1),
        mask.sum().clamp_min(1.0) if count is None else count,
        (
            first,
            weight.shape[0] if valid is None else valid,
            group,
            sums_gradient,
            compiled,
            chunk_elements,
            torch.is_grad_enabled(),
        ),
    )
    return loss


def _reduce(
    logits: torch.Tensor, labels: torch.Tensor, first: int, valid: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Reduce this rank's logits [tokens, rows] to each token's maximum, sum and label, float32 [tokens]."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    scores = torch.where(columns < valid, logits.float(), float("-inf"))
    # A rank whose rows are all padding has no maximum; a finite one keeps its sum at 0.
    largest = scores.amax(dim=1).clamp_min(torch.finfo(torch.float32).min)
    total = torch.exp(scores - largest[:, None]).sum(dim=1)
    local = labels - first
    own = (local >= 0) & (local < valid)
    chosen = logits.gather(1, torch.where(own, local, 0)[:, None])[:, 0].float()
    return largest, total, torch.where(own, chosen, 0.0)


def _gradient(
    logits: torch.Tensor,
    normaliser: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor,
    first: int,
    valid: int,
) -> torch.Tensor:
    """Return d(sum of the masked losses)/d(logits), of the logits' shape and type."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    probabilities = torch.exp(logits.float() - normaliser[:, None])
    target = columns[None, :] == (labels - first)[:, None]
    gradient = (probabilities - target.float()) * mask[:, None]
    return torch.where(columns < valid, gradient, 0.0).to(logits.dtype)


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def _over_ranks(
    own_part: tuple[torch.Tensor, torch.Tensor, torch.Tensor], group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log of the sum of exponentials over the whole vocabulary and the label's logit, [tokens]."""
    largest, total, chosen = own_part
    if group is None:
        return largest + torch.log(total), chosen
    own = torch.stack((largest, total, chosen))
    gathered = own.new_empty((dist.get_world_size(group), *own.shape))
    dist.all_gather(list(gathered), own, group=group)
    top = gathered[:, 0].amax(dim=0)
    total = (gathered[:, 1] * torch.exp(gathered[:, 0] - top)).sum(dim=0)
    return top + torch.log(total), gathered[:, 2].sum(dim=0)


def _shrink(hidden_states: torch.Tensor) -> torch.Tensor | None:
    """Return a power of two for fp16's states, so that their sum over all tokens cannot overflow.

    Each is summed with a factor of up to 1. What is divided by the number of tokens later may be small.
    """
    if hidden_states.dtype != torch.float16:
        return None
    largest = torch.linalg.vector_norm(hidden_states, torch.inf, dtype=torch.float32)
    most = largest * hidden_states.shape[0] / torch.finfo(torch.float16).max
    return torch.exp2(-torch.ceil(torch.log2(most)).clamp_min(0.0)).half()


def _scaled(gradient: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a gradient times a scale, which may be larger than fp16 can hold."""
    if dtype != torch.float16:
        return (gradient * scale).to(dtype)
    result = torch.empty_like(gradient, dtype=dtype)
    rows = max(1, _PART_ELEMENTS // gradient.shape[1])
    for part, into in zip(gradient.split(rows), result.split(rows), strict=True):
        torch.mul(part.float(), scale.float(), out=into)
    return result


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        mask: torch.Tensor,
        count: torch.Tensor,
        options: tuple[int, int, Any, bool, bool, int | None, bool],
    ) -> torch.Tensor:
        first, valid, group, sums_gradient, compiled, chunk_elements, training = options
        reduce = _compiled(_reduce) if compiled else _reduce
        gradient_of = _compiled(_gradient) if compiled else _gradient
        tokens = hidden_states.shape[0]
        size = chunk_tokens(tokens, weight.shape[0], compiled=compiled, elements=chunk_elements)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_states.device)
        states_gradient = torch.empty_like(hidden_states) if training else None
        weight_gradient: torch.Tensor | None = None
        shrink = _shrink(hidden_states) if training else None
        for start in range(0, tokens, size):
            part = slice(start, min(start + size, tokens))
            logits = hidden_states[part] @ weight.t()
            normaliser, chosen = _over_ranks(reduce(logits, labels[part], first, valid), group)
            loss += torch.dot(normaliser - chosen, mask[part])
            if states_gradient is None:
                continue
            gradient = gradient_of(logits, normaliser, labels[part], mask[part], first, valid)
            del logits
            torch.mm(gradient, weight, out=states_gradient[part])
            states = hidden_states[part] if shrink is None else hidden_states[part] * shrink
            update = gradient.t() @ states
            if weight_gradient is None:
                # Sums of several chunks in 16 bits would lose what the chunks are not meant to cost.
                weight_gradient = update.float() if size < tokens else update
            else:
                weight_gradient += update
            # The next chunk's logits take their memory.
            del gradient, update, states
        if states_gradient is not None:
            if group is not None and sums_gradient:
                dist.all_reduce(states_gradient, group=group)
            ctx.save_for_backward(states_gradient, weight_gradient, count, shrink)
            ctx.weight_type = weight.dtype
        return loss / count

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states_gradient, weight_gradient, count, shrink = ctx.saved_tensors
        # Only here, where a loss scale has come in: divided by the tokens, fp16 could not hold them.
        scale = gradients[0] / count
        return (
            _scaled(states_gradient, scale, states_gradient.dtype),
            _scaled(weight_gradient, scale if shrink is None else scale / shrink, ctx.weight_type),
            None,
            None,
            None,
            None,
        )
