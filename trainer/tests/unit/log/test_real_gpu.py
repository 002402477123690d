# SPDX-License-Identifier: GPL-3.0-or-later
"""What the rules find in records of an NVIDIA H100: idle, then under load, then with its memory full.

The records are lines of a job's ``.gpu.jsonl``, every five seconds, with times from the job's start.
"""

from __future__ import annotations

import json
from pathlib import Path

from rdm_job.devices import line
from rdm_log.samples import Sample
from rdm_log.signs import Sign, of_node
from rdm_log.verdict import Observed, evaluate

LINES = (Path(__file__).parent / "corpus" / "h100.gpu.jsonl").read_text().splitlines()
SAMPLES = [Sample.of(json.loads(text)) for text in LINES]
IDLE, LOADED, FULL = SAMPLES[:4], SAMPLES[4:8], SAMPLES[8:]


def signs(samples: list[Sample]) -> list[Sign]:
    return of_node("n1", samples, ranks=[0])


def test_drivers_own_memory_counts_as_no_process() -> None:
    on_gpus = [sum(gpu.is_in_use for gpu in one.devices) for one in SAMPLES]
    assert on_gpus == [0] * 4 + [1] * 8
    idle = Observed(state="running", gpu_processes={"n1": on_gpus[0]}, seconds_running=1000)
    assert evaluate(idle).reason == "It runs, but no process is on its GPUs."


def test_gpu_at_its_power_limit_is_healthy() -> None:
    """Every GPU that trains at full speed is at it; this one is 15 K below the heat that slows it down."""
    (gpu,) = LOADED[-1].devices
    assert gpu.throttled == ("sw_power_cap",)
    assert gpu.watts is not None
    assert gpu.watts_limit is not None
    assert gpu.watts > 0.99 * gpu.watts_limit
    assert gpu.clocks["sm"] > IDLE[0].devices[0].clocks["sm"]
    assert gpu.celsius_limit == 89
    assert signs(IDLE + LOADED) == []


def test_memory_over_97_percent_is_noted_and_makes_no_job_suspect() -> None:
    (full,) = signs(SAMPLES)
    assert (full.kind, full.is_note) == ("memory", True)
    assert full.text == "The memory of GPU 0 of n1 is over 97 % full."
    assert line(FULL[-1].devices[0]) == "[0] NVIDIA H100 80GB HBM3 | 74'C, 100 % | 80537 / 81559 MB |"
