# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes that pass an archive on: processes of this machine, each with its own directory and port."""

from __future__ import annotations

import functools
import http.client
import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images import peer as peers
from ansible_collections.rdm.provision.plugins.module_utils.images import peer_client
from ansible_collections.rdm.provision.plugins.module_utils.images.peer import Peer, Settings
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_client import (
    Fetch,
    Neighbour,
    local_address,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    PieceList,
    count,
)

from tests.image_archives import MadeImage, oci_layout, saved
from tests.unit.plugins.module_utils.images.peers import (
    HANGS_S,
    HEAD,
    HOME,
    LONG_S,
    MIB,
    PIECE,
    TOKEN,
    layered,
    neighbour,
    node_of,
    pieces_of,
    running,
    source_of,
    wait_for,
)
from trainer.tests.waiting import Begun, Test, begin

PROCESSES = multiprocessing.get_context("fork")


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
            vars(peers).update(_FINISH_S=self.finish_s, _LEAVE_S=LONG_S)
            for one, value in changes.items():
                setattr(peers.Peer, one, value)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(peer_client, "QUIET_S", LONG_S)
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

    def kill(self) -> None:
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
                process.join()


@pytest.fixture
def swarm(tmp_path: Path, archive: Path, request: pytest.FixtureRequest) -> Iterator[Swarm]:
    """A source, which a parameter gives so many seconds for its end."""
    made = Swarm(tmp_path, archive, finish_s=getattr(request, "param", 60))
    yield made
    made.kill()


def next_run_continues_with_the_pieces_of_a_dead_source(
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


def all_peers_end_when_the_controller_is_gone(start: Callable[..., Swarm]) -> Iterator[None]:
    # Longer than a busy machine needs until the node has joined.
    swarm = start(lease_s=10)
    swarm.join("a", lease_s=1)
    yield
    for process in swarm.processes.values():
        process.join(HANGS_S)
        assert not process.is_alive()


def killed_or_paused_peer_delays_no_other_and_is_named(start: Callable[..., Swarm]) -> Iterator[None]:
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


TIMEOUT_TESTS = (
    killed_or_paused_peer_delays_no_other_and_is_named,
    next_run_continues_with_the_pieces_of_a_dead_source,
    all_peers_end_when_the_controller_is_gone,
)


@pytest.fixture(scope="module", autouse=True)
def begun(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Begun]:
    """The tests of timeouts, which begin before all others."""
    swarms: list[Swarm] = []

    def start(directory: Path, **how: Any) -> Swarm:
        swarms.append(Swarm(directory, archive, **how))
        return swarms[-1]

    yield begin(TIMEOUT_TESTS, lambda: functools.partial(start, tmp_path_factory.mktemp("limit")))
    # Also where these tests were not selected: a paused process would keep pytest from ending.
    for swarm in swarms:
        swarm.kill()


def test_source_sends_an_archive_about_once_and_no_process_stays(swarm: Swarm) -> None:
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


@pytest.mark.parametrize("swarm", [LONG_S], indirect=True)
def test_a_source_that_is_stopped_with_its_nodes_does_not_wait_for_them(swarm: Swarm) -> None:
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
def test_wrong_pieces_of_a_peer_are_not_stored(swarm: Swarm, lie: Any, why: str) -> None:
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


def test_source_notices_silent_peers_while_it_verifies(
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


def test_full_disk_is_reported_and_other_peers_continue(swarm: Swarm) -> None:
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


def test_archive_with_too_many_pieces_is_refused(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = pieces_of(archive)
    monkeypatch.setattr(peers, "_LIST_MAX", len(pieces.encoded()) - 1)
    with pytest.raises(NodeError, match="too many files, or bytes, for one transfer"):
        Peer(Settings("source", HOME, 0, TOKEN), pieces.digest, str(archive), pieces)


@pytest.mark.usefixtures("patient")
def test_a_peer_that_breaks_off_each_time_is_named(source: Peer) -> None:
    with neighbour(lambda connection: connection.sendall(HEAD + b"half"), peers._STRIKES) as one:
        for _again in range(peers._STRIKES):
            assert not source.trouble
            fetch = Fetch(one, 0)
            source._fetches.append(fetch)
            assert not source._fetch(fetch, "/piece/0")
    assert source.trouble == {"other": "broke off"}


def test_an_archive_that_is_still_being_written_is_served_as_it_grows(tmp_path: Path, archive: Path) -> None:
    data = archive.read_bytes()
    growing = tmp_path / "growing"
    growing.write_bytes(data[: 3 * MIB])
    pieces = pieces_of(archive)
    source = Peer(Settings("source", HOME, 0, TOKEN), pieces.digest, str(growing), pieces, growing=True)
    node = node_of(source, tmp_path / "a")
    with running(source, node):
        wait_for(lambda: count(node.file.have) == 3 * MIB // PIECE)
        growing.write_bytes(data)
        wait_for(lambda: not node.missing)
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.parametrize("head", [HEAD, b"HTTP/1.1 200 "])
@pytest.mark.usefixtures("patient")
def test_slow_dripping_peer_is_abandoned(source: Peer, monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(peers, "_SLOWEST", 0)
    source._times = [0.01] * 4

    def drip(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(b"x")
            time.sleep(0.1)

    with neighbour(drip) as slow:
        fetch = Fetch(slow, 0)
        source._fetches.append(fetch)
        fetch.one.fetches = 1
        thread = threading.Thread(target=source._fetch, args=(fetch, "/piece/0"))
        thread.start()
        until = time.monotonic() + HANGS_S
        while thread.is_alive():
            assert time.monotonic() < until
            source._cut_slow()
            time.sleep(0.1)
        assert fetch.cut
        assert (fetch.one.strikes, fetch.one.fetches, source._fetches) == (1, 0, [])


def test_new_neighbours_during_the_choice_of_a_piece_are_no_error(source: Peer) -> None:
    class Meets(Neighbour):
        @property
        def not_before(self) -> float:
            source._neighbours["b"] = Neighbour("b", HOME, 2)
            return 0.0

        @not_before.setter
        def not_before(self, _moment: float) -> None:
            pass

    source._neighbours = {"a": Meets("a", HOME, 1)}
    assert source._choose() is None
    assert list(source._neighbours) == ["a", "b"]


def test_a_signal_ends_a_peer_that_holds_the_lock_of_its_own_end(source: Peer) -> None:
    with vars(source.ended)["_cond"]:  # the lock that a signal's handler may find taken
        source.end()
    assert source.ended.wait(HANGS_S)


def test_timeout_grows_when_all_peers_are_slow(source: Peer) -> None:
    source._times = [0.1] * 20
    for _again in range(21):
        fetch = Fetch(Neighbour("a", HOME, 1), 0)
        fetch.began -= 30
        source._fetches = [fetch]
        source._cut_slow()
    assert not fetch.cut


def test_a_source_whose_archive_has_changed_is_named(tmp_path: Path, archive: Path) -> None:
    changed = tmp_path / "changed"
    changed.write_bytes(archive.read_bytes())
    source = source_of(changed)
    changed.write_bytes(bytes(12 * MIB + 17))
    node = node_of(source, tmp_path / "a")
    with running(source, node):
        wait_for(lambda: bool(node.error))
        assert node.error == "its source sends another archive than it had in the beginning"


def test_nodes_may_have_addresses_of_ip_version_6(tmp_path: Path, archive: Path) -> None:
    pieces = pieces_of(archive)
    source = Peer(Settings("source", "::1", 0, TOKEN), pieces.digest, str(archive), pieces)
    at = ("::1", source.port)
    node = Peer(Settings("a", local_address(at), 0, TOKEN, at), pieces.digest, str(tmp_path / "a"), pieces)
    with running(source, node):
        wait_for(lambda: not node.missing)
    assert (tmp_path / "a").read_bytes() == archive.read_bytes()


def test_reason_not_to_take_part_is_one_sentence(tmp_path: Path, archive: Path) -> None:
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


@pytest.mark.parametrize("make", [saved, oci_layout])
def test_layers_that_the_engine_has_are_copied_and_not_fetched(
    tmp_path: Path, blobs: Path, make: Callable[[MadeImage], bytes]
) -> None:
    path, pieces = layered(tmp_path, blobs, make)
    source = Peer(Settings("source", HOME, 0, TOKEN), pieces.digest, str(path), pieces)
    node = node_of(source, tmp_path / "a", blobs=str(blobs))
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
    monkeypatch.setattr(peers, "disk", lambda _path: {"total": 100 * MIB, "free": MIB})
    node = node_of(source, tmp_path / "a", blobs=str(blobs))
    assert node.error
    with running(source, node):
        wait_for(lambda: not node.file.claimed)
    assert (node.file.have, node.file.allocated()) == (0, 0)


@pytest.mark.parametrize("test", TIMEOUT_TESTS, ids=lambda test: test.__name__)
def test_timeouts(begun: Begun, test: Test) -> None:
    next(begun[test], None)
