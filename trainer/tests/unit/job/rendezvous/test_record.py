# SPDX-License-Identifier: GPL-3.0-or-later
"""A member's record of its job, while its file system hangs and when it works."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from rdm_core import config as configuration
from rdm_core.config import LauncherConfig
from rdm_core.config.command import CommandConfig
from rdm_job.directory import JobDirectory
from rdm_job.rendezvous.meeting import End, Started
from rdm_job.rendezvous.record import Record
from rdm_job.rendezvous.roster import Member
from tests.waiting import wait_until


def test_hanging_file_system_does_not_block_a_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queried, works = threading.Event(), threading.Event()
    before = set(threading.enumerate())

    def stop_requested(_: JobDirectory) -> float:
        if not queried.is_set():
            queried.set()
            works.wait(240)
            raise OSError(116, "Stale file handle")
        return 0.0

    monkeypatch.setattr(JobDirectory, "stop_requested", stop_requested)
    config = CommandConfig(name="test", command=("true",), launcher=LauncherConfig(kind="torchrun"))
    started = Started((Member("n0", "n0", "10.0.0.1", 1), Member("n1", "n1", "10.0.0.2", 1)), 0, 29500)
    lines: list[str] = []
    record = Record("test", tmp_path / "test", configuration.dump(config), started, lines.append)
    assert queried.wait(240)
    # Neither waits for the file system.
    assert (record.should_stop, record.report()) == (False, {})
    works.set()
    wait_until("it knows that it is to stop", lambda: record.should_stop)
    record.receive_report(
        "n1", {"gpu": ["busy"], "watch": {"progress": {"iteration": 7, "time": 1.0}}, "progress": {}}
    )
    state = tmp_path / "test/state.json"
    wait_until("what the other reports is written", lambda: json.loads(state.read_text())["progress"])
    record.end(End(130, "The launcher was stopped."))
    record.close()
    wait_until("nothing polls any more", lambda: set(threading.enumerate()) <= before)
    ended = json.loads(state.read_text())
    assert (ended["state"], ended["progress"]["iteration"], ended["gpu"]["n1"]) == ("stopped", 7, ["busy"])
    assert lines == []


@pytest.mark.parametrize(
    ("end", "state", "nodes", "verdict"),
    [
        (End(0), "finished", "done done", "finished"),
        (End(143, "n1 was stopped."), "stopped", "stopped stopped", "finished"),
        # The same code without a request to stop.
        (End(143, "n1 failed: it was ended.", ("killed",), "n1"), "failed", "done failed", "failed"),
        (End(1, "n1 has not been heard of for 60 s.", (), "n1"), "failed", "done failed", "failed"),
    ],
)
def test_a_stopped_job_has_not_failed(tmp_path: Path, end: End, state: str, nodes: str, verdict: str) -> None:
    config = CommandConfig(name="test", command=("true",), launcher=LauncherConfig(kind="torchrun"))
    started = Started((Member("n0", "n0", "10.0.0.1", 1), Member("n1", "n1", "10.0.0.2", 1)), 0, 29500)
    record = Record("test", tmp_path / "test", configuration.dump(config), started, lambda line: None)
    record.end(end)
    record.close()
    found = json.loads((tmp_path / "test/state.json").read_text())
    assert (found["state"], found["verdict"]["verdict"]) == (state, verdict)
    assert " ".join(found["nodes"].values()) == nodes
