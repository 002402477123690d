# SPDX-License-Identifier: GPL-3.0-or-later
"""Backward passes add the gradients of weights to their sums."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from rdm_trainer.distributed.gradient_sum import Accumulator, GradientSum, add_embedding_gradient
from rdm_trainer.distributed.parameters import initialise
from rdm_trainer.distributed.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from rdm_trainer.distributed.topology import Topology

_TOKENS = torch.tensor([[1, 4, 4, 0], [6, 1, 2, 4]])


class _Model(nn.Module):
    """Layers of all kinds that can add to sums; the head shares the embedding's weight."""

    def __init__(self, rows: int = 8) -> None:
        super().__init__()
        topology = Topology.single()
        self.embedding = VocabParallelEmbedding(7, rows, 16, topology, 0.5)
        self.wide = ColumnParallelLinear(16, 24, topology, 0.5, stacked=2)
        self.narrow = RowParallelLinear(48, 16, topology, 0.5)
        self.requires_grad_()
        initialise(self, "", seed=3)

    def body(self, tokens: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.embedding(tokens)
        update: torch.Tensor = self.narrow(torch.tanh(self.wide(states)))
        return states + update

    def losses(self, compiled: bool) -> list[torch.Tensor]:
        """Return the losses of two micro-batches, both before any backward pass."""
        body = torch.compile(self.body, backend="aot_eager") if compiled else self.body
        found = []
        for tokens in (_TOKENS, _TOKENS.flip(0)):
            labels = tokens.roll(1, dims=1), torch.ones(tokens.shape)
            found.append(self.embedding(body(tokens), labels))
        return found


def _layers(model: _Model) -> list[ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding]:
    return [model.embedding, model.wide, model.narrow]


def _gradient(weight: nn.Parameter) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [8, 4 * _TOKENS.numel()])  # with a dense gradient and row by row
def test_sums_are_those_of_the_gradients(rows: int, dtype: torch.dtype, compiled: bool) -> None:
    torch._dynamo.reset()
    plain, summed = _Model(rows).to(dtype), _Model(rows).to(dtype)
    for loss in plain.losses(compiled=False):
        loss.backward()
    added: list[nn.Module] = []
    for layer in _layers(summed):
        total = torch.zeros(layer.weight.shape)
        layer.gradient_sum = GradientSum(total, functools.partial(added.append, layer))

    for loss in summed.losses(compiled):
        loss.backward()

    for layer, other in zip(_layers(summed), _layers(plain), strict=True):
        assert layer.gradient_sum is not None
        assert layer.weight.grad is None
        assert layer.gradient_sum.token.grad is None
        assert added.count(layer) == 2
        tolerance = 1e-6 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(
            layer.gradient_sum.total, _gradient(other.weight).float(), rtol=tolerance, atol=tolerance
        )
    assert summed.wide.bias is not None
    assert plain.wide.bias is not None
    assert torch.equal(_gradient(summed.wide.bias), _gradient(plain.wide.bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("frequent", [0.0, 0.5, 1.0])
def test_an_embedding_adds_its_dense_gradient(frequent: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(40, (3, 30), generator=generator)
    tokens[torch.rand(tokens.shape, generator=generator) < frequent] = 7
    gradient = torch.randn(3, 30, 16, generator=generator).to(dtype)
    total = torch.randn(50, 16, generator=generator)
    dense = torch.ops.aten.embedding_dense_backward(gradient, tokens, 50, -1, False)
    expected = total + dense.float()

    add_embedding_gradient(total, gradient, tokens)

    torch.testing.assert_close(total, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("compiled", [False, True])
def test_few_and_many_tokens_add_to_one_sum(compiled: bool) -> None:
    """A T5's encoder and decoder may embed numbers of tokens that have different kernels."""
    torch._dynamo.reset()
    plain, summed = _Model(20), _Model(20)
    total = torch.zeros(summed.embedding.weight.shape)
    summed.embedding.gradient_sum = GradientSum(total, lambda: None)
    for model in (plain, summed):
        embed = torch.compile(model.embedding, backend="aot_eager") if compiled else model.embedding
        few, many = embed(_TOKENS[:1]), embed(_TOKENS)
        many.square().sum().backward()
        few.square().sum().backward()

    torch.testing.assert_close(total, _gradient(plain.embedding.weight))


def test_a_sum_is_that_of_its_memory() -> None:
    buffer = torch.zeros(2, 8, 16)
    model = _Model()
    model.embedding.gradient_sum = GradientSum(buffer[1], lambda: None)

    for loss in model.losses(compiled=False):
        loss.backward()

    assert buffer[1].any()
    assert not buffer[0].any()


def test_without_a_gradient_nothing_is_added() -> None:
    model = _Model()
    total = torch.zeros(model.wide.weight.shape)
    model.wide.gradient_sum = GradientSum(total, lambda: pytest.fail("no backward pass has run"))

    with torch.no_grad():
        model.losses(compiled=False)

    assert not total.any()


def test_small_gradients_are_added_at_the_end_of_each_backward_pass() -> None:
    accumulator = Accumulator(compiled=False)
    sizes = {nn.Parameter(torch.ones(size, dtype=torch.bfloat16)): size for size in (3, 1 << 20, 5)}
    totals = {weight: torch.zeros(size) for weight, size in sizes.items()}
    during = []

    def take(weight: torch.Tensor) -> None:
        assert isinstance(weight, nn.Parameter)
        accumulator.add(totals[weight], _gradient(weight))
        weight.grad = None
        during.append((sizes[weight], float(totals[weight][0])))

    for weight in sizes:
        weight.register_post_accumulate_grad_hook(take)
    for _ in range(2):
        torch.stack([weight.sum() for weight in sizes]).sum().backward()
        torch.stack([weight.sum() for weight in sizes]).sum().backward()

        assert all(torch.equal(total, torch.full_like(total, 2.0)) for total in totals.values())
        assert sorted(during) == [(3, 0.0), (3, 1.0), (5, 0.0), (5, 1.0), (1 << 20, 1.0), (1 << 20, 2.0)]
        torch._foreach_zero_(list(totals.values()))
        during.clear()
