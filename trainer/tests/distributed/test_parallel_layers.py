# SPDX-License-Identifier: GPL-3.0-or-later
"""Tensor-parallel layers against whole ones, and what the engine guarantees besides losses."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch.nn import functional

from rdm_core.config import Config
from rdm_trainer.distributed.parameters import initialise
from rdm_trainer.distributed.tensor_parallel.cross_entropy import linear_cross_entropy
from rdm_trainer.distributed.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines import create
from tests.distributed import processes, training
from tests.distributed.training import GPT, T5, configure


def sharded_cross_entropy(valid: int, padded: int, chunk: int) -> dict[str, Any]:
    """Compare with torch's on the whole vocabulary; the last ranks may have only padding."""
    topology = Topology.create(torch.distributed.get_world_size(), 1)
    generator = torch.Generator().manual_seed(3)
    states = torch.randn(11, 6, generator=generator).requires_grad_()
    whole = torch.randn(padded, 6, generator=generator).requires_grad_()
    whole_bias = torch.randn(padded, generator=generator).requires_grad_()
    labels = torch.randint(0, valid, (11,), generator=generator)
    mask = (torch.rand(11, generator=generator) < 0.7).float()
    logits = functional.linear(states, whole[:valid], whole_bias[:valid])
    each = functional.cross_entropy(logits, labels, reduction="none")
    expected = (each * mask).sum() / mask.sum()
    expected.backward()
    parts, rank = topology.tensor, topology.tensor_rank
    wanted = gradient(states), gradient(whole).chunk(parts)[rank], gradient(whole_bias).chunk(parts)[rank]
    states.grad = None
    part, bias = (one.detach().chunk(parts)[rank].clone().requires_grad_() for one in (whole, whole_bias))
    first = topology.tensor_rank * part.shape[0]
    loss = linear_cross_entropy(
        states,
        part,
        labels,
        mask,
        first=first,
        valid=max(0, min(part.shape[0], valid - first)),
        group=topology.tensor_group,
        chunk_elements=chunk,
        bias=bias,
    )
    loss.backward()
    return {
        "loss": abs(loss.item() - expected.item()),
        "states": (gradient(states) - wanted[0]).abs().max().item(),
        "weight": (gradient(part) - wanted[1]).abs().max().item(),
        "bias": (gradient(bias) - wanted[2]).abs().max().item(),
    }


def gradient(value: torch.Tensor) -> torch.Tensor:
    assert value.grad is not None
    return value.grad


def sharded_layers() -> dict[str, float]:
    """Compare a column-parallel layer followed by a row-parallel one, and a lookup, with whole ones."""
    topology, alone = Topology.create(torch.distributed.get_world_size(), 1), Topology.single()
    inputs = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    tokens = torch.randint(0, 30, (3, 5), generator=torch.Generator().manual_seed(2))
    found = []
    for place in (topology, alone):
        table = VocabParallelEmbedding(30, 32, 8, place, 1.0)
        column, row = ColumnParallelLinear(8, 12, place, 1.0), RowParallelLinear(12, 8, place, 1.0)
        for number, layer in enumerate((table, column, row)):
            initialise(layer, f"{number}.", 7)
            layer.requires_grad_()
        assert row.bias is not None
        states = inputs.clone().requires_grad_()
        output = row(torch.tanh(column(states + table(tokens))))
        output.square().mean().backward()
        part = slice(12 // place.tensor * place.tensor_rank, 12 // place.tensor * (place.tensor_rank + 1))
        weights = (states, column.weight, row.weight, row.bias)
        found.append((output, *map(gradient, weights), part))
    (output, input_gradient, column_gradient, row_gradient, bias_gradient, part), whole = found
    pairs = {
        "output": (output, whole[0]),
        "input gradient": (input_gradient, whole[1]),
        "column gradient": (column_gradient, whole[2][part]),
        "row gradient": (row_gradient, whole[3][:, part]),
        "bias gradient": (bias_gradient, whole[4]),
    }
    return {name: (mine - theirs).abs().max().item() for name, (mine, theirs) in pairs.items()}


def encoder_passes(config: Config) -> int:
    """Count the backward passes of a step through the encoder's last block, over all stages."""
    topology = create.create_topology(config)
    engine = create.create(config, topology)
    passes: list[torch.Tensor] = []
    for name, weight in engine.module.named_parameters():
        if re.fullmatch(r"3\.self_attention\.qkv_proj\.weight", name):
            weight.register_hook(passes.append)
    engine.train_step(training.batches(config, topology, 1))
    return len(passes)


def pending_sums(config: Config) -> int:
    """Return how many all-reduces are still pending after a step."""
    engine = create.create(config, topology := create.create_topology(config))
    engine.train_step(training.batches(config, topology, 1))
    count: int = torch._C._distributed_c10d._get_work_registry_size()
    return count


@pytest.mark.parametrize(
    ("world", "valid", "padded", "chunk"), [(2, 13, 16, 1000), (3, 11, 24, 30), (4, 7, 16, 8)]
)
def test_cross_entropy_over_a_sharded_vocabulary_is_exact(
    world: int, valid: int, padded: int, chunk: int
) -> None:
    for answer in processes.run(world, sharded_cross_entropy, valid, padded, chunk):
        assert max(answer.values()) < 1e-5, answer


@pytest.mark.parametrize("world", [2, 4])
def test_sharded_layers_compute_the_same_as_whole_ones(world: int) -> None:
    for answer in processes.run(world, sharded_layers):
        assert max(answer.values()) < 1e-5, answer


def test_dropout_is_the_same_with_and_without_activation_checkpointing() -> None:
    plain = configure(GPT, {"parallel.tensor": 2, "optimisation.lr": 1e-3})
    job = configure(plain, {"model.hidden_dropout": 0.2, "model.attention_dropout": 0.2})
    kept = configure(job, {"parallel.activation_checkpointing": "full"})
    jobs = {"first": job, "again": job, "checkpointing": kept, "none": plain}
    answers = processes.run(2, training.losses, jobs)
    assert answers[0] == answers[1], "what is whole on each rank was dropped differently"
    curves = {name: [step["loss"] for step in steps] for name, steps in answers[0].items()}
    assert curves["again"] == curves["first"]
    assert curves["checkpointing"] == pytest.approx(curves["first"], abs=1e-5)
    assert curves["none"][0] != pytest.approx(curves["first"][0], abs=1e-3)


def test_stage_with_encoder_and_decoder_runs_one_backward_pass_of_the_encoder() -> None:
    job = configure(T5, {"parallel.pipeline": 2, "parallel.partition": "3-1"})
    assert sum(processes.run(2, encoder_passes, job)) == job.accumulation(1)


def test_no_all_reduce_is_pending_after_activation_recomputation() -> None:
    """PyTorch would keep it, and its tensors, until the process ends."""
    job = configure(GPT, {"parallel.tensor": 2, "parallel.activation_checkpointing": "full"})
    assert processes.run(2, pending_sums, job) == [0, 0]
