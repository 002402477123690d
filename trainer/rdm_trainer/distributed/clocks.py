# SPDX-License-Identifier: GPL-3.0-or-later
"""Offsets between the clocks of a job's hosts, measured with messages between ranks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from rdm_trainer.distributed.collective import Collective

_EXCHANGES = 16
"""Number of round trips to rank 0; the fastest counts."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")

_Clock = Callable[[], int]


def offset(exchanges: Sequence[tuple[int, int, int, int]]) -> tuple[float, float]:
    """Return how far another clock is ahead of ours, and the error bound, in nanoseconds.

    Args:
        exchanges: For each round trip, when the request left here and arrived there, and when the reply left
            there and arrived here. The first and the last are times of our clock.

    Source: RFC 5905 (NTP), section 8: the exchange with the shortest round trip is the most accurate.
    """
    left, came, answered, back = min(exchanges, key=lambda one: one[3] - one[0] - (one[2] - one[1]))
    return ((came - left) + (answered - back)) / 2, ((back - left) - (answered - came)) / 2


def compare(
    collective: Collective, host: str = "", clock: _Clock = time.perf_counter_ns
) -> tuple[float, float]:
    """Return the offset from this rank's clock to rank 0's, and its error bound, in nanoseconds.

    One rank per host queries rank 0, one host at a time, and shares the result with the ranks of its host.

    Args:
        collective: All ranks; each calls this.
        host: An identifier shared by ranks with the same clock; by default their kernel's boot ID.
        clock: Returns nanoseconds.
    """
    hosts: list[str] = collective.gather(host or host_identity())
    leaders = {host: hosts.index(host) for host in hosts}
    own: tuple[float, float] | None = (0.0, 0.0) if collective.rank == 0 else None
    for leader in leaders.values():
        if leader == 0:
            continue
        if collective.rank == 0:
            _answer(collective, leader, clock)
        elif collective.rank == leader:
            own = offset([_query(collective, clock) for _ in range(_EXCHANGES)])
    offsets: list[tuple[float, float] | None] = collective.gather(own)
    found = offsets[leaders[hosts[collective.rank]]]
    assert found is not None
    return found


def _query(collective: Collective, clock: _Clock) -> tuple[int, int, int, int]:
    question, answer = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    left = clock()
    dist.send(question, 0, group=collective.group)
    dist.recv(answer, 0, group=collective.group)
    back = clock()
    came, answered = answer.tolist()
    return left, came, answered, back


def _answer(collective: Collective, leader: int, clock: _Clock) -> None:
    question = torch.zeros(1, dtype=torch.int64)
    for _ in range(_EXCHANGES):
        dist.recv(question, leader, group=collective.group)
        came = clock()
        dist.send(torch.tensor([came, clock()]), leader, group=collective.group)


def host_identity() -> str:
    """Return an identifier shared by ranks with the same monotonic clock."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()
