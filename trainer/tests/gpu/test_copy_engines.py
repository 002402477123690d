# SPDX-License-Identifier: GPL-3.0-or-later
"""Exchanges between two GPUs by their copy engines, compared with NCCL's collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rdm_core.config import Config
from tests.distributed import training
from tests.distributed.training import configure
from tests.gpu import processes
from tests.gpu.test_cuda_graphs import BF16, DROPOUT, GPT, TENSOR

COPIES = {"parallel.tensor_communication": "copy_engines"}
GRAPHS = {"optimisation.cuda_graphs": True}
SHARDED = {**TENSOR, "parallel.sequence_parallel": True}
JOBS = {
    "tensor": configure(GPT, TENSOR),
    "sequence parallel, dropout": configure(GPT, {**SHARDED, **DROPOUT}),
    "bf16, compiled, tensor": configure(BF16, TENSOR),
    "bf16, compiled, sequence parallel": configure(BF16, SHARDED),
    "bf16, compiled, tensor, graph": configure(BF16, {**TENSOR, **GRAPHS}),
}
# Elements of a sample: few, not a power of two, and more than the first size class has.
SIZES = (3, 1000, 3 << 20)

if torch.cuda.device_count() >= 2:

    def test_sums_and_gathers_are_those_of_nccl() -> None:
        for found in processes.run(2, _operations, gpus=2):
            assert found == dict.fromkeys(found, True)
            assert len(found) == 4 * 3 * len(SIZES)

    def test_a_graph_of_exchanges_is_replayed_also_after_larger_messages() -> None:
        for found in processes.run(2, _replayed, gpus=2):
            assert found == [3.0 + 2 * number for number in range(20)]

    @pytest.mark.parametrize("name", JOBS)
    def test_losses_are_those_of_collectives(name: str) -> None:
        for own, others in processes.run(2, _losses, JOBS[name], gpus=2):
            # Without training, nothing would differ either.
            assert others[-1] < others[0]
            is_16_bit = JOBS[name].optimisation.precision == "bf16"
            assert own == pytest.approx(others, rel=2e-3 if is_16_bit else 1e-5)


def _group() -> Any:
    from rdm_trainer.distributed.tensor_parallel import copy_engines
    from rdm_trainer.distributed.topology import Topology

    return copy_engines.create(Topology.create(2, 1))


def _operations() -> dict[str, bool]:
    """Return which operations have NCCL's result."""
    from rdm_trainer.distributed.tensor_parallel.layers import gathered, summed_output

    group, world = _group(), dist.group.WORLD
    calls: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
        "sum": summed_output,
        "scatter": lambda part, ranks: summed_output(part, ranks, sequence_parallel=True),
        "gather": lambda part, ranks: gathered(part, ranks, 1),
    }
    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        for size in SIZES:
            # More operations than slots, without waiting for the device.
            parts = [torch.randn(2, 2, size, device="cuda").to(dtype) for _ in range(10)]
            for name, call in calls.items():
                pairs = [(call(part, group), call(part, world)) for part in parts]
                found[f"{name} {dtype} {size}"] = all(torch.equal(own, other) for own, other in pairs)
    return found


def _replayed() -> list[float]:
    """Return sums of replays, between which there are operations outside of the graph."""
    from rdm_trainer.distributed.tensor_parallel.layers import summed_output

    group, rank = _group(), dist.get_rank()
    part = torch.zeros(1, 5, device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        summed_output(part, group)
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        total = sum((summed_output(part * factor, group) for factor in range(7)), torch.zeros_like(part))
    found = []
    for number in range(20):
        part.fill_((rank + 1 + number) / 21)
        graph.replay()
        found.append(total.clone())
        # Of another size class each time, and of the graph's own.
        summed_output(torch.ones(1, 1 << (number + 4), device="cuda"), group)
    return [round(float(one.mean()), 3) for one in found]


def _losses(job: Config) -> tuple[list[float], list[float]]:
    """Return a job's losses with copy engines and with collectives."""
    from rdm_trainer.engines import create

    def train(config: Config) -> list[float]:
        topology = create.create_topology(config)
        engine = create.create(config, topology)
        losses = []
        for _ in range(6):
            losses.append(float(engine.train_step(training.batches(config, topology, 1)).loss))
        losses.append(engine.evaluate(training.batches(config, topology, 1)))
        engine.close()
        return losses

    return train(configure(job, COPIES)), train(job)
