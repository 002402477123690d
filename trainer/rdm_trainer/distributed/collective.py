# SPDX-License-Identifier: GPL-3.0-or-later
"""Coordination of all ranks over the CPU: small objects, flags, and waits without a time limit.

A process group fails if a rank arrives after its timeout. Writing a large checkpoint may take longer, so
ranks never wait for that inside one collective operation. They poll each other instead, and each poll is
short.
"""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

# Bytes per message when sending a file.
CHUNK = 16 * 1024 * 1024

# A padded gather may send up to this factor times the data, plus this many bytes.
_PADDING = 2
_LITTLE = 1024 * 1024


class Collective:
    """All ranks, over Gloo. Every rank creates one, and calls its methods in the same order.

    Args:
        timeout: Timeout of one operation.
    """

    def __init__(self, timeout: datetime.timedelta) -> None:
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.group = dist.new_group(backend="gloo", timeout=timeout)
        self._longest_wait = min(5.0, timeout.total_seconds() / 4)

    def gather(self, value: Any) -> list[Any]:
        """Return every rank's value, by rank.

        Uneven values are broadcast one by one. If each were padded to the largest, the file names of a
        checkpoint would fill the hosts' memory in a large job.
        """
        if self.size == 1:
            return [value]
        data = b"" if value is None else pickle.dumps(value)
        every = torch.empty(self.size, dtype=torch.int64)
        dist.all_gather(list(every.split(1)), torch.tensor([len(data)]), group=self.group)
        sizes: list[int] = every.tolist()
        if max(sizes) * self.size <= _PADDING * sum(sizes) + _LITTLE:
            blocks = self._gather_padded(data, max(sizes))
        else:
            blocks = [self._broadcast(data, size, rank) for rank, size in enumerate(sizes)]
        return [
            # The data come from this job's own ranks.
            pickle.loads(bytes(block[:size])) if size else None  # noqa: S301
            for block, size in zip(blocks, sizes, strict=True)
        ]

    def _gather_padded(self, data: bytes, size: int) -> list[memoryview]:
        blocks = torch.empty(self.size, size, dtype=torch.uint8)
        own = torch.zeros(size, dtype=torch.uint8)
        if data:
            own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if size:
            dist.all_gather(list(blocks.unbind()), own, group=self.group)
        return [block.numpy().data for block in blocks]

    def _broadcast(self, data: bytes, size: int, source: int) -> memoryview:
        if not size:
            return memoryview(b"")
        if self.rank == source:
            block = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        else:
            block = torch.empty(size, dtype=torch.uint8)
        dist.broadcast(block, source, group=self.group)
        return block.numpy().data

    def first_error(self, error: str | None) -> str | None:
        """Return the error of the lowest rank with one, prefixed with its number; None if there is none."""
        for rank, found in enumerate(self.gather(error)):
            if found is not None:
                return f"rank {rank}: {found}" if self.size > 1 else str(found)
        return None

    def barrier(self) -> None:
        """Return once every rank has called this."""
        self.gather(None)

    def wait_until(self, done: Callable[[float], bool]) -> None:
        """Return once a condition has been true on every rank.

        Args:
            done: Returns whether the condition is true; gets the seconds that it may wait for that.
        """
        finished = False
        wait = min(0.05, self._longest_wait)
        while True:
            finished = finished or done(wait)
            if self.size == 1:
                if finished:
                    return
            else:
                flag = torch.tensor(int(finished))
                dist.all_reduce(flag, op=dist.ReduceOp.MIN, group=self.group)
                if int(flag):
                    return
            wait = min(self._longest_wait, 2 * wait)

    def send(self, data: bytearray, to: int) -> None:
        """Send a message to a rank that knows its size."""
        dist.send(torch.frombuffer(data, dtype=torch.uint8), to, group=self.group)

    def receive(self, size: int, source: int, take: Callable[[memoryview], None]) -> None:
        """Receive messages of ``CHUNK`` bytes.

        Args:
            size: Total bytes.
            source: The sending rank.
            take: Receives each message.
        """
        buffer = torch.empty(min(size, CHUNK), dtype=torch.uint8)
        for begin in range(0, size, CHUNK):
            part = buffer[: min(CHUNK, size - begin)]
            dist.recv(part, source, group=self.group)
            take(part.numpy().data)


class Flags:
    """Flags that any rank may raise at the end of a step, known to all ranks at the end of the next one.

    The all-reduce starts before a step and is read after it, on the CPU. It costs the step nothing, and all
    ranks read the same result.

    Args:
        collective: All ranks.
        count: Number of flags.
    """

    def __init__(self, collective: Collective, count: int) -> None:
        self._collective = collective
        self._flags = torch.zeros(count, dtype=torch.int64)
        self._work: Any = None

    def exchange(self, raised: list[bool]) -> list[bool]:
        """Raise flags, and return the flags that any rank raised at the previous call."""
        agreed = self.settle()
        self._flags = torch.tensor([int(flag) for flag in raised], dtype=torch.int64)
        if self._collective.size > 1:
            self._work = dist.all_reduce(
                self._flags, op=dist.ReduceOp.MAX, group=self._collective.group, async_op=True
            )
        return agreed

    def settle(self) -> list[bool]:
        """Wait for the pending exchange and return its flags."""
        if self._work is not None:
            self._work.wait()
            self._work = None
        return [bool(flag) for flag in self._flags.tolist()]
