# SPDX-License-Identifier: GPL-3.0-or-later
"""Ranks that compute on the machine's GPUs.

The tests' own process never does: what a test finds on the GPU is of the processes that it started.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

TIMEOUT_S = 180.0
"""After which a launch is given up, in seconds."""


def run(world: int, target: Callable[..., Any], *arguments: Any, gpus: int = 1) -> list[Any]:
    """Call ``target(*arguments)`` in the ranks of one process group; return what each returned.

    Args:
        world: Number of ranks. Several ranks of one GPU communicate through gloo, others through NCCL.
        target: A function at the top level of a module.
        arguments: Of the function; they and what it returns must be picklable.
        gpus: Number of GPUs: one, or one for each rank.

    Raises:
        TimeoutError: A rank did not answer within ``TIMEOUT_S``.
    """
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(world, mp_context=context) as pool,
    ):
        ranks = [pool.submit(_rank, rank, world, gpus, folder, target, arguments) for rank in range(world)]
        return [rank.result(TIMEOUT_S) for rank in ranks]


def _rank(
    rank: int, world: int, gpus: int, folder: str, target: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    local = rank % gpus
    os.environ.update(DS_ACCELERATOR="cuda", RANK=str(rank), LOCAL_RANK=str(local), WORLD_SIZE=str(world))
    import torch
    import torch.distributed as dist

    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    own: dict[str, Any] = {"backend": "nccl", "device_id": device}
    dist.init_process_group(
        **(own if world == gpus else {"backend": "gloo"}),
        init_method=f"file://{Path(folder) / 'meeting'}",
        timeout=timedelta(seconds=TIMEOUT_S),
        rank=rank,
        world_size=world,
    )
    answer = target(*arguments)
    dist.barrier()
    dist.destroy_process_group()
    return answer


def sleeper(seconds: float) -> Callable[[], None]:
    """Return what lets the GPU, not the host, do nothing for so long at least, as a slow kernel would."""
    import torch

    def took_s(cycles: int) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    # Its clock rises when it has something to do; the fastest that it becomes counts.
    cycles = 100_000_000
    most = int(seconds * cycles / min(took_s(cycles) for _ in range(10)) * 1.25)
    return lambda: torch.cuda._sleep(most)
