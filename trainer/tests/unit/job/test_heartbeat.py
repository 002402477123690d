# SPDX-License-Identifier: GPL-3.0-or-later
"""A control connection stays alive while its agent makes no progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from rdm_job import heartbeat
from rdm_job.control import ControlClient, ControlServer
from rdm_job.heartbeat import Heartbeat
from tests.waiting import wait_until


class Ends:
    """A master's connection and a worker's, each kept in a thread."""

    def __init__(self, made: ExitStack) -> None:
        self.server = ControlServer("127.0.0.1", 0, b"secret", 1)
        self.master = Heartbeat(self.server)
        made.callback(self.master.close)
        self.client = ControlClient("127.0.0.1", self.server.port, "n2", b"secret")
        self.worker = Heartbeat(self.client)
        made.callback(self.worker.close)


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    monkeypatch.setattr(heartbeat, "_TICK_S", 0.01)
    with ExitStack() as made:
        ends = Ends(made)
        wait_until("they are connected", lambda: ends.client.is_proven)
        yield ends


def test_heartbeats_arrive_while_both_agents_hang(ends: Ends) -> None:
    """Each agent hangs in a file system: it neither sends nor receives."""
    wait_until("the worker is heard", lambda: ends.server.silent_for("n2") is not None)
    for _ in range(3):
        of_worker, of_master = ends.server._received_at["n2"], ends.client._received_at
        wait_until("the worker is heard again", lambda: ends.server._received_at["n2"] > of_worker)  # noqa: B023
        wait_until("the master is heard again", lambda: ends.client._received_at > of_master)  # noqa: B023
    # Heartbeats are not returned as messages.
    assert ends.master.receive(0.05) == ends.worker.receive(0.05) == []


def test_agent_that_hangs_for_long_is_lost(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_until("the worker is heard", lambda: ends.server.silent_for("n2") is not None)
    monkeypatch.setattr(heartbeat, "STALL_S", 0.0)
    wait_until(
        "nothing comes any more", lambda: ends.server.silent_for("n2") or 0, lambda silent: silent > 0.5
    )


def test_newest_message_of_each_kind_is_kept_for_a_late_member(ends: Ends) -> None:
    for number in range(50):
        ends.worker.send({"report": number})
    ends.worker.send({"quiet": True})
    found: list[tuple[str, dict[str, Any]]] = []

    def received() -> bool:
        found.extend(ends.master.receive(0.05))
        return ("n2", {"quiet": True}) in found

    wait_until("all has come", lambda: ("n2", frozenset({"quiet"})) in ends.master._inbox)
    assert received()
    assert found == [("n2", {"report": 49}), ("n2", {"quiet": True})]
    for message in ({"order": "kill"}, {"order": "run", "port": 1}, {"order": "kill"}):
        ends.master.send(message)
    wait_until(
        "the orders have come",
        lambda: list(ends.worker._inbox.values()),
        lambda orders: orders == [{"order": "run", "port": 1}, {"order": "kill"}],
    )


def test_last_message_arrives_when_the_connection_is_closed(ends: Ends) -> None:
    ends.master.send({"order": "end"})
    ends.master.close()
    found: list[tuple[str, dict[str, Any]]] = []
    wait_until("it comes", lambda: found.extend(ends.worker.receive(0.05)), lambda _: found)
    assert found == [("", {"order": "end"})]
