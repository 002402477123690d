# SPDX-License-Identifier: GPL-3.0-or-later
"""Attention of a whole sequence, and of all ranks that share it, one after the other in one process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from rdm_trainer.distributed.context_attention import Kernel, context_attention
from rdm_trainer.distributed.context_parallel import SequencePart

Found = list[torch.Tensor]
"""The output, and the gradients of query, key and value."""


class Problem(NamedTuple):
    """The inputs of attention, each [batch, tokens, heads, head size], and the gradient of its output."""

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
    """Return the result of torch's attention to the whole sequence."""
    query, key, value = (one.transpose(1, 2) for one in problem[:3])
    mixed = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scale, enable_gqa=True
    ).transpose(1, 2)
    return [mixed, *torch.autograd.grad(mixed, problem[:3], problem.gradient)]


@dataclass(frozen=True)
class GatheredContext(SequencePart):
    """A rank's collectives: the test provides what the others send, and discards what this one sends.

    Args:
        keys_and_values: Of all tokens, [2 x batch, tokens, key-value heads, head size].
    """

    keys_and_values: torch.Tensor

    def begin_gather(self, own: torch.Tensor) -> torch.Tensor:
        return self.keys_and_values

    def end_gather(self, pending: torch.Tensor) -> torch.Tensor:
        return pending

    def begin_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        return whole

    def end_scatter(self, pending: torch.Tensor) -> torch.Tensor:
        return self.own(pending)


@dataclass(frozen=True)
class _SummedGradients(GatheredContext):
    """Adds the gradients that ranks send to ``sums``, and returns none."""

    sums: torch.Tensor

    def begin_scatter(self, whole: torch.Tensor) -> torch.Tensor:
        self.sums.add_(whole)
        return torch.zeros_like(whole)


def all_ranks(problem: Problem, ranks: int, kernel: Kernel, scale: float | None = None) -> Found:
    """Return the result of all ranks: their outputs in order, and the sums of their gradients."""
    output, of_query = torch.zeros_like(problem.query), torch.zeros_like(problem.query)
    keys_and_values = torch.cat((problem.key, problem.value)).detach()
    sums = torch.zeros_like(keys_and_values)
    for rank in range(ranks):
        part = _SummedGradients(rank, ranks, None, keys_and_values, sums)
        query, key, value = (part.own(one) for one in problem[:3])
        mixed = context_attention(query, key, value, part, kernel, scale)
        gradients = torch.autograd.grad(mixed, (query, key, value), part.own(problem.gradient))
        places = part.places(mixed.shape[1], mixed.device)
        output[:, places], of_query[:, places] = mixed.detach(), gradients[0]
        sums[:, places] += torch.cat(gradients[1:])
    return [output, of_query, *sums.chunk(2)]
