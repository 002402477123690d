# SPDX-License-Identifier: GPL-3.0-or-later
"""What a peer requests from other nodes."""

from __future__ import annotations

import http.client
import os
import socket
import time
from typing import Any, cast

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_client import Client, Fetch
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import PieceList, WrongPiece

from tests.unit.plugins.module_utils.images.peers import HEAD, MIB, PIECE, TOKEN, neighbour

PIECES = PieceList(12 * MIB + 17, PIECE, [""] * 25, {})


@pytest.fixture
def client(patient: None) -> Client:
    return Client(TOKEN, None)


@pytest.mark.parametrize("number", [b"25", b"-1", b"1000000000000", b"x"])
def test_a_piece_that_the_archive_does_not_have_is_not_kept(client: Client, number: bytes) -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX-Piece: %s\r\n\r\nx" % number
    with neighbour(lambda it: it.sendall(reply)) as liar, pytest.raises((WrongPiece, ValueError)):
        client.piece(Fetch(liar), PIECES, "/next", "0")


class Late:
    """A socket on which less than the receiver would like arrives in time."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._least = 1
        self.timed_out = 0

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self._least = value
        self._sock.setsockopt(level, option, value)

    def recv_into(self, view: memoryview) -> int:
        if self._least > 1:
            self.timed_out += 1
            raise TimeoutError
        return self._sock.recv_into(view)


def test_a_slow_piece_arrives_and_its_connection_serves_the_next(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = Client._received
    late: list[Late] = []

    def received_late(self: Client, answer: Any, sock: Any, length: int) -> bytearray:
        late.append(Late(sock))
        return received(self, answer, cast("socket.socket", late[-1]), length)

    monkeypatch.setattr(Client, "_received", received_late)
    data = os.urandom(PIECE)

    def drip(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        for at in range(0, PIECE, PIECE // 10):
            connection.sendall(data[at : at + PIECE // 10])
            time.sleep(0.01)
        connection.recv(1000)
        connection.sendall(HEAD + data)

    with neighbour(drip) as slow:
        for number in (0, 1):
            assert client.piece(Fetch(slow, number), PIECES, f"/piece/{number}") == bytearray(data)
        assert client.fetched == 2 * PIECE
    assert [one.timed_out for one in late] == [1, 1]


def test_a_response_that_ends_its_connection_is_no_piece(client: Client) -> None:
    old = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
    with neighbour(lambda it: it.sendall(old)) as other, pytest.raises(http.client.HTTPException):
        client.piece(Fetch(other, 0), PIECES, "/piece/0")
