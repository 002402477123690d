# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's agent records of a real GPU, idle and at work, and what the verdict makes of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from rdm_core import config as configuration
from rdm_job import metrics
from rdm_job.devices import Sampler, count, nvidia
from rdm_job.directory import JobDirectory
from rdm_job.health import Health
from rdm_job.protocol import Node, Offer, Request, State
from rdm_job.watch import Watch
from rdm_log.report.devices import history
from rdm_log.samples import Device, Sample
from tests.waiting import wait_until

GIB = 1 << 30
REQUEST = Request("gpt", "n1", (Node("n1", "127.0.0.1", 1),), accelerator="cuda", offer=Offer(mark="x"))
STATE = State(job="gpt", state="running", started=1.0)
LINE = re.compile(r"\[\d\] .{16,} \| \d{2,3}'C, {1,3}\d{1,3} % \| {0,4}\d+ / +\d+ MB \|")
"""gpustat's."""
QUERY = "name,memory.total,temperature.gpu,power.limit"
PROGRAM = """
import torch
kept = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
one = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
print("ready", flush=True)
while True:
    for _ in range(50):
        one = (one @ one).clamp_(-1, 1)
    torch.cuda.synchronize()
"""


@pytest.fixture
def watch(tmp_path: Path) -> Watch:
    directory = JobDirectory(tmp_path / "gpt", "n1")
    directory.make(REQUEST)
    (tmp_path / "config.yaml").write_text("name: gpt\n")
    return Watch(directory, REQUEST, configuration.load(tmp_path / "config.yaml"))


@contextmanager
def _at_work() -> Iterator[subprocess.Popen[str]]:
    """Run a program that has 4 GiB of the first GPU and keeps it busy."""
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def _device(watch: Watch) -> Device:
    """Measure as the agent does, and return the first GPU as its machine-readable record has it."""
    watch.measure([])
    record = watch._directory.log("n1", "gpu.jsonl").read_text().splitlines()[-1]
    return Sample.of(json.loads(record)).devices[0]


def test_record_of_an_idle_gpu_has_the_drivers_values(watch: Watch) -> None:
    device = _idle(watch)
    assert Sampler("cuda").missing == ""
    assert count("cuda") == torch.cuda.device_count()
    printed = subprocess.run(
        ["nvidia-smi", "--id=0", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    )
    name, total, celsius, limit = printed.stdout.strip().split(", ")
    assert (device.index, device.name) == (0, name)
    assert device.total is not None
    assert device.total / 2**20 == pytest.approx(float(total), abs=1)
    assert device.celsius == pytest.approx(float(celsius), abs=8)
    assert device.watts_limit == pytest.approx(float(limit), abs=1)
    assert device.watts is not None
    assert 0 < device.watts <= 1.1 * float(limit)
    assert device.celsius_limit is None or device.celsius_limit > 60
    assert set(device.clocks) == {"sm", "memory"}
    assert min(device.clocks.values()) > 0
    assert set(device.ecc) == {"corrected", "uncorrected"}
    assert set(device.throttled) <= set(nvidia._REASONS.values())
    assert (device.xids, device.processes) == ((), {})
    assert not device.is_in_use
    (line, *_) = watch._directory.log("n1", "gpu").read_text().splitlines()
    assert LINE.fullmatch(line), line


def test_record_of_a_busy_gpu_has_its_process(watch: Watch) -> None:
    idle = _idle(watch)
    with _at_work() as program:
        device = wait_until("it is busy", lambda: _device(watch), lambda one: (one.percent or 0) > 50)
        assert device.used is not None
        assert device.used >= 4 * GIB
        assert device.watts is not None
        assert idle.watts is not None
        assert device.watts > idle.watts
        assert device.clocks["sm"] >= idle.clocks["sm"]
        assert device.is_in_use
        # In a container the driver may name nobody.
        named = device.processes
        assert not named or (set(named) == {program.pid} and named[program.pid] >= 4 * GIB), named
    text = metrics.of_node("gpt", "n1", watch._samples[-1])
    found = {one.name: one.samples[0] for one in text_string_to_metric_families(text)}
    assert found["rdm_gpu_memory_used_bytes"].value == device.used
    assert found["rdm_gpu_memory_used_bytes"].labels["name"] == device.name
    assert found["rdm_gpu_clock_hertz"].value == device.clocks["sm"] * 1e6
    # A report reads both files, and they agree; of moments that share a column the most memory counts.
    assert device.total is not None
    for ending in ("gpu", "gpu.jsonl"):
        recorded = history(watch._directory.log("n1", ending))
        assert recorded["name"] == device.name
        share = 100 * device.used / device.total
        assert recorded["gpus"]["0"]["memory"][-1] == pytest.approx(share, abs=0.2)
    lines = watch._directory.log("n1", "gpu").read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines), lines


def test_verdict_reports_gpus_without_a_process(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 2 of the document: running, but no process on the GPUs."""
    health = Health(REQUEST, configuration.load(tmp_path / "config.yaml"))
    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 1000)

    def verdict() -> dict[str, Any]:
        watch.update([])
        return health.verdict(STATE, {"n1": {"watch": watch.report()}})

    _idle(watch)
    assert watch.report() == {} or watch.report()["gpu_processes"] == 0
    found = verdict()
    assert watch.report()["gpu_processes"] == 0
    assert (found["verdict"], found["reason"]) == ("stalled", "It runs, but no process is on its GPUs.")
    with _at_work():
        _device(watch)
        found = verdict()
        assert watch.report()["gpu_processes"] == 1
        assert "no process is on its GPUs" not in json.dumps(found)


def _idle(watch: Watch) -> Device:
    """Wait until those who were there before are gone: a driver clears a process' memory when it is."""
    return wait_until("it is idle", lambda: _device(watch), lambda one: not one.is_in_use)
