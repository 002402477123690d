# SPDX-License-Identifier: GPL-3.0-or-later
"""A peer: a node that fetches the pieces of an archive from other nodes, and serves the pieces that it has.

One node is the source: it has the archive, sends each piece once, and knows all peers. The others fetch from
one another what the source has sent. They return to the source only for pieces that no other node serves.
Everything that is received is compared with digests that came from the controller.

Requests are HTTP with the run's token: ``/pieces`` (the list), ``/piece/N``, ``/have`` (a stream of the
pieces that are here), and at the source ``/next`` (a piece that nobody has), ``/announce`` (a peer, its
progress and its end) and ``/status``.

This runs on nodes (Python 3.8 or newer, standard library).
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import random
import socket
import statistics
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.host import disk
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import size_text
from ansible_collections.rdm.provision.plugins.module_utils.images.joined_files import JoinedFiles
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_client import (
    Busy,
    Client,
    Fetch,
    Neighbour,
    reason,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_limits import QUIET_S
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_members import Members
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_schedule import (
    any_of,
    rarest,
    silent_after_s,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_server import (
    Request,
    Server,
    Uploads,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    PieceFile,
    PieceList,
    WrongPiece,
    count,
    numbers,
)

_CHANCE = random.Random()  # noqa: S311  # which peer queries which is no secret
_FETCHES = 4
_FETCHES_OF_ONE = 2
_DIRECT_FETCHES = 2
"""Where few nodes fetch from the source, each verifies a piece while it receives the next."""
_SLOWEST = 6
"""A piece that takes this many times the usual time is fetched from another node."""
_SLOWEST_RATE = 256 * 1024
"""Bytes per second that are slow even before there is a usual time."""
_STRIKES = 3
"""Failures in a row after which a neighbour is reported."""
_STUCK_S = 1.0
_FINISH_S = 3.0
"""Seconds that a source waits at its end until its nodes know of it."""
_LEAVE_S = 1.0
"""Seconds that a node waits at most until the source knows of its end."""
_NEWS_S = 0.1
"""Seconds between two reports of the pieces that a node has."""
_TICK_S = 0.5
_LIST_MAX = 1 << 24
_HAVE_MAX = 1 << 16


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
        self._client = Client(settings.token, settings.source)
        self._uploads = Uploads(settings.bandwidth)
        self._neighbours: Dict[str, Neighbour] = {}
        self._liars: Set[str] = set()
        self._fetches: List[Fetch] = []
        self._times: List[float] = []
        self._news = threading.Condition()
        self._direct = 0
        self._every_s = 0.5
        self._source = Neighbour("the source", *settings.source) if settings.source else None
        self._moved = time.monotonic()
        self._growing = growing
        if pieces is None:
            assert settings.source is not None
            try:
                self._list = self._client.request(settings.source, "/pieces", most=_LIST_MAX)
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
        self.members = Members(pieces) if settings.source is None else None
        if self.members is not None and not growing:
            self.file.have = pieces.wanted()
        if self.members is None:
            self.error = self._no_room()
        self._server = self._listen()
        self.port: int = self._server.server_address[1]

    def _listen(self) -> Server:
        address, port = self.settings.address, self.settings.port
        try:
            return Server((address, port), self.settings.token, self.serve)
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

    def _be_source(self, members: Members) -> None:
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
            "fetched": self._client.fetched,
            "ended": self.ended.is_set(),
        }
        assert self.settings.source is not None
        answer: Dict[str, Any] = json.loads(
            self._client.request(self.settings.source, "/announce", json.dumps(report))
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
                self._neighbours[name] = one = Neighbour(name, address, port)
                _thread(self._watch, one)

    def _watch(self, one: Neighbour) -> None:
        """Follow a neighbour's reports of the pieces that it has."""
        failures = 0
        while self._wants() and not one.dropped:
            try:
                with self._client.response(one.at, "/have") as answer:
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
                fetch = Fetch(self._source)
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

    def _choose(self) -> Optional[Fetch]:
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
            fetch = Fetch(one, number)
            one.fetches += 1
            self._fetches.append(fetch)
            return fetch

    def _choose_source(self) -> Optional[Fetch]:
        """Start to fetch from the source a piece that no neighbour sends, if nothing has come for a while."""
        assert self._source is not None
        with self._news:
            waiting = self.missing & ~self.file.claimed & ~self._in_flight()
            stuck_s = max(_STUCK_S, 2 * self._every_s) * _CHANCE.uniform(1, 2)
            if not waiting or time.monotonic() - self._moved < stuck_s:
                return None
            self._moved = time.monotonic()
            fetch = Fetch(self._source, any_of(waiting, _CHANCE))
            self._source.fetches += 1
            self._fetches.append(fetch)
            return fetch

    def _fetch(self, fetch: Fetch, path: str, body: str = "") -> bool:
        """Fetch a piece, keep it if its digest is right, and return whether it was kept."""
        one = fetch.one
        try:
            data = self._client.piece(fetch, self.pieces, path, body)
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

    def _strike(self, one: Neighbour, why: str) -> None:
        one.strikes += 1
        one.not_before = time.monotonic() + min(2**one.strikes, 30)
        if one.strikes >= _STRIKES:
            self.trouble.setdefault(one.name, why)

    # ---- serving

    def serve(self, request: Request, path: str, body: bytes) -> None:
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

    def _report_have(self, request: Request) -> None:
        """Stream the pieces that are here: a line whenever there are more, and at least one per second."""
        request.close_connection = True
        request.begin(None)
        while not self.ended.is_set():
            have, until = self.file.have, time.monotonic() + 1
            request.wfile.write("{0:x}\n".format(have).encode())
            time.sleep(_NEWS_S)
            while self.file.have == have and not self.ended.is_set() and time.monotonic() < until:
                time.sleep(_NEWS_S)

    def _send(self, request: Request, number: int) -> bool:
        """Send a piece, and return whether all of it was sent."""
        # New pieces (/next) come before pieces that a node only believes to be missing elsewhere. A node that
        # waits here for long could receive from another one meanwhile.
        wait_s = QUIET_S if request.path == "/next" else 0.1 if self.members is None else 0.01
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


def _thread(function: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread
