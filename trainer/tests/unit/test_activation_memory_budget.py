# SPDX-License-Identifier: GPL-3.0-or-later
"""What compiled blocks keep for the backward pass within a budget."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import lookup_backend
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache

from rdm_core.config import Config, ModelConfig, OptimisationConfig, ParallelConfig, check
from rdm_core.cost.dry_run import dry_run
from rdm_trainer import models, profile_model
from rdm_trainer.distributed.pipeline_parallel.pipeline import _compiler
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.transformer import Block
from tests import architectures
from tests.activations import saved_bytes

GPT = ModelConfig(
    layers=2,
    hidden_size=64,
    attention_heads=4,
    seq_length=32,
    vocab_size=50,
    make_vocab_size_divisible_by=8,
)
LLAMA = dataclasses.replace(GPT, query_groups=2, ffn_hidden_size=192, **architectures.LLAMA)


def run(forward: Callable[[], torch.Tensor], weights: list[torch.Tensor]) -> tuple[int, list[torch.Tensor]]:
    """Return the bytes that a forward pass saves besides the weights, and its result with their gradients."""
    size, result = saved_bytes(forward, weights)
    return size, [result.detach(), *torch.autograd.grad(result, weights)]


@pytest.mark.parametrize("shape", [GPT, LLAMA], ids=["gpt", "llama"])
def test_smaller_budget_saves_fewer_activations(shape: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def without_code(graph: torch.fx.GraphModule, inputs: list[Any], options: Any) -> Any:
        assert options is None
        graphs.append(graph)
        return lookup_backend("aot_eager_decomp_partition")(graph, inputs)

    monkeypatch.setattr(torch._inductor, "compile", without_code)
    shape_of_states = (2, shape.seq_length, shape.hidden_size)
    states = torch.randn(shape_of_states, generator=torch.Generator().manual_seed(1), requires_grad=True)
    sizes, passes = [], []
    for budget in (1.0, 0.5, 0.2, 0.05):
        torch.compiler.reset()
        graphs.clear()
        job = Config(
            model=shape,
            parallel=ParallelConfig(activation_memory_budget=budget),
            optimisation=OptimisationConfig(
                micro_batch_size=2,
                global_batch_size=2,
                train_iterations=1,
                precision="fp32",
                compile=budget < 1,
            ),
        )
        model = models.build(job, Topology.single())
        blocks = nn.Sequential(*(layer for layer in model.modules() if isinstance(layer, Block)))
        size, found = run(lambda: blocks(states).square().mean(), [states, *blocks.parameters()])  # noqa: B023
        sizes.append(size)
        passes.append(found)
        if budget < 1:
            assert len(graphs) == 1, "the blocks do not share what is compiled"
            assert size < dry_run(job, 1).peak.memory.activations
    for found in passes[1:]:
        torch.testing.assert_close(found, passes[0])
    assert all(smaller < 0.8 * larger for larger, smaller in itertools.pairwise(sizes))


@pytest.mark.parametrize(("saved", "budget"), [("none", 0.5), ("full", 1.0)])
def test_a_profile_measures_blocks_within_the_budget_and_checkpointed_ones_without(
    saved: str, budget: float
) -> None:
    job = Config(
        model=GPT,
        parallel=ParallelConfig(activation_memory_budget=0.5),
        optimisation=OptimisationConfig(train_iterations=1, compile=True),
    )
    measured = profile_model._job(job, Topology.single(), (1, 1), saved)
    assert measured.parallel.activation_checkpointing == saved
    assert measured.parallel.activation_memory_budget == budget
    assert not check(measured)


def test_the_compilers_cache_distinguishes_budgets() -> None:
    generator = torch.Generator().manual_seed(1)
    # Products of matrices need no code.
    weights = [torch.randn(16, 16, generator=generator, requires_grad=True) for _ in range(4)]
    inputs = torch.randn(64, 16, generator=generator)

    def forward() -> torch.Tensor:
        return inputs @ weights[0] @ weights[1] @ weights[2] @ weights[3]

    def compiled(budget: float) -> tuple[int, int]:
        torch.compiler.reset()
        counters.clear()
        pass_ = torch.compile(forward, dynamic=False, backend=_compiler(budget, None))
        size, found = run(lambda: pass_().mean(), weights)
        torch.testing.assert_close(found, expected)
        return size, counters["aot_autograd"]["autograd_cache_hit"]

    _, expected = run(lambda: forward().mean(), weights)
    with fresh_cache():
        found = [compiled(budget) for budget in (0.9, 0.3, 0.9, 0.3)]
    (more, _), (less, _) = found[:2]
    assert more > less
    assert found == [(more, 0), (less, 0), (more, 1), (less, 1)]
