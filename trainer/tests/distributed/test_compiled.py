# SPDX-License-Identifier: GPL-3.0-or-later
"""Blocks and loss under the compiler: one graph each, tensor-parallel sums included, and the same losses."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rdm_core.config import Config
from rdm_core.cost.dry_run import dry_run
from rdm_trainer import models
from rdm_trainer.distributed.context_parallel import SequencePart
from rdm_trainer.engines import create
from tests.activations import saved_bytes
from tests.distributed import processes, training
from tests.distributed.training import GPT, QWEN, T5, configure

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
# Each replica takes four micro-batches in a step, and joins blocks in the second and the third.
REPLICAS = configure(JOBS["gpt fp32"], {"parallel.tensor": 1, "optimisation.global_batch_size": 16})
NATIVE = configure(REPLICAS, {"engine": "native"})
REDUCED = {"optimisation.precision": "bf16", "parallel.reduce_dtype": "bf16"}
JOINED = {
    2: {"native fp32": NATIVE, "deepspeed fp32": REPLICAS},
    4: {
        "tensor fp32": configure(NATIVE, {"parallel.tensor": 2}),
        "pipeline fp32": configure(NATIVE, {"parallel.pipeline": 2, "model.layers": 4}),
        "native bf16": configure(NATIVE, REDUCED | {"optimisation.global_batch_size": 32}),
        "deepspeed bf16": configure(
            REPLICAS, {"optimisation.precision": "bf16", "optimisation.global_batch_size": 32}
        ),
    },
}


def as_one_graph(jobs: Mapping[str, Config]) -> dict[str, Any]:
    """Train with a compiler that makes one graph or fails, and generates no code."""
    with training.without_code("aot_eager"):
        return training.losses(jobs, steps=2)


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.long)])
def test_losses_of_replicas_with_joined_blocks_are_the_same(world: int) -> None:
    jobs = JOINED[world]
    compiled = {name: configure(job, {"optimisation.compile": True}) for name, job in jobs.items()}
    found = processes.run(world, as_one_graph, compiled)
    expected = processes.run(world, training.losses, jobs, 2)
    assert found[1:] == found[:1] * (world - 1)
    for name in jobs:
        for mine, theirs in zip(found[0][name], expected[0][name], strict=True):
            assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-4 if "fp32" in name else 0.01), name


@training.without_code("aot_eager")
def watched_replicas() -> tuple[list[int], list[int]]:
    """Take a step with two blocks, and evaluate two micro-batches.

    Return how many blocks' gradients were there when each bucket was reduced, and which micro-batches joined
    blocks.
    """
    import torch

    from rdm_core.partition import is_block
    from rdm_trainer.distributed.pipeline_parallel import pipeline
    from rdm_trainer.engines import create
    from rdm_trainer.engines.native import sharded_adamw

    forwards = 0
    joined: list[int] = []
    compiled_chain = pipeline._compiled_chain

    def noting_chain(tensor_parallel: bool) -> Any:
        joined.append(forwards)
        return compiled_chain(tensor_parallel)

    pipeline._compiled_chain = noting_chain  # type: ignore[assignment]
    complete: set[str] = set()
    reduced: list[int] = []
    optimiser: Any = sharded_adamw.ShardedAdamW
    added, reduce = optimiser._added, optimiser._reduce

    def noting_gradient(sharded: Any, weight: torch.nn.Parameter) -> None:
        if sharded._reducing:
            complete.add(names[weight].partition(".")[0])
        added(sharded, weight)

    def noting_reduction(sharded: Any, bucket: Any) -> None:
        reduced.append(len(complete & blocks))
        reduce(sharded, bucket)

    optimiser._added, optimiser._reduce = noting_gradient, noting_reduction
    job = configure(NATIVE, {"optimisation.compile": True})
    topology = create.create_topology(job)
    engine: Any = create.create(job, topology)
    names = {weight: name for name, weight in engine.module.named_parameters()}
    blocks = {str(number) for number, layer in enumerate(engine.module.layers) if is_block(layer.kind)}

    @contextlib.contextmanager
    def observer(kind: str, _name: str) -> Iterator[None]:
        nonlocal forwards
        forwards += kind == "forward"
        yield

    with engine.observed(observer):
        engine.train_step(training.batches(job, topology, 1))
        two = configure(job, {"optimisation.global_batch_size": 8})
        engine.set_batch(8)
        engine.evaluate(training.batches(two, topology, 1))
    engine.close()
    return reduced, joined


def test_replicas_join_no_blocks_in_passes_that_overlap_with_communication() -> None:
    for reduced, joined in processes.run(2, watched_replicas):
        # The gradients of the last block are reduced before those of the first are there.
        assert reduced[0] == 1
        assert reduced[-1] == 2
        # A training of two micro-batches joins none, and its evaluation takes the same graphs.
        assert joined == [2, 3]


@pytest.mark.parametrize(
    "names",
    [
        # Both models and both precisions; a compilation takes five processor seconds.
        ("gpt bf16", "t5 fp32", "gpt context fp32", "gpt sequence parallel fp32"),
        pytest.param(("gpt fp32", "t5 bf16"), marks=pytest.mark.long),
    ],
    ids=" and ".join,
)
def test_each_compiled_part_is_one_graph_with_the_same_losses(names: tuple[str, str]) -> None:
    jobs = {name: JOBS[name] for name in names}
    compiled = {name: configure(job, {"optimisation.compile": True}) for name, job in jobs.items()}
    found = processes.run(2, as_one_graph, compiled)
    expected = processes.run(2, training.losses, jobs, 2)
    assert found[0] == found[1]
    for name in jobs:
        mine, theirs = ([step["loss"] for step in results[0][name]] for results in (found, expected))
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


def test_activation_memory_budget_changes_no_loss_and_repeats_no_all_reduce() -> None:
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


def saved_bytes_of_context_rank(jobs: Mapping[str, Config]) -> dict[str, int]:
    """Return the bytes that a forward pass of a context rank's tokens keeps for the backward pass."""
    found = {}
    with training.without_code("aot_eager_decomp_partition"):
        for name, job in jobs.items():
            topology = create.create_topology(job)
            part = SequencePart.of(topology)
            assert part is not None
            inputs, labels = next(training.batches(job, topology, 1))
            own = tuple(part.own(label) for label in labels)
            model, tokens = models.build(job, topology), part.own(inputs)
            found[name] = saved_bytes(lambda: model(tokens, own), model.parameters())[0]  # noqa: B023
    return found


def test_context_ranks_save_the_product_of_normed_queries_and_keys() -> None:
    normed = configure(QWEN, {**CONTEXT, "optimisation.compile": True})
    jobs = {"normed": normed, "plain": configure(normed, {"model.qk_norm": False})}
    predicted = {name: dry_run(job, 2).peak.memory.activations for name, job in jobs.items()}
    for rank in processes.run(2, saved_bytes_of_context_rank, jobs):
        assert rank["normed"] - rank["plain"] == pytest.approx(
            predicted["normed"] - predicted["plain"], rel=0.15
        )
