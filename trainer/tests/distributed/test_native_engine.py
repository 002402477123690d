# SPDX-License-Identifier: GPL-3.0-or-later
"""What the native engine does within a step; test_one_loss_curve.py has its losses."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from rdm_core.errors import TrainerError
from rdm_trainer.engines import create
from rdm_trainer.engines.native.cuda_graph import GraphedPasses, StaticBatch
from rdm_trainer.engines.native.engine import NativeEngine
from tests.distributed import processes, resuming, training
from tests.distributed.training import GPT, configure

NATIVE = configure(GPT, {"engine": "native"})


def without_deepspeed(job_dir: str) -> tuple[list[int], str]:
    """Train a job and resume it, in a process that cannot import DeepSpeed.

    Return the steps of both runs, and the error where DeepSpeed is needed.
    """
    for name in list(sys.modules):
        if name.partition(".")[0] in ("deepspeed", "rdm_trainer", "tests"):
            del sys.modules[name]
    sys.modules["deepspeed"] = None  # type: ignore[assignment]
    from rdm_trainer import train
    from rdm_trainer.engines import create
    from tests.distributed import resuming, training

    job = training.configure(resuming.GPT, {"engine": "native", "checkpoint.exit_interval": 2})
    counts = []
    for _ in range(2):
        trained = train.Training(job, Path(job_dir), write=lambda _: None)
        trained.run()
        trained.close()
        counts.append(trained.iteration)
    # Nothing else imported a part of DeepSpeed.
    assert not [name for name in sys.modules if name.startswith("deepspeed.")]
    with pytest.raises(TrainerError) as refused:
        create.create_topology(resuming.GPT)
    return counts, str(refused.value)


def test_native_engine_needs_no_deepspeed(tmp_path: Path) -> None:
    ((counts, refusal),) = processes.run(1, without_deepspeed, str(tmp_path / "job"))
    assert counts == [2, 4]
    assert refusal.startswith("engine is deepspeed, but DeepSpeed is not installed here")


def watched_step() -> dict[str, Any]:
    """Take a step; return what was running when each bucket was reduced, and what the replicas keep.

    Also return how many gathers are under way after the step, and after a forward pass.
    """
    job = training.configure(NATIVE, {"parallel.reduce_dtype": "bf16"})
    topology = create.create_topology(job)
    engine: Any = create.create(job, topology)
    now: list[str] = []
    seen: list[tuple[str, int]] = []
    copies: list[int] = []
    reduce = engine.sharded._reduce
    backwards = 0

    @contextlib.contextmanager
    def observer(kind: str, _name: str) -> Iterator[None]:
        nonlocal backwards
        backwards += kind == "backward"
        now.append(kind)
        yield
        now.pop()

    def noting(bucket: Any) -> None:
        seen.append((now[-1], backwards))
        reduce(bucket)
        copies.append(sum(one.sum is not None for one in engine.sharded.buckets))

    engine.sharded._reduce = noting
    with engine.observed(observer):
        engine.train_step(training.batches(job, topology, 1))
    gathers = [len(engine.sharded._gathering)]
    engine.evaluate(training.batches(job, topology, 1))
    gathers.append(len(engine.sharded._gathering))
    masters = sum(bucket.master.numel() for bucket in engine.sharded.buckets)
    whole = sum(bucket.values.numel() for bucket in engine.sharded.buckets)
    gradients = [weight.grad for weight in engine.module.parameters()]
    engine.close()
    return {
        "seen": seen,
        "copies": max(copies),
        "gathers": gathers,
        "kept": masters / whole,
        "grads": [one for one in gradients if one is not None],
    }


def test_buckets_are_reduced_in_the_last_backward_pass_and_gathered_in_the_next_forward_pass() -> None:
    for result in processes.run(2, watched_step):
        # With two replicas, each takes two micro-batches of a step.
        assert len(result["seen"]) > 3
        assert set(result["seen"]) == {("backward", 2)}
        assert result["copies"] == 2
        assert result["gathers"] == [len(result["seen"]), 0]
        assert result["kept"] == 0.5
        assert result["grads"] == []


def most_kept_messages(chunks: int) -> int:
    """Take two steps of 16 micro-batches; return the most messages that a stage keeps for a neighbour."""
    pipeline = {"parallel.pipeline": 2, "parallel.virtual_pipeline": chunks}
    job = training.configure(NATIVE, {**pipeline, "optimisation.global_batch_size": 32})
    engine: Any = create.create(job, create.create_topology(job))
    most = 0
    for (_, sends), channel in engine._stage._channels.items():

        def noting(tensors: Any, channel: Any = channel, send: Any = channel.send) -> None:
            nonlocal most
            send(tensors)
            most = max(most, len(channel._sent))

        if sends:
            channel.send = noting
    # The host of a GPU that lags behind sees no message arrive.
    setattr(dist.Work, "is_completed", lambda _work: False)  # noqa: B010
    for _ in range(2):
        engine.train_step(training.batches(job, engine.topology, 1))
    assert not any(channel._sent for channel in engine._stage._channels.values())
    engine.close()
    return most


@pytest.mark.parametrize("chunks", [1, 2])
def test_stage_releases_messages_that_its_neighbour_has_received(chunks: int) -> None:
    # Of 16 in each chunk, those of the warm-up and of two passes.
    assert all(1 <= most <= 2 + 3 * chunks for most in processes.run(2, most_kept_messages, chunks))


def not_finite() -> dict[str, Any]:
    """Take a step whose loss is not a number, and then a normal one."""
    topology = create.create_topology(NATIVE)
    engine: Any = create.create(NATIVE, topology)

    def spoiled() -> Iterator[Any]:
        for inputs, (labels, mask) in training.batches(NATIVE, topology, 1):
            yield inputs, (labels, mask * float("nan"))

    def weights() -> list[torch.Tensor]:
        module: nn.Module = engine.module
        return [weight.detach().clone() for weight in module.parameters()]

    before = weights()
    norm = engine.train_step(spoiled()).grad_norm
    kept = all(torch.equal(one, other) for one, other in zip(before, weights(), strict=True))
    counted = float(engine.sharded.steps)
    engine.train_step(training.batches(NATIVE, topology, 1))
    moved = not torch.equal(before[0], weights()[0])
    return {
        "norm": norm,
        "kept": kept,
        "counted": counted,
        "moved": moved,
        "sound": engine.first_not_finite(),
        "released": released(engine),
    }


def released(engine: Any) -> bool:
    """Return whether a closed engine frees its weights, as several engines in one process must."""
    weight = weakref.ref(next(engine.module.parameters()))
    engine.close()
    gc.collect()
    return weight() is None


def test_step_with_a_nan_loss_changes_no_weight() -> None:
    result = processes.run(1, not_finite)[0]
    assert result["norm"] != result["norm"]
    assert result | {"norm": 0} == {
        "norm": 0,
        "kept": True,
        "counted": 0.0,
        "moved": True,
        "sound": None,
        "released": True,
    }


def with_and_without_graphs(root: str) -> list[tuple[dict[int, float], list[str]]]:
    """Return the losses of a job with CUDA graphs and of one without, and their lines on that."""
    logs = [
        resuming.train(
            configure(resuming.GPT, {"engine": "native", "optimisation.cuda_graphs": graphs}),
            Path(root) / str(graphs),
            stop_after=2,
        )
        for graphs in (True, False)
    ]
    return [(log.losses(), log.find("has no effect")) for log in logs]


def test_cuda_graphs_are_ignored_on_cpu_with_a_line_in_the_log(tmp_path: Path) -> None:
    ((graphs, plain),) = processes.run(1, with_and_without_graphs, str(tmp_path))
    assert graphs[0] == plain[0]
    assert len(plain[0]) == 2
    assert graphs[1] == ["  optimisation.cuda_graphs has no effect on a CPU"]
    assert plain[1] == []


class GraphOnCpu(GraphedPasses):
    """Computes each micro-batch's passes as the capture does, because a CPU has no graphs."""

    def _run(self, batch: StaticBatch) -> None:
        self._passes(batch)


def graphed_losses() -> list[dict[str, Any]]:
    """Return the results of steps whose passes are those of a graph."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "Stream", lambda _device: None)
        make = NativeEngine.__init__

        def graphed(self: Any, *args: Any, **options: Any) -> None:
            make(self, *args, **options)
            self._graphed = GraphOnCpu(self.module, self.device, self._span)

        patch.setattr(NativeEngine, "__init__", graphed)
        return training.losses({"graphs": NATIVE})["graphs"]


@pytest.mark.parametrize("world", [1, 2])
def test_replicas_reduce_the_gradients_that_graphs_have_accumulated(world: int) -> None:
    plain = processes.run(world, training.losses, {"plain": NATIVE})
    for found, expected in zip(processes.run(world, graphed_losses), plain, strict=True):
        assert found == [
            {key: pytest.approx(value, rel=1e-6) for key, value in step.items()} for step in expected["plain"]
        ]
