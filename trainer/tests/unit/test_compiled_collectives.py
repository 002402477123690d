# SPDX-License-Identifier: GPL-3.0-or-later
"""The collectives of blocks in one graph: their order, and what overlaps with them.

All ranks begin them in one order, though each rank's graph differs: a rank's chunks determine the blocks of
its attention. Ranks that began the collectives of a tensor and of a context group in different orders would
wait for each other forever.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._inductor import async_compile, cpu_vec_isa
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.testing._internal.distributed.fake_pg import FakeStore

from rdm_core import config as configuration
from rdm_core.partition import is_block
from rdm_trainer import models
from rdm_trainer.distributed.pipeline_parallel.pipeline import BlockGroups, Maker
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models import transformer

TENSOR, CONTEXT = 2, 2
JOB: dict[str, Any] = {
    "name": "tiny",
    "engine": "native",
    "model": {"layers": 2, "hidden_size": 16, "attention_heads": 2, "seq_length": 64, "vocab_size": 64},
    "parallel": {"tensor": TENSOR},
    "optimisation": {"micro_batch_size": 2, "global_batch_size": 2, "precision": "fp32", "compile": True},
}


def begun(
    samples: int, context: int = 1, context_rank: int = 0, *, in_sync: bool = False
) -> tuple[list[list[tuple[str, str]]], list[str]]:
    """Return what a rank's compiled forward and backward pass begin, by axis, and their code."""
    dist.init_process_group(
        "fake", store=FakeStore(), rank=TENSOR * context_rank, world_size=TENSOR * context
    )
    try:
        config = configuration.from_dict(JOB, [f"parallel.context={context}"])
        topology = Topology.create(TENSOR, 1, context=context)
        axes = {topology.tensor_group.group_name: "tensor"}
        if context > 1:
            axes[topology.context_group.group_name] = "context"
        device = torch.device("cpu")
        layers = models.layers(config, topology, models.padding_of(config), device)
        blocks = [(index, layer) for index, layer in enumerate(layers) if is_block(layer.kind)]
        make = Maker(config, device, torch.float32)
        modules = [make(layer, index) for index, layer in blocks]
        states = torch.randn(samples, config.model.seq_length // context, 16, requires_grad=True)
        groups = BlockGroups.of(config, topology)

        def step() -> None:
            kinds = [layer for _, layer in blocks]
            groups.run(kinds, modules, states, 0, in_sync=in_sync).sum().backward()

        with fresh_cache():
            _, passes = run_and_get_code(step)
    finally:
        dist.destroy_process_group()
        torch.compiler.reset()
    call = re.compile(r"torch\.ops\._c10d_functional\.(\w+)\.default\(.*'(\w+)'\)")
    return [[(name, axes[group]) for name, group in call.findall(code)] for code in passes], passes


def products_during_sums(code: str) -> list[int]:
    """Return how many matrix products come between the beginning of each tensor-parallel sum and its end."""
    call = re.compile(
        r"(all_reduce_|wait_tensor)\.default\((?:reinterpret_tensor\()?(\w+)|extern_kernels\.(?:add)?mm\("
    )
    pending: dict[str, int] = {}
    found = []
    for kind, buffer in call.findall(code):
        if kind == "all_reduce_":
            pending[buffer] = 0
        elif kind and buffer in pending:
            found.append(pending.pop(buffer))
        elif not kind:
            pending = {one: count + 1 for one, count in pending.items()}
    return found


@pytest.fixture(autouse=True)
def _no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile no kernel, because the order stands in the code that calls them.

    Nor the programs that try which vector instructions the compiler knows: they took 10 processor seconds.
    """

    def made(*_: object, **__: object) -> Callable[..., None]:
        return lambda *_: None

    monkeypatch.setattr(async_compile.AsyncCompile, "cpp_pybinding", made)
    monkeypatch.setattr(cpu_vec_isa, "valid_vec_isa_list", list)


@pytest.mark.parametrize(
    ("fused", "in_sync"),
    [(True, True), (True, False), pytest.param(False, True, marks=pytest.mark.long)],
    ids=["fused kernel", "joined blocks", "any kernel"],
)
def test_ranks_begin_collectives_in_one_order_and_sums_overlap(
    fused: bool, in_sync: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not fused:
        monkeypatch.setattr(transformer, "kernel_for", lambda *_: None)
    (first, code), (second, other) = (begun(2, CONTEXT, rank, in_sync=in_sync) for rank in range(CONTEXT))
    assert [sorted(set(one)) for one in first] == [
        [("all_gather_into_tensor", "context"), ("all_reduce_", "tensor")],
        [("all_reduce_", "tensor"), ("reduce_scatter_tensor", "context")],
    ]
    assert second == first
    assert other != code
    forward, backward = map(products_during_sums, code)
    # The halves are joined at the end of a graph, so the last sum of a forward pass overlaps with nothing.
    sums = 4 if in_sync else 8
    assert [count > 0 for count in forward] == [*[True] * (sums - 1), False]
    assert [count > 0 for count in backward] == [True] * sums


@pytest.mark.parametrize("samples", [2, 1])
def test_sums_of_joined_blocks_overlap(samples: int) -> None:
    _, code = begun(samples)
    forward, backward = map(products_during_sums, code)
    if samples == 2:
        # Two sums of each block and half; only the last one overlaps with nothing.
        assert [count > 0 for count in forward] == [*[True] * 7, False]
        assert [count > 0 for count in backward] == [*[True] * 7, False]
    else:
        # An odd micro-batch stays whole. Its sums overlap with the gradients of two layers' weights.
        assert forward == [0] * 4
        assert backward == [2] * 4
