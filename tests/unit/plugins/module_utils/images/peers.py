# SPDX-License-Identifier: GPL-3.0-or-later
"""Peers of this machine, and what they transfer."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.plugins.module_utils.images.peer import Peer, Settings
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_client import Neighbour
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import (
    PieceList,
    piece_size,
    read_pieces,
)

from tests.image_archives import MadeImage, tar

HOME = "127.0.0.1"
TOKEN = "of this run"
MIB = 1 << 20
PIECE = piece_size(MIB)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % PIECE
HANGS_S = 120.0
LONG_S = 600.0
"""A time that nothing here takes, also on a machine that stands still for a while."""


def pieces_of(archive: Path, whole: Any = None) -> PieceList:
    return read_pieces(str(archive), ArchiveIndex("gzip", archive.stat().st_size, "", 0, True, []), whole)


def source_of(archive: Path, name: str = "source", address: str = HOME) -> Peer:
    """Return a fresh source."""
    pieces = pieces_of(archive)
    return Peer(Settings(name, address, 0, TOKEN), pieces.digest, str(archive), pieces)


def node_of(source: Peer, path: Path, **more: Any) -> Peer:
    """Return a node that is about to fetch from a source."""
    settings = Settings("a", HOME, 0, TOKEN, (HOME, source.port))
    return Peer(settings, source.pieces.digest, str(path), source.pieces, **more)


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


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + HANGS_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


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


@contextlib.contextmanager
def neighbour(reply: Callable[[socket.socket], object], times: int = 1) -> Iterator[Neighbour]:
    """A neighbour that answers so many connections."""

    def answer() -> None:
        for _again in range(times):
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1000)
                reply(connection)

    with socket.create_server((HOME, 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        yield Neighbour("other", *server.getsockname())
