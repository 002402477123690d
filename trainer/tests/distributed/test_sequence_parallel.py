# SPDX-License-Identifier: GPL-3.0-or-later
"""Sequence parallelism computes the same as tensor parallelism without it, on a part of the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from rdm_core.config import Config
from rdm_core.cost.dry_run import dry_run
from rdm_trainer import models
from rdm_trainer.engines import create
from rdm_trainer.models.transformer import Norm, PositionEmbedding
from tests.activations import saved_bytes
from tests.distributed import processes, training
from tests.distributed.training import BERT, GPT, MOE, QWEN, T5, configure

TENSOR = {
    "engine": "native",
    "parallel.tensor": 2,
    # Two micro-batches.
    "optimisation.global_batch_size": 4,
    # Keeps AdamW from turning rounding errors into steps: the gradient of a key's bias is 0.
    "optimisation.adam_epsilon": 1e-3,
}
FOUR = {**TENSOR, "parallel.tensor": 4}
FULL = {"parallel.activation_checkpointing": "full"}
PIPELINE = {**TENSOR, "parallel.pipeline": 2}
ONE_SAMPLE = {"optimisation.micro_batch_size": 1}
RELATIVE = {"model.position_embedding": "relative", "model.relative_attention_num_buckets": 8}
JOBS: dict[int, dict[str, Config]] = {
    2: {
        "gpt": configure(GPT, TENSOR),
        "gpt, checkpointing": configure(GPT, {**TENSOR, **FULL, **ONE_SAMPLE}),
        "llama": configure(QWEN, {**TENSOR, **FULL}),
        "bert": configure(BERT, TENSOR),
        "moe, dropping": configure(MOE, {**TENSOR, **FULL, "model.moe_expert_capacity_factor": 1.0}),
        "t5, relative": configure(T5, {**TENSOR, **RELATIVE, **FULL, "model.lm_head_bias": True}),
    },
    4: {
        "llama, tp 4, shared heads": configure(QWEN, {**FOUR, "model.query_groups": 2}),
        "gpt, pp 2": configure(GPT, {**PIPELINE, **FULL}),
        "llama, interleaved": configure(QWEN, {**PIPELINE, "parallel.virtual_pipeline": 2}),
        "llama, dp 2": configure(QWEN, {**TENSOR, "optimisation.global_batch_size": 8}),
        "t5, pp 2": configure(T5, PIPELINE),
        "t5, cp 2": configure(T5, {**TENSOR, "parallel.context": 2}),
    },
}
SHARDED = {"parallel.sequence_parallel": True}
COMPILED = {"optimisation.compile": True}


@processes.own_groups()
def trained(config: Config) -> tuple[list[float], dict[str, torch.Tensor], set[int]]:
    """Train two steps; return losses and gradient norms, weights, and norm layers' tokens of this rank."""
    topology = create.create_topology(config)
    engine: Any = create.create(config, topology)
    tokens: set[int] = set()
    for module in engine.module.modules():
        if isinstance(module, Norm):
            module.register_forward_hook(lambda _, __, states: tokens.add(_states(states).shape[1]))
    data = training.batches(config, topology, 2)
    figures = []
    for _ in range(2):
        step = engine.train_step(data)
        figures += [step.loss, step.grad_norm]
    figures.append(engine.evaluate(training.batches(config, topology, 1)))
    weights = {name: weight.detach().clone() for name, weight in engine.module.named_parameters()}
    engine.close()
    return figures, weights, tokens


def _states(outputs: Any) -> torch.Tensor:
    return outputs if isinstance(outputs, torch.Tensor) else next(o for o in outputs if o.is_floating_point())


def differences(jobs: Mapping[str, Config]) -> dict[str, dict[str, Any]]:
    """Train each job with and without it; return the largest differences, and both norm layers' tokens."""
    found = {}
    for name, job in jobs.items():
        (figures, weights, tokens), (expected, wanted, whole) = (
            trained(configure(job, {"parallel.sequence_parallel": shards})) for shards in (True, False)
        )
        found[name] = {
            "figures": max(abs(mine - theirs) for mine, theirs in zip(figures, expected, strict=True)),
            "weights": {key: float((weights[key] - wanted[key]).abs().max()) for key in wanted},
            "tokens": (tokens, whole),
        }
    return found


@pytest.fixture(scope="module")
def compared() -> dict[str, list[dict[str, Any]]]:
    """Every rank's results for each job."""
    return processes.run_each(differences, JOBS)


@pytest.mark.parametrize(("world", "name"), [(world, name) for world, jobs in JOBS.items() for name in jobs])
def test_losses_and_weights_are_those_without_sequence_parallelism(
    compared: dict[str, list[dict[str, Any]]], world: int, name: str
) -> None:
    tensor = JOBS[world][name].parallel.tensor
    for rank in compared[name]:
        # Ten roundings of a loss: another processor sums in another order.
        assert rank["figures"] < 5e-6
        assert max(rank["weights"].values()) < 1e-6, rank["weights"]
        shards, whole = rank["tokens"]
        assert shards == {tokens // tensor for tokens in whole}


def dropped(job: Config) -> tuple[list[float], list[bool]]:
    """Train; return the losses, and what this rank drops first."""
    topology = create.create_topology(job)
    engine: Any = create.create(job, topology)
    zeros: list[list[bool]] = []
    for module in engine.module.modules():
        if isinstance(module, PositionEmbedding):
            module.register_forward_hook(lambda _, __, states: zeros.append((states == 0).flatten().tolist()))
    data = training.batches(job, topology, 2)
    losses = [engine.train_step(data).loss for _ in range(2)]
    engine.close()
    return losses, zeros[0]


def all_dropped(jobs: Mapping[str, Config]) -> dict[str, tuple[list[float], list[bool]]]:
    return {name: dropped(job) for name, job in jobs.items()}


def test_each_rank_drops_other_features_and_recomputation_repeats_them() -> None:
    job = configure(GPT, {**TENSOR, **SHARDED, "model.hidden_dropout": 0.2, "model.attention_dropout": 0.2})
    jobs = {"first": job, "again": job, "checkpointing": configure(job, FULL)}
    one, other = processes.run(2, all_dropped, jobs)
    zeros = one["first"][1]
    assert 0.1 < sum(zeros) / len(zeros) < 0.3
    assert zeros != other["first"][1]
    assert one["first"][0] == other["first"][0] == one["again"][0]
    assert one["checkpointing"][0] == pytest.approx(one["first"][0], abs=1e-5)


def saved(jobs: Mapping[str, Config]) -> dict[str, int]:
    """Return the bytes that a forward pass of each job keeps for the backward pass, weights left out."""
    found = {}
    with training.without_code("aot_eager_decomp_partition"):
        for name, job in jobs.items():
            topology = create.create_topology(job)
            model = models.build(job, topology)
            batch = next(training.batches(job, topology, 1))
            found[name] = saved_bytes(lambda: model(*batch), model.parameters())[0]  # noqa: B023
    return found


def saved_by_one(jobs: Mapping[str, Config]) -> dict[str, int]:
    """Return the same for one of two ranks, whose collectives change no tensor."""
    dist.destroy_process_group()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    return saved(jobs)


@pytest.mark.parametrize(("experts", "most"), [(None, 0.6), (4, 0.7)])
def test_activation_memory_shrinks_as_the_dry_run_predicts(experts: int | None, most: float) -> None:
    sizes = {"model.hidden_size": 64, "model.seq_length": 64, "model.experts": experts}
    plain = configure(GPT, {**FOUR, **ONE_SAMPLE, **sizes})
    jobs = {"whole": plain, "shared": configure(plain, SHARDED)}
    predicted = {name: dry_run(job, 4).peak.memory.activations for name, job in jobs.items()}
    assert predicted["shared"] < most * predicted["whole"]
    for rank in processes.run(4, saved, jobs):
        assert rank["whole"] - rank["shared"] == pytest.approx(
            predicted["whole"] - predicted["shared"], rel=0.1
        )


def test_compiled_rank_saves_no_more_activations() -> None:
    job = configure(GPT, {**TENSOR, **SHARDED, **ONE_SAMPLE})
    (rank,) = processes.run(1, saved_by_one, {"eager": job, "compiled": configure(job, COMPILED)})
    assert rank["compiled"] <= rank["eager"]
