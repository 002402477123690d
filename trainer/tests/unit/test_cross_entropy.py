# SPDX-License-Identifier: GPL-3.0-or-later
"""The projection and its cross entropy against torch's, with one process."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from rdm_trainer.distributed.tensor_parallel.cross_entropy import linear_cross_entropy


def gradient(value: torch.Tensor) -> torch.Tensor:
    assert value.grad is not None
    return value.grad


def case(
    tokens: int, hidden: int, rows: int, valid: int, seed: int, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(tokens, hidden, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(rows, hidden, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, valid, (tokens,), generator=generator)
    mask = (torch.rand(tokens, generator=generator) < 0.7).float()
    return states, weight, labels, mask


def reference(
    states: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    mask: torch.Tensor,
    valid: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    logits = states @ weight[:valid].t()
    if bias is not None:
        logits = logits + bias[:valid]
    each = functional.cross_entropy(logits, labels, reduction="none")
    return (each * mask).sum() / mask.sum().clamp_min(1.0)


@given(
    tokens=st.integers(1, 20),
    rows=st.integers(2, 30),
    padding=st.integers(0, 5),
    chunk=st.integers(1, 200),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_loss_and_gradients_are_torchs_for_any_chunks(
    tokens: int, rows: int, padding: int, chunk: int, seed: int
) -> None:
    states, weight, labels, mask = case(tokens, 6, rows + padding, rows, seed)
    loss = linear_cross_entropy(states, weight, labels, mask, valid=rows, chunk_elements=chunk)
    (3.0 * loss).backward()
    found = gradient(states), gradient(weight)
    states.grad = weight.grad = None
    expected = reference(states, weight, labels, mask, rows)
    (3.0 * expected).backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(found[0], states.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1], weight.grad, atol=1e-5, rtol=1e-5)
    if padding:
        assert not found[1][rows:].any()


@pytest.mark.parametrize(
    ("dtype", "chunk"), [(torch.float32, 1000), (torch.float32, 40), (torch.float16, 40)]
)
def test_a_bias_of_the_logits_has_torchs_gradient(dtype: torch.dtype, chunk: int) -> None:
    states, weight, labels, mask = case(12, 6, 16, 13, 4, dtype)
    bias = torch.randn(16, generator=torch.Generator().manual_seed(5)).to(dtype).requires_grad_()
    loss = linear_cross_entropy(states, weight, labels, mask, valid=13, chunk_elements=chunk, bias=bias)
    (3.0 * loss).backward()
    wide = [value.detach().float().requires_grad_() for value in (states, weight, bias)]
    expected = reference(wide[0], wide[1], labels, mask, 13, wide[2])
    (3.0 * expected).backward()
    near = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(loss, expected, atol=near, rtol=near)
    for found, wanted in zip((states, weight, bias), wide, strict=True):
        torch.testing.assert_close(gradient(found).float(), gradient(wanted), atol=near, rtol=near)
    assert gradient(bias)[:13].any()
    assert not gradient(bias)[13:].any()


def test_padding_rows_do_not_change_the_loss() -> None:
    states, weight, labels, mask = case(9, 4, 16, 11, 0)
    with torch.no_grad():
        loss = linear_cross_entropy(states, weight, labels, mask, valid=11)
        weight[11:] = 100.0
        assert torch.equal(loss, linear_cross_entropy(states, weight, labels, mask, valid=11))


def test_no_counted_token_gives_no_loss_and_no_gradient() -> None:
    states, weight, labels, mask = case(5, 4, 8, 8, 0)
    loss = linear_cross_entropy(states, weight, labels, torch.zeros_like(mask))
    loss.backward()
    assert loss.item() == 0.0
    assert not gradient(states).any()


def test_nothing_is_saved_without_a_backward_pass() -> None:
    states, weight, labels, mask = case(5, 4, 8, 8, 0)
    with torch.no_grad():
        loss = linear_cross_entropy(states, weight, labels, mask)
    assert loss.grad_fn is None
    torch.testing.assert_close(loss, reference(states, weight, labels, mask, 8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_loss_in_fp32_and_small_gradients_alive(dtype: torch.dtype) -> None:
    states, weight, labels, mask = case(64, 8, 512, 512, 1, dtype)
    scale = 2.0**10
    loss = linear_cross_entropy(states, weight, labels, mask, chunk_elements=5000)
    (loss * scale).backward()
    assert loss.dtype == torch.float32
    wide_states, wide_weight = (value.detach().float().requires_grad_() for value in (states, weight))
    expected = reference(wide_states, wide_weight, labels, mask, 512)
    (expected * scale).backward()
    assert loss.item() == pytest.approx(expected.item(), rel=0.02)
    # Most entries of the weight's gradient are tiny (a token's probability over the tokens), yet not 0.
    found, wanted = gradient(weight), gradient(wide_weight)
    close = (found.float() - wanted).norm() / wanted.norm()
    assert close < 0.02
    assert found.ne(0).float().mean() > 0.99


@pytest.mark.parametrize("chunk", [None, 64 * 100])
def test_a_frequent_token_and_an_outlier_do_not_overflow_fp16(chunk: int | None) -> None:
    tokens, rows = 4096, 64
    states, weight, _, _ = case(tokens, 8, rows, rows, 2, torch.float16)
    with torch.no_grad():
        weight.mul_(0.01)
        states[:, 0] = 40.0
    labels, mask = torch.full((tokens,), 3), torch.ones(tokens)
    loss = linear_cross_entropy(states, weight, labels, mask, chunk_elements=chunk)
    loss.backward()
    wide = weight.detach().float().requires_grad_()
    reference(states.detach().float(), wide, labels, mask, rows).backward()
    assert gradient(wide).abs().max() > 10.0
    torch.testing.assert_close(gradient(weight).float(), gradient(wide), rtol=0.01, atol=1e-3)


def test_a_loss_scale_may_be_larger_than_fp16_can_hold() -> None:
    states, weight, labels, mask = case(64, 8, 512, 512, 1, torch.float16)
    with torch.no_grad():
        weight.mul_(1e-3)
        states.mul_(1e-3)
    mask = torch.zeros_like(mask)
    mask[5] = 1.0
    loss = linear_cross_entropy(states, weight, labels, mask)
    (loss * 2.0**20).backward()
    wide_states, wide_weight = (value.detach().float().requires_grad_() for value in (states, weight))
    (reference(wide_states, wide_weight, labels, mask, 512) * 2.0**20).backward()
    for found, wanted in ((states, wide_states), (weight, wide_weight)):
        torch.testing.assert_close(gradient(found).float(), gradient(wanted), rtol=0.02, atol=0.5)
