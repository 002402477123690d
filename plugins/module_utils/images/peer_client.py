# SPDX-License-Identifier: GPL-3.0-or-later
"""What a peer requests from other nodes, and what it knows about each.

This runs on nodes (Python 3.8 or newer, standard library).
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from typing import Any, List, Optional, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.images.peer_limits import BODY_MAX, CHUNK, QUIET_S
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import PieceList, WrongPiece


class Busy(Exception):  # noqa: N818  # an answer, and not an error
    """The other node is busy, or does not have the piece."""


class Neighbour:
    """What a node knows about another."""

    def __init__(self, name: str, address: str, port: int) -> None:
        self.name = name
        self.at = (address, port)
        self.have = 0
        self.fetches = 0
        self.strikes = 0
        self.not_before = 0.0
        self.dropped = False
        self.current = True
        self.kept: List[http.client.HTTPConnection] = []


class Fetch:
    """A piece on its way here."""

    def __init__(self, one: Neighbour, number: Optional[int] = None) -> None:
        self.one = one
        self.number = number
        self.began = time.monotonic()
        self.connection: Optional[http.client.HTTPConnection] = None
        self.cut = False


class Client:
    """Sends requests with the run's token.

    Args:
        token: the run's.
        source: address and port of the source, which gets more time; None at the source itself.
    """

    def __init__(self, token: str, source: Optional[Tuple[str, int]]) -> None:
        self.fetched = 0
        self._token = token
        self._source = source

    def request(self, at: Tuple[str, int], path: str, body: str = "", most: int = BODY_MAX) -> bytes:
        """Return the body of the response to a request, or its beginning."""
        with self.response(at, path, body) as answer:
            return bytes(answer.read(most))

    def piece(self, fetch: Fetch, pieces: PieceList, path: str, body: str = "") -> Optional[bytearray]:
        """Return a piece, or None if there is none; if the source chose it, `fetch` gets its number."""
        with self.response(fetch.one.at, path, body, fetch) as answer:
            if answer.status == 204:
                answer.read()
                return None
            if fetch.number is None:
                number = int(answer.headers.get("X-Piece", "-1"))
                if not 0 <= number < len(pieces.digests):
                    raise WrongPiece("there is no piece {0}".format(number))
                fetch.number = number
            length = pieces.span(fetch.number)[1]
            if answer.headers.get("Content-Length") != str(length):
                raise WrongPiece("a piece has another length")
            sock = fetch.connection.sock if fetch.connection is not None else None
            if sock is None:  # its response has announced the end of the connection
                raise http.client.NotConnected
            return self._received(answer, sock, length)

    def _received(self, answer: http.client.HTTPResponse, sock: socket.socket, length: int) -> bytearray:
        """Return the body of a response, read from its socket without waking up for every packet."""
        data = bytearray(length)
        first = answer.read1(length)  # what came with the header
        data[: len(first)] = first
        self.fetched += len(first)
        view = memoryview(data)[len(first) :]
        least = CHUNK
        while view:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(least, len(view)))
            try:
                got = sock.recv_into(view[:CHUNK])
            except socket.timeout:
                if least == 1:
                    raise
                least = 1  # a slow node: whatever arrives shows that it is alive
                continue
            if not got:
                raise http.client.IncompleteRead(b"", len(view))
            self.fetched += got
            view = view[got:]
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        answer.close()
        return data

    @contextlib.contextmanager
    def response(self, at: Tuple[str, int], path: str, body: str = "", fetch: Optional[Fetch] = None) -> Any:
        """Yield the response to a request; a fetch keeps its connection for the next from the same node."""
        headers = {"Authorization": "Bearer " + self._token}
        if fetch is None:
            headers["Connection"] = "close"
        request = ("POST" if body else "GET", path, body.encode() or None, headers)
        connection, answer = self._kept(fetch, request) if fetch is not None else (None, None)
        if connection is None:
            quiet = QUIET_S if at != self._source else 3 * QUIET_S
            connection = http.client.HTTPConnection(at[0], at[1], timeout=quiet)
        try:
            if answer is None:
                if fetch is not None:
                    fetch.connection = connection
                connection.request(*request)
                answer = connection.getresponse()
            if answer.status >= 400:
                answer.read(BODY_MAX)
            else:
                yield answer
            if fetch is not None and answer.isclosed():
                fetch.one.kept.append(connection)
                connection = None
            if answer.status >= 400:
                raise Busy
        finally:
            if connection is not None:
                connection.close()

    def _kept(self, fetch: Fetch, request: Tuple[Any, ...]) -> Tuple[Any, Any]:
        """Return a kept connection and its response, unless the other side has closed it meanwhile."""
        try:
            connection = fetch.one.kept.pop()
        except IndexError:
            return None, None
        answer = None
        try:
            fetch.connection = connection
            connection.request(*request)
            answer = connection.getresponse()
            return connection, answer
        except (ConnectionError, http.client.HTTPException):
            if fetch.cut:
                raise
            return None, None
        finally:
            if answer is None:
                connection.close()


def local_address(other: Tuple[str, int]) -> str:
    """Return this node's own address on the route to another."""
    family = socket.AF_INET6 if ":" in other[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(other)
        return str(probe.getsockname()[0])


def reason(error: Exception) -> str:
    """Return why a connection failed, for the end of a sentence."""
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
