# SPDX-License-Identifier: GPL-3.0-or-later
"""The node's accelerators: their number, and their current readings."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from rdm_job.devices import amd, nvidia
from rdm_job.devices.visible import lists_of
from rdm_job.processes import usage
from rdm_log.samples import Device

_MIB = 1024 * 1024


def count(accelerator: str) -> int | None:
    """Return how many accelerators may be used here; None if the number of processes is not limited."""
    lists = lists_of(os.environ, accelerator)
    if accelerator == "cuda":
        return nvidia.count(lists)
    if accelerator == "rocm":
        return amd.count(lists)
    return None


def name(accelerator: str) -> str:
    """Return the driver's name for the first accelerator; empty if unknown."""
    if accelerator == "cpu":
        return "cpu"
    return next((device.name for device in Sampler(accelerator).devices()), "")


def line(device: Device) -> str:
    """Return a device as gpustat writes it: ``[0] NVIDIA A10       | 49'C,  98 % | 21040 / 22731 MB |``."""
    heat = f"{device.celsius:2.0f}'C, " if device.celsius is not None else ""
    used, total = (device.used or 0) / _MIB, (device.total or 0) / _MIB
    return (
        f"[{device.index}] {device.name:<16} | {heat}{device.percent or 0:3.0f} % | "
        f"{used:5.0f} / {total:5.0f} MB |"
    )


class Sampler:
    """Reads the node's devices; without accelerators the processors, as if they were one device.

    Args:
        accelerator: ``cuda``, ``rocm`` or ``cpu``.

    Attributes:
        missing: Why little or nothing can be read, in one sentence; empty otherwise.
    """

    def __init__(self, accelerator: str) -> None:
        self._accelerator = accelerator
        self._before: dict[int, tuple[float, int]] = {}
        self._at = time.monotonic()
        self._reader = {"cuda": nvidia.Reader, "rocm": amd.Reader}.get(accelerator)
        self._opened = self._reader() if self._reader is not None else None
        self.missing = self._opened.missing if self._opened is not None else ""

    def devices(self, environment: Mapping[str, str] | None = None) -> tuple[Device, ...]:
        """Return the accelerators as they are now.

        Args:
            environment: That of the process whose accelerators are read; by default this process's.
        """
        if self._opened is None:
            return ()
        given = os.environ if environment is None else environment
        found: tuple[Device, ...] = self._opened.devices(lists_of(given, self._accelerator))
        return found

    def processors(self, processes: list[int]) -> Device:
        """Return this job's use of the processors since the last call."""
        now, used = time.monotonic(), usage(processes)
        busy_s = sum(
            seconds - self._before[process][0]
            for process, (seconds, _) in used.items()
            if process in self._before
        )
        busy = 100 * busy_s / max(now - self._at, 1e-3) / (os.cpu_count() or 1)
        self._before, self._at = used, now
        return Device(
            0,
            f"{os.cpu_count()} CPU cores",
            percent=min(busy, 100.0),
            used=sum(resident for _, resident in used.values()),
            total=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        )
