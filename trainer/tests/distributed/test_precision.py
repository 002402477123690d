# SPDX-License-Identifier: GPL-3.0-or-later
"""Half precision: fp32 copies, clipping, loss scaling."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rdm_core.config import Config
from rdm_trainer.engines import create
from tests.distributed import processes, training
from tests.distributed.training import GPT, T5, configure

Results = dict[str, list[dict[str, Any]]]

BF16 = {"optimisation.precision": "bf16"}
FP16 = {"optimisation.precision": "fp16"}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp 2": {},
    "tp 2": {"parallel.tensor": 2},
    "pp 2": {"parallel.pipeline": 2},
}
# For all precisions except fp16.
BOTH_ENGINES = {
    **LAYOUTS,
    **{f"native, {name}": {"engine": "native", **one} for name, one in LAYOUTS.items()},
    "native, dp 2, sums in bf16": {"engine": "native", "parallel.reduce_dtype": "bf16"},
}


def losses_with_fp16(jobs: Mapping[str, Config]) -> Results:
    """Train in fp16 on a CPU, which DeepSpeed rejects only because it is slow."""
    from deepspeed.accelerator import get_accelerator

    type(get_accelerator()).is_fp16_supported = lambda _: True
    return training.losses(jobs, steps=5)


OFFLOADED = {"parallel.offload_optimizer": "cpu"}
# bf16's optimisers of DeepSpeed, one process each.
BF16_OPTIMISERS: dict[str, dict[str, Any]] = {
    "zero 1": {},
    "zero 2": {"parallel.zero_stage": 2},
    "zero 3": {"parallel.zero_stage": 3},
    "zero 1, offloaded": OFFLOADED,
    "zero 2, offloaded": {**OFFLOADED, "parallel.zero_stage": 2},
    "zero 3, offloaded": {**OFFLOADED, "parallel.zero_stage": 3},
}


def norms_after_an_infinite_gradient(jobs: Mapping[str, Config]) -> dict[str, list[float | None]]:
    """Return the norm of each step; a gradient of the first one is infinite."""
    answers = {}
    for name, config in jobs.items():
        topology = create.create_topology(config)
        engine = create.create(config, topology)
        data = training.batches(config, topology, 3)
        # A weight whose gradient no product adds to a sum; with ZeRO 3, all have one dimension.
        weight = next(weight for weight in engine.module.parameters() if weight.dim() == 1)
        hook = weight.register_hook(lambda gradient: gradient * math.inf)
        norms = [engine.train_step(data).grad_norm]
        hook.remove()
        answers[name] = [*norms, *(engine.train_step(data).grad_norm for _ in range(2))]
        engine.close()
    return answers


def _note(written: set[str], key: str, gradient: torch.Tensor | None) -> None:
    # A sum's weight has none.
    if gradient is not None:
        written.add(key)


def written_gradients(jobs: Mapping[str, Config]) -> dict[str, list[str]]:
    """Return the weights of each job whose gradients a step writes, instead of adding them in products."""
    answers = {}
    for name, config in jobs.items():
        topology = create.create_topology(config)
        engine = create.create(config, topology)
        written = set[str]()
        for key, weight in engine.module.named_parameters():
            weight.register_hook(functools.partial(_note, written, key))
        engine.train_step(training.batches(config, topology, 1))
        answers[name] = sorted(written)
        engine.close()
    return answers


@pytest.fixture(scope="module")
def results() -> Results:
    """The results of one process and of two."""
    bases = {"bf16": configure(GPT, BF16), "bf16 t5": configure(T5, BF16)}
    # One case clips much, the other nothing.
    for limit in (0.1, 0.0):
        bases[f"bf16 clip {limit}"] = configure(GPT, {**BF16, "optimisation.clip_grad": limit})
    alone: Results = processes.run(1, training.losses, {**bases, "fp32": GPT, "fp32 t5": T5})[0]
    # DeepSpeed's own implementation of gradients in fp32, which ours must equal.
    alone |= processes.run(
        1,
        training.losses,
        {f"{name} zero 2": configure(base, {"parallel.zero_stage": 2}) for name, base in bases.items()},
    )[0]
    pair: Results = processes.run(
        2,
        training.losses,
        {
            f"{name}: {layout}": configure(base, changes)
            for name, base in bases.items()
            for layout, changes in BOTH_ENGINES.items()
        },
    )[0]
    return alone | pair


def test_matrix_products_accumulate_into_deepspeeds_gradients() -> None:
    jobs = {
        name: configure(base, {**BF16, **changes})
        for name, base, changes in (
            ("native", GPT, {"engine": "native"}),
            ("zero 1", GPT, {}),
            ("zero 2", GPT, {"parallel.zero_stage": 2}),
            ("native t5", T5, {"engine": "native"}),
            ("zero 1 t5", T5, {}),
        )
    }
    found = processes.run(1, written_gradients, jobs)[0]
    assert found["zero 1"] == found["native"]
    assert found["zero 1 t5"] == found["native t5"]
    assert set(found["zero 1"]) < set(found["zero 2"])


@pytest.fixture(scope="module")
def fp16() -> Results:
    """Results with a loss scale at which the first steps overflow: dynamic and fixed, alone and in pairs."""
    dynamic = configure(
        GPT,
        {**FP16, "optimisation.initial_loss_scale_power": 28, "optimisation.loss_scale_hysteresis": 1},
    )
    fixed = configure(GPT, {**FP16, "optimisation.loss_scale": 128.0})
    results: Results = processes.run(1, losses_with_fp16, {"dynamic": dynamic, "fixed": fixed})[0]
    pair = processes.run(
        2,
        losses_with_fp16,
        {f"fixed: {layout}": configure(fixed, changes) for layout, changes in LAYOUTS.items()}
        | {"dynamic: pp 2": configure(dynamic, {"parallel.pipeline": 2})},
    )
    assert pair[0] == pair[1]
    results |= pair[0]
    return results


def curve(steps: list[dict[str, Any]]) -> list[float]:
    return [step["loss"] for step in steps]


def test_infinite_gradient_affects_one_step_alone() -> None:
    jobs = {name: configure(GPT, {**BF16, **changes}) for name, changes in BF16_OPTIMISERS.items()}
    found = processes.run(1, norms_after_an_infinite_gradient, jobs)[0]
    finite = {name: [math.isfinite(norm) for norm in norms] for name, norms in found.items()}
    assert finite == {name: [False, True, True] for name in BF16_OPTIMISERS}


@pytest.mark.parametrize("model", ["", " t5"])
def test_bf16_follows_fp32(results: Results, model: str) -> None:
    assert curve(results[f"bf16{model}"]) == pytest.approx(curve(results[f"fp32{model}"]), abs=0.02)


@pytest.mark.parametrize("layout", BOTH_ENGINES)
@pytest.mark.parametrize("job", ["bf16", "bf16 t5", "bf16 clip 0.1", "bf16 clip 0.0"])
def test_bf16_losses_are_the_same_in_every_layout(results: Results, job: str, layout: str) -> None:
    assert curve(results[f"{job}: {layout}"]) == pytest.approx(curve(results[job]), abs=0.01)


@pytest.mark.parametrize("job", ["bf16", "bf16 t5", "bf16 clip 0.1", "bf16 clip 0.0"])
def test_losses_and_norms_equal_those_with_zero_2(results: Results, job: str) -> None:
    short, long = results[job], results[f"{job} zero 2"]
    # Sums in another order round some bf16 weights differently: 1.3e-4 on some processors, 0 on others.
    assert curve(short) == pytest.approx(curve(long), abs=1e-3)
    for mine, theirs in zip(short[:-1], long[:-1], strict=True):
        assert mine["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3)


def test_clipping_changes_the_losses(results: Results) -> None:
    assert abs(curve(results["bf16 clip 0.1"])[-1] - curve(results["bf16 clip 0.0"])[-1]) > 1e-2


def test_overflow_skips_the_step_and_halves_the_loss_scale(fp16: Results) -> None:
    steps = fp16["dynamic"][:-1]
    assert steps[0]["skipped"]
    assert not math.isfinite(steps[0]["grad_norm"])
    for before, after in itertools.pairwise(steps):
        expected = before["loss_scale"] / 2 if after["skipped"] else before["loss_scale"]
        assert after["loss_scale"] == expected
    assert fp16["dynamic: pp 2"][0]["skipped"]


def test_fp16_with_a_fixed_loss_scale_follows_fp32(results: Results, fp16: Results) -> None:
    steps = fp16["fixed"]
    assert not any(step["skipped"] for step in steps[:-1])
    assert {step["loss_scale"] for step in steps[:-1]} == {128.0}
    assert curve(steps)[:3] == pytest.approx(curve(results["fp32"])[:3], abs=0.02)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp16_losses_are_the_same_in_every_layout(fp16: Results, layout: str) -> None:
    assert curve(fp16[f"fixed: {layout}"]) == pytest.approx(curve(fp16["fixed"]), abs=0.01)
