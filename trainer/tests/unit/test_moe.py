# SPDX-License-Identifier: GPL-3.0-or-later
"""Mixture of Experts on one process: what the router chooses, drops and balances, and what it costs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional

from rdm_core.config import Config, ModelConfig, OptimisationConfig, ParallelConfig, check
from rdm_core.cost import flops
from rdm_core.cost.dry_run import dry_run
from rdm_trainer import models
from rdm_trainer.distributed.parameters import initialise
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.deepspeed.config import deepspeed_json
from rdm_trainer.models import moe
from rdm_trainer.models.moe import MoE, Router, load_balancing_loss, within_capacity

MODEL = ModelConfig(
    layers=2,
    hidden_size=16,
    attention_heads=4,
    ffn_hidden_size=24,
    seq_length=8,
    vocab_size=50,
    make_vocab_size_divisible_by=8,
    position_embedding="rope",
    activation="swiglu",
    biases="none",
    experts=4,
    moe_router_topk=2,
)


def made(**changes: object) -> MoE:
    module = MoE(Config(model=dataclasses.replace(MODEL, **changes)).spec, Topology.single())  # type: ignore[arg-type]
    initialise(module, "2.mlp.", 1)
    for weight in module.parameters():
        weight.data.mul_(10)
    return module


def tokens(count: int = 12) -> torch.Tensor:
    return torch.randn(3, count // 3, 16, generator=torch.Generator().manual_seed(0))


def one_by_one(module: MoE, rows: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Pass each token through its experts separately, with the router's weights or others."""
    _, given, experts = module.router(rows)
    weights = given if weights is None else weights
    mixed = torch.zeros_like(rows)
    for row, chosen in enumerate(experts.tolist()):
        for slot, number in enumerate(chosen):
            gate, up = (functional.linear(rows[row], part) for part in module.experts.fc1[number])
            out = functional.linear(functional.silu(gate) * up, module.experts.fc2[number])
            mixed[row] += weights[row, slot] * out
    return mixed


def test_each_token_is_the_weighted_sum_of_its_experts() -> None:
    module, states = made(), tokens().requires_grad_()
    found, _ = module(states)
    expected = one_by_one(module, states.flatten(0, 1)).view_as(states)
    torch.testing.assert_close(found, expected)
    sources = [states, *module.parameters()]
    gradients = torch.autograd.grad(found.square().sum(), sources, retain_graph=True)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.square().sum(), sources))


def test_both_conventions_of_the_weights() -> None:
    rows = tokens().flatten(0, 1)
    router = made().router
    logits = functional.linear(rows, router.weight)
    _, weights, experts = router(rows)
    # Mixtral's description: the softmax over the chosen experts.
    torch.testing.assert_close(weights, logits.gather(1, experts).softmax(dim=-1))
    plain = Router(Config(model=dataclasses.replace(MODEL, moe_norm_topk_prob=False)).spec)
    plain.weight = router.weight
    torch.testing.assert_close(plain(rows)[1], logits.softmax(dim=-1).gather(1, experts))


def test_the_load_balancing_loss_is_that_of_transformers() -> None:
    from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

    logits = torch.randn(40, 6, generator=torch.Generator().manual_seed(3))
    probabilities = logits.softmax(dim=-1)
    for top_k in (1, 2, 3):
        expected = load_balancing_loss_func((logits,), 6, top_k)
        found = load_balancing_loss(probabilities, probabilities.topk(top_k).indices)
        torch.testing.assert_close(found, expected)
    even = torch.arange(12).view(6, 2) % 6
    assert load_balancing_loss(torch.full((6, 6), 1 / 6), even) == pytest.approx(2.0)


def test_the_mean_loss_of_equal_parts_is_that_of_all_tokens() -> None:
    logits = torch.randn(40, 6, generator=torch.Generator().manual_seed(3)).requires_grad_()
    probabilities = logits.softmax(dim=-1)
    experts = probabilities.topk(2).indices
    whole = load_balancing_loss(probabilities, experts)
    parts = [load_balancing_loss(part, experts) for part in probabilities.chunk(4)]
    mean = torch.stack(parts).mean()
    torch.testing.assert_close(mean, whole)
    gradients = [torch.autograd.grad(loss, logits, retain_graph=True) for loss in (mean, whole)]
    torch.testing.assert_close(*gradients)


def test_an_expert_takes_its_capacity_and_first_choices_before_second_ones() -> None:
    experts = torch.tensor([[0, 1], [0, 1], [1, 0], [0, 2]])
    expected = torch.tensor([[True, True], [True, False], [True, False], [False, True]])
    assert torch.equal(within_capacity(experts, 3, 2), expected)
    # A large enough factor drops no token; a small one leaves a token only its remaining experts.
    states = tokens()
    torch.testing.assert_close(made(moe_expert_capacity_factor=2.0)(states), made()(states))
    module = made(moe_expert_capacity_factor=0.5)
    rows = states.flatten(0, 1)
    _, weights, chosen = module.router(rows)
    taken = within_capacity(chosen, 4, 3)
    assert 0 < taken.sum() < taken.numel()
    expected = one_by_one(module, rows, weights * taken)
    torch.testing.assert_close(module(states)[0].flatten(0, 1), expected)


def test_grouped_products_give_the_loop_s_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    # One expert has no token.
    rows = torch.randn(10, 16, generator=torch.Generator().manual_seed(0)).requires_grad_()
    counts = torch.tensor([4, 0, 5, 1])
    experts = made().experts
    sources = [rows, *experts.parameters()]
    looped = experts(rows, counts)
    gradients = torch.autograd.grad(looped.square().sum(), sources)
    monkeypatch.setattr(moe, "_has_grouped_products", lambda _: True)
    grouped = experts(rows, counts)
    torch.testing.assert_close(grouped, looped)
    torch.testing.assert_close(torch.autograd.grad(grouped.square().sum(), sources), gradients)


def test_what_cannot_be_is_one_sentence() -> None:
    def job(model: ModelConfig = MODEL, **parallel: int) -> Config:
        return Config(
            model=model,
            parallel=ParallelConfig(**parallel),  # type: ignore[arg-type]
            optimisation=OptimisationConfig(train_iterations=1),
            data=dataclasses.replace(Config().data, mock=True),
        )

    assert check(job(expert=2), 4) == []
    for config, words in (
        (job(dataclasses.replace(MODEL, experts=None), expert=2), "the model has no experts"),
        (job(dataclasses.replace(MODEL, moe_router_topk=5)), "moe_router_topk 5 is above model.experts 4"),
        (job(dataclasses.replace(MODEL, biases="all")), "experts have none"),
        (
            job(dataclasses.replace(MODEL, experts=6), expert=2, tensor=2),
            "experts 6 is not divisible",
        ),
        (job(expert=4), "2 data-parallel ranks are not a multiple of parallel.expert 4"),
        (job(expert=2, pipeline=2, zero_stage=2), "zero_stage 2 is not combined with parallel.pipeline 2"),
    ):
        found = check(config, 2 * config.parallel.tensor * config.parallel.pipeline)
        assert len(found) == 1, found
        assert words in found[0]


def test_costs_follow_a_tokens_experts_and_a_ranks_weights() -> None:
    # With one expert of the dense width per token, a token uses as many parameters as in the dense model.
    dense = Config(model=dataclasses.replace(MODEL, experts=None)).spec
    single = Config(model=dataclasses.replace(MODEL, moe_router_topk=1)).spec
    router = 2 * 4 * 16
    assert flops.active_parameters(single) == flops.parameters(dense) + router
    assert flops.parameters(single) == flops.parameters(dense) + router + 2 * 3 * (3 * 16 * 24)
    forward = sum(flops.forward_flops(single, layer) for layer in flops.layer_sizes(single))
    assert 3 * forward == pytest.approx(flops.flops_per_sample(single))
    job = Config(model=MODEL, parallel=ParallelConfig(expert=2, tensor=2, data=2))
    block = flops.layer_sizes(job.spec)[1]
    assert block.own(2, 2) == block.split // 2 + block.whole + block.experts // 4
    alone, shared = (
        dry_run(dataclasses.replace(job, parallel=ParallelConfig(expert=degree)), 4).peak.memory
        for degree in (1, 4)
    )
    assert alone.weights - shared.weights == 2 * 2 * block.experts * 3 // 4
    # To DeepSpeed, ranks that share experts are one replica.
    assert deepspeed_json(job, 4)["train_batch_size"] == job.optimisation.global_batch_size // 2


def test_a_compiled_block_leaves_its_experts_to_themselves() -> None:
    built = models.build(Config(model=MODEL), Topology.single())
    tokens = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(1))
    labels = tokens.roll(-1, 1), torch.ones(2, 8)

    def gradients() -> list[torch.Tensor]:
        return list(torch.autograd.grad(built(tokens, labels), list(built.parameters())))

    expected = gradients()
    for module in built.modules():
        if isinstance(module, moe.MoEBlock):
            # As training does it; what breaks a graph is found without generating code.
            module.compile(dynamic=False, backend="aot_eager")
    torch.testing.assert_close(gradients(), expected)
