# SPDX-License-Identifier: GPL-3.0-or-later
"""Sums over tensor ranks by exchange: the same training as with all-reduces, and both ranks' sums equal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rdm_core.config import Config
from rdm_trainer import models
from rdm_trainer.distributed.tensor_parallel.exchange import ExchangeGroup, Exchanges
from rdm_trainer.distributed.tensor_parallel.layers import gathered, summed_output
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines import create
from tests.distributed import processes, training
from tests.distributed.training import GPT, MOE, QWEN, T5, configure

TENSOR = {
    "engine": "native",
    "parallel.tensor": 2,
    # Two micro-batches.
    "optimisation.global_batch_size": 4,
    # Keeps AdamW from turning rounding errors into steps: the gradient of a key's bias is 0.
    "optimisation.adam_epsilon": 1e-3,
}
SHARDED = {**TENSOR, "parallel.sequence_parallel": True}
FULL = {"parallel.activation_checkpointing": "full"}
DROPOUT = {"model.hidden_dropout": 0.2, "model.attention_dropout": 0.2}
# Two blocks, compiled as one graph as more would be, but in half the time.
COMPILED = {"optimisation.compile": True, "model.layers": 2}
FOUR = {**SHARDED, "parallel.tensor": 4}
JOBS: dict[int, dict[str, Config]] = {
    2: {
        "gpt": configure(GPT, TENSOR),
        "gpt, one sample, dropout": configure(GPT, {**TENSOR, **DROPOUT, "optimisation.micro_batch_size": 1}),
        "gpt, checkpointing, dropout": configure(GPT, {**TENSOR, **FULL, **DROPOUT}),
        "gpt, sequence parallel, dropout": configure(GPT, {**SHARDED, **FULL, **DROPOUT}),
        "gpt, bf16": configure(GPT, {**TENSOR, "optimisation.precision": "bf16"}),
        "qwen": configure(QWEN, TENSOR),
        "moe": configure(MOE, TENSOR),
        "t5": configure(T5, TENSOR),
        "gpt, compiled": configure(GPT, {**TENSOR, **COMPILED}),
        "gpt, compiled, sequence parallel": configure(GPT, {**SHARDED, **COMPILED}),
    },
    4: {
        "llama, tp 4, shared heads": configure(QWEN, {**FOUR, "model.query_groups": 2}),
        "gpt, pp 2": configure(GPT, {**TENSOR, "parallel.pipeline": 2}),
        "gpt, dp 2": configure(GPT, {**TENSOR, "optimisation.global_batch_size": 8}),
    },
}


class Done(dist.Work):
    """A work that waits for messages, and keeps their tensors until then."""

    def __init__(self, messages: Sequence[Any], kept: Any) -> None:
        super().__init__()
        self._messages, self._kept = messages, kept

    def wait(self, _timeout: timedelta | None = None) -> bool:
        for message in self._messages:
            message.wait()
        self._kept = None
        return True


class Messages(Exchanges):
    """Exchanges by messages of another group."""

    def __init__(self, name: str, group: Any) -> None:
        super().__init__(name, group.rank(), group.size())
        self._group = group

    def transfer(self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> dist.Work:
        own = self._group.rank()
        received[own].copy_(sent[own])
        others = [peer for peer in range(self._group.size()) if peer != own]
        messages = [
            *(self._group.recv([received[peer]], peer, 0) for peer in others if received[peer].numel()),
            *(self._group.send([sent[peer]], peer, 0) for peer in others if sent[peer].numel()),
        ]
        return Done(messages, (sent, received))


def messages_of(group: Any) -> Any:
    """Create a process group of the same ranks that exchanges by messages; torch calls its methods."""
    dist.Backend.register_backend(
        "messages", lambda own, of: Messages(own.group_id, of), extended_api=True, devices=["cpu"]
    )
    ranks = dist.get_process_group_ranks(group)
    return dist.new_group(ranks, backend="messages", pg_options=group, use_local_synchronization=True)


def topology_of(config: Config, exchanges: bool) -> Topology:
    """Return this rank's place, whose layers sum with the operations of the usual group."""
    topology = create.create_topology(config)
    if not exchanges:
        return topology
    return dataclasses.replace(topology, exchange_group=ExchangeGroup.of(topology.tensor_group))


@processes.own_groups()
def trained(config: Config, exchanges: bool) -> tuple[list[float], dict[str, torch.Tensor], list[Any]]:
    """Train two steps; return losses and gradient norms, weights, and what must be alike on all ranks."""
    topology = topology_of(config, exchanges)
    engine: Any = create.create(config, topology)
    data = training.batches(config, topology, 2)
    figures = []
    for _ in range(2):
        step = engine.train_step(data)
        figures += [step.loss, step.grad_norm]
    figures.append(engine.evaluate(training.batches(config, topology, 1)))
    weights = {name: weight.detach().clone() for name, weight in engine.module.named_parameters()}
    norms = {name: weight.tolist() for name, weight in weights.items() if "norm" in name}
    engine.close()
    return figures, weights, [topology.pipeline_rank, figures, norms]


def compared(jobs: Mapping[str, Config]) -> dict[str, dict[str, Any]]:
    """Train each job with and without exchanges; return the largest differences, and what all ranks have.

    Without exchanges, nothing is compiled: tests/distributed/test_compiled.py proves this to be the same.
    """
    found = {}
    for name, job in jobs.items():
        with training.without_code("aot_eager"):
            figures, weights, alike = trained(job, True)
        expected, wanted, _ = trained(configure(job, {"optimisation.compile": False}), False)
        found[name] = {
            "figures": max(abs(mine - theirs) for mine, theirs in zip(figures, expected, strict=True)),
            "weights": {key: float((weights[key] - wanted[key]).abs().max()) for key in wanted},
            "alike": alike,
            "pending": torch._C._distributed_c10d._get_work_registry_size(),
        }
    return found


def kept(jobs: Mapping[str, Config]) -> dict[str, dict[bool, tuple[int, int]]]:
    """Return the number and bytes of tensors that a forward pass of one rank keeps for the backward pass."""
    found: dict[str, dict[bool, tuple[int, int]]] = {}
    with training.one_rank_of(2), training.without_code("aot_eager_decomp_partition"):
        for name, job in jobs.items():
            for exchanges in (True, False):
                topology = topology_of(job, exchanges)
                model = models.build(job, topology)
                sizes = training.kept(model, *next(training.batches(job, topology, 1)))
                found.setdefault(name, {})[exchanges] = len(sizes), sum(sizes)
    return found


def test_the_sum_is_kept_and_not_its_summands() -> None:
    names = ("gpt", "gpt, compiled", "gpt, compiled, sequence parallel")
    (rank,) = processes.run(1, kept, {name: JOBS[2][name] for name in names})
    for name, found in rank.items():
        assert found[True] <= found[False], name
        assert found[True][1] <= found[False][1], name


@pytest.fixture(scope="module")
def found() -> dict[str, list[dict[str, Any]]]:
    """Every rank's results for each job."""
    return processes.run_each(compared, JOBS)


@pytest.mark.parametrize(("world", "name"), [(world, name) for world, jobs in JOBS.items() for name in jobs])
def test_losses_and_weights_are_those_of_all_reduces(
    found: dict[str, list[dict[str, Any]]], world: int, name: str
) -> None:
    is_16_bit = JOBS[world][name].optimisation.precision == "bf16"
    for rank in found[name]:
        assert rank["figures"] < (1e-2 if is_16_bit else 5e-6)
        assert max(rank["weights"].values()) < (1e-2 if is_16_bit else 1e-6), rank["weights"]
        assert rank["pending"] == 0
    for one, other in zip(found[name][::2], found[name][1::2], strict=True):
        assert one["alike"] == other["alike"]


def by_messages(world: int) -> dict[str, Any]:
    """Sum and gather by a process group in Python, which is torch's until it is destroyed."""
    whole = messages_of(dist.group.WORLD)
    group, rank = ExchangeGroup.of(whole), dist.get_rank()
    part = torch.arange(2.0 * world * 3).view(2, world, 3).add(100 * rank).requires_grad_()
    found: dict[str, Any] = {}
    if world == 2:
        summed = summed_output(part, group)
        (summed * (rank + 1)).sum().backward()
        found["sum"] = summed.tolist(), part.grad.tolist()  # type: ignore[union-attr]
        part.grad = None
    scattered = summed_output(part, group, sequence_parallel=True)
    (scattered * (rank + 1)).sum().backward()
    found["scattered"] = scattered.tolist(), part.grad.tolist()  # type: ignore[union-attr]
    found["gathered"] = gathered(torch.full((1, 2), float(rank)), group, 1).tolist()
    found["size"] = group.size(), whole.size(), group.own_rank
    dist.destroy_process_group(whole)
    return found


@pytest.mark.parametrize("world", [2, 3])
def test_a_process_group_in_python_exchanges(world: int) -> None:
    whole = torch.arange(2.0 * world * 3).view(2, world, 3) * world + 100 * sum(range(world))
    for rank, found in enumerate(processes.run(world, by_messages, world)):
        if world == 2:
            assert found["sum"] == (whole.tolist(), torch.full_like(whole, rank + 1.0).tolist())
        scale = torch.arange(1.0, world + 1)[None, :, None]
        gradient = scale.expand_as(whole)
        assert found["scattered"] == (whole[:, rank : rank + 1].tolist(), gradient.tolist())
        assert found["gathered"] == [[float(one) for one in range(world) for _ in range(2)]]
        assert found["size"] == (world, world, rank)
