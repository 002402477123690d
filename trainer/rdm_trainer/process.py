# SPDX-License-Identifier: GPL-3.0-or-later
"""What workloads do around a training: lock its directory, join other ranks, catch signals, write lines."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import torch
import torch.distributed as dist

from rdm_core.errors import FAILED, TrainerError
from rdm_trainer import flight_recorder

_LOCK = ".training.lock"

# Ada's, the first with matrix products in fp8.
_FP8_CAPABILITY = (8, 9)
# Batch systems send SIGUSR1 before the time limit.
_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@contextlib.contextmanager
def alone(job_dir: Path) -> Iterator[None]:
    """Keep a second training out of a directory: each would take the other's checkpoints for its own."""
    if not _locks():
        yield
        return
    with contextlib.ExitStack() as held:
        try:
            job_dir.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((job_dir / _LOCK).open("a"))
        except OSError as error:
            raise TrainerError(f"{job_dir} cannot be written: {error.strerror}.") from None
        _lock(file, job_dir)
        yield


def require_alone(job_dir: Path) -> None:
    """Reject a directory in which another training is at work, without writing anything.

    Raises:
        TrainerError: There is one.
    """
    if not _locks():
        return
    # A directory that cannot be read is reported by :func:`alone`.
    with contextlib.suppress(OSError), (job_dir / _LOCK).open("r+") as file:
        _lock(file, job_dir)


def _locks() -> bool:
    """Tell whether this rank locks the directory; the others would only find its lock."""
    return os.environ.get("RANK", "0") == "0"


def _lock(file: IO[str], job_dir: Path) -> None:
    try:
        # Unlike flock's lock, processes that read data do not keep this one: they end a little later.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise TrainerError(
            f"Another training is at work in {job_dir}; stop that one, or give this one another --job-dir."
        ) from None
    except OSError:
        pass  # a file system without locks


def join(backend: str, timeout: datetime.timedelta) -> None:
    """Become a rank: choose a device and join the process group. Without a launcher, the world size is 1.

    Args:
        backend: The process group's backend: auto, nccl or gloo.
        timeout: The timeout of its operations.

    Raises:
        TrainerError: Another process listens on the port.
    """
    on_cpu = device().type == "cpu"
    if not on_cpu:
        # A launcher may show each rank only its own device.
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    if backend == "auto":
        backend = "gloo" if on_cpu else "nccl"
    if "WORLD_SIZE" not in os.environ:
        # Port 0: the store takes a free one, and no other process needs to know it.
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    flight_recorder.enable()
    # It warns of messages that share a group with other operations. The native engine's have groups of their
    # own; DeepSpeed's pipelines send in the world's group, and no user can change that.
    os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
    try:
        dist.init_process_group(backend, timeout=timeout, device_id=device() if backend == "nccl" else None)
    except dist.DistNetworkError as error:
        if (port := taken_port(error)) is None:
            raise
        raise TrainerError(
            f"MASTER_PORT {port} is in use on this host, perhaps by another training; choose a free one.",
            exit_code=FAILED,
        ) from None


def taken_port(error: dist.DistNetworkError) -> str | None:
    """Return the port on which torch could not listen because it is in use; None after another error."""
    found = re.search(r"port: (\d+).*EADDRINUSE", str(error))
    return found[1] if found else None


def device() -> torch.device:
    """Return this process's device: its GPU, unless the job wants the CPU or there is none."""
    # The variable is DeepSpeed's; launchers set it for both engines.
    if os.environ.get("DS_ACCELERATOR") == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


def memory() -> dict[str, int]:
    """Return bytes of the device's memory, by the names of :func:`rdm_trainer.metrics.memory_line`.

    On a CPU it is the process's.
    """
    if device().type == "cpu":
        now = psutil.Process().memory_info().rss
        most = max(now, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return {"allocated": now, "most": most, "reserved": now, "most_reserved": most}
    return {
        "allocated": torch.cuda.memory_allocated(),
        "most": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.memory_reserved(),
        "most_reserved": torch.cuda.max_memory_reserved(),
    }


def require_device(precision: str, backend: str, *, fp8_recipe: str = "none") -> None:
    """Refuse what the device cannot do, before DeepSpeed and torch do so with a traceback.

    Raises:
        TrainerError: This node's device cannot do that.
    """
    name = device().type
    if name == "cpu":
        has_fp16 = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_fp16_supported()
        computes = {"fp16": has_fp16, "bf16": True}
    else:
        computes = {"fp16": True, "bf16": torch.cuda.is_bf16_supported()}
    if not computes.get(precision, True):
        others = [other for other, works in computes.items() if works]
        raise TrainerError(
            f"optimisation.precision is {precision}, in which this node's device ({name}) does not compute; "
            f"use {' or '.join([*others, 'fp32'])}."
        )
    if backend == "nccl" and name == "cpu":
        raise TrainerError("launcher.backend is nccl, but this node has no GPU; use auto or gloo.")
    if fp8_recipe != "none" and name != "cpu":
        _require_fp8(fp8_recipe)


def _require_fp8(recipe: str) -> None:
    capability = torch.cuda.get_device_capability()
    if torch.version.hip or capability < _FP8_CAPABILITY:
        has, needed = (".".join(map(str, one)) for one in (capability, _FP8_CAPABILITY))
        found = "ROCm" if torch.version.hip else f"compute capability {has}"
        raise TrainerError(
            f"optimisation.fp8_recipe is {recipe}, which needs an NVIDIA GPU of compute capability {needed} "
            f"or higher, but this node has {torch.cuda.get_device_name()} ({found}); set fp8_recipe to none."
        )


class Start:
    """How long each stage of a start takes.

    Args:
        began: When it began, on the monotonic clock; by default, when the process began.

    Attributes:
        stages: Seconds by name, in the order in which the stages ended.
    """

    def __init__(self, began: float | None = None) -> None:
        self.began = time.monotonic() - _age() if began is None else began
        self.stages: dict[str, float] = {}

    def end(self, stage: str) -> None:
        """End a stage; the next one begins."""
        self.stages[stage] = time.monotonic() - self.began - sum(self.stages.values())


def _age() -> float:
    """Return the seconds since this process was started."""
    ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Stop:
    """Catches signals that request an orderly end. A second Ctrl-C ends at once."""

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


def write_line(line: str) -> None:
    """Write a line of the log."""
    # A full disk under the log must not end a training.
    with contextlib.suppress(OSError):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
