# SPDX-License-Identifier: GPL-3.0-or-later
"""Matrix products in fp8; ``tests/distributed/test_fp8.py`` trains with them."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rdm_core import float8
from rdm_core.config import Config, check, from_dict, load
from rdm_core.cost.dry_run import dry_run
from rdm_core.errors import TrainerError
from rdm_planner.job import Job, published_peaks
from rdm_planner.layouts import with_layout
from rdm_planner.nodes import NodeKind
from rdm_planner.report import nearest_batch
from rdm_planner.search_space import SearchSpace
from rdm_planner.trainer_model import TrainerModel
from rdm_trainer import models, process
from rdm_trainer.cli import cli
from rdm_trainer.distributed.tensor_parallel.float8 import Float8Weight
from rdm_trainer.distributed.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engine_step import engine_step
from tests.distributed.training import GPT, MOE, QWEN, T5

CONFIGS = Path(__file__).parents[2] / "configs"
H100 = NodeKind("H100", gpus=4, inter=400e9, intra=3600e9, memory_gib=79.1)
Recipe = Literal["tensorwise", "rowwise"]


def layer_in_fp8(recipe: Recipe) -> tuple[ColumnParallelLinear, Float8Weight]:
    torch.manual_seed(1)
    layer = ColumnParallelLinear(64, 48, Topology.single(), 1.0, stacked=2)
    for weight in layer.parameters():
        weight.data = torch.randn(weight.shape).bfloat16()
    layer.float8 = Float8Weight(layer.weight, recipe, compiled=False)
    layer.float8.update(layer.weight)
    return layer, layer.float8


def in_fp8(
    values: torch.Tensor, recipe: Recipe, dimension: int, *, is_gradient: bool = False
) -> torch.Tensor:
    """Return the values that fp8 can represent nearest to a matrix's, in float64."""
    maximum = values.double().abs().amax(dimension, keepdim=True)
    dtype = torch.float8_e5m2 if is_gradient and recipe == "tensorwise" else torch.float8_e4m3fn
    if recipe == "tensorwise":
        scale = torch.finfo(dtype).max / maximum.max()
    else:
        scale = (torch.finfo(dtype).max / maximum).log2().floor().exp2()
    return (values.float() * scale.float()).to(dtype).double() / scale


@pytest.mark.parametrize("recipe", get_args(Recipe))
def test_a_layer_multiplies_values_in_fp8(recipe: Recipe) -> None:
    layer, _ = layer_in_fp8(recipe)
    inputs = torch.randn(2, 16, 64).bfloat16().requires_grad_()
    gradient = torch.randn(2, 16, 96).bfloat16()
    output = layer(inputs)
    output.backward(gradient)
    matrix, out = inputs.detach().flatten(0, 1), gradient.flatten(0, 1)
    weight = layer.weight.detach().flatten(0, 1)
    assert layer.bias is not None
    expected = {
        "output": in_fp8(matrix, recipe, 1) @ in_fp8(weight, recipe, 1).t() + layer.bias.flatten().double(),
        "input": in_fp8(out, recipe, 1, is_gradient=True) @ in_fp8(weight, recipe, 0),
        "weight": in_fp8(out, recipe, 0, is_gradient=True).t() @ in_fp8(matrix, recipe, 0),
        "bias": out.double().sum(0),
    }
    assert inputs.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    found = {
        "output": output.flatten(0, 1),
        "input": inputs.grad.flatten(0, 1),
        "weight": layer.weight.grad.flatten(0, 1),
        "bias": layer.bias.grad.flatten(),
    }
    for name, values in found.items():
        # The results are rounded to bf16.
        torch.testing.assert_close(values.double(), expected[name], rtol=2**-7, atol=0.05)
    # It did not compute in bf16.
    assert (output.flatten(0, 1).double() - (matrix @ weight.t()).double()).abs().max() > 0.1


def test_a_weight_is_cast_only_by_an_update() -> None:
    layer, weight = layer_in_fp8("tensorwise")
    inputs = torch.randn(16, 64).bfloat16()
    before = layer(inputs)
    layer.weight.data *= 2
    assert torch.equal(layer(inputs), before)
    weight.update(layer.weight)
    assert not torch.equal(layer(inputs), before)
    assert not layer.state_dict().keys() - {"weight", "bias"}


@pytest.mark.parametrize("recipe", get_args(Recipe))
def test_zeros_stay_zeros_and_values_that_are_not_finite_stay_so(recipe: Recipe) -> None:
    layer, _ = layer_in_fp8(recipe)
    assert layer.bias is not None
    layer.bias.data.zero_()
    assert not layer(torch.zeros(16, 64).bfloat16()).any()
    for wrong in (float("inf"), float("nan")):
        inputs = torch.ones(16, 64).bfloat16()
        inputs[3, 5] = wrong
        assert layer(inputs)[3].isnan().all()


@pytest.mark.parametrize("config", [GPT, QWEN, MOE, T5], ids=["gpt", "qwen", "moe", "t5"])
def test_the_products_are_those_of_the_models_blocks(config: Config) -> None:
    topology = Topology.single()
    with torch.device("meta"):
        blocks = [layer.make() for layer in models.layers(config, topology) if layer.kind.endswith("Block")]
    products = float8.products(config.spec, 1)
    found = {
        name: tuple(reversed(one.weight.flatten(0, -2).shape))
        for name, one in blocks[-1].named_modules()
        if isinstance(one, ColumnParallelLinear | RowParallelLinear)
    }
    assert found == products


def test_small_products_stay_in_bf16() -> None:
    sizes = [(2048, 2048), (4096, 1024), (8192, 1024), (4096, 4096), (1024, 8192)]
    assert [float8.gains("tensorwise", *one) for one in sizes] == [True, False, True, True, True]
    assert [float8.gains("rowwise", *one) for one in sizes] == [False, False, False, True, False]
    assert not any(float8.gains("none", *one) for one in sizes)


@given(st.integers(1, 300), st.integers(1, 4), st.integers(1, 3), st.integers(1, 64))
def test_micro_batches_in_fp8_are_multiples_of_the_least(
    length: int, tensor: int, context: int, samples: int
) -> None:
    keys = [f"model.seq_length={length * context}", f"optimisation.micro_batch_size={samples}"]
    keys += ["optimisation.fp8_recipe=tensorwise", f"parallel.tensor={tensor}", f"parallel.context={context}"]
    job = from_dict(GPT.to_dict(), keys)
    can = float8.tokens(job) % float8.MULTIPLE == 0
    assert can is (samples % float8.least_micro_batch(job) == 0)


@pytest.mark.parametrize("length", [8192, 8184, 8188])
def test_tune_takes_the_micro_batches_that_train_in_fp8(length: int) -> None:
    keys = ["optimisation.global_batch_size=64", f"model.seq_length={length}"]
    bf16 = tuned(*keys, "optimisation.fp8_recipe=none")
    fp8 = tuned(*keys)
    # A sequence of 8184 tokens needs 2 samples, and in halves 4.
    expected = {one for one in bf16.layouts() if not check(with_layout(fp8.job.config, one), 4)}
    assert set(fp8.layouts()) == expected
    assert {one.tensor for one in expected} == {1, 2, 4}


def test_tune_names_the_nearest_batch_that_trains_in_fp8() -> None:
    model = tuned("optimisation.global_batch_size=13", "model.seq_length=1016")
    assert not list(model.layouts())
    assert nearest_batch(model.job, 4, 4) == 12


def tuned(*overrides: str) -> TrainerModel:
    keys = ["engine=native", "model.layers=2", "optimisation.fp8_recipe=tensorwise"]
    keys += ["launcher.nodes=null", "launcher.devices_per_node=null"]
    job = load(CONFIGS / "llama3-8b.yaml", [*keys, *overrides])
    return TrainerModel(
        Job(SearchSpace(job), published_peaks(job, [H100], {"H100": 989.4}, 0.5), engine_step), (H100,)
    )


def test_a_dry_run_counts_two_copies_of_each_weight() -> None:
    job = load(CONFIGS / "llama3-8b.yaml", ["engine=native", "parallel.zero_stage=1"])
    fp8 = from_dict(job.to_dict(), ["optimisation.fp8_recipe=tensorwise"])
    world = job.written_world_size
    bf16, both = (dry_run(one, world).stages[0] for one in (job, fp8))
    assert {one.memory.weights for one in (bf16, both)} == {bf16.memory.weights}
    products = sum(a * b for a, b in float8.products(job.spec, job.parallel.tensor).values())
    assert both.memory.buffers - bf16.memory.buffers == 2 * products * both.blocks


@pytest.mark.parametrize(
    ("gpu", "trains"), [("A100-80", False), ("MI300X", False), ("L40S", True), ("H100", True)]
)
def test_a_dry_run_tells_which_gpus_do_not_train_in_fp8(gpu: str, trains: bool) -> None:
    keys = ["engine=native", "parallel.zero_stage=1", "optimisation.fp8_recipe=tensorwise"]
    done = CliRunner().invoke(cli, ["dry-run", str(CONFIGS / "llama3-8b.yaml"), "--gpu", gpu, *keys])
    assert ("does not train in fp8" in done.output) is not trains


def test_tune_needs_a_profile_for_fp8() -> None:
    job = [str(CONFIGS / "llama3-8b.yaml"), "engine=native", "optimisation.fp8_recipe=tensorwise"]
    command = ["tune", "--nodes", "1xH100:8", *job, "parallel.zero_stage=1"]
    with pytest.raises(TrainerError, match="only a profile knows what that gains") as rejected:
        CliRunner().invoke(cli, command, catch_exceptions=False, standalone_mode=False)
    # The command measures this job, and not what the file alone says. A profile is for any layout.
    measure = shlex.join(["rdm-trainer", "profile", *job])
    assert str(rejected.value).endswith(f"fp8_recipe=none, or measure it: {measure}")


@pytest.mark.parametrize(("capability", "hip"), [((8, 0), None), ((9, 4), "7.0")])
def test_a_device_without_fp8_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], hip: Any
) -> None:
    monkeypatch.setattr(process, "device", lambda: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A device")
    monkeypatch.setattr(torch.version, "hip", hip)
    with pytest.raises(TrainerError, match=r"this node has A device .*set fp8_recipe to none"):
        process.require_device("bf16", "auto", fp8_recipe="rowwise")
