# SPDX-License-Identifier: GPL-3.0-or-later
"""Attention in blocks through the kernels that only GPUs have."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rdm_trainer.distributed.context_attention import Kernel, choose_kernel, context_attention, kernel_for
from tests.context import all_ranks, make_problem, one_rank


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2)], ids="{0[0]} to {0[1]}".format)
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("kernel", ["cudnn", "flash"])
def test_blocks_are_as_exact_as_one_kernel(
    kernel: Kernel, ranks: int, head_size: int, heads: tuple[int, int], compiled: bool
) -> None:
    problem = make_problem(1024, heads, head_size=head_size, dtype=torch.bfloat16, device="cuda")
    exact, expected = one_rank(problem.to(torch.float64)), one_rank(problem)
    # Each rank has a graph of its own.
    torch.compiler.reset()
    attention: Any = torch.compile(context_attention, fullgraph=True) if compiled else context_attention
    found = all_ranks(problem, ranks, kernel, attention=attention)
    for ours, theirs, true in zip(found, expected, exact, strict=True):
        assert (ours - true).norm() <= 2 * (theirs - true).norm()
        assert (ours - true).norm() <= 0.02 * true.norm()


def test_this_gpu_has_the_kernel_of_its_capability() -> None:
    device = torch.device("cuda", 0)
    expected = choose_kernel("cuda", torch.cuda.get_device_capability(device), torch.bfloat16, 128)
    assert kernel_for(device, torch.bfloat16, 128) == expected
    assert kernel_for(device, torch.float32, 128) is None
