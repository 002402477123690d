# SPDX-License-Identifier: GPL-3.0-or-later
"""Attention in blocks through the kernels that only GPUs have."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rdm_trainer.distributed.context_attention import Kernel, choose_kernel, context_attention, kernel_for
from tests.context_attention import GatheredContext, all_ranks, make_problem, one_rank


@pytest.mark.parametrize("heads", [(8, 8), (8, 2)], ids="{0[0]} to {0[1]}".format)
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kernel", ["cudnn", "flash"])
def test_blockwise_attention_is_as_exact_as_one_kernel(
    kernel: Kernel, ranks: int, head_size: int, heads: tuple[int, int]
) -> None:
    problem = make_problem(1024, heads, head_size=head_size, dtype=torch.bfloat16, device="cuda")
    exact, expected = one_rank(problem.to(torch.float64)), one_rank(problem)
    # One kernel rounds a result once. Independent roundings add up by their squares, relative to the whole.
    # An output and a query's gradient are rounded per block, and when two blocks are merged in fp32.
    merged = math.sqrt(2)
    # A key's and a value's gradient are rounded per block, when a rank adds two blocks, when 2, 3, ... of the
    # ranks' sums are added, as a reduce-scatter does, and when the own block is added.
    summed = math.sqrt(1 + 1 + sum(range(2, ranks + 1)) / ranks + 1)
    bounds = (merged, merged, summed, summed)
    for ours, theirs, true, bound in zip(
        all_ranks(problem, ranks, kernel), expected, exact, bounds, strict=True
    ):
        assert (ours - true).norm() <= bound * (theirs - true).norm()
        assert (ours - true).norm() <= 0.02 * true.norm()


@pytest.mark.parametrize("kernel", ["cudnn", "flash"])
def test_compiled_attention_equals_eager(kernel: Kernel) -> None:
    problem = make_problem(512, (8, 2), head_size=128, dtype=torch.bfloat16, device="cuda")
    part = GatheredContext(1, 2, None, torch.cat((problem.key, problem.value)).detach())
    query, key, value = (part.own(one).detach().requires_grad_() for one in problem[:3])
    compiled: Any = torch.compile(context_attention, fullgraph=True)
    found, expected = (
        [mixed, *torch.autograd.grad(mixed, (query, key, value), part.own(problem.gradient))]
        for mixed in (attend(query, key, value, part, kernel) for attend in (compiled, context_attention))
    )
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-2, rtol=1e-2)


def test_gpu_has_the_kernel_of_its_compute_capability() -> None:
    device = torch.device("cuda", 0)
    capability, cudnn = torch.cuda.get_device_capability(device), torch.backends.cudnn.version() or 0
    expected = choose_kernel(capability, torch.bfloat16, 128, cudnn)
    assert kernel_for(device, torch.bfloat16, 128) == expected
    assert kernel_for(device, torch.float32, 128) is None
