# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's GPUs, read through nvidia-ml-py; through nvidia-smi where that is not installed."""

from __future__ import annotations

import contextlib
import csv
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

from rdm_job.devices.visible import Lists, chosen
from rdm_log.samples import Device

_QUERY = "index,uuid,name,temperature.gpu,utilization.gpu,memory.used,memory.total"
_LISTED = re.compile(r"^( *)(?:GPU|MIG) .*\(UUID: (\S+)\)", re.MULTILINE)
_MIB = 1024 * 1024
_TIMEOUT_S = 10
_MOST_XIDS = 16
# NVML's reasons for lower clocks, with nvidia-smi's names.
_REASONS = {
    "nvmlClocksThrottleReasonSwPowerCap": "sw_power_cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hw_slowdown",
    "nvmlClocksThrottleReasonSyncBoost": "sync_boost",
    "nvmlClocksThrottleReasonSwThermalSlowdown": "sw_thermal",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hw_thermal",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "hw_power_brake",
}


def count(lists: Lists = ()) -> int:
    """Return how many GPUs may be used here.

    Args:
        lists: The visible ones; see ``visible.lists_of``.
    """
    return _count(_output(["nvidia-smi", "-L"]), lists)


def _count(printed: str, lists: Lists) -> int:
    listed = _LISTED.findall(printed)
    gpus = [uuid for indent, uuid in listed if not indent]
    return len(chosen(gpus, lists, [uuid for indent, uuid in listed if indent]))


class Reader:
    """Reads the GPUs.

    Attributes:
        missing: Why less is read than could be, in one sentence; empty otherwise.
    """

    def __init__(self) -> None:
        self.missing = ""
        self._xids: dict[str, list[int]] = {}
        self._events: Any = None
        try:
            import pynvml
        except ImportError:
            self._nvml: Any = None
            self.missing = (
                "nvidia-ml-py is not installed: power, clocks, ECC and Xid errors of the GPUs are not "
                "watched, and nvidia-smi is read instead."
            )
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            self._nvml = None
            self.missing = f"NVIDIA's driver does not answer, so the GPUs are not watched: {error}."
            return
        self._listen()

    def devices(self, lists: Lists = ()) -> tuple[Device, ...]:
        """Return the GPUs as they are now; of a GPU that is partitioned (MIG), the partitions that are named.

        Args:
            lists: The visible ones; see ``visible.lists_of``.
        """
        if self._nvml is None:
            query = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"]
            return _printed(_output(query), lists)
        self._read_events()
        nvml = self._nvml
        gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        table = [(index, gpu, gpu) for index, gpu in enumerate(gpus)]
        if lists:
            table += [(index, part, gpu) for index, gpu in enumerate(gpus) for part in self._parts(gpu)]
        uuids = [str(self._query("nvmlDeviceGetUUID", handle)) for _, handle, _ in table]
        indices = chosen(uuids[: len(gpus)], lists, uuids[len(gpus) :])
        return tuple(self._device(*table[one]) for one in indices)

    def _query(self, function: str, *more: Any) -> Any:
        # Products support different queries.
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return getattr(self._nvml, function)(*more)
        return None

    def _parts(self, gpu: Any) -> Iterator[Any]:
        for index in range(self._query("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0):
            part = self._query("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
            if part is not None:
                yield part

    def _device(self, index: int, handle: Any, gpu: Any) -> Device:
        nvml = self._nvml

        def query(function: str, *more: Any) -> Any:
            # A MIG partition has its own memory; temperature, power and errors are the whole GPU's.
            value = self._query(function, handle, *more)
            return self._query(function, gpu, *more) if value is None and handle is not gpu else value

        memory, busy = query("nvmlDeviceGetMemoryInfo"), query("nvmlDeviceGetUtilizationRates")
        watts, limit = query("nvmlDeviceGetPowerUsage"), query("nvmlDeviceGetEnforcedPowerLimit")
        celsius = query("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
        hottest = query("nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        if hottest is None and celsius is not None:
            # From Ada on, drivers may report only the margin to it.
            margin = query("nvmlDeviceGetMarginTemperature")
            hottest = None if margin is None else celsius + margin
        mask = query("nvmlDeviceGetCurrentClocksThrottleReasons") or 0
        name = query("nvmlDeviceGetName") or "NVIDIA GPU"
        clocks = {
            "sm": query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            "memory": query("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        }
        ecc = {
            word: query("nvmlDeviceGetTotalEccErrors", kind, nvml.NVML_VOLATILE_ECC)
            for word, kind in (
                ("corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
                ("uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            )
        }
        processes = query("nvmlDeviceGetComputeRunningProcesses") or ()
        return Device(
            index,
            name.decode() if isinstance(name, bytes) else str(name),
            celsius=celsius,
            celsius_limit=hottest,
            percent=busy.gpu if busy is not None else None,
            used=memory.used if memory is not None else None,
            total=memory.total if memory is not None else None,
            watts=watts / 1000 if watts is not None else None,
            watts_limit=limit / 1000 if limit is not None else None,
            clocks={word: mhz for word, mhz in clocks.items() if mhz is not None},
            throttled=tuple(word for bit, word in _REASONS.items() if mask & getattr(nvml, bit, 0)),
            ecc={word: errors for word, errors in ecc.items() if errors is not None},
            xids=tuple(self._xids.get(str(self._query("nvmlDeviceGetUUID", gpu)), ())),
            processes={one.pid: one.usedGpuMemory or 0 for one in processes},
        )

    def _listen(self) -> None:
        """Subscribe to the driver's Xid errors, if it allows that."""
        nvml = self._nvml
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            events = nvml.nvmlEventSetCreate()
            for index in range(nvml.nvmlDeviceGetCount()):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
            self._events = events

    def _read_events(self) -> None:
        """Collect the Xid errors since the last call."""
        nvml = self._nvml
        if self._events is None:
            return
        # Without a further event the call raises a timeout.
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            for _ in range(_MOST_XIDS):
                event = nvml.nvmlEventSetWait(self._events, 0)
                known = self._xids.setdefault(str(nvml.nvmlDeviceGetUUID(event.device)), [])
                if len(known) < _MOST_XIDS:
                    known.append(int(event.eventData))


def _printed(text: str, lists: Lists = ()) -> tuple[Device, ...]:
    """Return the visible ones of the GPUs that nvidia-smi printed as CSV."""
    found, uuids = [], []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) == 7:
            index, uuid, name, *numbers = row
            celsius, percent, used, total = map(_number, numbers)
            bytes_used, bytes_total = (None if size is None else int(size * _MIB) for size in (used, total))
            uuids.append(uuid)
            found.append(Device(int(index), name, celsius, percent, bytes_used, bytes_total))
    return tuple(found[row_number] for row_number in chosen(uuids, lists))


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text)
    return None


def _output(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
