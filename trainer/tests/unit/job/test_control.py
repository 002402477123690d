# SPDX-License-Identifier: GPL-3.0-or-later
"""The control connection over real sockets."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from rdm_job import control, processes
from rdm_job.control import UNPROVEN, ControlClient, ControlServer
from tests.waiting import DEADLINE_S, wait_until

SECRET = b"k" * 32
MEMBERS = 3


@pytest.fixture(autouse=True)
def _no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that a busy machine does not serve for a while is not closed, unless a test wants that."""
    monkeypatch.setattr(control, "_UNPROVEN_S", DEADLINE_S)


@pytest.fixture
def server() -> Iterator[ControlServer]:
    made = ControlServer("127.0.0.1", 0, SECRET, MEMBERS)
    yield made
    made.close()


@pytest.fixture
def join(server: ControlServer) -> Iterator[Callable[..., ControlClient]]:
    """Return a function that makes clients; they are closed after the test."""
    with ExitStack() as made:

        def make(name: str, secret: bytes = SECRET, port: int | None = None) -> ControlClient:
            client = ControlClient("127.0.0.1", port or server.port, name, secret)
            made.callback(client.close)
            return client

        yield make


def connect(server: ControlServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def until(what: str, turn: Callable[[], object]) -> None:
    """Repeat ``turn`` until it is true, without a pause: the server waits in it."""
    wait_until(what, turn, pause=lambda: None)


def deliver(server: ControlServer, client: ControlClient, message: dict[str, Any]) -> None:
    """Let a client send a message, and the server receive it."""

    def turn() -> bool:
        client.receive()
        if client.is_proven and not sent:
            client.send(message)
            sent.append(message)
        return message in server.receive(0.05).get(client._name, [])

    sent: list[object] = []
    until(f"{client._name} is heard", turn)


def is_closed(connection: socket.socket) -> bool:
    """Return whether the other end has closed a connection."""
    connection.settimeout(0.01)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def test_messages_go_both_ways(server: ControlServer, join: Callable[..., ControlClient]) -> None:
    client = join("n2")
    began = time.monotonic()
    for number in range(3):
        deliver(server, client, {"report": number})
    silent = server.silent_for("n2")
    assert silent is not None
    assert silent <= time.monotonic() - began
    server.send({"order": "run"})
    assert wait_until("the order comes", lambda: client.receive(0.05)) == [{"order": "run"}]
    assert client.silent_for() <= time.monotonic() - began


def test_a_long_message_comes_whole(server: ControlServer, join: Callable[..., ControlClient]) -> None:
    deliver(server, join("n2"), {"lines": ["x" * 1000] * 2000})


def test_thousand_members_can_connect() -> None:
    members = 1000
    with ExitStack() as made:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        made.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        # Both ends of each connection, and each client's selector.
        processes.allow_files(3 * members + UNPROVEN)
        server = ControlServer("127.0.0.1", 0, SECRET, members)
        made.callback(server.close)
        clients = [ControlClient("127.0.0.1", server.port, f"n{number}", SECRET) for number in range(members)]
        for client in clients:
            made.callback(client.close)
        received: set[str] = set()

        def turn() -> bool:
            for client in clients:
                if client._name not in received:
                    client.receive()
                    client.send({"report": client._name})
            received.update(server.receive())
            return len(received) == members

        until("all are heard", turn)
        server.send({"order": "run"})
        for client in clients:
            wait_until("the order comes", client.receive, pause=lambda: server.receive(0.01))


def test_client_without_the_secret_is_rejected(
    server: ControlServer, join: Callable[..., ControlClient]
) -> None:
    intruder = join("n2", b"x" * 32)

    def turn() -> bool:
        intruder.receive()
        intruder.send({"report": 1})
        assert not server.receive(0.05)
        return intruder._lines is not None

    until("the stranger has connected", turn)

    def is_turned_away() -> bool:
        assert not server.receive(0.05)
        intruder.receive()
        return intruder._lines is None

    until("the stranger is turned away", is_turned_away)
    assert server.silent_for("n2") is None


def test_server_without_the_secret_is_rejected(join: Callable[..., ControlClient]) -> None:
    """It may have taken the master's address, or its port before the master did."""
    with socket.create_server(("127.0.0.1", 0)) as false:
        client = join("n2", port=false.getsockname()[1])
        client.receive()
        connection, _ = false.accept()
        with connection:
            connection.sendall(b'{"challenge": "00"}\n{"order": "kill"}\n')
            with connection.makefile() as stream:
                wait_until("it says who it is", lambda: client.receive() or client._about)
                hello = json.loads(stream.readline())
            assert (hello["name"], client.is_proven) == ("n2", False)
            # All it can do is to return the member's own proof.
            connection.sendall(json.dumps({"proof": hello["proof"], "order": "kill"}).encode() + b"\n")
            wait_until("it is left", lambda: client.receive() or client._lines is None)
            assert is_closed(connection)


def test_a_member_does_not_wait_for_ever_for_a_proof(
    join: Callable[..., ControlClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_UNPROVEN_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client = join("n2", port=silent.getsockname()[1])
        client.receive()
        connection, _ = silent.accept()
        with connection:
            wait_until("it is left", lambda: client.receive() or client._lines is None)
            assert is_closed(connection)


def hello(server: ControlServer, connection: socket.socket, to: socket.socket | None = None) -> None:
    """Prove to be n2 with a connection's challenge, on that connection or on another one."""
    with connection.makefile() as stream:
        until("it is there", lambda: not server.receive(0.05) and server._unproven)
        challenge = json.loads(stream.readline())["challenge"]
    proof = control._digest(SECRET, "member proof", "n2", challenge, "1").hex()
    line = json.dumps({"name": "n2", "challenge": "1", "proof": proof}).encode() + b"\n"
    (to or connection).sendall(line)


def test_a_proof_of_another_connection_does_not_count(server: ControlServer) -> None:
    with connect(server) as first, connect(server) as other:
        hello(server, first, other)
        until("it is turned away", lambda: not server.receive(0.05) and is_closed(other))
        assert server.silent_for("n2") is None


@pytest.mark.parametrize("what", ["inserted", "repeated", "changed"])
def test_only_messages_with_a_valid_mac_are_accepted(what: str, server: ControlServer) -> None:
    """A man in the middle can relay the proofs, and then controls the connection."""
    with connect(server) as connection:
        hello(server, connection)
        until("it is proven", lambda: not server.receive(0.05) and server._members)
        key = server._members["n2"]._receive_key
        lines = [control._code(key, number, b'{"a": 1}') + b' {"a": 1}\n' for number in (1, 2)]
        connection.sendall(lines[0])
        assert wait_until("it is heard", lambda: server.receive(0.05)) == {"n2": [{"a": 1}]}
        connection.sendall(
            {
                "inserted": b'{"a": 1}\n',
                "repeated": lines[0],
                "changed": lines[1].replace(b'"a"', b'"b"'),
            }[what]
            + lines[1]
        )
        until("it is closed", lambda: not server.receive(0.05) and is_closed(connection))


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\n\r\n\xff\xfe\n[1]\n",
        b'{"name": "n2", "challenge": "1", "proof": "\\u00e4"}\n',
        b'{"name": "\\ud800", "challenge": "\\udfff", "proof": "\\ud800"}\n',
        b'{"name": ' + b"9" * 900 + b"}\n",
        b"[" * 1000 + b"\n",
        b"[" * 100_000 + b"\n",
        b"x" * 2000,
        b"\n",
    ],
)
def test_garbage_disturbs_no_member(
    rubbish: bytes, server: ControlServer, join: Callable[..., ControlClient]
) -> None:
    with connect(server) as connection:
        connection.sendall(rubbish)
        deliver(server, join("n3"), {"report": 0})
        until("it is turned away", lambda: server.receive(0.05) or is_closed(connection))


def test_silent_connection_is_closed(server: ControlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(server) as connection:
        until("it is there", lambda: not server.receive(0.05) and server._unproven)
        # Sending single bytes gains no time.
        connection.sendall(b"{")
        monkeypatch.setattr(control, "_UNPROVEN_S", 0.0)
        until("it is turned away", lambda: not server.receive(0.05) and is_closed(connection))


def test_a_flood_of_connections_keeps_no_member_out(
    server: ControlServer, join: Callable[..., ControlClient]
) -> None:
    before = join("n2")
    deliver(server, before, {"report": 0})
    with ExitStack() as flood:
        connections = []
        for number in range(UNPROVEN + MEMBERS + 100):
            connections.append(flood.enter_context(connect(server)))
            if number % 50 == 0:
                server.receive()
                assert len(server._unproven) <= UNPROVEN + MEMBERS

        def newest_is_there() -> bool:
            server.receive(0.05)
            return {one.getsockname() for one in connections[-20:]} <= {
                lines._socket.getpeername() for lines in server._unproven
            }

        until("all are accepted", newest_is_there)
        assert len(server._unproven) == UNPROVEN + MEMBERS
        assert is_closed(connections[0])
        deliver(server, before, {"report": 1})
        deliver(server, join("n3"), {"report": 2})


def test_a_flood_closes_its_own_connections_first(server: ControlServer) -> None:
    with (
        socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0)) as member,
        ExitStack() as flood,
    ):
        until("it is there", lambda: not server.receive(0.05) and server._unproven)
        for number in range(UNPROVEN + MEMBERS + 50):
            flood.enter_context(connect(server))
            if number % 50 == 0:
                server.receive()
        until("the flood is accepted", lambda: server.receive() or not server.receive(0.2))
        assert member.getsockname() in {lines._socket.getpeername() for lines in server._unproven}


def test_flood_of_connections_leaves_file_descriptors(
    server: ControlServer, join: Callable[..., ControlClient]
) -> None:
    clients = [join("n2"), join("n3")]
    deliver(server, clients[0], {"report": 0})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as flood:
        connections = [flood.enter_context(connect(server)) for _ in range(200)]
        with connect(server) as probe:
            lowest = probe.fileno()
        # The limit leaves the server only some of the waiting connections.
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + control._FILES_LEFT + 20, limits[1]))
        try:
            until("the newest is accepted", lambda: server.receive(0.05) or is_closed(connections[0]))
            with ExitStack() as own:
                for _ in range(control._FILES_LEFT // 2):
                    own.enter_context(Path("/dev/null").open())
            deliver(server, clients[1], {"report": 1})
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_server_continues_without_free_file_descriptors(
    server: ControlServer, join: Callable[..., ControlClient]
) -> None:
    client = join("n2")
    deliver(server, client, {"report": 0})
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with connect(server) as waiting:
        resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, limits[1]))
        try:
            server.receive(0.05)
            deliver(server, client, {"report": 1})
            # Meanwhile receive() must not spin.
            assert server._listener not in server._selector.get_map()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        until("it is accepted", lambda: not server.receive(0.05) and server._unproven)


def test_member_that_reconnects_is_served_again(
    server: ControlServer, join: Callable[..., ControlClient]
) -> None:
    for number in (1, 2):
        deliver(server, join("n2"), {"report": number})


def test_messages_from_before_a_reconnect_are_received_first(
    server: ControlServer, join: Callable[..., ControlClient]
) -> None:
    first, again = join("n2"), join("n2")
    deliver(server, first, {"report": 1})
    until("it has a connection", lambda: again.receive() or again._lines is not None)
    first.send({"report": 2})

    def turn() -> bool:
        again.receive()
        if again.is_proven:
            again.send({"report": 3})
        found.extend(server.receive(0.05).get("n2", []))
        return {"report": 3} in found

    found: list[dict[str, Any]] = []
    until("both are heard", turn)
    assert found[:2] == [{"report": 2}, {"report": 3}]


def test_reconnecting_alone_does_not_end_a_members_silence(
    server: ControlServer, join: Callable[..., ControlClient]
) -> None:
    deliver(server, join("n2"), {"report": 1})
    received_at, channel = server._received_at["n2"], server._members["n2"]
    again = join("n2")

    def connected() -> bool:
        again.receive()
        server.receive(0.05)
        return server._members["n2"] is not channel

    until("it has connected again", connected)
    assert server._received_at["n2"] == received_at


def test_no_member_counts_as_silent_while_the_server_is_stalled(
    server: ControlServer, join: Callable[..., ControlClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was frozen, or too busy, would otherwise end a job of which nothing is lost."""
    client = join("n2")
    deliver(server, client, {"report": 1})
    monotonic = time.monotonic
    for later in (3600.0, 7200.0):
        monkeypatch.setattr("rdm_job.control.time.monotonic", lambda later=later: monotonic() + later)
        server.receive()
        client.receive()
    for silent in (server.silent_for("n2"), client.silent_for()):
        assert silent is not None
        assert 2 * control._LISTENED_S <= silent < 3600


def test_output_to_a_member_that_does_not_read_is_bounded(
    server: ControlServer, join: Callable[..., ControlClient]
) -> None:
    client = join("n2")
    deliver(server, client, {"report": 1})
    for _ in range(40):
        server.send({"text": "x" * 1_000_000})
    assert len(server._members["n2"].lines._output) < control._LONGEST + 2_000_000
