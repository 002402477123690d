# SPDX-License-Identifier: GPL-3.0-or-later
"""Trainings whose micro-batches replay a CUDA graph, compared with the same without."""

from __future__ import annotations

import dataclasses
import datetime
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch

from rdm_core.config import Config
from tests.distributed import training
from tests.distributed.training import configure
from tests.gpu import processes

if TYPE_CHECKING:
    from rdm_trainer.distributed.pipeline_parallel.pipeline import FlatModel

GPT = configure(
    dataclasses.replace(
        training.GPT,
        model=dataclasses.replace(
            training.GPT.model, layers=2, hidden_size=256, seq_length=128, vocab_size=1000
        ),
    ),
    {"engine": "native", "optimisation.lr": 1e-3},
)
BF16 = configure(GPT, {"optimisation.precision": "bf16", "optimisation.compile": True})
DROPOUT = {"model.hidden_dropout": 0.2, "model.attention_dropout": 0.2}
DOCUMENTS = {"data.reset_attention_mask": True, "data.reset_position_ids": True}
TENSOR = {"parallel.tensor": 2}
RECOMPUTED = {"parallel.activation_checkpointing": "full"}
ONE_SAMPLE = {"optimisation.micro_batch_size": 1, "optimisation.global_batch_size": 4}
JOBS = {
    # With one micro-batch in a step, the third step captures.
    "accumulation 1": configure(GPT, {"optimisation.global_batch_size": 2}),
    "accumulation 4": GPT,
    "dropout": configure(GPT, DROPOUT),
    "bf16, compiled": BF16,
    "bf16, compiled, dropout": configure(BF16, DROPOUT),
    "fp8": configure(BF16, {"model.ffn_hidden_size": 2048, "optimisation.fp8_recipe": "tensorwise"}),
    "Qwen": configure(training.QWEN, {"engine": "native"}),
    "T5": configure(training.T5, {"engine": "native"}),
    "BERT": configure(training.BERT, {"engine": "native"}),
    "documents": configure(GPT, DOCUMENTS),
    "bf16, compiled, documents": configure(BF16, DOCUMENTS),
    "window": configure(GPT, {"model.sliding_window": 50}),
    "bf16, compiled, window": configure(BF16, {"model.sliding_window": 50}),
    "bf16, compiled, memory budget": configure(BF16, {"parallel.activation_memory_budget": 0.5}),
    "recomputed": configure(GPT, RECOMPUTED),
    "recomputed, dropout": configure(GPT, {**RECOMPUTED, **DROPOUT}),
    "bf16, compiled, recomputed, dropout": configure(BF16, {**RECOMPUTED, **DROPOUT}),
    "two shapes": GPT,
}
# On two GPUs, which not all machines have.
TWO = {
    "replicas": GPT,
    "bf16, compiled, replicas": BF16,
    "tensor": configure(GPT, TENSOR),
    "tensor, dropout": configure(GPT, {**TENSOR, "model.hidden_dropout": 0.2}),
    "sequence parallel, dropout": configure(GPT, {**TENSOR, **DROPOUT, "parallel.sequence_parallel": True}),
    # An even number of samples is computed in halves.
    "bf16, compiled, tensor": configure(BF16, TENSOR),
    "bf16, compiled, tensor, one sample": configure(BF16, TENSOR | ONE_SAMPLE),
    "bf16, compiled, context": configure(
        BF16, {"parallel.context": 2, "optimisation.calculate_per_token_loss": True}
    ),
}
if torch.cuda.device_count() >= 2:
    JOBS |= TWO
# Samples of each step, in multiples of the job's; an evaluation follows each step.
STEPS = (1, 1, 1, 2, 2, 1)


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Future[list[dict[str, Any]]]]]:
    # Most of the time each compiles, on the host.
    with ThreadPoolExecutor(len(JOBS)) as threads:
        ranks = {name: 2 if name in TWO else 1 for name in JOBS}
        yield {
            name: threads.submit(
                processes.run, ranks[name], _compare, job, name == "two shapes", gpus=ranks[name]
            )
            for name, job in JOBS.items()
        }


@pytest.mark.parametrize("name", JOBS)
def test_losses_and_weights_are_those_without_a_graph(
    found: dict[str, Future[list[dict[str, Any]]]], name: str
) -> None:
    for one in found[name].result():
        assert one["captured"] == [True] * (2 if name == "two shapes" else 1)
        graphs, plain = one["graphs"], one["plain"]
        # Without training, nothing would differ either. The first and the last step have the same samples.
        assert plain[-3] < plain[0]
        tolerance = 2e-3 if JOBS[name].optimisation.precision == "bf16" else 1e-5
        assert graphs == pytest.approx(plain, rel=tolerance)
        # Adam turns gradients that are nothing but rounding, such as those of a key's bias, into whole steps.
        assert one["difference"] <= 1e-2


def _compare(job: Config, two_shapes: bool) -> dict[str, Any]:
    """Train a job with and without graphs; return losses and the relative difference of the weights."""
    plain, weights, _ = _train(job, two_shapes)
    graphs, others, captured = _train(configure(job, {"optimisation.cuda_graphs": True}), two_shapes)
    difference = float((weights - others).norm() / weights.norm())
    return {"plain": plain, "graphs": graphs, "difference": difference, "captured": captured}


def _cut(batches: Iterator[Any]) -> Iterator[Any]:
    """Take one sample from each second micro-batch."""
    for number, (inputs, labels) in enumerate(batches):
        samples = slice(1 if number % 2 else None)
        yield inputs[samples], tuple(one[samples] for one in labels)


def _train(job: Config, two_shapes: bool) -> tuple[list[float], Any, list[bool]]:
    """Return losses and norms, the weights, and of which micro-batches there is a graph."""
    from rdm_trainer.engines import create
    from rdm_trainer.engines.native.engine import NativeEngine

    topology = create.create_topology(job)
    engine = create.create(job, topology)
    assert isinstance(engine, NativeEngine)
    # Without graphs, replicas join no blocks in a step's first and last micro-batches, and round differently.
    model = cast("FlatModel", engine.module)
    model.groups = dataclasses.replace(model.groups, joined_in_sync=model.groups.joined)
    losses = []
    for factor in STEPS:
        samples = factor * job.optimisation.global_batch_size
        batch = configure(job, {"optimisation.global_batch_size": samples})
        engine.set_batch(samples)
        data = training.batches(batch, topology, 1)
        result = engine.train_step(_cut(data) if two_shapes else data)
        assert result.grad_norm is not None
        losses += [engine.evaluate(training.batches(batch, topology, 1)), result.grad_norm, result.loss]
    captured = [] if engine._graphed is None else [one.graph is not None for one in engine._graphed.batches]
    weights = torch.cat([weight.detach().float().flatten() for weight in engine.module.parameters()])
    engine.close()
    return losses, weights, captured


if torch.cuda.device_count() >= 2:

    def test_step_that_captures_a_graph_is_traced() -> None:
        for names in processes.run(2, _trace, TWO["tensor"], gpus=2):
            assert names.count("ForwardBackwardPass") == 4
            # Of the passes before the capture.
            assert "all_reduce" in names


def _trace(job: Config) -> list[str]:
    """Return what a trace of the first step has, in which passes are captured."""
    from rdm_trainer.distributed.collective import Collective
    from rdm_trainer.engines import create
    from rdm_trainer.step_trace import StepTrace

    job = configure(job, {"optimisation.cuda_graphs": True})
    topology = create.create_topology(job)
    engine = create.create(job, topology)
    with tempfile.TemporaryDirectory() as folder:
        collective = Collective(datetime.timedelta(seconds=60))
        trace = StepTrace(range(1, 2), engine, topology, collective, Path(folder))
        with trace.step(1):
            engine.train_step(training.batches(job, topology, 1))
        (file,) = Path(folder).glob("*/rank-*.json")
        names = [str(span[1]) for span in json.loads(file.read_text())["spans"]]
    engine.close()
    return names
