# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may connect to a peer, and how much it sends."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images import peer_limits, peer_server
from ansible_collections.rdm.provision.plugins.module_utils.images.peer import Peer

from tests.unit.plugins.module_utils.images.peers import HANGS_S, HOME, LONG_S, MIB, TOKEN, running


def test_idle_connections_without_the_token_do_not_block_a_peer(
    source: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_server, "_CONNECTIONS", 1)
    monkeypatch.setattr(peer_server, "QUIET_S", LONG_S)
    thread = threading.Thread(target=source.run)
    thread.start()
    with socket.create_connection((HOME, source.port), HANGS_S) as intruder:
        intruder.sendall(b"GET /status HTTP/1.1\r\n\r\n")
        assert b" 403 " in intruder.makefile("rb").read(), "and the connection ends"
    monkeypatch.setattr(peer_server, "QUIET_S", 0.2)
    ended = threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not ended.wait(0.2):
                connection.sendall(b"x")

    with socket.create_connection((HOME, source.port)) as one, socket.create_connection((HOME, source.port)):
        threading.Thread(target=drip, args=[one], daemon=True).start()
        time.sleep(0.5)
        source.ended.set()
        thread.join(HANGS_S)
        ended.set()
    assert not thread.is_alive()


def test_idle_connection_is_replaced_by_others(source: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_server, "_CONNECTIONS", 1)
    monkeypatch.setattr(peer_server, "QUIET_S", LONG_S)
    for _upload in range(peer_server._UPLOADS):
        source._uploads.slots.acquire()
    with running(source), contextlib.ExitStack() as kept:
        for path, status in (("/piece/0", 503), ("/piece/999", 404), ("/status", 200)):
            connection = kept.enter_context(socket.create_connection((HOME, source.port), HANGS_S))
            head = f"GET {path} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 %d " % status)


def test_dripping_request_is_replaced_by_others(source: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_server, "_CONNECTIONS", 1)
    monkeypatch.setattr(peer_server, "QUIET_S", 1.0)
    with running(source), socket.create_connection((HOME, source.port)) as intruder:
        intruder.settimeout(HANGS_S)
        intruder.sendall(b"GET /sta")
        until = time.monotonic() + HANGS_S
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < until:
                intruder.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() < until


def test_bandwidth_limit_starves_no_connection() -> None:
    for megabits in (0.5, 10, 1000):
        uploads = peer_server.Uploads(megabits * 1e6 / 8)
        assert peer_server._UPLOADS * uploads.chunk / (megabits * 1e6 / 8) < peer_limits.QUIET_S


def test_a_node_sends_no_more_than_its_bound_on_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(peer_server, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    for bandwidth, seconds in ((MIB, 31), (0, 0)):
        began, uploads = now[0], peer_server.Uploads(bandwidth)
        for _chunk in range(128):
            uploads.wait(MIB // 4)
        assert uploads.sent == 32 * MIB
        # The first chunk goes at once, and what the last one takes comes after it.
        assert seconds <= now[0] - began <= seconds + 1
