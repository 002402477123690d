# SPDX-License-Identifier: GPL-3.0-or-later
"""A node that fetches the pieces of an archive from others, and serves those that it has.

One of them is the source: it has the archive, sends each piece once, and knows who takes part. The others
fetch from one another what the source has sent; it is asked again only for what nobody else gives.
Everything that is received is compared with digests that came from the controller.

Requests are HTTP with the run's token: ``/pieces`` (the list), ``/piece/N``, ``/have`` (which pieces), and at
the source ``/next`` (a piece that nobody has), ``/announce`` (who takes part, how far it is) and ``/status``.

This runs on nodes (Python 3.8 or newer, standard library).
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import http.client
import http.server
import json
import random
import socket
import socketserver
import statistics
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    PieceFile,
    PieceList,
    WrongPiece,
    count,
    numbers,
)

_CHANCE = random.Random()  # noqa: S311  # who asks whom is no secret
NEIGHBOURS = 6
"""Others that a node fetches from at a time."""
DIRECT = 8
"""Nodes that fetch from the source; what they have reaches the others."""
_FETCHES = 4
_DIRECT_FETCHES = 2
_UPLOADS = 2 * DIRECT
_CONNECTIONS = 64
_QUIET_S = 3.0
"""A connection on which nothing comes for so long is given up."""
_SLOWEST = 6
"""A piece that takes so many times the usual is fetched from another."""
_STRIKES = 3
"""Failures in a row after which a neighbour is named."""
_STUCK_S = 1.0
_WATCH_S = 0.4
"""Between two questions of what a neighbour has; pieces that come from it tell that, too."""
_BODY_MAX = 1 << 20
_LIST_MAX = 1 << 24
_HAVE_MAX = 1 << 14
_CHUNK = 1 << 18
_ANNOUNCED = {
    "name": str,
    "port": int,
    "have": int,
    "wanted": int,
    "done": bool,
    "error": str,
    "trouble": dict,
    "fetched": int,
}


class Settings(NamedTuple):
    """How a node takes part.

    Attributes:
        name: of the node.
        address: to listen at.
        port: to listen on; 0 takes any.
        token: the run's; without it nobody is served.
        source: address and port of the source; None at the source itself.
        bandwidth: bytes a second that this node sends at most; 0 is without a bound.
        lease_s: seconds without word from the controller (at the source) or from the source after which all
            ends.
    """

    name: str
    address: str
    port: int
    token: str
    source: Optional[Tuple[str, int]] = None
    bandwidth: float = 0
    lease_s: float = 30


class CannotTakePart(Exception):  # noqa: N818  # its text is one sentence for a person
    """The node cannot be a peer."""


class Busy(Exception):  # noqa: N818  # an answer, and not an error
    """The other has no time now, or has not got the piece."""


class _Neighbour:
    """What a node knows of another."""

    def __init__(self, name: str, address: str, port: int) -> None:
        self.name = name
        self.at = (address, port)
        self.have = 0
        self.fetches = 0
        self.strikes = 0
        self.not_before = 0.0
        self.dropped = False


class _Uploads:
    """Bounds what a node sends: so many at a time, so many bytes a second."""

    def __init__(self, bandwidth: float) -> None:
        self.slots = threading.BoundedSemaphore(_UPLOADS)
        self.sent = 0
        self._bandwidth = bandwidth
        self._lock = threading.Lock()
        self._free = 0.0

    def wait(self, length: int) -> None:
        """Count these bytes, and wait until they may be sent."""
        with self._lock:
            self.sent += length
            now = time.monotonic()
            begin = max(self._free, now)
            self._free = begin + (length / self._bandwidth if self._bandwidth else 0)
        if begin > now:
            time.sleep(begin - now)


class _Members:
    """Who takes part, at the source."""

    def __init__(self, settings: Settings) -> None:
        self.known: Dict[str, Dict[str, Any]] = {}
        self.heard = time.monotonic()
        self.finish = False
        self.sends: Dict[int, int] = {}
        self.lock = threading.Lock()
        self._lease_s = settings.lease_s

    def announce(self, address: str, said: Dict[str, Any]) -> Dict[str, Any]:
        """Note how far a node is, and return whom it may ask.

        Raises:
            KeyError, TypeError, ValueError: it is not what a node announces; nothing is noted.
        """
        said = {key: kind(said[key]) for key, kind in _ANNOUNCED.items()}
        now = time.monotonic()
        with self.lock:
            first = self.known.get(said["name"], {}).get("direct")
            self.known[said["name"]] = {**said, "address": address, "at": now, "direct": first}
            alive = [one for one in self.known.values() if now - one["at"] < self._lease_s / 2]
            direct = [one for one in alive if not one["done"]][:DIRECT]
            for one in alive:
                one["direct"] = one in direct
            others = [
                one for one in alive if one["name"] != said["name"] and one["have"] and not one["error"]
            ]
            chosen = _CHANCE.sample(others, min(NEIGHBOURS, len(others)))
            return {
                "neighbours": [[one["name"], one["address"], one["port"]] for one in chosen],
                "direct": self.known[said["name"]]["direct"],
                "finish": self.finish,
                "every_s": max(0.5, len(self.known) / 400),
            }

    def next_piece(self, have: int, available: int) -> Optional[int]:
        """Return a piece that nobody was sent yet and the asking node lacks, and note that it is sent."""
        with self.lock:
            fresh = [number for number in numbers(available & ~have) if not self.sends.get(number)]
            if not fresh:
                return None
            number = _CHANCE.choice(fresh[: 4 * DIRECT])
            self.sends[number] = 1
            return number

    def take_back(self, number: int) -> None:
        """Note that a piece did not arrive."""
        with self.lock:
            self.sends[number] = 0

    def status(self) -> Dict[str, Any]:
        """Return how far each is, and what they say of one another; the controller is still there."""
        now = self.heard = time.monotonic()
        with self.lock:
            return {
                name: {
                    **{key: one[key] for key in ("have", "wanted", "done", "error", "trouble", "fetched")},
                    "silent_s": round(now - one["at"], 1),
                }
                for name, one in self.known.items()
            }


class Peer:
    """A node that takes part, from `start` to the end of `run`.

    Args:
        settings: how.
        pieces: of the archive; None fetches the list from the source.
        digest: of that list, from the controller.
        path: where the pieces are, or go.
        left_out: members of the archive that the node's engine has already.
        growing: somebody writes the archive to `path` meanwhile.

    Raises:
        CannotTakePart: the source does not answer, or its own port cannot be had.
        WrongPiece: the source has another list of pieces.
    """

    def __init__(
        self,
        settings: Settings,
        digest: str,
        path: str,
        pieces: Optional[PieceList] = None,
        left_out: Tuple[str, ...] = (),
        growing: bool = False,
    ) -> None:
        self.settings = settings
        self.error = ""
        self.trouble: Dict[str, str] = {}
        self.ended = threading.Event()
        self.fetched = 0
        self._uploads = _Uploads(settings.bandwidth)
        self._neighbours: Dict[str, _Neighbour] = {}
        self._in_flight: Dict[int, float] = {}
        self._times: List[float] = [_QUIET_S]
        self._news = threading.Condition()
        self._direct = False
        self._thread = threading.local()
        self._moved = time.monotonic()
        self._growing = growing
        if pieces is None:
            assert settings.source is not None
            try:
                self._list = self._ask(settings.source, "/pieces", most=_LIST_MAX)
            except (OSError, ValueError, http.client.HTTPException, Busy) as error:
                raise CannotTakePart(
                    "the source does not answer at {0}:{1} ({2})".format(*settings.source, reason(error))
                ) from None
            pieces = PieceList.decoded(self._list, digest)
        else:
            self._list = pieces.encoded()
        self.pieces = pieces
        self.wanted = pieces.wanted(left_out)
        self.file = PieceFile(path, pieces, growing or settings.source is None)
        self.members = _Members(settings) if settings.source is None else None
        if self.members is not None and not growing:
            self.file.have = pieces.wanted()
        try:
            self._server = _Server((settings.address, settings.port), self)
        except OSError as error:
            raise CannotTakePart(
                "it cannot listen on {0}:{1} ({2})".format(settings.address, settings.port, reason(error))
            ) from None
        self.port: int = self._server.server_address[1]

    # ---- what it does

    def run(self) -> None:
        """Serve and fetch until the source says that all have what they need, or nobody is heard any more."""
        _thread(self._server.serve_forever, 0.1)
        if self.members is not None:
            self._be_source(self.members)
        else:
            self._be_node()
        self.ended.set()
        with self._news:
            self._news.notify_all()
        self._server.shutdown()
        self._server.server_close()
        if self.members is None:
            self.file.note()

    @property
    def missing(self) -> int:
        """The pieces that are still to come, as bits."""
        return self.wanted & ~self.file.have

    def _be_source(self, members: _Members) -> None:
        number = 0
        while not self.ended.is_set() and time.monotonic() - members.heard < self.settings.lease_s:
            while self._growing and number < len(self.pieces.digests) and self.file.check(number):
                number += 1
            self.ended.wait(0.05 if self._growing else 0.5)
        members.finish = True
        until = time.monotonic() + 3
        while time.monotonic() < until:
            with members.lock:
                left = [one for one in members.known.values() if not one.get("acknowledged")]
                for one in left:
                    one["acknowledged"] = time.monotonic() - one["at"] > 3
            if not left:
                return
            time.sleep(0.05)

    def _be_node(self) -> None:
        _thread(self.file.check_claimed)
        for _number in range(_FETCHES):
            _thread(self._work)
        for _number in range(_DIRECT_FETCHES):
            _thread(self._work_direct)
        heard = noted = time.monotonic()
        while not self.ended.is_set() and time.monotonic() - heard < self.settings.lease_s:
            every_s = 0.5
            try:
                answer = self._announce()
            except (OSError, ValueError, http.client.HTTPException, Busy):
                pass
            else:
                heard = time.monotonic()
                every_s = answer["every_s"]
                self._direct = answer["direct"]
                self._meet(answer["neighbours"])
                if answer["finish"]:
                    return
            if time.monotonic() - noted > 5:
                noted = time.monotonic()
                self.file.note()
            self.ended.wait(every_s)

    def _announce(self) -> Dict[str, Any]:
        said = {
            "name": self.settings.name,
            "port": self.port,
            "have": count(self.wanted & self.file.have),
            "wanted": count(self.wanted),
            "done": not self.missing,
            "error": self.error,
            "trouble": dict(self.trouble),
            "fetched": self.fetched,
        }
        assert self.settings.source is not None
        answer: Dict[str, Any] = json.loads(self._ask(self.settings.source, "/announce", json.dumps(said)))
        return answer

    def _meet(self, neighbours: List[List[Any]]) -> None:
        """Begin to watch those that the source has named."""
        if not self.missing:
            return
        for name, address, port in neighbours:
            one = self._neighbours.get(name)
            if one is None or (one.at != (address, port)):
                self._neighbours[name] = one = _Neighbour(name, address, port)
                _thread(self._watch, one)

    def _watch(self, one: _Neighbour) -> None:
        """Keep up with what a neighbour has."""
        while self.missing and not self.ended.is_set() and not one.dropped:
            try:
                path = "/have?known={0}".format(count(one.have))
                one.have = int(self._ask(one.at, path, most=_HAVE_MAX), 16) & self.wanted
            except (OSError, ValueError, http.client.HTTPException, Busy):
                self._strike(one, "did not answer")
                self.ended.wait(min(one.strikes, 5))
            else:
                with self._news:
                    self._news.notify_all()
                self.ended.wait(_WATCH_S)

    # ---- fetching

    def _work(self) -> None:
        while self.missing and not self.ended.is_set() and not self.error:
            choice = self._choose()
            if choice is None:
                if not self._ask_source():
                    with self._news:
                        self._news.wait(0.1)
                continue
            number, one = choice
            began = time.monotonic()
            try:
                data, one.have = self._piece(one.at, "/piece/{0}".format(number), number)
                self._keep(number, data, began)
                one.strikes = 0
            except Busy:
                one.not_before = time.monotonic() + 0.1
            except WrongPiece:
                one.dropped = True
                self.trouble[one.name] = "sent a piece with another digest"
            except (OSError, ValueError, http.client.HTTPException) as error:
                self._strike(one, "was slow" if isinstance(error, socket.timeout) else "broke off")
            finally:
                one.fetches -= 1
                self._in_flight.pop(number, None)

    def _choose(self) -> Optional[Tuple[int, _Neighbour]]:
        """Return the piece that the fewest neighbours have, and the least busy of those."""
        now = time.monotonic()
        usable = [
            one
            for one in list(self._neighbours.values())
            if not one.dropped and one.not_before <= now and one.fetches < 2
        ]
        with self._news:
            missing = self.missing & ~self.file.claimed
            for number in list(self._in_flight):
                missing &= ~(1 << number)
            seen: Dict[int, int] = {}
            for one in usable:
                for number in numbers(one.have & missing):
                    seen[number] = seen.get(number, 0) + 1
            if not seen:
                return None
            number = min(seen, key=lambda number: (seen[number], _CHANCE.random()))
            having = [one for one in usable if one.have >> number & 1]
            one = min(having, key=lambda one: (one.fetches, one.strikes, _CHANCE.random()))
            one.fetches += 1
            self._in_flight[number] = now
            return number, one

    def _ask_source(self) -> bool:
        """Fetch from the source what no neighbour gives, when nothing has come for a while."""
        with self._news:
            missing = self.missing & ~self.file.claimed
            waiting = [number for number in numbers(missing) if number not in self._in_flight]
            if not waiting or time.monotonic() - self._moved < _STUCK_S * _CHANCE.uniform(1, 2):
                return False
            number = _CHANCE.choice(waiting)
            self._in_flight[number] = self._moved = time.monotonic()
        try:
            assert self.settings.source is not None
            began = time.monotonic()
            data, _have = self._piece(self.settings.source, "/piece/{0}".format(number), number)
            self._keep(number, data, began)
        except (OSError, ValueError, http.client.HTTPException, Busy, WrongPiece):
            return False
        finally:
            self._in_flight.pop(number, None)
        return True

    def _work_direct(self) -> None:
        """Fetch what nobody has yet, where this node is one of those that do."""
        while self.missing and not self.ended.is_set() and not self.error:
            if not self._direct:
                self.ended.wait(0.1)
                continue
            have = self.file.have | self.file.claimed | ~self.wanted
            for number in list(self._in_flight):
                have |= 1 << number
            assert self.settings.source is not None
            began = time.monotonic()
            try:
                body = "{0:x}".format(have & self.pieces.wanted())
                data, _have = self._piece(self.settings.source, "/next", None, body)
                if data:
                    self._keep(int(self._thread.number), data, began)
                    continue
            except (OSError, ValueError, http.client.HTTPException, Busy, WrongPiece):
                pass
            self.ended.wait(0.2)

    def _keep(self, number: int, data: bytes, began: float) -> None:
        try:
            self.file.write(number, data)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self.error = "no space left for {0}".format(self.file.path) if full else str(error)
            return
        self._moved = time.monotonic()
        self.fetched += len(data)
        self._times = [*self._times[-20:], self._moved - began]
        with self._news:
            self._news.notify_all()

    def _strike(self, one: _Neighbour, why: str) -> None:
        one.strikes += 1
        one.not_before = time.monotonic() + min(2**one.strikes, 30)
        if one.strikes >= _STRIKES:
            self.trouble.setdefault(one.name, why)

    def _piece(
        self, at: Tuple[str, int], path: str, number: Optional[int], body: str = ""
    ) -> Tuple[bytes, int]:
        """Return a piece and what the other has; socket.timeout when it takes much longer than others did."""
        limit = time.monotonic() + max(2.0, _SLOWEST * statistics.median(self._times))
        with self._connection(at, path, body, keep=True) as answer:
            if answer.status == 204:
                answer.read()
                return b"", 0
            have = int(answer.headers.get("X-Have", "0"), 16) & self.wanted
            if number is None:
                number = self._thread.number = int(answer.headers.get("X-Piece", "-1"))
                if not 0 <= number < len(self.pieces.digests):
                    raise WrongPiece("there is no piece {0}".format(number))
            length = self.pieces.span(number)[1]
            exact = answer.headers.get("Content-Length") == str(length)
            parts: List[bytes] = []
            while length:
                part = answer.read1(min(_CHUNK, length))
                if not part:
                    raise http.client.IncompleteRead(b"", length)
                if time.monotonic() > limit and at != self.settings.source:
                    raise socket.timeout
                parts.append(part)
                length -= len(part)
            if exact:
                answer.close()  # so that the connection stays: older versions of read1 do not see the end
            return b"".join(parts), have

    def _ask(self, at: Tuple[str, int], path: str, body: str = "", most: int = _BODY_MAX) -> bytes:
        with self._connection(at, path, body) as answer:
            return bytes(answer.read(most))

    @contextlib.contextmanager
    def _connection(self, at: Tuple[str, int], path: str, body: str, keep: bool = False) -> Any:
        """Yield the answer to a request; a thread keeps the last connection that it wishes to keep."""
        headers = {"Authorization": "Bearer " + self.settings.token}
        if not keep:
            headers["Connection"] = "close"
        request = ("POST" if body else "GET", path, body or None, headers)
        connection, answer = self._kept(at, request) if keep else (None, None)
        if connection is None:
            quiet = _QUIET_S if at != self.settings.source else 3 * _QUIET_S
            connection = http.client.HTTPConnection(at[0], at[1], timeout=quiet)
        try:
            if answer is None:
                connection.request(*request)
                answer = connection.getresponse()
            if answer.status >= 400:
                raise Busy
            yield answer
            if keep and answer.isclosed():
                self._thread.kept = (at, connection)
                connection = None
        finally:
            if connection is not None:
                connection.close()

    def _kept(self, at: Tuple[str, int], request: Tuple[Any, ...]) -> Tuple[Any, Any]:
        """Return this thread's connection and the answer on it, if the other has not closed it meanwhile."""
        kept_at, connection = getattr(self._thread, "kept", (None, None))
        self._thread.kept = (None, None)
        if connection is None:
            return None, None
        if kept_at == at:
            try:
                connection.request(*request)
                return connection, connection.getresponse()
            except (OSError, http.client.HTTPException):
                pass
        connection.close()
        return None, None

    # ---- serving

    def serve(self, request: _Request, path: str, body: bytes) -> None:
        """Answer a request whose token was right."""
        what, _, rest = path.lstrip("/").partition("/")
        if what == "pieces":
            request.reply(self._list)
        elif what.startswith("have"):
            self._wait_for_more(int(what.partition("=")[2] or 0))
            request.reply("{0:x}".format(self.file.have).encode())
        elif what == "piece" and rest.isdigit() and self.file.have >> int(rest) & 1:
            self._send(request, int(rest))
        elif self.members is None:
            request.reply(b"", 404)
        elif what == "next":
            number = self.members.next_piece(int(body, 16), self.file.have)
            if number is None:
                request.reply(b"", 204)
            elif not self._send(request, number):
                self.members.take_back(number)
        elif what == "announce":
            said = json.loads(body)
            answer = self.members.announce(request.client_address[0], said)
            request.reply(json.dumps(answer).encode())
            if answer["finish"]:
                self.members.known[said["name"]]["acknowledged"] = True
        elif what in ("status", "stop"):
            request.reply(json.dumps({"nodes": self.members.status(), "sent": self._uploads.sent}).encode())
            if what == "stop":
                self.ended.set()
        else:
            request.reply(b"", 404)

    def _wait_for_more(self, known: int) -> None:
        until = time.monotonic() + 1
        with self._news:
            while count(self.file.have) <= known and time.monotonic() < until and not self.ended.is_set():
                self._news.wait(0.2)

    def _send(self, request: _Request, number: int) -> bool:
        """Send a piece, and return whether all of it went."""
        if not self._uploads.slots.acquire(timeout=0.5 if self.members is None else _QUIET_S):
            request.reply(b"", 503)
            return False
        try:
            data = memoryview(self.file.read(number))
            request.begin(len(data), number, self.file.have)
            for begin in range(0, len(data), _CHUNK):
                part = data[begin : begin + _CHUNK]
                self._uploads.wait(len(part))
                request.wfile.write(part)
        except OSError:
            request.close_connection = True
            return False
        finally:
            self._uploads.slots.release()
        return True


class _Request(http.server.BaseHTTPRequestHandler):
    """One request of another node, or of the controller's module."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = _QUIET_S
    server: _Server

    def do_GET(self) -> None:
        """Answer it, if it has the run's token."""
        given = self.headers.get("Authorization", "")
        try:
            if not hmac.compare_digest(
                given.encode(), ("Bearer " + self.server.peer.settings.token).encode()
            ):
                self.close_connection = True
                self.reply(b"", 403)
                return
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= _BODY_MAX:
                self.close_connection = True
                self.reply(b"", 413)
                return
            self.server.peer.serve(self, self.path, self.rfile.read(length))
        except (OSError, ValueError, KeyError, TypeError):
            self.close_connection = True

    def do_POST(self) -> None:
        """Answer it in the same way."""
        self.do_GET()

    def begin(self, length: int, number: Optional[int] = None, have: int = 0, status: int = 200) -> None:
        """Send the head of an answer; with a piece go its number and which pieces are here."""
        self.send_response_only(status)
        self.send_header("Content-Length", str(length))
        if number is not None:
            self.send_header("X-Piece", str(number))
            self.send_header("X-Have", "{0:x}".format(have))
        self.end_headers()

    def reply(self, body: bytes, status: int = 200) -> None:
        """Send an answer."""
        self.begin(len(body), status=status)
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: nobody would read it."""


class _Server(http.server.ThreadingHTTPServer):
    """Serves so many connections at a time; others wait in the kernel, and are closed if that takes long."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, at: Tuple[str, int], peer: Peer) -> None:
        self.peer = peer
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(at, _Request)

    def server_bind(self) -> None:
        """Bind without HTTPServer's question for this host's name, for which a resolver may take seconds."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve it in a thread, once there is one for it; nobody may keep the server from its end."""
        if self._connections.acquire(timeout=_QUIET_S):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a connection that broke is the other's to name."""


def _thread(function: Any, *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, daemon=True).start()


def local_address(other: Tuple[str, int]) -> str:
    """Return the address that this node has towards another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(other)
        return str(probe.getsockname()[0])


def reason(error: Exception) -> str:
    """Return why a connection failed, for the end of a sentence."""
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
