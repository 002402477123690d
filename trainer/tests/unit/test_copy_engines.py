# SPDX-License-Identifier: GPL-3.0-or-later
"""The protocol of copy engines, between threads: memory and signals of the GPUs are a stand-in."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import _symmetric_memory

from rdm_trainer.distributed.tensor_parallel.copy_engines import CopyEngines

SIZES = (3, 1000, 300_000, 3, 700_000, *[5] * 6, 300_001)
DEADLINE_S = 60.0


class SharedMemory:
    """Memory and signals of several ranks, each a thread; a signal is 0 or 1, as in torch."""

    def __init__(self, ranks: int) -> None:
        self.buffers: dict[tuple[int, int], torch.Tensor] = {}
        self._changed = threading.Condition()
        self._signals: dict[tuple[int, int, int, int], int] = {}
        self._all = threading.Barrier(ranks, timeout=DEADLINE_S)

    def rendezvous(self, buffer: torch.Tensor, group: Ranks) -> Handle:
        number, group.shared = group.shared, group.shared + 1
        self.buffers[number, group.rank()] = buffer
        self._all.wait()
        return Handle(self, number, group.rank())

    def change(self, key: tuple[int, int, int, int], value: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._signals.get(key, 0) != value, DEADLINE_S)
            self._signals[key] = value
            self._changed.notify_all()


class Handle:
    """A rank's handle of the memory."""

    def __init__(self, memory: SharedMemory, number: int, rank: int) -> None:
        self._memory, self._number, self._rank = memory, number, rank

    def get_buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        found = self._memory.buffers[self._number, rank]
        assert (found.shape, found.dtype) == (shape, dtype)
        return found

    def put_signal(self, rank: int, channel: int, _timeout_ms: int) -> None:
        self._memory.change((self._number, rank, channel, self._rank), 1)

    def wait_signal(self, rank: int, channel: int, _timeout_ms: int) -> None:
        self._memory.change((self._number, self._rank, channel, rank), 0)


class Ranks:
    """A group, as one rank sees it."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks, self.shared = rank, ranks, 0

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._ranks


class Stream:
    """A stream whose work ends at once."""

    def __init__(self, priority: int = 0) -> None: ...

    def wait_stream(self, _other: Any) -> None: ...

    def wait_event(self, _event: Any) -> None: ...

    def record_event(self) -> None: ...

    def synchronize(self) -> None: ...


@pytest.fixture
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    ranks: int = request.param
    shared = SharedMemory(ranks)
    monkeypatch.setattr(
        _symmetric_memory, "empty", lambda shape, dtype, device: torch.zeros(shape, dtype=dtype)
    )
    monkeypatch.setattr(_symmetric_memory, "rendezvous", shared.rendezvous)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "default_stream", Stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return ranks


def exchanged(rank: int, ranks: int) -> bool:
    """Return whether a rank receives what the others send, in messages of changing sizes."""
    group: Any = CopyEngines("tensor", Ranks(rank, ranks), timedelta(seconds=DEADLINE_S))

    def parts(of: int, number: int, size: int) -> torch.Tensor:
        return torch.arange(ranks * size).float().add(1000 * of + number).view(ranks, size)

    is_right = True
    for message in enumerate(SIZES):
        own, size = parts(rank, *message), message[1]
        found = torch.empty(ranks, size)
        assert group.alltoall_base(found, own, [1] * ranks, [1] * ranks).wait()
        is_right &= torch.equal(found, torch.stack([parts(other, *message)[rank] for other in range(ranks)]))
        whole = torch.empty(ranks * ranks, size)
        assert group.allgather_into_tensor_coalesced([whole], [own]).wait()
        is_right &= torch.equal(whole, torch.cat([parts(other, *message) for other in range(ranks)]))
        if ranks == 2:
            sizes = [2, 0] if rank else [0, 2]
            assert group.alltoall_base(found, own, sizes, sizes).wait()
            is_right &= torch.equal(found, parts(1 - rank, *message))
    return is_right


@pytest.mark.parametrize("memory", [2, 3, 4], indirect=True)
def test_ranks_receive_what_others_send(memory: int) -> None:
    with ThreadPoolExecutor(memory) as threads:
        assert list(threads.map(exchanged, range(memory), [memory] * memory)) == [True] * memory
