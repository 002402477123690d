# SPDX-License-Identifier: GPL-3.0-or-later
"""A peer: a node that fetches the pieces of an archive from other nodes, and serves the pieces that it has.

One node is the source: it has the archive, sends each piece once, and knows all peers. The others fetch from
one another what the source has sent. They return to the source only for pieces that no other node serves.
Everything that is received is compared with digests that came from the controller.

Requests are HTTP with the run's token: ``/pieces`` (the list), ``/piece/N``, ``/have`` (a stream of the
pieces that are here), and at the source ``/next`` (a piece that nobody has), ``/announce`` (a peer and its
progress) and ``/status``.

This runs on nodes (Python 3.8 or newer, standard library).
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import http.client
import http.server
import io
import json
import random
import socket
import socketserver
import statistics
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.host import disk
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import size_text
from ansible_collections.rdm.provision.plugins.module_utils.images.joined_files import JoinedFiles
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_schedule import (
    TURN_S,
    announce_every_s,
    any_of,
    neighbours,
    rarest,
    silent_after_s,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    PieceFile,
    PieceList,
    WrongPiece,
    count,
    numbers,
)

_CHANCE = random.Random()  # noqa: S311  # which peer queries which is no secret
DIRECT = 8
"""Pieces that nodes fetch from the source at a time; the other nodes get its pieces from them.

Each of these nodes is the only one with its pieces for a while, and sends them to all others. With few such
nodes their links are the bottleneck.
"""
_FETCHES = 4
_FETCHES_OF_ONE = 2
_DIRECT_FETCHES = 2
"""Where few nodes fetch from the source, each verifies a piece while it receives the next."""
_UPLOADS = 3
"""Pieces that are sent at a time: with few, each arrives soon and is passed on."""
_CONNECTIONS = 64
"""Each of a node's neighbours takes up to three, and neighbours of two turns may be connected."""
_QUIET_S = 3.0
"""Seconds without data, or until a request is complete, after which a connection is closed."""
_SLOWEST = 6
"""A piece that takes this many times the usual time is fetched from another node."""
_SLOWEST_RATE = 256 * 1024
"""Bytes per second that are slow even before there is a usual time."""
_STRIKES = 3
"""Failures in a row after which a neighbour is reported."""
_STUCK_S = 1.0
_STILL_S = 2.0
"""A source whose loop pauses for longer stood still."""
_FINISH_S = 3.0
"""Seconds that a source waits at its end until its nodes know of it."""
_LEAVE_S = 1.0
"""Seconds that a node waits at most until the source knows of its end."""
_NEWS_S = 0.1
"""Seconds between two reports of the pieces that a node has."""
_TICK_S = 0.5
_BODY_MAX = 1 << 20
_LIST_MAX = 1 << 24
_HAVE_MAX = 1 << 16
_CHUNK = 1 << 18
"""Bytes that are sent, and received, at a time: each wake of a thread costs CPU time."""
_ANNOUNCED = {
    "name": str,
    "port": int,
    "have": str,
    "wanted": int,
    "missing": int,
    "error": str,
    "trouble": dict,
    "fetched": int,
    "ended": bool,
}


class Settings(NamedTuple):
    """The settings of a peer.

    Attributes:
        name: of the node.
        address: to listen at.
        port: to listen on; 0 takes any.
        token: the run's; a request without it is refused.
        source: address and port of the source; None at the source itself.
        bandwidth: bytes per second that this node sends at most; 0 means no limit.
        lease_s: seconds after which the peer ends if it hears nothing from the controller (at the source) or
            from the source.
    """

    name: str
    address: str
    port: int
    token: str
    source: Optional[Tuple[str, int]] = None
    bandwidth: float = 0
    lease_s: float = 30


class Busy(Exception):  # noqa: N818  # an answer, and not an error
    """The other node is busy, or does not have the piece."""


class _Neighbour:
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


class _Fetch:
    """A piece on its way here."""

    def __init__(self, one: _Neighbour, number: Optional[int] = None) -> None:
        self.one = one
        self.number = number
        self.began = time.monotonic()
        self.connection: Optional[http.client.HTTPConnection] = None
        self.cut = False


class _Uploads:
    """Limits a node's uploads: pieces at a time, and bytes per second."""

    def __init__(self, bandwidth: float) -> None:
        self.slots = threading.BoundedSemaphore(_UPLOADS)
        self.sent = 0
        # Short enough that no receiver that shares the bandwidth times out between two chunks.
        self.chunk = max(1, min(_CHUNK, int(bandwidth / 4))) if bandwidth else _CHUNK
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
    """The peers, as the source knows them."""

    def __init__(self, pieces: PieceList) -> None:
        self.known: Dict[str, Dict[str, Any]] = {}
        self.began = self.heard = self._listened = time.monotonic()
        self.finish = False
        self.lock = threading.Lock()
        self._sent_to: Dict[int, str] = {}
        self._all = pieces.wanted()

    @property
    def every_s(self) -> float:
        """Seconds between two announcements of a node."""
        return announce_every_s(len(self.known))

    def announce(self, address: str, announced: Dict[str, Any]) -> Dict[str, Any]:
        """Record a node's progress, and return the neighbours that it may fetch from.

        Raises:
            KeyError, TypeError, ValueError: the announcement is malformed; nothing is recorded.
        """
        announced = {key: kind(announced[key]) for key, kind in _ANNOUNCED.items()}
        announced.update(address=address, at=time.monotonic(), have=int(announced["have"], 16) & self._all)
        name = announced["name"]
        with self.lock:
            self.known[name] = announced
            alive = self._alive()
            turn = int((time.monotonic() - self.began) / max(TURN_S, self.every_s))
            chosen = [self.known[other] for other in neighbours(list(alive), name, turn)]
            fetching = [other for other, one in alive.items() if one["missing"]][:DIRECT]
            direct = name in fetching and bool(self._unsent(alive))
            return {
                "neighbours": [[one["name"], one["address"], one["port"]] for one in chosen],
                "direct": DIRECT // len(fetching) if direct else 0,
                "finish": self.finish,
                "every_s": self.every_s,
            }

    def listen(self) -> None:
        """Record that this process runs. While it stood still, no other was silent."""
        with self.lock:
            now = time.monotonic()
            gap = now - self._listened
            if gap > _STILL_S:
                for one in self.known.values():
                    one["at"] = min(one["at"] + gap, now)
            self._listened = now

    def _alive(self) -> Dict[str, Dict[str, Any]]:
        """Return the nodes that still take part; pieces that only others have are sent again."""
        since = self._listened - silent_after_s(self.every_s)
        return {
            name: one
            for name, one in self.known.items()
            if one["at"] > since and not one["error"] and not one["ended"]
        }

    def _unsent(self, alive: Dict[str, Dict[str, Any]]) -> int:
        """Return the pieces that were sent to none of these nodes, and that fewer than two of them have.

        A single announcement is not enough: if it were false, all nodes would wait for that piece.
        """
        have = twice = 0
        for one in alive.values():
            twice |= have & one["have"]
            have |= one["have"]
        left = self._all & ~twice
        for number, name in self._sent_to.items():
            if name in alive:
                left &= ~(1 << number)
        return left

    def next_piece(self, name: str, have: int, available: int) -> Optional[int]:
        """Return a piece that neither this node nor others have, and record that it is sent."""
        with self.lock:
            fresh = numbers(self._unsent(self._alive()) & available & ~have)
            if not fresh:
                return None
            number = _CHANCE.choice(fresh[: 4 * DIRECT])
            self._sent_to[number] = name
            return number

    def take_back(self, number: int) -> None:
        """Record that a piece did not arrive."""
        with self.lock:
            self._sent_to.pop(number, None)

    def status(self) -> Dict[str, Any]:
        """Return each node's progress and its reports about others, and renew the controller's lease."""
        self.heard = time.monotonic()
        with self.lock:
            return {
                name: {
                    **{key: one[key] for key in ("wanted", "error", "trouble", "fetched")},
                    # A node may have more than it needs, from an earlier run.
                    "have": one["wanted"] - one["missing"],
                    "done": not one["missing"],
                    "silent_s": round(max(0.0, self._listened - one["at"]), 1),
                }
                for name, one in self.known.items()
            }


class Peer:
    """A node's peer, until `run` returns.

    Args:
        settings: of this peer.
        pieces: of the archive; None fetches the list from the source.
        digest: of that list, from the controller.
        path: the file for the pieces.
        left_out: members of the archive that the node's engine has already.
        growing: another process is still writing the archive to `path`.
        blobs: directory in which the node's engine keeps layers by their sha256; empty if there is none. They
            are copied from there.
        joined: `path` is a directory of the source, and its files are the archive's members.

    Raises:
        NodeError: the source does not answer, its list of pieces is too long, or the node's port is taken.
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
        blobs: str = "",
        joined: bool = False,
    ) -> None:
        self.settings = settings
        self.error = ""
        self.trouble: Dict[str, str] = {}
        self.ended = threading.Event()
        self.fetched = 0
        self._uploads = _Uploads(settings.bandwidth)
        self._neighbours: Dict[str, _Neighbour] = {}
        self._liars: Set[str] = set()
        self._fetches: List[_Fetch] = []
        self._times: List[float] = []
        self._news = threading.Condition()
        self._direct = 0
        self._every_s = 0.5
        self._source = _Neighbour("the source", *settings.source) if settings.source else None
        self._moved = time.monotonic()
        self._growing = growing
        if pieces is None:
            assert settings.source is not None
            try:
                self._list = self._request(settings.source, "/pieces", most=_LIST_MAX)
            except (OSError, ValueError, http.client.HTTPException, Busy) as error:
                raise NodeError(
                    "the source does not answer at {0}:{1} ({2})".format(*settings.source, reason(error))
                ) from None
            pieces = PieceList.decoded(self._list, digest)
        else:
            self._list = pieces.encoded()
            if len(self._list) > _LIST_MAX:
                raise NodeError("it has too many files, or bytes, for one transfer: transfer parts of it")
        self.pieces = pieces
        self.wanted = pieces.wanted(left_out)
        kind = JoinedFiles if joined else PieceFile
        self.file = kind(path, pieces, growing or settings.source is None, blobs)
        self.members = _Members(pieces) if settings.source is None else None
        if self.members is not None and not growing:
            self.file.have = pieces.wanted()
        if self.members is None:
            self.error = self._no_room()
        self._server = self._listen()
        self.port: int = self._server.server_address[1]

    def _listen(self) -> _Server:
        address, port = self.settings.address, self.settings.port
        try:
            return _Server((address, port), self)
        except OSError as error:
            where = "{0}:{1}".format(address, port)
            if error.errno == errno.EADDRINUSE:
                hint = "end it, or set images_port to another port"
                raise NodeError("another program listens on {0}".format(where), hint) from None
            raise NodeError("it cannot listen on {0} ({1})".format(where, reason(error))) from None

    # ---- running

    def end(self) -> None:
        """Let `run` end.

        A signal handler may call this while the main thread holds the event's lock, so a thread sets it.
        """
        _thread(self.ended.set)

    def run(self) -> None:
        """Serve and fetch until the source reports that all nodes are complete, or the lease has expired."""
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
        """The pieces that this node still needs, as bits."""
        return self.wanted & ~self.file.have

    def _no_room(self) -> str:
        """Return why the disk cannot hold the pieces that are needed; empty if it can.

        A disk is not filled with a part of an archive: other programs of the node may need what is left.
        """
        here = disk(self.file.path)
        room = here["free"] + self.file.allocated()
        needed = sum(self.pieces.span(number)[1] for number in numbers(self.wanted))
        if not here["total"] or needed <= room:
            return ""
        return "no space left for {0} ({1} of {2})".format(self.file.path, size_text(room), size_text(needed))

    def _be_source(self, members: _Members) -> None:
        number = 0
        while not self.ended.is_set() and time.monotonic() - members.heard < self.settings.lease_s:
            if self._growing and number < len(self.pieces.digests) and self.file.check(number):
                number += 1
            else:
                self.ended.wait(0.05 if self._growing else 0.5)
            members.listen()
        members.finish = True
        until = time.monotonic() + _FINISH_S
        while time.monotonic() < until:
            with members.lock:
                left = [
                    one for one in members.known.values() if not one["ended"] and not one.get("acknowledged")
                ]
                for one in left:
                    one["acknowledged"] = time.monotonic() - one["at"] > _FINISH_S
            if not left:
                return
            time.sleep(0.05)

    def _be_node(self) -> None:
        _thread(self.file.check_claimed, self._wants)
        for _number in range(_FETCHES):
            _thread(self._work)
        for number in range(_DIRECT_FETCHES):
            _thread(self._work_direct, number)
        heard = noted = time.monotonic()
        announced = 0.0
        while not self.ended.is_set():
            if time.monotonic() - heard > max(self.settings.lease_s, silent_after_s(self._every_s)):
                return
            if time.monotonic() - announced >= self._every_s:
                announced = time.monotonic()
                with contextlib.suppress(OSError, ValueError, http.client.HTTPException, Busy):
                    answer = self._announce()
                    heard = time.monotonic()
                    self._every_s = answer["every_s"]
                    self._direct = answer["direct"]
                    self._meet(answer["neighbours"])
                    if answer["finish"]:
                        return
            if time.monotonic() - noted > 5:
                noted = time.monotonic()
                self.file.note()
            self._cut_slow()
            self.ended.wait(min(_TICK_S, self._every_s))
        # The controller stops the source as well, which would wait for this node.
        _thread(self._leave).join(_LEAVE_S)

    def _leave(self) -> None:
        """Report to the source that this node ends."""
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException, Busy):
            self._announce()

    def _announce(self) -> Dict[str, Any]:
        report = {
            "name": self.settings.name,
            "port": self.port,
            "have": "{0:x}".format(self.file.have),
            "wanted": count(self.wanted),
            "missing": count(self.missing),
            "error": self.error,
            "trouble": dict(self.trouble),
            "fetched": self.fetched,
            "ended": self.ended.is_set(),
        }
        assert self.settings.source is not None
        answer: Dict[str, Any] = json.loads(
            self._request(self.settings.source, "/announce", json.dumps(report))
        )
        return answer

    def _meet(self, chosen: List[List[Any]]) -> None:
        """Watch the neighbours of this turn, and drop those of earlier turns."""
        if not self.missing:
            return
        names = [name for name, _address, _port in chosen]
        for name, one in list(self._neighbours.items()):
            if name not in names and not one.current and not one.fetches:
                del self._neighbours[name]
                one.dropped = True
            one.current = name in names
        for name, address, port in chosen:
            if name in self._liars:
                continue
            known = self._neighbours.get(name)
            if known is None or known.at != (address, port):
                if known is not None:
                    known.dropped = True
                self._neighbours[name] = one = _Neighbour(name, address, port)
                _thread(self._watch, one)

    def _watch(self, one: _Neighbour) -> None:
        """Follow a neighbour's reports of the pieces that it has."""
        failures = 0
        while self._wants() and not one.dropped:
            try:
                with self._connection(one.at, "/have") as answer:
                    while self._wants() and not one.dropped:
                        line = answer.readline(_HAVE_MAX)
                        if not line.endswith(b"\n"):
                            raise http.client.IncompleteRead(line)
                        before, one.have = one.have, int(line, 16) & self.wanted
                        failures = 0
                        if one.have & ~before & self.missing:
                            with self._news:
                                self._news.notify_all()
            except (OSError, ValueError, http.client.HTTPException, Busy):
                failures += 1
                if failures >= _STRIKES and not one.dropped:
                    self.trouble.setdefault(one.name, "did not answer")
                self.ended.wait(min(failures, 5))

    # ---- fetching

    def _wants(self) -> bool:
        return bool(self.missing) and not self.ended.is_set() and not self.error

    def _work(self) -> None:
        while self._wants():
            fetch = self._choose() or self._choose_source()
            if fetch is None:
                with self._news:
                    self._news.wait(0.1)
            else:
                self._fetch(fetch, "/piece/{0}".format(fetch.number))

    def _work_direct(self, worker: int) -> None:
        """Fetch new pieces from the source, while it lets this node fetch more than `worker` at a time."""
        assert self._source is not None
        while self._wants():
            if worker >= self._direct:
                self.ended.wait(0.1)
                continue
            with self._news:
                have = self.file.have | self.file.claimed | ~self.wanted | self._in_flight()
                fetch = _Fetch(self._source)
                self._source.fetches += 1
                self._fetches.append(fetch)
            body = "{0:x} {1}".format(have & self.pieces.wanted(), self.settings.name)
            if not self._fetch(fetch, "/next", body):
                self.ended.wait(0.2)

    def _in_flight(self, since: float = 0) -> int:
        """Return the pieces that are being fetched, as bits; with `since` only those that began before it."""
        bits = 0
        for fetch in self._fetches:
            if fetch.number is not None and (not since or fetch.began < since):
                bits |= 1 << fetch.number
        return bits

    def _choose(self) -> Optional[_Fetch]:
        """Start to fetch a piece that the fewest neighbours have, from the least busy of them."""
        now = time.monotonic()
        with self._news:
            usable = [
                one
                for one in list(self._neighbours.values())  # others are met meanwhile
                if not one.dropped and one.not_before <= now and one.fetches < _FETCHES_OF_ONE
            ]
            missing = self.missing & ~self.file.claimed
            number = rarest(missing & ~self._in_flight(), [one.have for one in usable], _CHANCE)
            if number is None and self._times:
                # The last pieces: another neighbour may send a slow one sooner.
                late = missing & self._in_flight(now - max(0.5, 2 * statistics.median(self._times)))
                usable = [one for one in usable if not one.fetches]
                number = rarest(late, [one.have for one in usable], _CHANCE)
            if number is None:
                return None
            having = [one for one in usable if one.have >> number & 1]
            one = min(having, key=lambda one: (one.fetches, one.strikes, _CHANCE.random()))
            fetch = _Fetch(one, number)
            one.fetches += 1
            self._fetches.append(fetch)
            return fetch

    def _choose_source(self) -> Optional[_Fetch]:
        """Start to fetch from the source a piece that no neighbour sends, if nothing has come for a while."""
        assert self._source is not None
        with self._news:
            waiting = self.missing & ~self.file.claimed & ~self._in_flight()
            stuck_s = max(_STUCK_S, 2 * self._every_s) * _CHANCE.uniform(1, 2)
            if not waiting or time.monotonic() - self._moved < stuck_s:
                return None
            self._moved = time.monotonic()
            fetch = _Fetch(self._source, any_of(waiting, _CHANCE))
            self._source.fetches += 1
            self._fetches.append(fetch)
            return fetch

    def _fetch(self, fetch: _Fetch, path: str, body: str = "") -> bool:
        """Fetch a piece, keep it if its digest is right, and return whether it was kept."""
        one = fetch.one
        try:
            data = self._piece(fetch, path, body)
            if data is None:
                return False
            assert fetch.number is not None
            self._keep(fetch.number, data, fetch.began)
            one.strikes = 0
            return True
        except Busy:
            one.not_before = time.monotonic() + 0.1
        except WrongPiece:
            one.strikes += 1
            if one is not self._source:
                one.dropped = True
                self._liars.add(one.name)
                self.trouble[one.name] = "sent a piece with another digest"
            elif one.strikes >= _STRIKES:
                self.error = "its source sends another archive than it had in the beginning"
        except (OSError, ValueError, http.client.HTTPException) as error:
            if one is not self._source:
                slow = fetch.cut or isinstance(error, socket.timeout)
                self._strike(one, "was slow" if slow else "broke off")
        finally:
            with self._news:
                self._fetches.remove(fetch)
                one.fetches -= 1
        return False

    def _cut_slow(self) -> None:
        """End fetches from other nodes that take much longer than usual, headers included."""
        with self._news:
            fetches = [fetch for fetch in self._fetches if fetch.one is not self._source and not fetch.cut]
            usual = statistics.median(self._times) if len(self._times) >= _FETCHES else 0
        now = time.monotonic()
        for fetch in fetches:
            slow_s = max(2.0, _SLOWEST * usual) if usual else self.pieces.piece_size / _SLOWEST_RATE + 15
            if now - fetch.began > slow_s:
                fetch.cut = True
                # If all are slow, this becomes the usual time.
                self._times = [*self._times[-20:], now - fetch.began]
                sock = fetch.connection.sock if fetch.connection is not None else None
                if sock is not None:
                    with contextlib.suppress(OSError):
                        sock.shutdown(socket.SHUT_RDWR)

    def _keep(self, number: int, data: bytearray, began: float) -> None:
        try:
            self.file.write(number, data)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self.error = "no space left for {0}".format(self.file.path) if full else str(error)
            return
        self._moved = time.monotonic()
        self._times = [*self._times[-20:], self._moved - began]
        with self._news:
            self._news.notify_all()

    def _strike(self, one: _Neighbour, why: str) -> None:
        one.strikes += 1
        one.not_before = time.monotonic() + min(2**one.strikes, 30)
        if one.strikes >= _STRIKES:
            self.trouble.setdefault(one.name, why)

    def _piece(self, fetch: _Fetch, path: str, body: str = "") -> Optional[bytearray]:
        """Return a piece, or None if there is none; if the source chose it, `fetch` gets its number."""
        with self._connection(fetch.one.at, path, body, fetch) as answer:
            if answer.status == 204:
                answer.read()
                return None
            if fetch.number is None:
                number = int(answer.headers.get("X-Piece", "-1"))
                if not 0 <= number < len(self.pieces.digests):
                    raise WrongPiece("there is no piece {0}".format(number))
                fetch.number = number
            length = self.pieces.span(fetch.number)[1]
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
        least = _CHUNK
        while view:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(least, len(view)))
            try:
                got = sock.recv_into(view[:_CHUNK])
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

    def _request(self, at: Tuple[str, int], path: str, body: str = "", most: int = _BODY_MAX) -> bytes:
        with self._connection(at, path, body) as answer:
            return bytes(answer.read(most))

    @contextlib.contextmanager
    def _connection(
        self, at: Tuple[str, int], path: str, body: str = "", fetch: Optional[_Fetch] = None
    ) -> Any:
        """Yield the response to a request; a fetch keeps its connection for the next from the same node."""
        headers = {"Authorization": "Bearer " + self.settings.token}
        if fetch is None:
            headers["Connection"] = "close"
        request = ("POST" if body else "GET", path, body.encode() or None, headers)
        connection, answer = self._kept(fetch, request) if fetch is not None else (None, None)
        if connection is None:
            quiet = _QUIET_S if at != self.settings.source else 3 * _QUIET_S
            connection = http.client.HTTPConnection(at[0], at[1], timeout=quiet)
        try:
            if answer is None:
                if fetch is not None:
                    fetch.connection = connection
                connection.request(*request)
                answer = connection.getresponse()
            if answer.status >= 400:
                answer.read(_BODY_MAX)
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

    def _kept(self, fetch: _Fetch, request: Tuple[Any, ...]) -> Tuple[Any, Any]:
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

    # ---- serving

    def serve(self, request: _Request, path: str, body: bytes) -> None:
        """Answer a request that has the run's token."""
        what, _, rest = path.lstrip("/").partition("/")
        if what == "pieces":
            request.reply(self._list)
        elif what == "have":
            self._report_have(request)
        elif what == "piece" and self.file.have >> int(rest) & 1:
            self._send(request, int(rest))
        elif self.members is None:
            request.reply(b"", 404)
        elif what == "next":
            have, _, name = body.decode().partition(" ")
            number = self.members.next_piece(name, int(have, 16), self.file.have)
            if number is None:
                request.reply(b"", 204)
            elif not self._send(request, number):
                self.members.take_back(number)
        elif what == "announce":
            report = json.loads(body)
            answer = self.members.announce(request.client_address[0], report)
            request.reply(json.dumps(answer).encode())
            if answer["finish"]:
                self.members.known[report["name"]]["acknowledged"] = True
        elif what == "status":
            request.reply(json.dumps({"nodes": self.members.status(), "sent": self._uploads.sent}).encode())
        else:
            request.reply(b"", 404)

    def _report_have(self, request: _Request) -> None:
        """Stream the pieces that are here: a line whenever there are more, and at least one per second."""
        request.close_connection = True
        request.begin(None)
        while not self.ended.is_set():
            have, until = self.file.have, time.monotonic() + 1
            request.wfile.write("{0:x}\n".format(have).encode())
            time.sleep(_NEWS_S)
            while self.file.have == have and not self.ended.is_set() and time.monotonic() < until:
                time.sleep(_NEWS_S)

    def _send(self, request: _Request, number: int) -> bool:
        """Send a piece, and return whether all of it was sent."""
        # New pieces (/next) come before pieces that a node only believes to be missing elsewhere. A node that
        # waits here for long could receive from another one meanwhile.
        wait_s = _QUIET_S if request.path == "/next" else 0.1 if self.members is None else 0.01
        if not self._uploads.slots.acquire(timeout=wait_s):
            request.reply(b"", 503)
            return False
        try:
            begin, length = self.pieces.span(number)
            request.begin(length, number)
            chunk = self._uploads.chunk
            for stream, start, count in self.file.streams(begin, length):
                with stream:
                    for offset in range(start, start + count, chunk):
                        part = min(chunk, start + count - offset)
                        self._uploads.wait(part)
                        if request.connection.sendfile(stream, offset, part) != part:
                            raise OSError("the file is shorter than it was")
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

    def setup(self) -> None:
        """Read each request through a stream with a deadline."""
        super().setup()
        self._source = _InTime(self.connection)
        self.rfile = io.BufferedReader(self._source)

    def handle_one_request(self) -> None:
        """Answer the next request."""
        self._source.until = time.monotonic() + _QUIET_S
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer the request, if it has the run's token."""
        given = self.headers.get("Authorization", "")
        try:
            if not hmac.compare_digest(
                given.encode(), ("Bearer " + self.server.peer.settings.token).encode()
            ):
                self.reply(b"", 403)
                return
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= _BODY_MAX:
                self.reply(b"", 413)
                return
            self.server.peer.serve(self, self.path, self.rfile.read(length))
        except (OSError, ValueError, KeyError, TypeError):
            self.close_connection = True

    def do_POST(self) -> None:
        """Answer it like a GET."""
        self.do_GET()

    def begin(self, length: Optional[int], number: Optional[int] = None, status: int = 200) -> None:
        """Send the header of a response.

        Args:
            length: of the body in bytes; None means until the connection ends.
            number: of the piece that is sent.
            status: of HTTP.
        """
        self.send_response_only(status)
        if status >= 400:
            # A peer that gets nothing tries again later. Until then, its connection would be one of few.
            self.send_header("Connection", "close")
        if length is not None:
            self.send_header("Content-Length", str(length))
        if number is not None:
            self.send_header("X-Piece", str(number))
        self.end_headers()

    def reply(self, body: bytes, status: int = 200) -> None:
        """Send an answer."""
        self.begin(len(body), status=status)
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: nobody would read it."""


class _InTime(io.RawIOBase):
    """A connection's data up to a deadline, so that no client holds it with a byte now and then."""

    def __init__(self, connection: socket.socket) -> None:
        self.until = 0.0
        self._connection = connection

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the data that has arrived."""
        self._connection.settimeout(max(0.001, self.until - time.monotonic()))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(_QUIET_S)


class _Server(http.server.ThreadingHTTPServer):
    """Serves a bounded number of connections; others wait in the kernel, and are closed after `_QUIET_S`."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, at: Tuple[str, int], peer: Peer) -> None:
        self.peer = peer
        self.address_family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(at, _Request)

    def server_bind(self) -> None:
        """Bind without HTTPServer's lookup of this host's name, which may take a resolver seconds."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the request in a thread; close it if none is free in time, so that the server can end."""
        if self._connections.acquire(timeout=_QUIET_S):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the request, then let the next one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: the other side reports a broken connection."""


def _thread(function: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def local_address(other: Tuple[str, int]) -> str:
    """Return this node's own address on the route to another."""
    family = socket.AF_INET6 if ":" in other[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(other)
        return str(probe.getsockname()[0])


def reason(error: Exception) -> str:
    """Return why a connection failed, for the end of a sentence."""
    return str(getattr(error, "strerror", None) or error) or type(error).__name__
