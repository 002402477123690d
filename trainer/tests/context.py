# SPDX-License-Identifier: GPL-3.0-or-later
"""Attention of a whole sequence, and of all ranks that share it, one after the other in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.nn import functional

from rdm_trainer.distributed.context_attention import Kernel, context_attention
from rdm_trainer.distributed.context_parallel import SequencePart

__all__ = ["Problem", "all_ranks", "make_problem", "one_rank"]

Found = list[torch.Tensor]
"""The output, and the gradients of query, key and value."""


class Problem(NamedTuple):
    """What attention takes, each [batch, tokens, heads, head size], and the gradient of its output."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    gradient: torch.Tensor

    def to(self, dtype: torch.dtype) -> Problem:
        """Return it in another precision."""
        return Problem(*(one.detach().to(dtype).requires_grad_() for one in self))


def make_problem(
    tokens: int,
    heads: tuple[int, int],
    *,
    head_size: int = 8,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Problem:
    """Return a batch of two.

    Args:
        tokens: Of a sequence.
        heads: Of queries, and of keys and values.
        head_size: Features of each.
        dtype: Of all tensors.
        device: Where they are.
    """
    torch.manual_seed(1)
    shapes = [(2, tokens, count, head_size) for count in (heads[0], heads[1], heads[1], heads[0])]
    return Problem(*(torch.randn(shape, device=device) for shape in shapes)).to(dtype)


def one_rank(problem: Problem, scale: float | None = None) -> Found:
    """Return what torch's attention to the whole sequence makes of it."""
    query, key, value = (one.transpose(1, 2) for one in problem[:3])
    mixed = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=True
    ).transpose(1, 2)
    return [mixed, *torch.autograd.grad(mixed, problem[:3], problem.gradient)]


def all_ranks(
    problem: Problem,
    ranks: int,
    kernel: Kernel,
    scale: float | None = None,
    attention: Callable[..., Any] = context_attention,
) -> Found:
    """Return what the ranks make of it together: their outputs in order, and the sums of their gradients."""
    output = torch.zeros_like(problem.query)
    sums = [torch.zeros_like(one) for one in problem[:3]]
    for rank in range(ranks):
        part = SequencePart(rank, ranks, None)
        mixed = attention(part.own(problem.query), problem.key, problem.value, part, kernel, scale)
        places = part.places(mixed.shape[1], mixed.device)
        output[:, places] = mixed.detach()
        gradients = torch.autograd.grad(mixed, problem[:3], part.own(problem.gradient))
        for whole, one in zip(sums, gradients, strict=True):
            whole += one
    return [output, *sums]
