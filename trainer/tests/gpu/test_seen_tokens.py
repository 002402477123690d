# SPDX-License-Identifier: GPL-3.0-or-later
"""Documents and windows through the kernel that GPUs have for them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from rdm_trainer.data.loaders import starts_of
from rdm_trainer.distributed.context_parallel import SequencePart
from rdm_trainer.models.seen_tokens import first_seen, flex_attention, mask_of


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("length", [256, 333])
def test_kernel_attends_to_the_same_tokens_as_a_mask(length: int, window: int | None, compiled: bool) -> None:
    torch.manual_seed(length)
    query = torch.randn(2, 8, length, 64, device="cuda", requires_grad=True)
    key, value = (torch.randn(2, 4, length, 64, device="cuda", requires_grad=True) for _ in range(2))
    tokens = torch.randint(0, 60, (2, length), device="cuda")
    places = torch.arange(length, device="cuda")
    first = first_seen(places, starts_of(tokens, 0), window)
    attend = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
    found = attend(query, key, value, first)
    expected = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask_of(first, places, length), enable_gqa=True
    )
    towards = torch.randn_like(expected)
    inputs = (query, key, value)
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=5e-3)
    for ours, wanted in zip(
        torch.autograd.grad(found, inputs, towards),
        torch.autograd.grad(expected, inputs, towards),
        strict=True,
    ):
        torch.testing.assert_close(ours, wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("rank", [0, 1])
def test_kernel_attends_from_a_context_ranks_part_of_a_sample(rank: int) -> None:
    torch.manual_seed(rank)
    part, length = SequencePart(rank, 2, None), 512
    query = torch.randn(2, 8, length, 64, device="cuda")
    key, value = (torch.randn(2, 4, length, 64, device="cuda") for _ in range(2))
    starts = starts_of(torch.randint(0, 60, (2, length), device="cuda"), 0)
    places = part.places(length // 2, query.device)
    first = first_seen(places, part.own(starts), 50)
    found = flex_attention(query[:, :, places], key, value, first, places)
    expected = functional.scaled_dot_product_attention(
        query[:, :, places], key, value, attn_mask=mask_of(first, places, length), enable_gqa=True
    )
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=5e-3)
