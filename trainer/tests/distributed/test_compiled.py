# SPDX-License-Identifier: GPL-3.0-or-later
"""Blocks and loss under the compiler: one graph each, tensor-parallel sums included, and the same losses."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pytest

from rdm_core.config import Config
from tests.distributed import processes, training
from tests.distributed.training import GPT, T5, configure

# Two blocks, compiled as one graph as more would be, but in half the time. T5 has two of each kind.
BLOCKS = configure(GPT, {"model.layers": 2})
JOBS = {
    f"{name}{precision}": configure(base, {"parallel.tensor": 2, "optimisation.precision": precision})
    for name, base in (("gpt ", BLOCKS), ("t5 ", T5))
    for precision in ("fp32", "bf16")
}
CONTEXT = {"engine": "native", "parallel.tensor": 1, "parallel.context": 2}
JOBS["gpt context fp32"] = configure(JOBS["gpt fp32"], CONTEXT)
SHARDED = {"engine": "native", "parallel.sequence_parallel": True}
JOBS["gpt sequence parallel fp32"] = configure(JOBS["gpt fp32"], SHARDED)


def as_one_graph(jobs: Mapping[str, Config]) -> dict[str, Any]:
    """Train with a compiler that makes one graph or fails, and generates no code."""
    with training.without_code("aot_eager"):
        return training.losses(jobs, steps=2)


@pytest.mark.parametrize(
    "names",
    [
        # Both models and both precisions; a compilation takes five processor seconds.
        ("gpt bf16", "t5 fp32", "gpt context fp32", "gpt sequence parallel fp32"),
        pytest.param(("gpt fp32", "t5 bf16"), marks=pytest.mark.long),
    ],
    ids=" and ".join,
)
def test_each_compiled_part_is_one_graph_and_changes_no_loss(names: tuple[str, str]) -> None:
    jobs = {name: JOBS[name] for name in names}
    compiled = {name: configure(job, {"optimisation.compile": True}) for name, job in jobs.items()}
    found = processes.run(2, as_one_graph, compiled)
    expected = processes.run(2, training.losses, jobs, 2)
    assert found[0] == found[1]
    for name in jobs:
        mine, theirs = ([step["loss"] for step in said[0][name]] for said in (found, expected))
        assert mine == pytest.approx(theirs, abs=1e-4 if "fp32" in name else 0.01), name


def within_budgets(jobs: Mapping[str, Config]) -> dict[str, Any]:
    """Train as the trainer compiles, without generated code; return losses, and backward passes' sums."""
    import torch._inductor
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    sums: list[int] = []

    def backward(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        sums.append(sum("all_reduce" in str(node.target) for node in graph.graph.nodes))
        return make_boxed_func(graph.forward)

    def without_code(graph: torch.fx.GraphModule, inputs: Any, options: Any) -> Any:
        assert options["reorder_for_compute_comm_overlap"]
        return aot_autograd(
            fw_compiler=lambda graph, _inputs: make_boxed_func(graph.forward),
            bw_compiler=backward,
            partition_fn=min_cut_rematerialization_partition,
        )(graph, inputs)

    torch._inductor.compile = without_code  # type: ignore[assignment]
    # The loss.
    torch.compile = functools.partial(torch.compile, backend="aot_eager")
    return {"losses": training.losses(jobs, steps=2), "sums": sums}


def test_a_budget_changes_no_loss_and_repeats_no_sum_of_tensor_ranks() -> None:
    plain = {engine: configure(JOBS["gpt fp32"], {"engine": engine}) for engine in ("native", "deepspeed")}
    limited = {
        engine: configure(job, {"optimisation.compile": True, "parallel.activation_memory_budget": 0.05})
        for engine, job in plain.items()
    }
    found = processes.run(2, within_budgets, limited)
    # Two sums in a block's backward pass, each of both halves of a micro-batch.
    assert [one["sums"] for one in found] == [[4, 4]] * 2
    expected = processes.run(2, training.losses, plain, 2)
    for engine, steps in expected[0].items():
        assert found[0]["losses"][engine] == [pytest.approx(step, abs=1e-4) for step in steps], engine
