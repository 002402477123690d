# SPDX-License-Identifier: GPL-3.0-or-later
"""A process group of the GPUs of one host that transfers by their copy engines, over NVLink.

NCCL's kernels take multiprocessors from matrix products that run meanwhile. Here, each rank copies what it
sends into a slot of the receiver's memory, and the receiver copies it from there. A signal of one says that a
slot is full, and a signal of the other that it is free. All this is on one stream of each rank, so that CUDA
graphs can capture it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from rdm_core.errors import TrainerError
from rdm_core.message_slots import SLOTS, SMALLEST, size_class
from rdm_trainer import process
from rdm_trainer.distributed.clocks import host_identity
from rdm_trainer.distributed.tensor_parallel.exchange import ExchangeGroup, Exchanges
from rdm_trainer.distributed.topology import Topology

__all__ = ["CopyEngines", "create"]

_BACKEND = "copy_engines"
_KEY = "parallel.tensor_communication copy_engines"


class _Slots:
    """Room for messages up to a size, from each rank of a group to each other one.

    It is never freed or replaced, because CUDA graphs have its addresses.

    Args:
        size: Bytes of the largest message.
        group: The ranks. Creation is collective.
        timeout_ms: Longest wait for a signal; the GPU then reports an error.
    """

    def __init__(self, size: int, group: Any, timeout_ms: int) -> None:
        from torch.distributed import _symmetric_memory as symmetric_memory

        self._own, self._timeout_ms = group.rank(), timeout_ms
        others = [rank for rank in range(group.size()) if rank != self._own]
        shape = (SLOTS, len(others), size)
        own = symmetric_memory.empty(shape, dtype=torch.uint8, device=process.device())
        # CUDA writes the memory's zeros on its default stream; no signal may come before them. Other streams
        # may hold messages that another stage receives only after this rank's next ones.
        torch.cuda.default_stream().synchronize()
        self._handle = symmetric_memory.rendezvous(own, group)
        self._received = own
        self._sent = {rank: self._handle.get_buffer(rank, shape, torch.uint8) for rank in others}
        self._next = 0
        for rank in others:
            for slot in range(SLOTS):
                self._free(rank, slot)

    def take(self) -> int:
        """Return the slot of the next operation, the same on all ranks."""
        slot = self._next
        self._next = (slot + 1) % SLOTS
        return slot

    def send(self, rank: int, slot: int, message: torch.Tensor) -> None:
        """Copy bytes into a rank's slot, once it is free."""
        self._handle.wait_signal(rank, SLOTS + slot, self._timeout_ms)
        self._sent[rank][slot, self._row(self._own, rank), : len(message)].copy_(message)
        self._handle.put_signal(rank, slot, self._timeout_ms)

    def receive(self, rank: int, slot: int, message: torch.Tensor) -> None:
        """Copy bytes that a rank has sent, and free the slot."""
        self._handle.wait_signal(rank, slot, self._timeout_ms)
        message.copy_(self._received[slot, self._row(rank, self._own), : len(message)])
        self._free(rank, slot)

    def _free(self, rank: int, slot: int) -> None:
        self._handle.put_signal(rank, SLOTS + slot, self._timeout_ms)

    @staticmethod
    def _row(sender: int, receiver: int) -> int:
        return sender - (sender > receiver)


class _Copied(dist.Work):
    """Copies under way, and their tensors.

    Args:
        end: Recorded after them.
        kept: What must not be freed before.
    """

    def __init__(self, end: torch.cuda.Event, kept: Any) -> None:
        super().__init__()
        self._end, self._kept = end, kept

    def wait(self, _timeout: timedelta | None = None) -> bool:
        """Let the current stream wait; the copies have the group's timeout."""
        torch.cuda.current_stream().wait_event(self._end)
        self._kept = None
        return True


class CopyEngines(Exchanges):
    """The process group.

    Args:
        name: Its name in torch.
        group: Another group of the same ranks, which agrees on shared memory.
        timeout: Longest wait for another rank.
    """

    def __init__(self, name: str, group: Any, timeout: timedelta) -> None:
        super().__init__(name, group.rank(), group.size())
        self._group, self._timeout_ms = group, int(timeout.total_seconds() * 1000)
        # Like those of NCCL, its kernels begin before others that wait.
        self._stream = torch.cuda.Stream(priority=-1)
        self._slots: dict[int, _Slots] = {}
        # Fails here, if ever, and not in a step.
        with torch.cuda.stream(self._stream):
            self._slots_for(SMALLEST)

    @torch.no_grad()
    def transfer(self, sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor]) -> dist.Work:
        """See :meth:`Exchanges.transfer`."""
        own, ranks = self._group.rank(), self._group.size()
        outgoing, incoming = ([_bytes(one) for one in tensors] for tensors in (sent, received))
        # Each rank begins with another one.
        others = [(own + step) % ranks for step in range(1, ranks)]
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            slots = self._slots_for(max(len(one[rank]) for rank in others for one in (outgoing, incoming)))
            slot = slots.take()
            for rank in others:
                if len(outgoing[rank]):
                    slots.send(rank, slot, outgoing[rank])
            if len(incoming[own]):
                incoming[own].copy_(outgoing[own])
            for rank in reversed(others):
                if len(incoming[rank]):
                    slots.receive(rank, slot, incoming[rank])
            end = self._stream.record_event()
        return _Copied(end, (sent, received))

    def _slots_for(self, size: int) -> _Slots:
        """Return the slots of a size class; all ranks have messages of the same sizes."""
        size = size_class(size)
        if size not in self._slots:
            # A capture must not allocate; the micro-batches before it have had all sizes.
            assert not torch.cuda.is_current_stream_capturing()
            self._slots[size] = _Slots(size, self._group, self._timeout_ms)
        return self._slots[size]


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


@functools.cache
def _register() -> None:
    # torch could also multicast within the shared memory, which fails on some hosts and is not used here.
    os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    # It compares the devices' indices, which are all 0 where a launcher shows each rank only its own GPU.
    os.environ.setdefault("TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES", "1")
    dist.Backend.register_backend(
        _BACKEND,
        lambda own, group: CopyEngines(own.group_id, group, own.timeout),
        extended_api=True,
        devices=["cuda"],
    )


def create(topology: Topology) -> ExchangeGroup | None:
    """Create the process group of this rank's tensor ranks; all of them call this.

    Returns:
        What layers know of it; None if there is only one tensor rank.

    Raises:
        TrainerError: They are not NVIDIA GPUs of one host that can copy to each other.
    """
    if topology.tensor == 1:
        return None
    if process.device().type == "cpu" or torch.version.hip:
        found = "has an AMD GPU" if torch.version.hip else "computes on the CPU"
        raise TrainerError(f"{_KEY} needs NVIDIA GPUs, but this node {found}; take collectives.")
    group = topology.tensor_group
    places: list[Any] = [None] * topology.tensor
    own = str(torch.cuda.get_device_properties(process.device()).uuid)
    dist.all_gather_object(places, (host_identity(), own), group)
    if problem := _problem(places, topology.tensor_rank):
        raise TrainerError(f"{_KEY} needs tensor ranks {problem}; take collectives, or place them so.")
    _register()
    ranks = dist.get_process_group_ranks(group)
    try:
        # Only its members create it: other ranks would split NCCL's communicator for it.
        created = dist.new_group(
            ranks,
            timeout=topology.timeout,
            backend=_BACKEND,
            pg_options=group,
            use_local_synchronization=True,
        )
    except RuntimeError as error:
        raise TrainerError(
            f"{_KEY}: the GPUs of tensor ranks cannot share memory ({error}); take collectives."
        ) from error
    return ExchangeGroup.of(created)


def _problem(places: Sequence[tuple[str, str]], own: int) -> str | None:
    """Return what tensor ranks lack, given each one's host and GPU."""
    if len({host for host, _ in places}) > 1:
        return "on one host"
    if len({gpu for _, gpu in places}) < len(places):
        return "with a GPU each"
    indices = {
        str(torch.cuda.get_device_properties(index).uuid): index for index in range(torch.cuda.device_count())
    }
    # The driver answers only for the GPUs that this process sees.
    seen = [indices[gpu] for rank, (_, gpu) in enumerate(places) if rank != own and gpu in indices]
    device = process.device()
    if not all(torch.cuda.can_device_access_peer(device, index) for index in seen):
        return "whose GPUs can access each other's memory"
    return None
