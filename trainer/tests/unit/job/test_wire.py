# SPDX-License-Identifier: GPL-3.0-or-later
"""Agents' lines over real sockets."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from rdm_job import wire
from rdm_job.wire import Hub, Link
from tests.waiting import wait_until

KEY = b"k" * 32


@pytest.fixture
def hub() -> Iterator[tuple[Hub, int]]:
    made = Hub("127.0.0.1", 0, KEY)
    yield made, int(made._listener.getsockname()[1])
    made.close()


def until(what: str, turn: Callable[[], object], *links: Hub | Link) -> None:
    """Take turns until one is the last, waiting for what comes in between."""
    wait_until(what, turn, pause=lambda: wire.wait(list(links), 0.05))


def test_messages_go_both_ways(hub: tuple[Hub, int]) -> None:
    master, port = hub
    link = Link("127.0.0.1", port, "n2", KEY)
    began = time.monotonic()
    heard: list[object] = []
    said: list[object] = []

    def turn() -> bool:
        heard.extend(link.receive())
        link.send({"report": len(said)})
        said.extend(master.receive().get("n2", []))
        master.send({"order": "run"})
        return bool(heard and said)

    until("both have heard something", turn, master, link)
    assert heard[0] == {"order": "run"}
    silent = master.silent_for("n2")
    assert silent is not None
    assert silent <= time.monotonic() - began
    link.close()


def test_who_does_not_know_the_key_is_not_heard(hub: tuple[Hub, int]) -> None:
    master, port = hub
    stranger = Link("127.0.0.1", port, "n2", b"x" * 32)
    greeted = []

    def turn() -> bool:
        stranger.receive()
        stranger.send({"report": 1})
        greeted.append(master.receive())
        # Turned away, it has to connect again.
        return len(greeted) > 3 and stranger._lines is None

    until("the stranger is turned away", turn, master)
    assert not any(greeted)
    assert master.silent_for("n2") is None


def test_a_proof_of_another_connection_does_not_count(hub: tuple[Hub, int]) -> None:
    master, port = hub
    with (
        socket.create_connection(("127.0.0.1", port)) as first,
        socket.create_connection(("127.0.0.1", port)) as other,
    ):

        def strangers_are(count: int) -> bool:
            return not master.receive() and len(master._strangers) == count

        until("both are there", lambda: strangers_are(2), master)
        nonce = json.loads(first.makefile().readline())["nonce"]
        other.sendall(json.dumps({"node": "n2", "proof": wire._proof(KEY, nonce, "n2")}).encode() + b"\n")
        until("one is turned away", lambda: strangers_are(1), master)
        assert master.silent_for("n2") is None


def test_rubbish_harms_nobody(hub: tuple[Hub, int]) -> None:
    master, port = hub
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n\xff\xfe\n[1]\n")
        link = Link("127.0.0.1", port, "n3", KEY)

        def turn() -> bool:
            link.receive()
            link.send({"report": 0})
            return "n3" in master.receive()

        until("the node is heard", turn, master, link)
    link.close()


def test_a_node_that_comes_again_is_heard_again(hub: tuple[Hub, int]) -> None:
    master, port = hub
    for number in (1, 2):
        link = Link("127.0.0.1", port, "n2", KEY)
        found: list[object] = []

        def turn(link: Link = link, number: int = number, found: list[object] = found) -> bool:
            link.receive()
            link.send({"report": number})
            found.extend(message.get("report") for message in master.receive().get("n2", []))
            return number in found

        until(f"connection {number} is heard", turn, master, link)
        link.close()


def speak(connection: socket.socket, *messages: dict[str, object]) -> None:
    """Prove to be n2, and go on at once: all of it is read together."""
    nonce = json.loads(connection.makefile().readline())["nonce"]
    proof = {"node": "n2", "proof": wire._proof(KEY, nonce, "n2")}
    connection.sendall(b"".join(json.dumps(message).encode() + b"\n" for message in (proof, *messages)))


def greeted(master: Hub, strangers: int = 1) -> None:
    """Wait until the master has taken connections."""
    until("they are there", lambda: not master.receive() and len(master._strangers) == strangers, master)


def heard_by(master: Hub, count: int) -> list[dict[str, object]]:
    """Return what n2 says next, so many messages."""
    found: list[dict[str, object]] = []

    def turn() -> bool:
        found.extend(master.receive().get("n2", []))
        return len(found) >= count

    until("it is heard", turn, master)
    return found


def test_what_a_node_says_with_its_proof_is_heard(hub: tuple[Hub, int]) -> None:
    master, port = hub
    connections = []
    for life in (1, 2):
        connections.append(socket.create_connection(("127.0.0.1", port)))
        greeted(master)
        if life == 2:
            # As if it had been silent for long.
            master._nodes["n2"].heard -= 100
        speak(connections[-1], {"life": life}, {"report": life})
        assert heard_by(master, 2) == [{"life": life}, {"report": life}]
        silent = master.silent_for("n2")
        assert silent is not None
        assert silent < 100
    for connection in connections:
        connection.close()


def test_what_a_node_said_before_it_connected_again_is_heard_first(hub: tuple[Hub, int]) -> None:
    master, port = hub
    with (
        socket.create_connection(("127.0.0.1", port)) as first,
        socket.create_connection(("127.0.0.1", port)) as again,
    ):
        greeted(master, 2)
        speak(first, {"report": 1})
        assert heard_by(master, 1) == [{"report": 1}]
        # The master is busy, and reads all of this at once.
        first.sendall(b'{"report": 2}\n')
        speak(again, {"report": 3})
        assert heard_by(master, 2) == [{"report": 2}, {"report": 3}]


def test_a_node_that_only_connects_again_is_as_silent_as_before(hub: tuple[Hub, int]) -> None:
    master, port = hub
    first = Link("127.0.0.1", port, "n2", KEY)

    def turn() -> bool:
        first.receive()
        first.send({"report": 1})
        return "n2" in master.receive()

    until("it is heard", turn, master, first)
    heard, connection = time.monotonic(), master._nodes["n2"]
    again = Link("127.0.0.1", port, "n2", KEY)

    def connected() -> bool:
        again.receive()
        master.receive()
        return master._nodes["n2"] is not connection

    until("it has connected again", connected, master, again)
    began = time.monotonic()
    silent = master.silent_for("n2")
    assert silent is not None
    assert silent >= began - heard
