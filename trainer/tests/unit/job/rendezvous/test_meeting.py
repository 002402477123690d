# SPDX-License-Identifier: GPL-3.0-or-later
"""The messages between launcher and workers, how often they are sent, and after a connection breaks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdm_core.errors import TrainerError
from rdm_job.control import ControlClient, ControlServer
from rdm_job.rendezvous import meeting, transports
from rdm_job.rendezvous.command import Command
from rdm_job.rendezvous.meeting import End, Launcher, Started, Worker
from rdm_job.rendezvous.roster import Member, Roster
from rdm_job.rendezvous.transports import ClientTransport, FileClient, FileServer, ServerTransport
from tests.waiting import wait_until

SECRET = b"a secret of tests"
LAUNCHER = Member("n0", "n0", "10.0.0.1", 1)
WORKER = Member("n1", "n1", "10.0.0.2", 1)


def _until(client: ControlClient, kind: str) -> dict[str, Any]:
    """Wait for a message of a kind."""
    found: list[dict[str, Any]] = []

    def received() -> list[dict[str, Any]]:
        found.extend(message for message in client.receive(0.05) if message["type"] == kind)
        return found

    return wait_until(f"{kind} comes", received)[-1]


def _join(server: ControlServer) -> ControlClient:
    client = ControlClient("127.0.0.1", server.port, "n1#process", SECRET)
    wait_until("both are proven", lambda: client.receive(0.05) is not None and client.is_proven)
    client.send({"type": "join", "member": WORKER.to_dict()})
    return client


def test_worker_that_reconnects_receives_the_start_again() -> None:
    server = ControlServer("127.0.0.1", 0, SECRET, 2)
    launcher = Launcher(server, Roster(LAUNCHER, 2), "session", lambda line: None)
    ends: list[End] = []
    reports: dict[str, Any] = {}
    gathered = threading.Event()

    def lead() -> None:
        assert launcher.gather(240.0) == (LAUNCHER, WORKER)
        gathered.set()
        # No worker has received this yet.
        launcher.start(29500)
        ends.append(
            launcher.run(Command(["true"], dict(os.environ)), 240.0, lambda: False, reports.__setitem__)
        )

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
    second.send({"type": "alive", "report": {"gpu": ["busy"]}})
    second.send({"type": "ended", "code": 0})
    assert _until(second, "end")["code"] == 0
    second.send({"type": "left", "code": 0})
    second.receive(0.05)
    thread.join(240)
    second.close()
    server.close()
    assert ends == [End(0)]
    assert reports == {"n1": {"gpu": ["busy"]}}


def test_worker_stopped_before_the_start_ends_the_job_at_once() -> None:
    server = ControlServer("127.0.0.1", 0, SECRET, 2)
    launcher = Launcher(server, Roster(LAUNCHER, 2), "session", lambda line: None)
    ends: list[End] = []

    def lead() -> None:
        launcher.gather(240.0)
        launcher.start(29500)
        ends.append(
            launcher.run(
                Command(["sleep", "1000"], dict(os.environ)), 10_000.0, lambda: False, lambda *_: None
            )
        )

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


def test_stopped_worker_has_not_failed_with_any_exit_code() -> None:
    server = ControlServer("127.0.0.1", 0, SECRET, 2)
    launcher = Launcher(server, Roster(LAUNCHER, 2), "session", lambda line: None)
    ends: list[End] = []

    def run(member: Launcher | Worker, script: str, should_stop: Callable[[], bool], report: Any) -> None:
        command = Command(["sh", "-c", script], dict(os.environ))
        ends.append(member.run(command, 10_000.0, should_stop, report))

    def follow() -> None:
        client = ControlClient("127.0.0.1", server.port, "n1#process", SECRET)
        worker = Worker(client, WORKER, lambda line: None)
        assert isinstance(worker.gather(240.0, "the launcher", lambda: False), Started)
        # torchrun ends like this after a signal.
        run(worker, "trap 'exit 1' TERM; sleep 1000 & wait", lambda: True, dict)
        client.close()

    thread = threading.Thread(target=follow)
    thread.start()
    launcher.gather(240.0)
    launcher.start(29500)
    run(launcher, "exec sleep 1000", lambda: False, lambda *_: None)
    thread.join(240)
    server.close()
    assert ends == [End(143, "n1 was stopped.")] * 2


class Scripted(ControlServer):
    """A server with scripted messages from its members.

    Args:
        turns: The result of each call of :meth:`ControlServer.receive`.

    Attributes:
        lists: The recipients of the list of members, each time.
        disconnected: The connections that were closed.
    """

    def __init__(self, *turns: dict[str, list[dict[str, Any]]]) -> None:
        self._turns = list(turns)
        self.refused = []
        self.lists: list[list[str]] = []
        self.disconnected: list[str] = []

    def receive(self, timeout: float = 0.0) -> dict[str, list[dict[str, Any]]]:
        """Return the next messages."""
        return self._turns.pop(0)

    def send(self, message: dict[str, Any], to: Iterable[str] | None = None) -> None:
        """Record the recipients of a list."""
        if message["type"] == "members" and to is not None:
            self.lists.append(sorted(to))

    def disconnect(self, name: str) -> None:
        """Record a closed connection."""
        self.disconnected.append(name)

    def is_connected(self, name: str) -> bool:
        """Return True for all."""
        return True

    def silent_for(self, name: str) -> float:
        """Return 0 for all."""
        return 0.0


def test_member_list_is_resent_only_to_members_without_it() -> None:
    members = {f"c{number}": Member(f"n{number}", "host", "10.0.0.2", 1) for number in range(1, 1000)}
    joins = {one: [{"type": "join", "member": member.to_dict()}] for one, member in members.items()}
    alive = {one: [{"type": "alive"}] for one in members}
    acks = {one: [{"type": "ack", "round": 999}] for one in members}
    first = dict(list(joins.items())[:500])
    server = Scripted(
        first, {one: joins[one] for one in joins.keys() - first}, alive, {"c7": joins["c7"]}, acks
    )
    launcher = Launcher(server, Roster(LAUNCHER, 1000), "session", lambda line: None)
    found = launcher.gather(240.0)
    assert found is not None
    assert len(found) == 1000
    assert server.lists == [sorted(members), ["c7"]]


def test_worker_killed_before_it_acknowledges_the_list_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(Scripted):
        def silent_for(self, name: str) -> float:
            return 60.0 if name == "killed" and len(self._turns) < 5 else 0.0

    monkeypatch.setattr(meeting, "BEAT_S", 0.0)
    other = Member("n2", "n2", "10.0.0.3", 1)
    first, second = ({"type": "join", "member": member.to_dict()} for member in (WORKER, other))
    server = Killed(
        {"c1": [first], "killed": [second]},
        {"c1": [{"type": "ack", "round": 2}]},
        {"successor": [second]},
        # These acknowledge the old list, with the successor's predecessor.
        {"c1": [{"type": "ack", "round": 2}], "successor": [{"type": "ack", "round": 2}]},
        {"c1": [{"type": "ack", "round": 4}]},
        {"successor": [{"type": "ack", "round": 4}]},
    )
    launcher = Launcher(server, Roster(LAUNCHER, 3), "session", lambda line: None)
    assert launcher.gather(240.0) == (LAUNCHER, WORKER, other)
    assert server.lists == [["c1", "killed"], ["c1", "successor"]]
    assert server.disconnected == ["killed"]


def test_slow_worker_reconnects_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "BEAT_S", 0.1)
    monkeypatch.setattr(meeting, "_SILENT_S", 0.1)
    lines: list[str] = []
    found: dict[str, Started | End] = {}
    server = ControlServer("127.0.0.1", 0, SECRET, 3)
    other = Member("n2", "n2", "10.0.0.3", 1)

    def is_shown(text: str) -> bool:
        return any(text in line for line in lines)

    def stall() -> bool:
        """Stall the worker after it has joined, until it counts as gone."""
        if is_shown("n1 (10.0.0.2) has come"):
            wait_until("it has gone", lambda: is_shown("n1 (10.0.0.2) has gone"))
            monkeypatch.setattr(meeting, "_SILENT_S", 240.0)
        return False

    def lead() -> None:
        launcher = Launcher(server, Roster(LAUNCHER, 3), "session", lines.append)
        launcher.gather(240.0)
        launcher.start(29500)
        wait_until("both start", lambda: len(found) == 2, pause=lambda: server.receive(0.05))

    def follow(member: Member, should_stop: Callable[[], bool]) -> None:
        client = ControlClient("127.0.0.1", server.port, f"{member.name}#process", SECRET)
        found[member.name] = Worker(client, member, lines.append).gather(240.0, "the launcher", should_stop)
        client.close()

    threads = [threading.Thread(target=lead), threading.Thread(target=follow, args=(WORKER, stall))]
    for thread in threads:
        thread.start()
    wait_until("the slow one has gone", lambda: is_shown("has gone"))
    follow(other, lambda: False)
    for thread in threads:
        thread.join(240)
    server.close()
    all_members = LAUNCHER, WORKER, other
    assert found == {"n1": Started(all_members, 1, 29500), "n2": Started(all_members, 2, 29500)}


TRANSPORTS = ["connections", "files"]


def _ends(
    transport: str, folder: Path, count: int
) -> tuple[ServerTransport, Callable[[int], ClientTransport]]:
    """Return a launcher's end, and a function that makes a worker's end by its number."""
    if transport == "files":
        return FileServer(folder, count), lambda number: FileClient(folder, number)
    server = ControlServer("127.0.0.1", 0, SECRET, count)
    return server, lambda number: ControlClient("127.0.0.1", server.port, str(number), SECRET)


@pytest.mark.parametrize("transport", TRANSPORTS)
@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(order=st.permutations(range(4)))
def test_all_members_start_with_one_list_on_every_transport(
    transport: str,
    order: list[int],
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transports, "_EVERY_S", 0.05)
    monkeypatch.setattr(meeting, "_POLL_S", 0.05)
    server, client = _ends(transport, tmp_path_factory.mktemp("meeting"), 4)
    members = [LAUNCHER, *(Member(f"n{number}", "host", f"10.0.0.{number + 1}", 1) for number in (3, 2, 1))]
    found: dict[int, object] = {}
    here = threading.Semaphore(0)

    def lead() -> None:
        here.release()
        launcher = Launcher(server, Roster(LAUNCHER, 4, "connection"), "session", lambda line: None)
        found[0] = launcher.gather(240.0)
        launcher.start(29500)
        wait_until("all start", lambda: len(found) == 4, pause=lambda: server.receive(0.05))

    def follow(number: int) -> None:
        here.release()
        worker = Worker(client(number), members[number], lambda line: None)
        found[number] = worker.gather(240.0, "the launcher", lambda: False)

    threads = []
    for number in order:
        threads.append(threading.Thread(target=follow if number else lead, args=(number,) if number else ()))
        threads[-1].start()
        assert here.acquire(timeout=240)
    for thread in threads:
        thread.join(240)
    started = {number: Started(tuple(members), number, 29500) for number in (1, 2, 3)}
    assert found == {0: tuple(members), **started}


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_waiting_members_see_who_is_present_and_missing(
    transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "_EVERY_S", 0.05)
    monkeypatch.setattr(meeting, "BEAT_S", 0.1)
    monkeypatch.setattr(meeting, "_REMIND_S", 0.2)
    server, client = _ends(transport, tmp_path, 4)
    lines: list[str] = []
    shown: list[str] = []
    roster = Roster(LAUNCHER, 4, expected=["n0", "n1", "n2", "n3"])
    state = "[##..] 2 of 4 are here: n0, n1; n2, n3 are missing"

    def follow() -> None:
        worker = Worker(client(1), WORKER, shown.append)
        assert worker.gather(240.0, "x", lambda: False) == End(
            130, "The launcher was stopped before the start."
        )

    def is_known() -> bool:
        return f"Still waiting: the launcher at x waits for others: {state}." in shown

    thread = threading.Thread(target=follow)
    thread.start()
    assert Launcher(server, roster, "session", lines.append).gather(240.0, is_known) is None
    wait_until("it knows", lambda: not thread.is_alive(), pause=lambda: server.receive(0.05))
    assert f"n1 (10.0.0.2) has come. {state}." in lines


def test_member_that_cannot_take_part_keeps_all_from_starting(tmp_path: Path) -> None:
    FileClient(tmp_path, 1).send({"type": "join", "member": WORKER.to_dict()})
    FileClient(tmp_path, 2).send({"type": "cannot", "reason": "n2 has no image."})
    launcher = Launcher(FileServer(tmp_path, 3), Roster(LAUNCHER, 3), "session", lambda line: None)
    with pytest.raises(TrainerError, match=r"^n2 has no image\.$"):
        launcher.gather(240.0)
    found = Worker(FileClient(tmp_path, 1), WORKER, lambda line: None).gather(240.0, "x", lambda: False)
    assert found == End(1, "n2 has no image.")


def test_partial_line_is_read_once_complete(tmp_path: Path) -> None:
    server = FileServer(tmp_path, 2)
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write('{"type": "join"}\n{"type": ')
        file.flush()
        assert server.receive() == {"1": [{"type": "join"}]}
        file.write('"ack"}\n')
        file.flush()
        assert server.receive() == {"1": [{"type": "ack"}]}
    assert server.receive() == {}
