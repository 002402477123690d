# SPDX-License-Identifier: GPL-3.0-or-later
# ruff: noqa: N802, N815  # the library's names
"""The way of a node's GPU readings to the verdict: driver, sampler, watch, health.

A module with the names of nvidia-ml-py that are used stands in for NVIDIA's driver, with the test's own GPUs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rdm_job import processes
from rdm_job.directory import JobDirectory
from rdm_job.health import Health
from rdm_job.protocol import Node, Offer, Request, State
from rdm_job.watch import Watch
from rdm_log.samples import Device
from tests.unit.job.two_nodes import config

MIB = 1024 * 1024
REQUEST = Request(
    *("gpt", "n1", (Node("n1", "127.0.0.1", 2), Node("n2", "127.0.0.2", 2))),
    accelerator="cuda",
    offer=Offer(mark="x"),
)
STATE = State(job="gpt", state="running", started=1.0)


@dataclass
class Gpu:
    """One GPU's readings in the driver."""

    index: int
    celsius: int = 60
    used: int = 20 * MIB
    reasons: int = 0
    uncorrected: int = 0
    processes: list[int] = field(default_factory=list)


class Driver(types.ModuleType):
    """The stand-in for nvidia-ml-py."""

    class NVMLError(Exception):
        """The library's exception."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2
    NVML_TEMPERATURE_GPU = 0
    NVML_TEMPERATURE_THRESHOLD_SLOWDOWN = 1
    NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 1
    NVML_VOLATILE_ECC = 0
    nvmlClocksThrottleReasonHwSlowdown = 0x8
    nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
    nvmlEventTypeXidCriticalError = 8

    def __init__(self, *gpus: Gpu) -> None:
        super().__init__("pynvml")
        self.gpus = gpus
        self.xids: list[tuple[Gpu, int]] = []

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return f"GPU-{gpu.index}"

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return "NVIDIA A10"

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> types.SimpleNamespace:
        return types.SimpleNamespace(used=gpu.used, total=22731 * MIB)

    def nvmlDeviceGetTemperature(self, gpu: Gpu, sensor: int) -> int:
        return gpu.celsius

    def nvmlDeviceGetTemperatureThreshold(self, gpu: Gpu, kind: int) -> int:
        return 98

    def nvmlDeviceGetClockInfo(self, gpu: Gpu, domain: int) -> int:
        return 1200

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: Gpu) -> int:
        return gpu.reasons

    def nvmlDeviceGetTotalEccErrors(self, gpu: Gpu, kind: int, counter: int) -> int:
        return gpu.uncorrected if kind else 0

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=MIB) for pid in gpu.processes]

    def nvmlEventSetCreate(self) -> object:
        return self

    def nvmlDeviceRegisterEvents(self, gpu: Gpu, kinds: int, events: object) -> None:
        assert (kinds, events) == (8, self)

    def nvmlEventSetWait(self, events: object, milliseconds: int) -> types.SimpleNamespace:
        if not self.xids:
            raise self.NVMLError("the time is up")
        gpu, number = self.xids.pop()
        return types.SimpleNamespace(device=gpu, eventData=number)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """Eight GPUs, all in use."""
    made = Driver(*(Gpu(index, used=20000 * MIB, processes=[1]) for index in range(8)))
    monkeypatch.setitem(sys.modules, "pynvml", made)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return made


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., Watch]:
    """Return a function that makes the second node's watch, for a job with some configuration."""

    def make(**more: Any) -> Watch:
        request = replace(REQUEST, node="n2")
        directory = JobDirectory(tmp_path / "gpt", "n2")
        directory.make(request)
        return Watch(directory, request, config(tmp_path, **more))

    return make


@pytest.fixture
def program() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the job."""
    environment = {**os.environ, processes.JOB_VARIABLE: REQUEST.job_id}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def test_gpus_of_others_are_not_counted_for_the_job(
    driver: Driver, watched: Callable[..., Watch], program: subprocess.Popen[bytes]
) -> None:
    """The job has two processes on a node with eight GPUs; the others' processes are not its own."""
    driver.gpus[6].processes.append(program.pid)
    watch = watched(launcher={"program": ["train.py"]})
    driver.xids = [(driver.gpus[5], 79), (driver.gpus[6], 79), (driver.gpus[1], 79)]
    watch.measure([])
    watch.update([])
    reported = watch.report()
    assert [line[:3] for line in watch.gpu] == ["[0]", "[1]", "[6]"]
    assert [(sign["rank"], sign["text"]) for sign in reported["signs"]] == [
        (3, "The driver reports errors of GPU 1 of n2: Xid 79."),
        (None, "The driver reports errors of GPU 6 of n2: Xid 79."),
    ]


@pytest.mark.parametrize("shown", [[], [2**22 + 1]])
def test_program_may_use_all_visible_gpus_when_the_driver_shows_no_process_of_it(
    driver: Driver, watched: Callable[..., Watch], shown: list[int]
) -> None:
    """In a container it may show none, or the host's process ids, which do not exist there."""
    for gpu in driver.gpus:
        gpu.processes = list(shown)
    watch = watched(launcher={"program": ["train.py"]})
    watch.measure([])
    assert len(watch.gpu) == 8
    # If the processes shown exist here, they show which GPUs are others'.
    for gpu in driver.gpus:
        gpu.processes = [1]
    watch.measure([])
    assert len(watch.gpu) == 2


def test_a_node_without_a_process_on_its_gpus_is_named(
    driver: Driver, watched: Callable[..., Watch], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watch = watched()

    def on_gpus() -> int | None:
        watch.measure([])
        watch.update([])
        found: int | None = watch.report()["gpu_processes"]
        return found

    assert on_gpus() == 2
    # In a container the driver may show no processes, but it shows their memory.
    driver.gpus[0].processes, driver.gpus[1].processes = [], []
    assert on_gpus() == 2
    driver.gpus[0].used = 20 * MIB
    assert on_gpus() == 1
    driver.gpus[1].used = 20 * MIB
    assert on_gpus() == 0
    health = Health(REQUEST, config(tmp_path))
    clock = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: clock + 1000)
    busy = {**watch.report(), "gpu_processes": 2}
    found = health.verdict(STATE, {"n1": {"watch": busy}, "n2": {"watch": watch.report()}})
    assert "No process is on the GPUs of n2." in found["evidence"]
    assert found["culprits"] == [{"kind": "idle", "node": "n2", "rank": None}]
    # On a node without this reading, the GPUs may be in use.
    silent = {**watch.report(), "gpu_processes": None}
    found = health.verdict(STATE, {"n1": {"watch": silent}, "n2": {"watch": watch.report()}})
    assert "No process is on the GPUs of n2." in found["evidence"]


@pytest.mark.parametrize(
    ("used", "total", "is_in_use"),
    [(1200, 81559, True), (700, 81559, False), (700, 183359, False), (300, 8192, True), (20, 22731, False)],
)
def test_small_program_on_a_large_gpu_counts_as_a_process(used: int, total: int, is_in_use: bool) -> None:
    """The driver itself takes some hundred MiB on recent GPUs."""
    assert Device(0, "GPU", used=used * MIB, total=total * MIB).is_in_use is is_in_use


def test_what_the_driver_reports_reaches_the_verdict(
    driver: Driver, watched: Callable[..., Watch], tmp_path: Path
) -> None:
    """Throttling counts if it lasts, ECC errors if they increase, and other jobs' GPUs never."""
    watch, health = watched(), Health(REQUEST, config(tmp_path))

    def found() -> dict[str, Any]:
        watch.measure([])
        watch.update([])
        return health.verdict(STATE, {"n2": {"watch": watch.report()}})

    driver.gpus[0].uncorrected = 3
    assert found()["verdict"] == "starting"
    driver.gpus[0].uncorrected = 5
    driver.gpus[1].celsius, driver.gpus[1].reasons = 91, 0x48
    driver.gpus[5].uncorrected, driver.gpus[5].reasons = 7, 0x48
    driver.xids = [(driver.gpus[1], 48), (driver.gpus[5], 79)]
    found()
    found()
    verdict = found()
    assert verdict["evidence"] == [
        "GPU 0 of n2 has 2 uncorrectable memory errors (ECC).",
        "The driver reports errors of GPU 1 of n2: Xid 48.",
        "GPU 1 of n2 is throttled by heat at 91'C, to 1200 MHz.",
    ]
    assert verdict["culprits"] == [
        {"kind": "ecc", "node": "n2", "rank": 2},
        {"kind": "xid", "node": "n2", "rank": 3},
        {"kind": "throttled", "node": "n2", "rank": 3},
    ]
