# SPDX-License-Identifier: GPL-3.0-or-later
"""What launcher and workers say to each other, when a connection breaks in between."""

from __future__ import annotations

import os
import threading
from typing import Any

from rdm_job.control import ControlClient, ControlServer
from rdm_job.rendezvous.command import Command
from rdm_job.rendezvous.meeting import End, Launcher
from rdm_job.rendezvous.roster import Member, Roster
from tests.waiting import wait_until

SECRET = b"a secret of tests"
LAUNCHER = Member("n0", "n0", "10.0.0.1", 1)
WORKER = Member("n1", "n1", "10.0.0.2", 1)


def _until(client: ControlClient, kind: str) -> dict[str, Any]:
    """Wait for a message of a kind."""
    found: list[dict[str, Any]] = []

    def look() -> list[dict[str, Any]]:
        found.extend(message for message in client.receive(0.05) if message["type"] == kind)
        return found

    return wait_until(f"{kind} comes", look)[-1]


def _join(server: ControlServer) -> ControlClient:
    client = ControlClient("127.0.0.1", server.port, "n1#process", SECRET)
    wait_until("both are proven", lambda: client.receive(0.05) is not None and client.is_proven)
    client.send({"type": "join", "member": WORKER.to_dict()})
    return client


def test_a_worker_whose_connection_breaks_before_it_hears_of_the_start_hears_of_it_again() -> None:
    server = ControlServer("127.0.0.1", 0, SECRET, 2)
    launcher = Launcher(server, Roster(LAUNCHER, 2), "session", lambda line: None)
    ends: list[End] = []
    gathered = threading.Event()

    def lead() -> None:
        assert launcher.gather(240.0) == (LAUNCHER, WORKER)
        gathered.set()
        # Nobody has received this yet.
        launcher.start(29500)
        ends.append(launcher.run(Command(["true"], dict(os.environ)), 240.0, lambda: False))

    thread = threading.Thread(target=lead)
    thread.start()
    first = _join(server)
    listed = _until(first, "members")
    assert listed["members"] == [LAUNCHER.to_dict(), WORKER.to_dict()]
    first.send({"type": "ack", "round": listed["round"]})
    wait_until("all have acknowledged", gathered.is_set, pause=lambda: first.receive(0.01))
    first.close()
    second = _join(server)
    started = _until(second, "start")
    assert (started["round"], started["port"]) == (listed["round"], 29500)
    second.send({"type": "ended", "code": 0})
    assert _until(second, "end")["code"] == 0
    second.send({"type": "left", "code": 0})
    second.receive(0.05)
    thread.join(240)
    second.close()
    server.close()
    assert ends == [End(0)]


def test_a_worker_that_is_stopped_before_it_hears_of_the_start_ends_the_job_at_once() -> None:
    server = ControlServer("127.0.0.1", 0, SECRET, 2)
    launcher = Launcher(server, Roster(LAUNCHER, 2), "session", lambda line: None)
    ends: list[End] = []

    def lead() -> None:
        launcher.gather(240.0)
        launcher.start(29500)
        ends.append(launcher.run(Command(["sleep", "1000"], dict(os.environ)), 10_000.0, lambda: False))

    thread = threading.Thread(target=lead)
    thread.start()
    worker = _join(server)
    worker.send({"type": "ack", "round": _until(worker, "members")["round"]})
    _until(worker, "start")
    worker.send({"type": "leave"})
    assert _until(worker, "end")["reason"] == "n1 was stopped."
    thread.join(240)
    worker.close()
    server.close()
    assert [end.code for end in ends] == [143]
