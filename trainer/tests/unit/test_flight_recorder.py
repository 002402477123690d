# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank reports its collectives only as long as it hangs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rdm_core.heartbeat import HeartbeatWriter, collectives
from rdm_log.peers import GroupState
from rdm_trainer import flight_recorder
from rdm_trainer.flight_recorder import FlightRecorder
from tests.waiting import DEADLINE_S, wait_until

STATE = GroupState("4", 0, 2, "data-parallel", 7, 7, "all_reduce", 1e9)


def test_rank_that_continues_withdraws_its_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "_EACH_S", 0.02)
    monkeypatch.setattr(flight_recorder, "_HUNG_S", 0.5)
    monkeypatch.setattr(FlightRecorder, "states", lambda _: [STATE])
    path = tmp_path / "0.heartbeat"
    heartbeat = HeartbeatWriter(path)
    heartbeat.step(3)
    recorder = FlightRecorder(heartbeat, {}, print)

    def reported() -> list[Any]:
        return collectives(path, 3)

    def reported_going_on() -> list[Any]:
        with heartbeat.waiting():
            return reported()

    try:
        wait_until("it has reported", reported, lambda found: found == [list(STATE)])
        # It is in the same step.
        wait_until("it has taken that back", reported_going_on, lambda found: not found)
    finally:
        recorder.close()


@pytest.mark.parametrize("name", ["_dump_fr_trace_json", "_world"])
def test_unsupported_torch_is_reported_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flight_recorder, "_EACH_S", 0.02)
    monkeypatch.setattr(flight_recorder, "_HUNG_S", 0.1)
    for module in (torch._C._distributed_c10d, dist.distributed_c10d):
        monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(flight_recorder, "_DUMPS", ("_dump_fr_trace_json",))
    lines: list[str] = []
    recorder = FlightRecorder(HeartbeatWriter(tmp_path / "0.heartbeat"), {}, lines.append)
    recorder._thread.join(DEADLINE_S)
    assert not recorder._thread.is_alive()
    (line,) = lines
    assert line.startswith(f"the flight recorder of torch {torch.__version__} cannot be read, so that the ")
    assert name in line


def test_torchs_older_variable_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    name, older = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
    for one in (name, older):
        monkeypatch.setenv(one, "0")
    monkeypatch.delenv(name)
    flight_recorder.enable()
    assert name not in os.environ
    monkeypatch.delenv(older)
    flight_recorder.enable()
    assert os.environ[name] == "2000"
