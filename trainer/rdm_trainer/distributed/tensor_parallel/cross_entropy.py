# SPDX-License-Identifier: GPL-3.0-or-later
"""The output projection and its cross entropy as one operation, in chunks of tokens.

The logits are the largest tensor of a training step, and only their gradient outlives the loss. So the
forward pass computes each chunk all the way from states to gradients, and the whole logits never exist. If
the vocabulary is sharded over tensor ranks, each rank reduces its part to three numbers per token (largest
logit, sum of exponentials, the label's logit), and exchanges only those.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

from rdm_core.cost.chunks import chunk_tokens
from rdm_trainer.distributed.gradient_sum import GradientSum, add_product

# Maximum elements of a gradient to convert to fp32 at once.
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
    gradient_sum: GradientSum | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mean cross entropy of ``hidden_states @ weight.T + bias`` over tokens that the mask counts.

    Args:
        hidden_states: [..., hidden].
        weight: This rank's rows of the vocabulary's matrix, [vocabulary / tensor, hidden].
        labels: int64 [...], indices into the whole vocabulary.
        mask: float32 [...]; 0 where a token does not count.
        count: float32 scalar, the divisor of the sum; by default the number of tokens that the mask counts.
        first: The token of this rank's first row.
        valid: Number of rows that are tokens; later rows are padding. All rows by default.
        group: The tensor ranks; ``None`` if the vocabulary is whole.
        sums_gradient: Sum the states' gradient over the tensor ranks; otherwise each rank keeps its own rows'
            contribution.
        compiled: Run the element-wise parts through ``torch.compile``.
        chunk_elements: Maximum number of logits at once; by default a number that is fast.
        gradient_sum: Where the backward pass adds the gradient of the weight.
        bias: This rank's part, [vocabulary / tensor]; None adds none.

    Returns:
        float32 scalar, the same on every rank of the group.
    """
    loss: torch.Tensor = _LinearCrossEntropy.apply(
        hidden_states.reshape(-1, hidden_states.shape[-1]),
        weight,
        bias,
        labels.reshape(-1),
        mask.reshape(-1),
        mask.sum().clamp_min(1.0) if count is None else count,
        None if gradient_sum is None else gradient_sum.token,
        (
            first,
            weight.shape[0] if valid is None else valid,
            group,
            sums_gradient,
            compiled,
            chunk_elements,
            torch.is_grad_enabled(),
            # An embedding that shares the sum has saved it, so no change may be counted.
            None if gradient_sum is None else gradient_sum.total.data,
        ),
    )
    return loss


def _reduce(
    logits: torch.Tensor, labels: torch.Tensor, first: int, valid: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return this rank's largest logit, sum of exponentials and label's logit, each float32 [tokens]."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    scores = torch.where(columns < valid, logits.float(), float("-inf"))
    # A rank with only padding has no maximum; a finite value keeps its sum at 0.
    largest = scores.amax(dim=1).clamp_min(torch.finfo(torch.float32).min)
    total = torch.exp(scores - largest[:, None]).sum(dim=1)
    local = labels - first
    own = (local >= 0) & (local < valid)
    chosen = logits.gather(1, torch.where(own, local, 0)[:, None])[:, 0].float()
    return largest, total, torch.where(own, chosen, 0.0)


def _to_gradient(
    logits: torch.Tensor,
    normaliser: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor,
    first: int,
    valid: int,
) -> None:
    """Replace logits by d(sum of the masked losses)/d(logits)."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    probabilities = torch.exp(logits.float() - normaliser[:, None])
    target = columns[None, :] == (labels - first)[:, None]
    gradient = (probabilities - target.float()) * mask[:, None]
    logits.copy_(torch.where(columns < valid, gradient, 0.0))


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def _over_ranks(
    own_part: tuple[torch.Tensor, torch.Tensor, torch.Tensor], group: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the log-sum-exp over the whole vocabulary and the label's logit, [tokens]."""
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
    """Return a power of two that scales fp16 states so that their sum over all tokens cannot overflow.

    Each state is summed with a factor of up to 1. Values that are divided by the number of tokens later may
    be small.
    """
    if hidden_states.dtype != torch.float16:
        return None
    largest = torch.linalg.vector_norm(hidden_states, torch.inf, dtype=torch.float32)
    most = largest * hidden_states.shape[0] / torch.finfo(torch.float16).max
    return torch.exp2(-torch.ceil(torch.log2(most)).clamp_min(0.0)).half()


def _product(gradient: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return (gradient * scale).to(dtype)


def _scaled(
    gradient: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype, *, compiled: bool
) -> torch.Tensor:
    """Return a gradient times a scale; the scale may exceed fp16's range."""
    if dtype != torch.float16:
        # PyTorch's own kernel for two types takes longer.
        return (_compiled(_product) if compiled else _product)(gradient, scale, dtype)
    result = torch.empty_like(gradient, dtype=dtype)
    rows = max(1, _PART_ELEMENTS // gradient.shape[1])
    for part, into in zip(gradient.split(rows), result.split(rows), strict=True):
        torch.mul(part.float(), scale.float(), out=into)
    return result


def _add_scaled(total: torch.Tensor, gradient: torch.Tensor, scale: torch.Tensor) -> None:
    """Add a gradient times a scale to a sum in fp32."""
    total.add_(gradient.float() * scale)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_states: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        labels: torch.Tensor,
        mask: torch.Tensor,
        count: torch.Tensor,
        _token: torch.Tensor | None,
        options: tuple[int, int, Any, bool, bool, int | None, bool, torch.Tensor | None],
    ) -> torch.Tensor:
        first, valid, group, sums_gradient, compiled, chunk_elements, training, total = options
        reduce = _compiled(_reduce) if compiled else _reduce
        to_gradient = _compiled(_to_gradient) if compiled else _to_gradient
        tokens = hidden_states.shape[0]
        size = chunk_tokens(tokens, weight.shape[0], compiled=compiled, elements=chunk_elements)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_states.device)
        states_gradient = torch.empty_like(hidden_states) if training else None
        weight_gradient: torch.Tensor | None = None
        bias_gradient = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        shrink = _shrink(hidden_states) if training else None
        sums: list[Any] = []
        for start in range(0, tokens, size):
            part = slice(start, min(start + size, tokens))
            logits = functional.linear(hidden_states[part], weight, bias)
            normaliser, chosen = _over_ranks(reduce(logits, labels[part], first, valid), group)
            loss += torch.dot(normaliser - chosen, mask[part])
            if states_gradient is None:
                continue
            # In place: the logits of a chunk take as much memory as all else of a large one.
            to_gradient(logits, normaliser, labels[part], mask[part], first, valid)
            gradient = logits
            torch.mm(gradient, weight, out=states_gradient[part])
            if group is not None and sums_gradient:
                # It overlaps with the weight's gradient.
                sums.append(dist.all_reduce(states_gradient[part], group=group, async_op=True))
            if bias_gradient is not None:
                bias_gradient += gradient.sum(dim=0, dtype=torch.float32)
            states = hidden_states[part] if shrink is None else hidden_states[part] * shrink
            if size >= tokens:
                weight_gradient = gradient.t() @ states
            else:
                # Summing several chunks in 16 bits would lose precision.
                if weight_gradient is None:
                    weight_gradient = torch.zeros_like(weight, dtype=torch.float32)
                add_product(weight_gradient, gradient, states)
            # The next chunk's logits reuse this memory.
            del logits, gradient, states
        for one in sums:
            one.wait()
        if states_gradient is not None:
            ctx.save_for_backward(states_gradient, weight_gradient, bias_gradient, count, shrink)
            ctx.weight_type, ctx.total, ctx.compiled = weight.dtype, total, compiled
        return loss / count

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        states_gradient, weight_gradient, bias_gradient, count, shrink = ctx.saved_tensors
        # Divide only here, where the loss scale is included; otherwise fp16 would underflow.
        scale = gradients[0] / count
        of_states = _scaled(states_gradient, scale, states_gradient.dtype, compiled=ctx.compiled)
        of_bias = None if bias_gradient is None else (bias_gradient * scale).to(ctx.weight_type)
        scale = scale if shrink is None else scale / shrink
        if ctx.total is None:
            of_weight = _scaled(weight_gradient, scale, ctx.weight_type, compiled=ctx.compiled)
            return of_states, of_weight, of_bias, *(None,) * 5
        if ctx.compiled:
            _compiled(_add_scaled)(ctx.total, weight_gradient, scale)
        else:
            # One kernel, with no fp32 copies of the gradient.
            ctx.total.addcmul_(weight_gradient, scale)
        return of_states, None, of_bias, *(None,) * 3, ctx.total.new_empty(()), None
