# SPDX-License-Identifier: GPL-3.0-or-later
"""What every workload does around its training: be the only one, join the others, hear signals."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator

from rdm_core.errors import TrainerError
from rdm_trainer.engines.deepspeed.topology import without_compiler

__all__ = ["Stop", "alone", "device", "join", "memory"]

# SIGUSR1 is what batch systems send before the time is up.
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@contextlib.contextmanager
def alone(job_dir: Path) -> Iterator[None]:
    """Keep a second training out of a directory: the two would take each other's checkpoints for theirs."""
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    with contextlib.ExitStack() as held:
        try:
            job_dir.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((job_dir / ".training.lock").open("w"))
        except OSError as error:
            raise TrainerError(f"{job_dir} cannot be written: {error.strerror}.") from None
        try:
            # Unlike flock's, not kept by the processes that read data, which end a little later.
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TrainerError(
                f"Another training is at work in {job_dir}; stop that one, or give this one another "
                "--job-dir."
            ) from None
        except OSError:
            pass  # a file system without locks
        yield


def join(precision: str, backend: str, timeout: datetime.timedelta) -> None:
    """Become a rank: take a device and meet the others. Without a launcher, be a world of one.

    Args:
        precision: What is computed in: fp32, bf16 or fp16.
        backend: Of the process group: auto, nccl or gloo.
        timeout: Of its operations.

    Raises:
        TrainerError: This node's device cannot do that.
    """
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    without_compiler()
    accelerator = get_accelerator()
    on_cpu = accelerator.device_name() == "cpu"
    _require_device(precision, backend, accelerator)
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = None
    if not on_cpu:
        # A launcher may show each rank its own device alone.
        accelerator.set_device(local % accelerator.device_count())
        device = torch.device(accelerator.current_device_name())
    if backend == "auto":
        backend = "gloo" if on_cpu else "nccl"
    if "WORLD_SIZE" not in os.environ:
        # Port 0: the store takes one that is free, and nobody else has to know it.
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group(backend, timeout=timeout, device_id=device if backend == "nccl" else None)


def device() -> torch.device:
    """Return what this process computes on."""
    return torch.device(get_accelerator().current_device_name())


def memory() -> dict[str, int]:
    """Return bytes of the device's memory, by the names of :func:`rdm_trainer.metrics.memory_line`."""
    accelerator = get_accelerator()
    return {
        "allocated": accelerator.memory_allocated() or 0,
        "most": accelerator.max_memory_allocated() or 0,
        "reserved": accelerator.memory_reserved() or 0,
        "most_reserved": accelerator.max_memory_reserved() or 0,
    }


def _require_device(precision: str, backend: str, accelerator: Any) -> None:
    """Refuse what the device cannot do, before DeepSpeed and torch do so with a traceback."""
    name = accelerator.device_name()
    computes = {"fp16": accelerator.is_fp16_supported, "bf16": accelerator.is_bf16_supported}
    if precision in computes and not computes[precision]():
        others = [other for other, works in computes.items() if other != precision and works()]
        raise TrainerError(
            f"optimisation.precision is {precision}, in which this node's device ({name}) does not compute; "
            f"use {' or '.join([*others, 'fp32'])}."
        )
    if backend == "nccl" and name == "cpu":
        raise TrainerError("launcher.backend is nccl, but this node has no GPU; use auto or gloo.")


class Stop:
    """Hears signals that ask for an end in order. A second Ctrl-C ends at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        for number in _SIGNALS:
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, _frame: object) -> None:
        if self.received == number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
