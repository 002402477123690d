# SPDX-License-Identifier: GPL-3.0-or-later
"""Trainings whose micro-batches replay a CUDA graph, compared with the same without."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from rdm_core.config import Config
from tests.distributed import training
from tests.distributed.training import configure
from tests.gpu import processes

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
}
# Samples of each step, in multiples of the job's; an evaluation follows each step.
STEPS = (1, 1, 1, 2, 2, 1)


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Future[list[dict[str, Any]]]]]:
    # Most of the time each compiles, on the host.
    with ThreadPoolExecutor(len(JOBS)) as threads:
        yield {name: threads.submit(processes.run, 1, _compare, job) for name, job in JOBS.items()}


@pytest.mark.parametrize("name", JOBS)
def test_losses_and_weights_are_those_without_a_graph(
    found: dict[str, Future[list[dict[str, Any]]]], name: str
) -> None:
    (one,) = found[name].result()
    assert one["is_captured"]
    tolerance = 2e-3 if JOBS[name].optimisation.precision == "bf16" else 1e-5
    assert one["graphs"] == pytest.approx(one["plain"], rel=tolerance)
    # Adam turns gradients that are nothing but rounding, such as those of a key's bias, into whole steps.
    assert one["difference"] <= 1e-2
    # Without training, nothing would differ either. The first and the last step have the same samples.
    assert one["plain"][-3] < one["plain"][0]


def _compare(job: Config) -> dict[str, Any]:
    """Train a job with and without graphs; return losses and the relative difference of the weights."""
    plain, weights, _ = _train(job)
    graphs, others, is_captured = _train(configure(job, {"optimisation.cuda_graphs": True}))
    difference = float((weights - others).norm() / weights.norm())
    return {"plain": plain, "graphs": graphs, "difference": difference, "is_captured": is_captured}


def _train(job: Config) -> tuple[list[float], Any, bool]:
    import torch

    from rdm_trainer.engines import create
    from rdm_trainer.engines.native.engine import NativeEngine

    topology = create.create_topology(job)
    engine = create.create(job, topology)
    assert isinstance(engine, NativeEngine)
    losses = []
    for factor in STEPS:
        samples = factor * job.optimisation.global_batch_size
        batch = configure(job, {"optimisation.global_batch_size": samples})
        engine.set_batch(samples)
        result = engine.train_step(training.batches(batch, topology, 1))
        assert result.grad_norm is not None
        losses += [engine.evaluate(training.batches(batch, topology, 1)), result.grad_norm, result.loss]
    graphed = engine._graphed
    weights = torch.cat([weight.detach().float().flatten() for weight in engine.module.parameters()])
    engine.close()
    return losses, weights, graphed is not None and graphed._graph is not None
