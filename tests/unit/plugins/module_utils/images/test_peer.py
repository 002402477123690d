# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that pass an archive on: processes of this machine, each with its own directory and port."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import http.client
import json
import multiprocessing
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images import peer as peers
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.plugins.module_utils.images.peer import Peer, Settings
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    PieceFile,
    PieceList,
    WrongPiece,
    count,
    held,
    numbers,
    piece_size,
    read_pieces,
)

from tests.image_archives import MadeImage, oci_layout, saved, tar
from trainer.tests.waiting import Begun, Test, begin

HOME = "127.0.0.1"
TOKEN = "of this run"
MIB = 1 << 20
PIECE = piece_size(MIB)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % PIECE
PROCESSES = multiprocessing.get_context("fork")
HANGS_S = 120.0
LONG_S = 600.0
"""A time that nothing here takes, also on a machine that stands still for a while."""


def pieces_of(archive: Path, whole: Any = None) -> PieceList:
    return read_pieces(str(archive), ArchiveIndex("gzip", archive.stat().st_size, "", 0, True, []), whole)


class Swarm:
    """A source, and nodes that fetch from it and from one another."""

    def __init__(
        self,
        directory: Path,
        archive: Path,
        lease_s: float = LONG_S,
        bandwidth: float = 0,
        finish_s: float = 60,
    ) -> None:
        self.directory = directory
        self.archive = archive
        self.pieces = pieces_of(archive)
        self.bandwidth = bandwidth
        self.finish_s = finish_s
        self.processes: dict[str, Any] = {}
        self.port = self._start("source", None, lease_s)

    def join(self, name: str, lease_s: float = LONG_S, **changes: Any) -> None:
        self._start(name, (HOME, self.port), lease_s, **changes)

    def _start(self, name: str, source: tuple[str, int] | None, lease_s: float, **changes: Any) -> int:
        reports = PROCESSES.Queue()
        settings = Settings(name, HOME, 0, TOKEN, source, self.bandwidth, lease_s)
        path = str(self.directory / name) if source else str(self.archive)
        pieces = None if source else self.pieces

        def run() -> None:
            vars(peers)["_FINISH_S"] = self.finish_s
            for one, value in changes.items():
                setattr(peers.Peer, one, value)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(peers, "_QUIET_S", LONG_S)
                peer = Peer(settings, self.pieces.digest, path, pieces)
            signal.signal(signal.SIGTERM, lambda _number, _frame: peer.end())
            reports.put(peer.port)
            peer.run()

        self.processes[name] = process = PROCESSES.Process(target=run, daemon=True)
        process.start()
        return int(reports.get(timeout=HANGS_S))

    def request(self, path: str, token: str = TOKEN) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(HOME, self.port, timeout=HANGS_S)
        connection.request("GET", path, headers={"Authorization": "Bearer " + token})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, json.loads(body) if path == "/status" and body else body

    def nodes(self) -> dict[str, Any]:
        return dict(self.request("/status")[1]["nodes"])

    def wait(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        until = time.monotonic() + HANGS_S
        while not condition(nodes := self.nodes()):
            assert time.monotonic() < until, nodes
            time.sleep(0.05)
        return nodes

    def wait_done(self, *names: str) -> dict[str, Any]:
        return self.wait(lambda nodes: all(name in nodes and nodes[name]["done"] for name in names))

    def has(self, name: str) -> bool:
        return (self.directory / name).read_bytes() == self.archive.read_bytes()

    def end(self) -> None:
        if self.processes["source"].is_alive():
            self.processes["source"].terminate()
        for name, process in self.processes.items():
            process.join(HANGS_S)
            assert not process.is_alive(), f"{name} goes on"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "archive"
    path.write_bytes(os.urandom(12 * MIB + 17))
    return path


@pytest.fixture
def swarm(tmp_path: Path, archive: Path) -> Iterator[Swarm]:
    made = Swarm(tmp_path, archive)
    yield made
    for process in made.processes.values():
        if process.is_alive():
            process.kill()
            process.join()


def a_source_that_dies_leaves_pieces_with_which_the_next_run_goes_on(
    start: Callable[..., Swarm],
) -> Iterator[None]:
    swarm = start(bandwidth=3 * MIB)
    swarm.join("a", lease_s=12)
    swarm.wait(lambda nodes: bool(nodes) and nodes["a"]["have"] >= 12)
    swarm.processes["source"].kill()
    yield
    swarm.processes["a"].join(HANGS_S)
    assert not swarm.processes["a"].is_alive()
    again = start()
    with (again.directory / "a").open("r+b") as file:  # a piece that is no longer what it was
        file.write(bytes(MIB))
    again.join("a")
    again.wait_done("a")
    assert again.request("/status")[1]["sent"] <= 8 * MIB
    again.end()
    assert again.has("a")


def all_end_by_themselves_when_the_controller_is_gone(start: Callable[..., Swarm]) -> Iterator[None]:
    # Longer than a busy machine needs until the node has joined.
    swarm = start(lease_s=10)
    swarm.join("a", lease_s=1)
    yield
    for process in swarm.processes.values():
        process.join(HANGS_S)
        assert not process.is_alive()


def a_peer_that_is_killed_or_paused_delays_nobody_and_is_named(start: Callable[..., Swarm]) -> Iterator[None]:
    # The source waits so long for an end of the one that is killed.
    swarm = start(bandwidth=2 * MIB, finish_s=15)
    for name in ("a", "b", "killed", "paused"):
        swarm.join(name)
    swarm.wait(lambda nodes: len(nodes) == 4 and all(one["have"] >= 3 for one in nodes.values()))
    swarm.processes["killed"].kill()
    os.kill(swarm.processes["paused"].pid, signal.SIGSTOP)
    yield
    nodes = swarm.wait_done("a", "b")
    assert not nodes["killed"]["done"]
    assert not nodes["paused"]["done"]
    assert nodes["killed"]["silent_s"] > 0
    assert nodes["paused"]["silent_s"] > 0
    os.kill(swarm.processes["paused"].pid, signal.SIGCONT)
    swarm.wait_done("paused")
    # After a restart, it continues with its pieces.
    swarm.end()
    assert all(swarm.has(name) for name in ("a", "b", "paused"))


LIMITS = (
    a_peer_that_is_killed_or_paused_delays_nobody_and_is_named,
    a_source_that_dies_leaves_pieces_with_which_the_next_run_goes_on,
    all_end_by_themselves_when_the_controller_is_gone,
)


@pytest.fixture(scope="module", autouse=True)
def begun(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """The tests of limits, which begin before all others."""
    return begin(LIMITS, lambda: functools.partial(Swarm, tmp_path_factory.mktemp("limit"), archive))


def test_the_source_sends_it_about_once_and_nothing_listens_afterwards(swarm: Swarm) -> None:
    names = ["a", "b", "c", "d"]
    for name in names[:3]:
        swarm.join(name)
    swarm.wait_done(*names[:3])
    swarm.join("d")  # a node that joins late
    swarm.wait_done(*names)
    assert swarm.request("/piece/0", "wrong")[0] == 403
    assert swarm.request("/piece/999")[0] == 404
    sent = swarm.request("/status")[1]["sent"]
    assert swarm.archive.stat().st_size <= sent <= 2 * swarm.archive.stat().st_size
    swarm.end()
    assert all(swarm.has(name) for name in names)
    with pytest.raises(ConnectionRefusedError), socket.create_connection((HOME, swarm.port), HANGS_S):
        pass


def test_a_source_that_is_stopped_with_its_nodes_does_not_wait_for_them(
    tmp_path: Path, archive: Path
) -> None:
    swarm = Swarm(tmp_path, archive, finish_s=LONG_S)
    for name in ("a", "b"):
        swarm.join(name)
    swarm.wait_done("a", "b")
    # Before it is stopped itself, it has not let them end.
    for name in ("a", "b", "source"):
        swarm.processes[name].terminate()
    swarm.end()


def lies_with(answer: Callable[[Any, Any, int], bool]) -> dict[str, Any]:
    """Return what makes a peer lie: it claims all pieces, and sends other bytes."""

    def meet(self: Any, _neighbours: Any) -> None:
        self.file.have = self.wanted

    return {
        "_meet": meet,
        "_send": answer,
        "_work": lambda _self: None,
        "_work_direct": lambda *_arguments: None,
    }


def flips(_self: Any, request: Any, number: int) -> bool:
    length = _self.pieces.span(number)[1]
    request.begin(length)
    request.wfile.write(bytes(length))
    return True


def truncates(_self: Any, request: Any, number: int) -> bool:
    request.begin(_self.pieces.span(number)[1])
    request.wfile.write(bytes(1000))
    request.close_connection = True
    return True


def goes_on(_self: Any, request: Any, _number: int) -> bool:
    request.begin(1 << 40)
    while True:
        request.wfile.write(bytes(MIB))


def after_trouble(self: Peer, worker: int) -> None:
    """Fetch from the source, as `Peer` does, but not before a neighbour was found out."""
    while self._wants() and not self.trouble:
        time.sleep(0.01)
    work_direct(self, worker)


work_direct = Peer._work_direct


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (flips, "sent a piece with another digest"),
        (goes_on, "sent a piece with another digest"),
        (truncates, ""),
    ],
)
def test_a_peer_that_lies_plants_nothing(swarm: Swarm, lie: Any, why: str) -> None:
    swarm.join("liar", **lies_with(lie))
    swarm.wait(lambda nodes: "liar" in nodes and nodes["liar"]["have"] > 0)
    changes: dict[str, Any] = {"_work_direct": after_trouble} if why else {}
    for name in ("a", "b"):
        swarm.join(name, **changes)
    nodes = swarm.wait_done("a", "b")
    if why:
        assert {**nodes["a"]["trouble"], **nodes["b"]["trouble"]} == {"liar": why}
    swarm.end()
    assert swarm.has("a")
    assert swarm.has("b")


def test_a_source_that_stood_still_has_lost_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: now))
    members = peers._Members(PieceList(3, 2, ["", ""], {}))
    report = {"name": "a", "port": 1, "have": "0", "wanted": 2, "missing": 2, "error": "", "trouble": {}}
    members.announce(HOME, {**report, "fetched": 0, "ended": False})
    now += 40
    assert members.status()["a"]["silent_s"] == 0, "nor before it has noticed that it stood still"
    members.listen()
    assert members.status()["a"]["silent_s"] == 0
    for _tick in range(40):
        now += 0.5
        members.listen()
    assert members.status()["a"]["silent_s"] == 20


def test_a_source_that_verifies_what_has_arrived_hears_who_is_silent(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = pieces_of(archive)
    source = Peer(Settings("source", HOME, 0, TOKEN), pieces.digest, str(archive), pieces, growing=True)
    assert source.members is not None
    happened = []

    def check(number: int) -> bool:
        happened.append("verified")
        if number == 2:
            source.ended.set()
        return True

    monkeypatch.setattr(source.file, "check", check)
    monkeypatch.setattr(source.members, "listen", lambda: happened.append("heard"))
    source.run()
    assert happened == ["verified", "heard"] * 3


def test_a_full_disk_is_named_and_others_go_on(swarm: Swarm) -> None:
    def full(_self: Any, _number: int, _data: bytes) -> None:
        raise OSError(28, "No space left on device")

    def keep(self: Any, number: int, data: bytearray, began: float) -> None:
        self.file.write = full.__get__(self.file)
        original(self, number, data, began)

    original = Peer._keep
    swarm.join("full", _keep=keep)
    swarm.join("a")
    swarm.wait_done("a")
    nodes = swarm.wait(lambda nodes: "full" in nodes and bool(nodes["full"]["error"]))
    assert nodes["full"]["error"] == f"no space left for {swarm.directory / 'full'}"
    swarm.end()


def test_a_disk_without_room_is_not_filled(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = pieces_of(archive)
    path = tmp_path / "a"

    def error(free: int, total: int = 100 * MIB) -> str:
        monkeypatch.setattr(peers, "disk", lambda _path: {"total": total, "free": free})
        return Peer(Settings("a", HOME, 0, TOKEN, (HOME, 1)), pieces.digest, str(path), pieces).error

    assert error(5 * MIB) == f"no space left for {path} (5.0 MiB of 12.0 MiB)"
    assert not error(13 * MIB)
    assert not error(0, total=0), "its file system does not say"
    with path.open("wb") as file:
        file.write(os.urandom(10 * MIB))
        file.flush()
        os.fsync(file.fileno())
    assert not error(5 * MIB), "what an earlier run has left is replaced"


def test_a_source_with_more_than_nodes_can_fetch_says_so(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = pieces_of(archive)
    monkeypatch.setattr(peers, "_LIST_MAX", len(pieces.encoded()) - 1)
    with pytest.raises(NodeError, match="too many files, or bytes, for one transfer"):
        Peer(Settings("source", HOME, 0, TOKEN), pieces.digest, str(archive), pieces)


def test_a_peer_that_breaks_off_each_time_is_named(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_QUIET_S", LONG_S)
    node = alone(tmp_path, archive)
    with neighbour(lambda connection: connection.sendall(HEAD + b"half"), peers._STRIKES) as one:
        for _again in range(peers._STRIKES):
            assert not node.trouble
            fetch = peers._Fetch(one, 0)
            node._fetches.append(fetch)
            assert not node._fetch(fetch, "/piece/0")
    assert node.trouble == {"other": "broke off"}


def test_an_archive_that_is_still_being_written_is_served_as_it_grows(tmp_path: Path, archive: Path) -> None:
    data = archive.read_bytes()
    growing = tmp_path / "growing"
    growing.write_bytes(data[: 3 * MIB])
    pieces = pieces_of(archive)
    source = Peer(Settings("source", HOME, 0, TOKEN), pieces.digest, str(growing), pieces, growing=True)
    node = Peer(
        Settings("a", HOME, 0, TOKEN, (HOME, source.port)), pieces.digest, str(tmp_path / "a"), pieces
    )
    with running(source, node):
        wait_for(lambda: count(node.file.have) == 3 * MIB // PIECE)
        growing.write_bytes(data)
        wait_for(lambda: not node.missing)
    assert (tmp_path / "a").read_bytes() == data


@contextlib.contextmanager
def running(*which: Peer) -> Iterator[None]:
    """Run peers until the end of the block, at which they have to end."""
    threads = [threading.Thread(target=one.run) for one in which]
    for thread in threads:
        thread.start()
    yield
    for one in which:
        one.end()
    for thread in threads:
        thread.join(HANGS_S)
        assert not thread.is_alive()


@contextlib.contextmanager
def neighbour(reply: Callable[[socket.socket], object], times: int = 1) -> Iterator[peers._Neighbour]:
    """A neighbour that answers so many connections."""

    def answer() -> None:
        for _again in range(times):
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1000)
                reply(connection)

    with socket.create_server((HOME, 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        yield peers._Neighbour("other", *server.getsockname())


def alone(tmp_path: Path, archive: Path) -> Peer:
    """Return a source that nobody has used yet."""
    pieces = pieces_of(archive)
    return Peer(Settings("source", HOME, 0, TOKEN), pieces.digest, str(archive), pieces)


@pytest.mark.parametrize("head", [HEAD, b"HTTP/1.1 200 "])
def test_a_peer_that_drips_is_left_in_time(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr(peers, "_SLOWEST", 0)
    monkeypatch.setattr(peers, "_QUIET_S", LONG_S)
    node = alone(tmp_path, archive)
    node._times = [0.01] * 4

    def drip(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"x")
            time.sleep(0.1)

    with neighbour(drip) as slow:
        fetch = peers._Fetch(slow, 0)
        node._fetches.append(fetch)
        fetch.one.fetches = 1
        thread = threading.Thread(target=node._fetch, args=(fetch, "/piece/0"))
        thread.start()
        until = time.monotonic() + HANGS_S
        while thread.is_alive():
            assert time.monotonic() < until
            node._cut_slow()
            time.sleep(0.1)
        assert fetch.cut
        assert (fetch.one.strikes, fetch.one.fetches, node._fetches) == (1, 0, [])


@pytest.mark.parametrize("number", [b"25", b"-1", b"1000000000000", b"x"])
def test_a_piece_that_the_archive_does_not_have_is_not_kept(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch, number: bytes
) -> None:
    monkeypatch.setattr(peers, "_QUIET_S", LONG_S)
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX-Piece: %s\r\n\r\nx" % number
    node = alone(tmp_path, archive)
    with neighbour(lambda it: it.sendall(reply)) as liar, pytest.raises((WrongPiece, ValueError)):
        node._piece(peers._Fetch(liar), "/next", "0")


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
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_QUIET_S", LONG_S)
    received = Peer._received
    late: list[Late] = []

    def received_late(self: Peer, answer: Any, sock: Any, length: int) -> bytearray:
        late.append(Late(sock))
        return received(self, answer, cast("socket.socket", late[-1]), length)

    monkeypatch.setattr(Peer, "_received", received_late)
    node = alone(tmp_path, archive)
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
            assert node._piece(peers._Fetch(slow, number), f"/piece/{number}") == bytearray(data)
        assert node.fetched == 2 * PIECE
    assert [one.timed_out for one in late] == [1, 1]


def test_a_response_that_ends_its_connection_is_no_piece(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_QUIET_S", LONG_S)
    old = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
    node = alone(tmp_path, archive)
    with neighbour(lambda it: it.sendall(old)) as other, pytest.raises(http.client.HTTPException):
        node._piece(peers._Fetch(other, 0), "/piece/0")


def test_what_is_no_announcement_is_not_taken_for_one(tmp_path: Path, archive: Path) -> None:
    members = members_of(alone(tmp_path, archive))
    for wrong in ({"name": "b"}, announced("a", fetched="much"), announced("a", trouble=None)):
        with pytest.raises((KeyError, TypeError, ValueError)):
            members.announce(HOME, wrong)
    assert not members.announce(HOME, announced("a"))["finish"]
    assert list(members.status()) == ["a"]


def test_those_who_hold_connections_without_the_token_do_not_hold_a_peer(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_CONNECTIONS", 1)
    monkeypatch.setattr(peers, "_QUIET_S", LONG_S)
    source = alone(tmp_path, archive)
    thread = threading.Thread(target=source.run)
    thread.start()
    with socket.create_connection((HOME, source.port), HANGS_S) as intruder:
        intruder.sendall(b"GET /status HTTP/1.1\r\n\r\n")
        assert b" 403 " in intruder.makefile("rb").read(), "and the connection ends"
    monkeypatch.setattr(peers, "_QUIET_S", 0.2)
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


def test_who_gets_no_piece_gives_its_place_to_others(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_CONNECTIONS", 1)
    monkeypatch.setattr(peers, "_QUIET_S", LONG_S)
    source = alone(tmp_path, archive)
    for _upload in range(peers._UPLOADS):
        source._uploads.slots.acquire()
    with running(source), contextlib.ExitStack() as kept:
        for path, status in (("/piece/0", 503), ("/piece/999", 404), ("/status", 200)):
            connection = kept.enter_context(socket.create_connection((HOME, source.port), HANGS_S))
            head = f"GET {path} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            connection.sendall(head.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 %d " % status)


def members_of(source: Peer) -> peers._Members:
    assert source.members is not None
    return source.members


def announced(name: str, have: int = 0, **changes: Any) -> dict[str, Any]:
    given = {"name": name, "port": 1, "have": f"{have:x}", "wanted": 13, "missing": 13 - count(have)}
    return {**given, "error": "", "trouble": {}, "fetched": 0, "ended": False, **changes}


@pytest.fixture
def lost_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds after which a node is taken for lost: more than a test takes."""
    monkeypatch.setattr(peers, "silent_after_s", lambda _every_s: LONG_S)
    return LONG_S


def test_what_only_a_lost_node_was_sent_is_sent_again(tmp_path: Path, archive: Path, lost_s: float) -> None:
    members = members_of(alone(tmp_path, archive))
    everything = (1 << 13) - 1
    members.announce(HOME, announced("liar", everything))
    members.announce(HOME, announced("resumed", 0b111))
    for name in ("lost", "full", "a"):
        members.announce(HOME, announced(name))
    sent = {members.next_piece(name, 0, everything) for name in ("lost", "full", "a") for _again in range(3)}
    assert len(sent) == 9
    assert not sent & {0, 1, 2}, "others have them from an earlier run"
    assert members.next_piece("a", 0, everything) is not None
    assert members.next_piece("a", 0, everything) is None
    members.listen()  # as the source does all the time
    members.known["lost"]["at"] -= lost_s
    members.announce(HOME, announced("full", error="no space left"))
    again = {members.next_piece("a", 0, everything) for _again in range(6)}
    assert len(again) == 6
    assert again <= sent
    assert members.next_piece("a", 0, everything) is None


def test_what_a_node_has_of_layers_that_it_does_not_need_is_no_progress(
    tmp_path: Path, archive: Path
) -> None:
    members = members_of(alone(tmp_path, archive))
    members.announce(HOME, announced("a", 0b111, wanted=2, missing=1))
    status = members.status()["a"]
    assert (status["have"], status["wanted"], status["done"]) == (1, 2, False)


@pytest.mark.usefixtures("lost_s")
def test_nodes_that_cannot_go_on_are_in_nobodys_way(tmp_path: Path, archive: Path) -> None:
    members = members_of(alone(tmp_path, archive))
    for number in range(peers.DIRECT):
        members.announce(HOME, announced(f"full{number}", error="no space left"))
    answer = members.announce(HOME, announced("a"))
    assert answer["direct"]
    assert answer["neighbours"] == []


@pytest.mark.usefixtures("lost_s")
def test_many_nodes_fetch_one_piece_each_from_the_source_and_few_fetch_more(
    tmp_path: Path, archive: Path
) -> None:
    members = alone(tmp_path, archive).members
    assert members is not None
    names = [f"n{number}" for number in range(peers.DIRECT + 1)]
    fetches = [members.announce(HOME, announced(name))["direct"] for name in names]
    assert fetches == [8, 4, 2, 2, 1, 1, 1, 1, 0]
    assert members.announce(HOME, announced(names[0], missing=0))["direct"] == 0
    assert members.announce(HOME, announced(names[-1]))["direct"] == 1


def test_neighbours_may_be_met_while_a_piece_is_chosen(tmp_path: Path, archive: Path) -> None:
    node = alone(tmp_path, archive)

    class Meets(peers._Neighbour):
        @property
        def not_before(self) -> float:
            node._neighbours["b"] = peers._Neighbour("b", HOME, 2)
            return 0.0

        @not_before.setter
        def not_before(self, _moment: float) -> None:
            pass

    node._neighbours = {"a": Meets("a", HOME, 1)}
    assert node._choose() is None
    assert list(node._neighbours) == ["a", "b"]


def test_a_signal_ends_a_peer_that_holds_the_lock_of_its_own_end(tmp_path: Path, archive: Path) -> None:
    source = alone(tmp_path, archive)
    with vars(source.ended)["_cond"]:  # the lock that a signal's handler may find taken
        source.end()
    assert source.ended.wait(HANGS_S)


def test_what_is_slow_everywhere_is_waited_for_longer(tmp_path: Path, archive: Path) -> None:
    node = alone(tmp_path, archive)
    node._times = [0.1] * 20
    for _again in range(21):
        fetch = peers._Fetch(peers._Neighbour("a", HOME, 1), 0)
        fetch.began -= 30
        node._fetches = [fetch]
        node._cut_slow()
    assert not fetch.cut


def test_a_request_that_drips_gives_its_place_to_others(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_CONNECTIONS", 1)
    monkeypatch.setattr(peers, "_QUIET_S", 1.0)
    source = alone(tmp_path, archive)
    with running(source), socket.create_connection((HOME, source.port)) as intruder:
        intruder.settimeout(HANGS_S)
        intruder.sendall(b"GET /sta")
        until = time.monotonic() + HANGS_S
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < until:
                intruder.sendall(b"x")
                time.sleep(0.1)
        assert time.monotonic() < until


def test_a_source_whose_archive_has_changed_is_named(tmp_path: Path, archive: Path) -> None:
    changed = tmp_path / "changed"
    changed.write_bytes(archive.read_bytes())
    source = alone(tmp_path, changed)
    changed.write_bytes(bytes(12 * MIB + 17))
    settings = Settings("a", HOME, 0, TOKEN, (HOME, source.port))
    node = Peer(settings, source.pieces.digest, str(tmp_path / "a"), source.pieces)
    with running(source, node):
        wait_for(lambda: bool(node.error))
        assert node.error == "its source sends another archive than it had in the beginning"


def test_a_bound_on_bandwidth_keeps_all_who_share_it_in_touch() -> None:
    for megabits in (0.5, 10, 1000):
        uploads = peers._Uploads(megabits * 1e6 / 8)
        assert peers._UPLOADS * uploads.chunk / (megabits * 1e6 / 8) < peers._QUIET_S


def test_a_node_sends_no_more_than_its_bound_on_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    for bandwidth, seconds in ((MIB, 31), (0, 0)):
        began, uploads = now[0], peers._Uploads(bandwidth)
        for _chunk in range(128):
            uploads.wait(MIB // 4)
        assert uploads.sent == 32 * MIB
        # The first chunk goes at once, and what the last one takes comes after it.
        assert seconds <= now[0] - began <= seconds + 1


def test_nodes_may_have_addresses_of_ip_version_6(tmp_path: Path, archive: Path) -> None:
    pieces = pieces_of(archive)
    source = Peer(Settings("source", "::1", 0, TOKEN), pieces.digest, str(archive), pieces)
    at = ("::1", source.port)
    node = Peer(
        Settings("a", peers.local_address(at), 0, TOKEN, at), pieces.digest, str(tmp_path / "a"), pieces
    )
    with running(source, node):
        wait_for(lambda: not node.missing)
    assert (tmp_path / "a").read_bytes() == archive.read_bytes()


def test_why_a_node_cannot_take_part_is_one_sentence(tmp_path: Path, archive: Path) -> None:
    with socket.create_server((HOME, 0)) as taken:
        port = taken.getsockname()[1]
        pieces = PieceList(3, 2, ["a", "b"], {})
        with pytest.raises(NodeError, match=f"^another program listens on {HOME}:{port}$") as why:
            Peer(Settings("a", HOME, port, TOKEN), pieces.digest, str(archive), pieces)
        assert why.value.hint == "end it, or set images_port to another port"
    with pytest.raises(NodeError, match=r"cannot listen on 192.0.2.1:0 .Cannot assign requested address."):
        Peer(Settings("a", "192.0.2.1", 0, TOKEN), pieces.digest, str(archive), pieces)
    with pytest.raises(NodeError, match=f"does not answer at {HOME}:{port} .Connection refused."):
        Peer(Settings("a", HOME, 0, TOKEN, (HOME, port)), pieces.digest, str(tmp_path / "a"))


@pytest.fixture
def blobs(tmp_path: Path) -> Path:
    """The directory in which an engine keeps layers, empty."""
    (tmp_path / "blobs").mkdir()
    return tmp_path / "blobs"


def layered(directory: Path, blobs: Path, make: Callable[[MadeImage], bytes]) -> tuple[Path, PieceList]:
    """Return an archive with three layers of three pieces or more, which are also put among an engine's."""
    made = MadeImage([tar({"data": os.urandom(4 * PIECE)}) for _layer in range(3)], ["test:1"])
    path = directory / "image.tar"
    path.write_bytes(make(made))
    pieces = read_pieces(str(path), index_archive(str(path)))
    data = path.read_bytes()
    for at, end, sha256 in pieces.layers.values():
        assert hashlib.sha256(data[at:end]).hexdigest() == sha256
        (blobs / sha256).write_bytes(data[at:end])
    assert len(pieces.layers) == 3
    return path, pieces


@pytest.mark.parametrize("make", [saved, oci_layout])
def test_layers_that_the_engine_has_are_copied_and_not_fetched(
    tmp_path: Path, blobs: Path, make: Callable[[MadeImage], bytes]
) -> None:
    path, pieces = layered(tmp_path, blobs, make)
    source = Peer(Settings("source", HOME, 0, TOKEN), pieces.digest, str(path), pieces)
    settings = Settings("a", HOME, 0, TOKEN, (HOME, source.port))
    node = Peer(settings, pieces.digest, str(tmp_path / "a"), pieces, blobs=str(blobs))
    assert node.file.stored >= 9 * PIECE
    with running(source, node):
        wait_for(lambda: not node.missing)
        assert source._uploads.sent < 0.8 * pieces.size
    assert (tmp_path / "a").read_bytes() == path.read_bytes()


def test_layers_are_not_copied_to_a_disk_without_room(
    tmp_path: Path, blobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pieces = layered(tmp_path, blobs, saved)
    source = Peer(Settings("source", HOME, 0, TOKEN), pieces.digest, str(path), pieces)
    settings = Settings("a", HOME, 0, TOKEN, (HOME, source.port))
    monkeypatch.setattr(peers, "disk", lambda _path: {"total": 100 * MIB, "free": MIB})
    node = Peer(settings, pieces.digest, str(tmp_path / "a"), pieces, blobs=str(blobs))
    assert node.error
    with running(source, node):
        wait_for(lambda: not node.file.claimed)
    assert (node.file.have, node.file.allocated()) == (0, 0)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


# ---- pieces


def test_pieces_have_a_length_for_their_archive() -> None:
    sizes = (1, 2 << 30, 50 << 30, 1 << 50)
    assert [piece_size(size) for size in sizes] == [PIECE, 2 * MIB, 32 * MIB, 32 * MIB]


def test_what_lies_within_a_layer_that_is_there_is_not_wanted() -> None:
    pieces = PieceList(10, 2, ["a"] * 5, {"layer": (3, 9, "")})
    assert numbers(pieces.wanted(["layer"])) == [0, 1, 4]  # 1 and 4 have bytes of others
    assert numbers(pieces.wanted(["a link to a layer"])) == numbers(pieces.wanted()) == [0, 1, 2, 3, 4]


def test_only_the_right_pieces_of_an_engine_are_kept(tmp_path: Path, blobs: Path) -> None:
    _path, pieces = layered(tmp_path, blobs, saved)
    right, damaged, removed = (
        (blobs / sha256, pieces.within(begin, end)) for begin, end, sha256 in pieces.layers.values()
    )
    damaged[0].write_bytes(bytes(damaged[0].stat().st_size))
    file = PieceFile(str(tmp_path / "a"), pieces, blobs=str(blobs))
    assert numbers(file.claimed) == sorted([*right[1], *damaged[1], *removed[1]])
    removed[0].unlink()
    file.check_claimed()
    assert (file.claimed, numbers(file.have)) == (0, list(right[1]))


def test_what_cannot_be_a_layer_of_the_archive_is_not_read(tmp_path: Path, blobs: Path) -> None:
    (tmp_path / "other").write_bytes(b"abcd")
    (blobs / ("a" * 64)).write_bytes(b"longer")
    layers = {"1": (0, 4, "../other"), "2": (0, 4, "a" * 64), "3": (0, 4, "b" * 64), "4": (0, 4, "")}
    pieces = PieceList(4, 2, ["a", "b"], layers)
    assert PieceFile(str(tmp_path / "a"), pieces, blobs=str(blobs)).stored == 0


def test_a_list_of_pieces_is_the_one_that_the_controller_knows() -> None:
    pieces = PieceList(3, 2, ["a", "b"], {})
    assert PieceList.decoded(pieces.encoded(), pieces.digest) == pieces
    with pytest.raises(WrongPiece):
        PieceList.decoded(pieces.encoded() + b" ", pieces.digest)


def test_a_file_is_read_once_for_its_pieces_and_its_digest(archive: Path) -> None:
    data = archive.read_bytes()
    whole = hashlib.sha256()
    pieces = pieces_of(archive, whole)
    assert whole.digest() == hashlib.sha256(data).digest()
    parts = [data[begin : begin + length] for begin, length in map(pieces.span, range(len(pieces.digests)))]
    assert b"".join(parts) == data
    assert pieces.digests == [hashlib.sha256(part).hexdigest() for part in parts]


def test_a_wrong_piece_is_not_kept(tmp_path: Path) -> None:
    file = PieceFile(str(tmp_path / "a"), PieceList(3, 2, ["0" * 64] * 2, {}))
    with pytest.raises(WrongPiece):
        file.write(0, b"ab")
    assert (file.have, (tmp_path / "a").read_bytes()) == (0, b"")


def test_a_piece_that_has_not_grown_yet_is_not_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"ab")
    digests = [hashlib.sha256(data).hexdigest() for data in (b"ab", b"c")]
    file = PieceFile(str(tmp_path / "a"), PieceList(3, 2, digests, {}), growing=True)
    assert file.check(0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pread", lambda *_: pytest.fail("it was read"))
        assert not file.check(1)
    (tmp_path / "a").write_bytes(b"abc")
    assert file.check(1)


def test_a_lock_that_its_holder_has_removed_is_nobodys(tmp_path: Path) -> None:
    base = str(tmp_path / "a")
    earlier = held(base)
    Path(base + ".lock").unlink()
    later = held(base)
    earlier.close()
    assert later is not None
    assert held(base) is None
    later.close()


def test_a_lock_that_is_removed_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = str(tmp_path / "a")
    flock = fcntl.flock

    def late(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        flock(file, how)
        Path(base + ".lock").unlink()

    monkeypatch.setattr(fcntl, "flock", late)
    first = held(base)
    assert held(base) is None, "two would have it"
    first.close()


def test_a_full_disk_does_not_lose_the_list_of_pieces(tmp_path: Path) -> None:
    digests = [hashlib.sha256(data).hexdigest() for data in (b"ab", b"c")]
    pieces = PieceList(3, 2, digests, {})
    file = PieceFile(str(tmp_path / "a"), pieces)
    file.write(0, b"ab")
    file.note()
    file.write(1, b"c")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        file.note()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert PieceFile(str(tmp_path / "a"), pieces).claimed & 1
    file.note()
    assert PieceFile(str(tmp_path / "a"), pieces).claimed == 3


def test_pieces_that_cannot_be_read_are_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = [hashlib.sha256(data).hexdigest() for data in (b"ab", b"c")]
    pieces = PieceList(3, 2, digests, {})
    first = PieceFile(str(tmp_path / "a"), pieces)
    first.write(0, b"ab")
    first.note()
    again = PieceFile(str(tmp_path / "a"), pieces)

    def broken(*_arguments: Any) -> bytes:
        raise OSError(5, "Input/output error")

    assert again.claimed == 1
    monkeypatch.setattr(os, "pread", broken)
    again.check_claimed()
    assert (again.claimed, again.have) == (0, 0)


@pytest.mark.parametrize("test", LIMITS, ids=lambda test: test.__name__)
def test_limits(begun: Begun, test: Test) -> None:
    next(begun[test], None)
