# SPDX-License-Identifier: GPL-3.0-or-later
"""Which collectives of torch and DeepSpeed are observed, in a real process group of one rank."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rdm_trainer.distributed.collective_watch import CollectiveWatch
from rdm_trainer.distributed.tensor_parallel import layers


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Seen:
    """The names of the observed collectives, and how often each of them has ended."""

    def __init__(self, ignored: Any = None) -> None:
        self.names: list[str] = []
        self.ends: list[int] = []
        self.watching = CollectiveWatch(self._begin, ignored).watching

    def _begin(self, name: str) -> Callable[[], None]:
        number = len(self.names)
        self.names.append(name)
        self.ends.append(0)

        def end() -> None:
            self.ends[number] += 1

        return end


def test_functions_bound_before_are_observed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # deepspeed.comm.torch is torch itself as an attribute.
    module = importlib.import_module("deepspeed.comm.torch")
    # Otherwise, DeepSpeed would compile an extension.
    monkeypatch.setattr(module, "build_shm_op", lambda: None)
    # DeepSpeed's backend keeps the functions that it found when it was made.
    backend = module.TorchBackend("gloo", None, None)
    gather, scatter = dist.all_gather_into_tensor, dist.reduce_scatter_tensor
    whole, part, seen = torch.zeros(4), torch.ones(4), Seen()
    with seen.watching():
        backend.all_gather_into_tensor(whole, part)
        backend.reduce_scatter_tensor(part, whole)
        gather(whole, part)
        scatter(part, whole)
    assert seen.names == ["all_gather_into_tensor", "reduce_scatter_tensor"] * 2
    assert whole.tolist() == part.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("all_gather", lambda tensor, **how: dist.all_gather([torch.zeros(2)], tensor, **how)),
        ("all_reduce", lambda tensor, **how: dist.all_reduce(tensor, **how)),
        ("all_to_all_single", lambda tensor, **how: dist.all_to_all_single(torch.zeros(2), tensor, **how)),
        ("barrier", lambda _, **how: dist.barrier(**how)),
        ("broadcast", lambda tensor, **how: dist.broadcast(tensor, 0, **how)),
        ("gather", lambda tensor, **how: dist.gather(tensor, [torch.zeros(2)], **how)),
        ("reduce", lambda tensor, **how: dist.reduce(tensor, 0, **how)),
        ("reduce_scatter", lambda tensor, **how: dist.reduce_scatter(torch.zeros(2), [tensor], **how)),
        ("scatter", lambda tensor, **how: dist.scatter(torch.zeros(2), [tensor], **how)),
    ],
)
def test_an_operation_ends_when_its_work_is_waited_for(name: str, call: Callable[..., Any]) -> None:
    seen = Seen()
    with seen.watching():
        call(torch.ones(2))
        assert seen.names == [name]
        assert seen.ends[0] >= 1
        work = call(torch.ones(2), async_op=True)
        assert isinstance(work, dist.Work)
        assert seen.names == [name, name]
        assert seen.ends[1] == 1, "until it is waited for, all that is known is that its call returned"
        work.wait()
        assert seen.ends[1] == 2
        work.wait()
        assert seen.ends[1] == 2, "what is waited for again ended before"


def test_a_work_of_one_step_may_be_waited_for_in_the_next() -> None:
    seen = Seen()
    with seen.watching():
        work = dist.all_reduce(torch.ones(2), async_op=True)
    with seen.watching():
        work.wait()
    assert seen.ends == [2]


def test_coalesced_operations_are_one() -> None:
    tensors, seen = [torch.ones(2), torch.ones(3)], Seen()
    with seen.watching():
        with dist.distributed_c10d._coalescing_manager(async_ops=True) as batch:
            for tensor in tensors:
                dist.all_reduce(tensor)
        assert (seen.names, seen.ends) == (["all_reduce_coalesced"], [1])
        batch.wait()
    assert seen.ends == [2]


def test_a_batch_on_the_device_begins_and_ends_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL has such batches, and Gloo has not: a stand-in begins and ends it."""

    class Group:
        def _start_coalescing(self, device: str) -> None: ...

        def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> None: ...

        def _end_coalescing(self, device: str) -> Any:
            return dist.all_reduce(torch.ones(1), group=ignored, async_op=True)

    ignored = dist.new_group()
    seen = Seen(ignored)
    real = dist.ProcessGroup
    with monkeypatch.context() as patch:
        patch.setattr(dist, "ProcessGroup", Group)
        with seen.watching():
            group = Group()
            group._start_coalescing("cuda")
            group.send([torch.ones(1)], 1, 0)
            work = group._end_coalescing("cuda")
            assert (seen.names, seen.ends) == (["coalesced"], [1])
            work.wait()
            assert seen.ends == [2]
            group.send([torch.ones(1)], 1, 0)
        assert seen.names == ["coalesced", "send"]
    assert dist.ProcessGroup is real


def test_our_own_sums_end_when_they_are_waited_for() -> None:
    seen = Seen()
    states = torch.ones(2, requires_grad=True)
    with seen.watching():
        pending = layers._BeginSum.apply(states, dist.group.WORLD, False)
        assert (seen.names, seen.ends) == (["all_reduce"], [1])
        layers._EndSum.apply(pending).sum().backward()
    assert (seen.names, seen.ends) == (["all_reduce"], [2])


def test_a_group_can_be_left_out() -> None:
    other = dist.new_group()
    seen = Seen(ignored=other)
    with seen.watching():
        dist.all_reduce(torch.ones(2), group=other)
        dist.all_reduce(torch.ones(2), dist.ReduceOp.SUM, other)
        dist.barrier(other, async_op=True).wait()
    assert seen.names == []


def test_functions_are_restored_afterwards() -> None:
    def every() -> list[dict[str, Any]]:
        return [dict(vars(owner)) for owner in (dist, dist.ProcessGroup, dist.Work, layers)]

    before, seen = every(), Seen()
    with contextlib.suppress(ZeroDivisionError), seen.watching():
        assert every() != before
        work = dist.all_reduce(torch.ones(2), async_op=True)
        raise ZeroDivisionError
    assert every() == before
    work.wait()
    dist.all_reduce(torch.ones(2))
    assert (seen.names, seen.ends) == (["all_reduce"], [1])
