# SPDX-License-Identifier: GPL-3.0-or-later
"""Trainings with matrix products in fp8, which a CPU emulates."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from rdm_trainer.distributed.parameters import initialise
from rdm_trainer.distributed.tensor_parallel.float8 import Float8Weight
from rdm_trainer.distributed.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines import create
from tests.distributed import processes, resuming, training
from tests.distributed.training import GPT, configure

WIDE = {
    "engine": "native",
    "optimisation.precision": "bf16",
    "model.layers": 2,
    # Of each block, only the first products of the attention and of the MLP are large enough.
    "model.kv_channels": 192,
    "model.ffn_hidden_size": 2112,
}
FP8 = {"optimisation.fp8_recipe": "tensorwise"}
BF16 = configure(GPT, WIDE)
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp 2": {},
    "tp 2": {"parallel.tensor": 2},
    "tp 2, sequence parallel": {"parallel.tensor": 2, "parallel.sequence_parallel": True},
    "pp 2": {"parallel.pipeline": 2},
}


def sharded_layers(sequence_parallel: bool) -> dict[str, float]:
    """Compare fp8 layers of all tensor ranks with whole bf16 layers; return relative errors."""
    topology = Topology.create(dist.get_world_size(), 1, sequence_parallel=sequence_parallel)
    inputs = torch.randn(2, 32, 32, generator=torch.Generator().manual_seed(1)).bfloat16()

    def part(whole: torch.Tensor, dimension: int) -> torch.Tensor:
        return whole.chunk(topology.tensor, dimension)[topology.tensor_rank]

    def own(tokens: torch.Tensor) -> torch.Tensor:
        return part(tokens, 1) if sequence_parallel else tokens

    found = []
    for place, states in ((topology, own(inputs)), (Topology.single(), inputs)):
        column, row = ColumnParallelLinear(32, 64, place, 1.0), RowParallelLinear(64, 32, place, 1.0)
        for number, layer in enumerate((column, row)):
            initialise(layer, f"{number}.", 7)
            layer.to(torch.bfloat16)
        if place is topology:
            column.float8, row.float8 = (
                Float8Weight(weight, "tensorwise", compiled=False) for weight in (column.weight, row.weight)
            )
            column.float8.update(column.weight)
            row.float8.update(row.weight)
        states = states.clone().requires_grad_()
        output = row(torch.tanh(column(states) / 8))
        (output * output.detach()).sum().backward()
        found.append([output, states.grad, column.weight.grad, row.weight.grad])
    output, *gradients = found[1]
    wanted = [own(output), own(gradients[0]), part(gradients[1], 0), part(gradients[2], 1)]
    return {
        name: float((mine.float() - theirs.float()).norm() / theirs.float().norm())
        for name, mine, theirs in zip(("output", "input", "column", "row"), found[0], wanted, strict=True)
    }


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_sharded_layers_in_fp8_are_close_to_bf16(sequence_parallel: bool) -> None:
    for errors in processes.run(2, sharded_layers, sequence_parallel):
        # e4m3 has 3 bits after the point and e5m2, for gradients, has 2.
        assert all(0.005 < error < 0.15 for error in errors.values()), errors


@pytest.fixture(scope="module")
def losses() -> dict[str, list[dict[str, Any]]]:
    """Losses in bf16, and in fp8 in each layout."""
    fp8 = configure(BF16, FP8)
    alone = processes.run(1, training.losses, {"bf16": BF16, "fp8": fp8})[0]
    jobs = {name: configure(fp8, changes) for name, changes in LAYOUTS.items()}
    return {**alone, **processes.run(2, training.losses, jobs)[0]}


@pytest.mark.parametrize("name", ["fp8", *LAYOUTS])
def test_fp8_losses_are_close_to_bf16(losses: dict[str, list[dict[str, Any]]], name: str) -> None:
    bf16, fp8 = ([step["loss"] for step in losses[one]] for one in ("bf16", name))
    assert fp8 == pytest.approx(bf16, rel=0.01)
    assert fp8 != bf16


def test_activation_recomputation_gives_the_same_losses() -> None:
    fp8 = configure(BF16, FP8)
    again = configure(fp8, {"parallel.activation_checkpointing": "full"})
    (found,) = processes.run(1, training.losses, {"fp8": fp8, "again": again})
    assert found["again"] == found["fp8"]


def casts() -> dict[str, Any]:
    """Take two steps and evaluate; return how often each weight was cast, and the errors of the casts."""
    config = configure(BF16, FP8)
    topology = create.create_topology(config)
    engine: Any = create.create(config, topology)
    weights = [one for one in engine.module.modules() if isinstance(one, Float8Weight)]
    counts = dict.fromkeys(weights, 0)
    update = Float8Weight.update

    def counted(one: Float8Weight, weight: torch.Tensor) -> None:
        counts[one] += 1
        update(one, weight)

    data = training.batches(config, topology, 3)
    with mock.patch.object(Float8Weight, "update", counted):
        engine.train_step(data)
        engine.train_step(data)
        after_steps = list(counts.values())
        engine.evaluate(data)
    errors = []
    for one in engine.module.modules():
        if getattr(one, "float8", None) is not None:
            error = one.float8.rows.float() * one.float8.row_scale - one.weight.float()
            errors.append(float(error.norm() / one.weight.norm()))
    columns = [torch.equal(one.columns.t().float(), one.rows.float()) for one in weights]
    answer = {"counts": after_steps, "last": list(counts.values()), "errors": errors, "columns": columns}
    engine.close()
    return answer


def test_weights_are_cast_to_fp8_once_per_step() -> None:
    (found,) = processes.run(1, casts)
    # Two blocks with two products each; a step has four micro-batches.
    assert found["counts"] == [2] * 4
    # An evaluation casts the weights of the last step.
    assert found["last"] == [3] * 4
    assert all(0 < error < 0.04 for error in found["errors"])
    assert found["columns"] == [True] * 4


def resumed(job_dir: str, recipes: tuple[str, str]) -> dict[int, float]:
    """Train four steps with one recipe and four with another; return the losses."""
    found: dict[int, float] = {}
    for recipe, stop in zip(recipes, (4, None), strict=True):
        job = configure(resuming.GPT, {**WIDE, "optimisation.fp8_recipe": recipe})
        found |= resuming.train(job, Path(job_dir), stop_after=stop).losses()
    return found


def test_resumed_job_may_change_the_fp8_recipe(tmp_path: Path) -> None:
    recipes = [("none", "none"), ("none", "tensorwise"), ("tensorwise", "none"), ("tensorwise", "tensorwise")]
    runs = {one: processes.run(1, resumed, str(tmp_path / "-".join(one)), one)[0] for one in recipes}
    bf16 = runs["none", "none"]
    assert set(bf16) == set(range(1, 9))
    for losses in runs.values():
        assert losses == pytest.approx(bf16, rel=0.01)
    # The first steps depend on the first recipe alone, and the checkpoint on no recipe.
    for first, second in recipes:
        assert all(runs[first, second][step] == runs[first, first][step] for step in range(1, 5))
    assert runs["none", "tensorwise"][5] != bf16[5]
