# SPDX-License-Identifier: GPL-3.0-or-later
"""A training that is stopped and resumed, under the same layout or another, equals one that never stopped."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from rdm_core.config import Blend, DataConfig
from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint.distributed import Saved, read_metadata
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STEP
from rdm_trainer.data.indexed_dataset import IndexedWriter
from rdm_trainer.train import Training
from tests.distributed import deepspeed_files, processes, resuming, training
from tests.distributed.resuming import RAMP, Case, parallel

STEPS = 6
GPT, QWEN, MOE, T5 = (
    training.configure(job, {"optimisation.train_iterations": STEPS})
    for job in (resuming.GPT, resuming.QWEN, resuming.MOE, resuming.T5)
)
TOLERANCE = 1e-4
BF16 = {"optimisation.precision": "bf16"}
NATIVE = {"engine": "native"}
INTERLEAVED = {**NATIVE, **parallel(pipeline=2, virtual_pipeline=2)}
OFFLOADED = parallel(zero_stage=3, offload_optimizer="cpu", offload_parameters="cpu")
Losses = dict[str, dict[int, float]]

CASES = [
    Case("background", training.configure(GPT, {"checkpoint.asynchronous": True}), parallel(), parallel()),
    Case("for-one-rank", GPT, parallel(pipeline=2), None),
    Case("whole-for-one-rank", GPT, parallel(zero_stage=0), None),
    Case("pipeline-to-tensor", GPT, parallel(pipeline=2), parallel(tensor=2, zero_stage=2)),
    Case("three-to-native", GPT, {**BF16, **parallel(zero_stage=3)}, {**NATIVE, **BF16, **parallel()}),
    # DeepSpeed's own files. tests/distributed/test_partitions.py reads those of other stages.
    Case(
        "earlier-experts",
        MOE,
        parallel(expert=2, tensor=2, zero_stage=0),
        parallel(expert=4),
        earlier=True,
    ),
    Case("one-to-three", GPT, parallel(tensor=2, pipeline=2), parallel(tensor=2, zero_stage=3)),
    Case(
        "experts",
        MOE,
        parallel(expert=2, pipeline=2),
        parallel(expert=2, tensor=2),
    ),
    Case("offloaded", GPT, OFFLOADED, parallel(tensor=2, offload_optimizer="cpu")),
    Case("experts-three", MOE, parallel(expert=2, zero_stage=3), parallel(expert=4)),
    Case("t5", T5, parallel(pipeline=2), parallel(tensor=2)),
    Case("ramp", RAMP, parallel(pipeline=2), parallel(tensor=2)),
    Case("precision", GPT, {**BF16, **parallel(zero_stage=2)}, parallel(zero_stage=1)),
    Case("native-t5", T5, INTERLEAVED, {**NATIVE, **parallel()}),
    Case(
        "native-background",
        training.configure(QWEN, {"checkpoint.asynchronous": True}),
        {**NATIVE, **parallel(tensor=2)},
        {**NATIVE, **parallel(pipeline=2)},
    ),
    Case("native-bf16", GPT, {**NATIVE, **BF16, **parallel()}, {**NATIVE, **BF16, **parallel(tensor=2)}),
    Case(
        "experts-context",
        MOE,
        {**NATIVE, **parallel(expert=4, context=2)},
        {**NATIVE, **parallel(expert=2, tensor=2, sequence_parallel=True)},
    ),
    Case("context", QWEN, {**NATIVE, **parallel(context=2, pipeline=2)}, {**NATIVE, **parallel(context=4)}),
    Case(
        "sequence-parallel",
        QWEN,
        {**NATIVE, **parallel(tensor=2, sequence_parallel=True)},
        {**NATIVE, **parallel(tensor=2)},
    ),
    Case("to-native", GPT, parallel(tensor=2), {**NATIVE, **parallel(pipeline=2)}),
    Case("from-native", GPT, INTERLEAVED, parallel(tensor=2, zero_stage=2)),
    Case("qwen-to-native", QWEN, parallel(zero_stage=3), {**NATIVE, **parallel(tensor=2)}),
]
MORE_CASES = [
    Case("resumed", GPT, parallel(pipeline=2), parallel(pipeline=2)),
    Case("three-to-one", GPT, parallel(tensor=2, zero_stage=3), parallel(pipeline=2)),
    Case("one-to-none", GPT, parallel(pipeline=2), parallel(tensor=2, zero_stage=0)),
    Case("qwen-from-native", QWEN, {**NATIVE, **parallel(pipeline=2)}, parallel(tensor=2, zero_stage=0)),
    Case("t5-to-native", T5, {**parallel(pipeline=2, zero_stage=0)}, {**NATIVE, **parallel(tensor=2)}),
    Case("experts-to-native", MOE, parallel(expert=2, zero_stage=2), {**NATIVE, **parallel(expert=4)}),
    Case("bf16-to-native", GPT, {**BF16, **parallel(pipeline=2)}, {**NATIVE, **BF16, **parallel(tensor=2)}),
    Case("native", GPT, {**NATIVE, **parallel(tensor=2)}, {**NATIVE, **parallel(pipeline=2)}),
    Case("data-to-uneven", GPT, parallel(zero_stage=2), parallel(pipeline=4, partition="0-1-3-0")),
    Case("none-to-one", GPT, parallel(tensor=2, pipeline=2, zero_stage=0), parallel()),
    Case("experts-none", MOE, parallel(expert=2, tensor=2, zero_stage=0), parallel(expert=2, zero_stage=3)),
    Case("ramp, zero 2", RAMP, parallel(tensor=2, zero_stage=2), parallel(tensor=2, zero_stage=2)),
    Case("bf16", GPT, {**BF16, **parallel(pipeline=2)}, {**BF16, **parallel(tensor=2)}),
    Case("native-ramp", RAMP, {**NATIVE, **parallel(pipeline=2)}, {**NATIVE, **parallel(tensor=2)}),
    Case(
        "native-experts",
        MOE,
        {**NATIVE, **parallel(expert=2, pipeline=2)},
        {**NATIVE, **parallel(expert=2, tensor=2)},
    ),
    Case(
        "to-sequence-parallel",
        GPT,
        {**NATIVE, **parallel(tensor=2)},
        {**NATIVE, **parallel(tensor=2, pipeline=2, sequence_parallel=True)},
    ),
    Case("t5-from-native", T5, {**NATIVE, **parallel(tensor=2)}, parallel(pipeline=2)),
]
"""Pairs whose layouts and models CASES already have in other pairs."""


def uninterrupted(root: str) -> dict[str, dict[int, float]]:
    """Train without a stop, and resume on one rank from what four ranks saved."""
    jobs = {
        "gpt": GPT,
        "moe": MOE,
        "t5": T5,
        "qwen": QWEN,
        "ramp": RAMP,
        "bf16": training.configure(GPT, BF16),
    }
    found = {
        name: resuming.train(job, Path(root) / f"unbroken-{name}").losses() for name, job in jobs.items()
    }
    found["alone"] = resuming.train(GPT, Path(root) / "for-one-rank").losses()
    whole = training.configure(GPT, parallel(zero_stage=0))
    found["alone, whole"] = resuming.train(whole, Path(root) / "whole-for-one-rank").losses()
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Where the jobs of all cases are."""
    return str(tmp_path_factory.mktemp("jobs"))


@pytest.fixture(scope="module")
def resumed(root: str) -> Losses:
    """The losses of every case."""
    found: Losses = {}
    # On a busy machine, all cases would take longer than a launch may.
    for first in range(0, len(CASES), 8):
        found |= processes.run(4, resuming.run_cases, CASES[first : first + 8], root)[0]
    return found


@pytest.fixture(scope="module")
def reference(root: str, resumed: Losses) -> Losses:
    """The losses of one rank that never stopped, and of one that resumes from what four ranks saved."""
    found: Losses = processes.run(1, uninterrupted, root)[0]
    return found


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.resumed is not None], ids=lambda case: case.name
)
def test_resumed_job_equals_an_uninterrupted_one(case: Case, resumed: Losses, reference: Losses) -> None:
    kind = "bf16" if case.saved.get("optimisation.precision") else case.base.name
    found = resumed[case.name]
    steps = 8 if kind == "ramp" else STEPS
    assert found.keys() == reference[kind].keys() == set(range(1, steps + 1))
    tolerance = 1e-2 if kind == "bf16" else TOLERANCE
    assert found == pytest.approx(reference[kind], abs=tolerance)


@pytest.mark.long
def test_job_resumes_in_other_pairs_of_layouts(root: str, reference: Losses) -> None:
    resumed = processes.run(4, resuming.run_cases, MORE_CASES, root)[0]
    for case in MORE_CASES:
        test_resumed_job_equals_an_uninterrupted_one(case, resumed, reference)


def test_one_rank_resumes_from_the_checkpoint_of_four(reference: Losses) -> None:
    rest = {step: loss for step, loss in reference["gpt"].items() if step > 3}
    for name in ("alone", "alone, whole"):
        assert reference[name] == pytest.approx(rest, abs=TOLERANCE)


def other_batches(root: str) -> dict[str, dict[str, Any]]:
    """Resume with other global batch sizes, after four steps of eight samples, in this launch."""
    by_samples = training.configure(
        GPT, {"optimisation.train_iterations": None, "optimisation.train_samples": 64}
    )
    results = {}
    for name, job, batch in (
        ("larger", by_samples, 16),
        ("smaller", by_samples, 4),
        ("not a part of it", by_samples, 12),
        ("by steps", GPT, 4),
        ("larger, by steps", GPT, 16),
    ):
        job_dir = Path(root) / name
        resuming.train(job, job_dir, stop_after=4)
        log = resuming.train(training.configure(job, {"optimisation.global_batch_size": batch}), job_dir)
        progress = json.loads((job_dir / "progress.json").read_text())
        results[name] = {"lines": log.find("consumed samples"), **progress}
    return results


def test_job_resumes_with_another_global_batch_size(tmp_path: Path) -> None:
    results = processes.run(1, other_batches, str(tmp_path))[0]
    reached = {name: (one["iteration"], one["consumed_samples"]) for name, one in results.items()}
    # After the first 32 samples, each run reaches 64, or as many whole batches as fit.
    assert reached == {
        "larger": (6, 64),
        "smaller": (12, 64),
        "not a part of it": (6, 56),
        "by steps": (6, 40),
        "larger, by steps": (6, 64),
    }
    # The learning rate ends with the training, whether steps or samples give its length.
    rates = {name: one["lr"] for name, one in results.items() if name != "not a part of it"}
    assert rates == dict.fromkeys(rates, 5e-4)
    assert results["larger"]["train_iterations"] == 6
    assert all("/       6" in line for line in results["larger"]["lines"])


def more_iterations(root: str) -> dict[str, Any]:
    """Open data after four of six steps, with the same number of steps and with more than an epoch has."""
    prefix = Path(root) / "d"
    random = np.random.default_rng(0)
    with IndexedWriter(prefix, np.uint16) as writer:
        for _ in range(20):
            writer.add(random.integers(0, 98, 90))
            writer.end_document()
    job = dataclasses.replace(GPT, data=DataConfig(blend=(Blend(str(prefix), 1.0),), split="1", workers=0))
    found: dict[str, Any] = {}
    resuming.train(
        training.configure(job, {"optimisation.train_iterations": 6}), Path(root) / "job", stop_after=4
    )
    for iterations in (6, 60):
        log = resuming.Log()
        evaluated = {"logging.eval_interval": iterations // 60, "logging.eval_iterations": 1}
        changed = training.configure(job, {"optimisation.train_iterations": iterations, **evaluated})
        opened = Training(changed, Path(root) / "job", write=log)
        found[f"next of {iterations}"] = next(opened._loaders.train)[0].tolist()  # type: ignore[arg-type, union-attr]
        found[f"lines of {iterations}"] = log.find("drawn again") + log.find("no validation")
        opened.close()
    return found


def test_more_train_iterations_continue_the_order_of_the_data(tmp_path: Path) -> None:
    found = processes.run(1, more_iterations, str(tmp_path))[0]
    assert found["next of 60"] == found["next of 6"]
    assert found["lines of 6"] == []
    # 1,800 tokens make 112 samples of 16, and 60 steps take 480.
    assert found["lines of 60"] == [
        f"{tmp_path / 'd'}: the order of the first 112 samples stays, and the 368 behind them are drawn "
        "again from all of its training data",
        "no validation: the data has 0 samples for it, and a batch takes 8",
    ]


FP16 = {"optimisation.precision": "fp16"}
SCALED = {**FP16, "optimisation.loss_scale_window": 3}
EXACT = {
    "none": (GPT, parallel(zero_stage=0)),
    "bf16": (T5, {**BF16, **parallel(pipeline=2), "checkpoint.asynchronous": True}),
    "experts": (MOE, parallel(expert=2, zero_stage=2)),
    "two-offloaded": (GPT, {**BF16, **parallel(zero_stage=2, offload_optimizer="cpu")}),
    "three-offloaded": (GPT, {**BF16, **OFFLOADED}),
    "fp16": (GPT, {**SCALED, "optimisation.initial_loss_scale_power": 10}),
    # The first steps overflow.
    "fp16-three": (GPT, {**SCALED, **parallel(zero_stage=3), "optimisation.initial_loss_scale_power": 19}),
    "fp16-skipped": (GPT, {**SCALED, "optimisation.initial_loss_scale_power": 60}),
}
"""Jobs of two ranks."""


def exact(root: str) -> dict[str, Any]:
    """Train without a stop and in two parts, under one layout."""
    # DeepSpeed rejects fp16 on a CPU only because it is slow.
    type(get_accelerator()).is_fp16_supported = lambda _: True
    answers = {}
    for name, (base, changes) in EXACT.items():
        job, parts = training.configure(base, changes), Path(root) / name
        uninterrupted = resuming.train(job, Path(root) / f"{name}-unbroken").losses()
        first = resuming.train(job, parts, stop_after=4).losses()
        answers[name] = uninterrupted, first | resuming.train(job, parts).losses()
    return answers


def test_resuming_in_the_same_layout_is_bitwise_identical(tmp_path: Path) -> None:
    for name, (uninterrupted, parts) in processes.run(2, exact, str(tmp_path))[0].items():
        assert repr(parts) == repr(uninterrupted), name
        steps = [tmp_path / job / "checkpoints" / f"global_step{STEPS}" for job in (name, f"{name}-unbroken")]
        found, expected = (Saved(step, read_metadata(step)) for step in steps)
        keys = read_metadata(steps[0]).state_dict_metadata
        assert len(keys) > 3
        for key in keys:
            assert torch.equal(found.whole(key), expected.whole(key)), (name, key)
        manifests = [Manifest.read(step) for step in steps]
        states = [{**manifest.state, "curve": None} for manifest in manifests if manifest is not None]
        assert states[0] == states[1], name
        if name.startswith("fp16"):
            assert states[0]["loss_scaler"]["cur_iter"] == STEPS
            skips = {
                "fp16": range(1),
                "fp16-three": range(1, STEPS),
                "fp16-skipped": range(STEPS, STEPS + 1),
            }
            assert states[0]["skipped"] in skips[name]


LAYOUTS_AFTER_SKIPS = {
    "same": parallel(),
    "three": parallel(zero_stage=3),
    "native": {**NATIVE, "optimisation.precision": "bf16"},
}
RESUMED_AFTER_SKIPS = [*(("saved", name) for name in LAYOUTS_AFTER_SKIPS), ("earlier", "same")]
"""The form that is saved, and the layout that resumes."""


def skipped(root: str) -> None:
    """Resume after fp16 has skipped all steps, from both forms and under other layouts."""
    type(get_accelerator()).is_fp16_supported = lambda _: True
    job = training.configure(GPT, {**FP16, "optimisation.initial_loss_scale_power": 60})
    for form, name in RESUMED_AFTER_SKIPS:
        job_dir = Path(root) / f"{form}-{name}"
        with deepspeed_files.saving() if form == "earlier" else contextlib.nullcontext():
            resuming.train(job, job_dir, stop_after=4)
        resuming.train(training.configure(job, LAYOUTS_AFTER_SKIPS[name]), job_dir)


def test_job_whose_steps_were_all_skipped_is_resumed(tmp_path: Path) -> None:
    processes.run(2, skipped, str(tmp_path))
    for form, name in RESUMED_AFTER_SKIPS:
        step = tmp_path / f"{form}-{name}" / "checkpoints" / f"global_step{STEPS}"
        updates = Saved(step, read_metadata(step)).whole(STEP).item()
        assert updates == (2 if name == "native" else 0), "bf16 scales no loss"


def resume_finished(root: str) -> dict[str, Any]:
    """Train under one layout, and on; and try what is rejected."""
    job = training.configure(GPT, parallel(pipeline=2))
    answers: dict[str, Any] = {}
    resuming.train(job, Path(root) / "parts", stop_after=4)
    resuming.train(job, Path(root) / "parts")
    done = resuming.train(job, Path(root) / "parts")
    answers["done"], answers["done says"] = done.losses(), done.find("left to train")
    wider = dataclasses.replace(job, model=dataclasses.replace(job.model, hidden_size=64))
    try:
        resuming.train(wider, Path(root) / "parts")
    except TrainerError as error:
        answers["refused"] = str(error)
    other = training.configure(job, {"checkpoint.load": str(Path(root) / "parts")})
    longer = training.configure(other, {"optimisation.train_iterations": STEPS + 1})
    answers["other"] = resuming.train(longer, Path(root) / "other").losses()
    answers["rank"] = dist.get_rank()
    return answers


def test_finished_job_resumes_only_with_more_steps(tmp_path: Path) -> None:
    found = processes.run(2, resume_finished, str(tmp_path))[0]
    assert found["done"] == {}
    results, reason = found["done says"]
    assert f"reached iteration {STEPS}, and optimisation.train_iterations is {STEPS}; give more" in results
    assert f"exiting at iteration {STEPS}: nothing was left to train" in reason
    assert "model.hidden_size is 64 here and 32 there" in found["refused"]
    assert found["refused"].count(". ") == 0
    assert list(found["other"]) == [STEPS + 1]
    checkpoints = tmp_path / "parts" / "checkpoints"
    assert (checkpoints / "latest").read_text() == f"global_step{STEPS}"
    assert (checkpoints / "latest_checkpointed_iteration.txt").read_text() == str(STEPS)
    progress = json.loads((tmp_path / "parts" / "progress.json").read_text())
    assert [point[0] for point in progress["losses"]] == list(range(1, STEPS + 1))
    assert progress["checkpoint"] == STEPS


CHANGED = {
    "optimisation.lr": 2e-3,
    "optimisation.weight_decay": 50.0,
    "optimisation.adam_beta1": 0.1,
    "optimisation.adam_beta2": 0.2,
    "optimisation.adam_epsilon": 1.0,
    "optimisation.clip_grad": 1e-3,
}
SETTINGS = {
    "none": (parallel(zero_stage=0), parallel(zero_stage=0)),
    "one": (parallel(zero_stage=1), parallel(zero_stage=1)),
    "two": (parallel(zero_stage=2), parallel(zero_stage=2)),
    "three": (parallel(zero_stage=3), parallel(zero_stage=3)),
    "bf16": ({**BF16, **parallel(zero_stage=1)}, {**BF16, **parallel(zero_stage=1)}),
    "fp16": ({**FP16, **parallel(zero_stage=1)}, {**FP16, **parallel(zero_stage=1)}),
    "one to none": (parallel(zero_stage=1), parallel(zero_stage=0)),
    "two to three": (parallel(zero_stage=2), parallel(zero_stage=3)),
    "three to one": (parallel(zero_stage=3), parallel(zero_stage=1)),
    "bf16 to fp16": ({**BF16, **parallel(zero_stage=1)}, {**FP16, **parallel(zero_stage=2)}),
    "fp16 to bf16": ({**FP16, **parallel(zero_stage=1)}, {**BF16, **parallel(zero_stage=2)}),
}


def settings_after(cases: dict[str, Any], root: str) -> dict[str, Any]:
    """Resume with other settings of the optimiser, and return those that it then has."""
    # DeepSpeed rejects fp16 on a CPU only because it is slow.
    type(get_accelerator()).is_fp16_supported = lambda _: True
    found: dict[str, Any] = {}
    for name, (saved, resumed) in cases.items():
        job_dir = Path(root) / name
        scales = {"optimisation.initial_loss_scale_power": 10}
        job = training.configure(GPT, {**scales, **saved})
        resuming.train(job, job_dir, stop_after=2)
        other = {"optimisation.initial_loss_scale_power": 12, "optimisation.loss_scale_window": 7}
        job = training.configure(GPT, {**other, **CHANGED, **resumed})
        trained = Training(job, job_dir, write=resuming.Log())
        trained.engine.set_lr(0.25)
        engine: Any = trained.engine
        optimiser = engine.deepspeed.optimizer
        base = getattr(optimiser, "optimizer", optimiser)
        keys = ("lr", "weight_decay", "betas", "eps")
        scaler: Any = getattr(optimiser, "loss_scaler", None)
        found[name] = {
            "groups": [tuple(group[key] for key in keys) for group in base.param_groups],
            # Without ZeRO, the engine clips according to its configuration.
            "clip": getattr(optimiser, "clip_grad", job.optimisation.clip_grad),
            "scale": getattr(scaler, "cur_scale", 1.0),
            "window": getattr(scaler, "scale_window", None),
            "steps": {float(state["step"]) for state in base.state.values() if "step" in state},
        }
        engine.set_weight_decay(60.0)
        found[name]["scheduled"] = [group["weight_decay"] for group in base.param_groups]
        trained.close()
    return found


def test_optimiser_settings_come_from_the_configuration(tmp_path: Path) -> None:
    found = processes.run(1, settings_after, SETTINGS, str(tmp_path))[0]
    for name, settings in found.items():
        expected = (0.25, (0.1, 0.2), 1.0)
        assert [(lr, betas, eps) for lr, _, betas, eps in settings["groups"]] == [expected] * 2, name
        assert [decay for _, decay, _, _ in settings["groups"]] == [50.0, 0.0], name
        assert settings["scheduled"] == [60.0, 0.0], name
        assert settings["clip"] == 1e-3, name
        assert settings["steps"] == {2.0}, name
    assert (found["fp16"]["scale"], found["fp16"]["window"]) == (2.0**10, 7), "the scale is a state"
    assert (found["bf16 to fp16"]["scale"], found["bf16 to fp16"]["window"]) == (2.0**12, 7)
    assert found["fp16 to bf16"]["scale"] == 1.0
