# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how fast all ranks and pairs of nodes exchange data: ``python -m rdm_trainer.tools.all_reduce``.

Launchers start it once per device, as they start a training, so that it takes the same path: NCCL, RCCL or
Gloo, the same interfaces, the same processes. It reduces tensors of growing size over all ranks. Bandwidths
are those of nccl-tests (its doc/PERFORMANCE.md): algorithm bandwidth is size / time, bus bandwidth that times
2 (n - 1) / n, which does not depend on the number of ranks and compares with a link's rate.

An all-reduce is as slow as its slowest rank and does not show which one that is. So some rounds follow in
which each node exchanges data with one other node, all pairs at once: a slow node is slow in each round.

Rank 0 writes ``progress.json`` into the job's directory (``$RDM_JOB_DIR``), with the result under
``collective``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist

from rdm_core.atomic_file import write_atomically
from rdm_trainer import process

_STEP = 4
LEAST = 1024**2
_PAIR_SIZE = 64 * 1024**2
_PAIR_ROUNDS = 8
_PAIR_TIMES = 3
"""The best of this many exchanges counts: a busy processor is no slow link."""
_TIMED_S = 0.5
"""How long one size is repeated, in seconds."""
_MOST_TIMES = 20
_COPIES = 3
"""How many times a tensor is in memory, the backend's copies included."""
_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}


def parse_size(text: str) -> int:
    """Return the bytes of words such as ``256M``.

    Raises:
        argparse.ArgumentTypeError: They are no size from 1M up.
    """
    found = re.fullmatch(r"(\d+)([KMG]?)", text.strip().upper().removesuffix("B"))
    size = int(found.group(1)) * _UNITS[found.group(2)] if found else 0
    if size < LEAST:
        raise argparse.ArgumentTypeError(f"{text!r} is no size from 1M up, such as 256M or 1G")
    return size


def this_node() -> str:
    """Return the name of this rank's node; if it has none, its address or host name."""
    return os.environ.get("RDM_NODE") or os.environ.get("MY_IP") or socket.gethostname()


def sizes(most: int) -> list[int]:
    """Return the sizes to reduce, in bytes: from 1 MiB on, each four times the one before."""
    found = [LEAST]
    while found[-1] * _STEP <= most:
        found.append(found[-1] * _STEP)
    return found if found[-1] == most else [*found, most]


def partner(node: int, count: int, number: int) -> int | None:
    """Return the partner of a node in a round of a round-robin tournament; None if it has none.

    Over ``count - 1`` rounds (``count`` if that is odd), every pair meets once.

    Args:
        node: The node, from 0.
        count: Number of nodes.
        number: The round, from 0.
    """
    last = count - 1 + count % 2
    if node == last:
        other = next(one for one in range(last) if 2 * one % last == number % last)
    else:
        other = (number - node) % last
        other = last if other == node else other
    return other if other < count else None


class Bench:
    """The ranks, and what they measure together. Every rank calls its methods in the same order."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        own = this_node()
        gathered: list[Any] = [None] * self.world
        dist.all_gather_object(gathered, (own, link_rate(device)))
        self.nodes = list(dict.fromkeys(name for name, _ in gathered))
        self.rates = {name: rate for name, rate in gathered if rate}
        self.ranks = [
            [rank for rank, (name, _) in enumerate(gathered) if name == node] for node in self.nodes
        ]
        self.node = self.nodes.index(own)

    def largest(self, most: int) -> int:
        """Return the largest size that every rank has memory for.

        Args:
            most: The largest wanted size, in bytes.
        """
        if self.device.type == "cuda":
            free = torch.cuda.mem_get_info(self.device)[0]
        else:
            free = psutil.virtual_memory().available // len(self.ranks[self.node])
        return min(most, int(-self._most(-float(free // _COPIES))))

    def reduce(self, size: int) -> dict[str, Any]:
        """Reduce over all ranks several times; return the times and bandwidths.

        Args:
            size: Bytes.

        Raises:
            ValueError: The sum is wrong.
        """
        tensor = torch.ones(size // 4, device=self.device)
        first = self._timed(lambda: dist.all_reduce(tensor), 1)
        if not bool((tensor == self.world).all()):
            raise ValueError(f"The sum of {size} bytes over {self.world} ranks is wrong on rank {self.rank}.")
        tensor.zero_()  # sums of sums would soon be infinite
        times = max(1, min(_MOST_TIMES, int(_TIMED_S / first)))
        seconds = self._timed(lambda: dist.all_reduce(tensor), times) / times
        algorithm = size / seconds / 1e9
        return {
            "bytes": size,
            "times": times,
            "seconds": seconds,
            "algbw": algorithm,
            "busbw": algorithm * 2 * (self.world - 1) / self.world,
        }

    def pairs(self, size: int) -> list[list[Any]]:
        """Exchange data between pairs of nodes.

        The ranks of a node each have a partner on the other node, and the slowest of them counts.

        Args:
            size: Bytes.

        Returns:
            [node, node, Gb/s] of each pair on rank 0; an empty list on other ranks.
        """
        count = len(self.nodes)
        rounds = count - 1 + count % 2
        some = min(rounds, _PAIR_ROUNDS)
        sent, received = (torch.ones(size // 4, device=self.device) for _ in range(2))
        found = []
        for number in sorted({index * rounds // some for index in range(some)}):
            other = partner(self.node, count, number)
            index = self.ranks[self.node].index(self.rank)
            peer = None if other is None or index >= len(self.ranks[other]) else self.ranks[other][index]
            dist.barrier()
            if peer is not None:
                self._exchange(sent[:1], received[:1], peer)  # connects the two
                best = min(self._exchange(sent, received, peer) for _ in range(_PAIR_TIMES))
                found.append((self.rank, peer, 8 * size / best / 1e9))
        every: list[Any] = [None] * self.world
        dist.all_gather_object(every, found)
        if self.rank:
            return []
        home = {rank: node for node, ranks in zip(self.nodes, self.ranks, strict=True) for rank in ranks}
        slowest: dict[tuple[str, str], float] = {}
        for one, other, rate in (measured for links in every for measured in links):
            pair = home[min(one, other)], home[max(one, other)]
            slowest[pair] = min(rate, slowest.get(pair, rate))
        return [[*pair, rate] for pair, rate in slowest.items()]

    def _exchange(self, sent: torch.Tensor, received: torch.Tensor, peer: int) -> float:
        """Send and receive at once; return the seconds that it took."""
        began = time.perf_counter()
        operations = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        self._synchronise()
        return time.perf_counter() - began

    def _timed(self, work: Any, times: int) -> float:
        """Return the seconds that the slowest rank took."""
        dist.barrier()
        self._synchronise()
        began = time.perf_counter()
        for _ in range(times):
            work()
        self._synchronise()
        return self._most(time.perf_counter() - began)

    def _synchronise(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _most(self, value: float) -> float:
        """Return the largest of all ranks' values."""
        largest = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return float(largest.item())


def link_rate(device: torch.device, root: Path = Path("/")) -> float | None:
    """Return the rate of this container's links in Gb/s; None when it is not known.

    For GPUs, this is the sum over all RDMA devices that it can use; otherwise the fabric's interface counts.
    """
    if device.type == "cuda":
        rates = list(_rdma_rates(root))
        if rates:
            return sum(rates)
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    try:
        megabits = int((root / "sys/class/net" / interface / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits / 1000 if megabits > 0 else None


def _rdma_rates(root: Path) -> Iterator[float]:
    for verbs in sorted((root / "sys/class/infiniband_verbs").glob("uverbs*")):
        try:
            name = (verbs / "ibdev").read_text().strip()
            port = root / "sys/class/infiniband" / name / "ports/1"
            state, rate = (port / "state").read_text(), (port / "rate").read_text()
        except OSError:
            continue
        found = re.match(r"([\d.]+) Gb/sec", rate)
        if (root / "dev/infiniband" / verbs.name).exists() and state.startswith("4:") and found:
            yield float(found.group(1))


def join(seconds: float) -> torch.device:
    """Become a rank, over the backend that a training here would use."""
    process.join("auto", datetime.timedelta(seconds=seconds))
    return process.device()


def measure(bench: Bench, most: int, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the progress as keys of ``progress.json``; the last has the whole result.

    Args:
        bench: The ranks.
        most: The largest size.
        seconds: The time limit; a size that is expected to exceed it is not begun.
    """
    began = time.monotonic()
    allowed = bench.largest(most)
    result: dict[str, Any] = {
        "backend": dist.get_backend(),
        "ranks": bench.world,
        "nodes": bench.nodes,
        "rates_gbit": bench.rates,
        "sizes": [],
        "links_gbit": [],
        "note": "",
    }
    wanted = sizes(most)
    for number, size in enumerate(wanted):
        done = result["sizes"]
        expected = 2 * size / done[-1]["bytes"] * done[-1]["seconds"] if done else 0.0
        # The slowest clock decides for all ranks.
        late = bench._most(time.monotonic() - began + expected) > seconds
        if size > allowed or late:
            reason = "the time was up" if late else "the memory of a node does not hold more"
            reached = f"{done[-1]['bytes'] >> 20} MiB" if done else "the beginning"
            result["note"] = f"It ended with {reached} of {most >> 20} MiB: {reason}."
            break
        yield {"iteration": number, "phase": f"all-reduce {size >> 20} MiB", "collective": result}
        done.append(bench.reduce(size))
    yield {"iteration": len(wanted), "phase": "pairs", "collective": result}
    if len(bench.nodes) > 1:
        result["links_gbit"] = bench.pairs(min(most, allowed, _PAIR_SIZE) if result["sizes"] else LEAST)
    yield {"iteration": len(wanted) + 1, "phase": "done", "collective": result}


def main(arguments: Sequence[str]) -> int:
    """Measure, and return the exit code.

    Args:
        arguments: See ``--help``. Launchers add ``--local_rank``.
    """
    parser = argparse.ArgumentParser(prog="python -m rdm_trainer.tools.all_reduce")
    parser.add_argument(
        "--max-size", type=parse_size, default="1G", help="of the largest tensor, such as 256M"
    )
    parser.add_argument(
        "--time-limit", type=float, default=120.0, help="begin nothing that would take longer"
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="an operation that takes longer fails")
    parser.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    bench = Bench(join(options.timeout))
    path = Path(os.environ.get("RDM_JOB_DIR", ".")) / "progress.json"
    total = len(sizes(options.max_size)) + 1
    for point in measure(bench, options.max_size, options.time_limit):
        if bench.rank == 0:
            text = json.dumps({"train_iterations": total, "time": time.time(), **point})
            write_atomically(path, text + "\n")
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
