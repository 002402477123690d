# SPDX-License-Identifier: GPL-3.0-or-later
"""How the clocks of the hosts of a job differ, found with messages between their ranks."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from rdm_trainer.distributed.collective import Collective

__all__ = ["compare", "host_identity", "offset"]

_EXCHANGES = 16
"""Messages to the first node and back, of which the fastest counts."""
_BOOT = Path("/proc/sys/kernel/random/boot_id")

Clock = Callable[[], int]


def offset(exchanges: Sequence[tuple[int, int, int, int]]) -> tuple[float, float]:
    """Return by how much another clock is ahead of ours, and by how much that may be wrong, in nanoseconds.

    Args:
        exchanges: When a message left here, came there, its answer left there, and came here. The first and
            the last are times of our clock.

    Source: RFC 5905 (NTP), section 8: the exchange that was the shortest on its way says it best.
    """
    left, came, answered, back = min(exchanges, key=lambda one: one[3] - one[0] - (one[2] - one[1]))
    return ((came - left) + (answered - back)) / 2, ((back - left) - (answered - came)) / 2


def compare(
    collective: Collective, host: str = "", clock: Clock = time.perf_counter_ns
) -> tuple[float, float]:
    """Return what to add to this rank's clock for rank 0's, and the doubt about it, in nanoseconds.

    One rank of each host asks rank 0, one host after the other, and the others of the host have its answer.

    Args:
        collective: All ranks; each calls it.
        host: What ranks have in common that have one clock; by default the boot of their kernel.
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
            own = offset([_ask(collective, clock) for _ in range(_EXCHANGES)])
    told: list[tuple[float, float] | None] = collective.gather(own)
    found = told[leaders[hosts[collective.rank]]]
    assert found is not None
    return found


def _ask(collective: Collective, clock: Clock) -> tuple[int, int, int, int]:
    question, answer = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    left = clock()
    dist.send(question, 0, group=collective.group)
    dist.recv(answer, 0, group=collective.group)
    back = clock()
    came, answered = answer.tolist()
    return left, came, answered, back


def _answer(collective: Collective, leader: int, clock: Clock) -> None:
    question = torch.zeros(1, dtype=torch.int64)
    for _ in range(_EXCHANGES):
        dist.recv(question, leader, group=collective.group)
        came = clock()
        dist.send(torch.tensor([came, clock()]), leader, group=collective.group)


def host_identity() -> str:
    """Return what ranks have in common whose monotonic clock is the same."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return socket.gethostname()
