# SPDX-License-Identifier: GPL-3.0-or-later
"""The pieces of an archive, each with its digest, and the file in which a node keeps them.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import re
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import IO, Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Tuple, Union

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_stream import explained

PIECES = 1024
"""About how many pieces an archive has: enough for many nodes to send at once, few enough to track."""
SMALLEST, LARGEST = 1 << 19, 1 << 25
NOTED = ".have"
"""Suffix of the file that lists the pieces that are here."""
_THREADS = 4


def remove_pieces(path: str) -> None:
    """Remove a file that holds the pieces of an archive, and the list of those that are there."""
    for one in (path, path + NOTED):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(one)


class WrongPiece(NodeError):  # noqa: N818  # a state of the node, not an error
    """The received data is not the requested piece."""


class PieceList(NamedTuple):
    """The pieces of an archive.

    Attributes:
        size: bytes of the archive.
        piece_size: bytes of each piece but the last.
        digests: sha256 of each, in hexadecimal.
        layers: members of a plain archive that contain layers -> begin and end of their data, and its sha256
            in hexadecimal.
    """

    size: int
    piece_size: int
    digests: List[str]
    layers: Dict[str, Tuple[int, int, str]]

    def encoded(self) -> bytes:
        """Return the list as the bytes that are sent; `digest` is their digest."""
        return json.dumps(self._asdict(), sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """The sha256 of the list. With it a node can verify a list, and so pieces, from any other node."""
        return hashlib.sha256(self.encoded()).hexdigest()

    @classmethod
    def decoded(cls, data: bytes, digest: str) -> PieceList:
        """Return the list that `encoded` made.

        Raises:
            WrongPiece: its digest differs.
        """
        if hashlib.sha256(data).hexdigest() != digest:
            raise WrongPiece("the list of pieces is another one")
        return cls(**json.loads(data))

    def span(self, number: int) -> Tuple[int, int]:
        """Return a piece's offset and length."""
        begin = number * self.piece_size
        return begin, min(self.piece_size, self.size - begin)

    def within(self, begin: int, end: int) -> range:
        """Return the numbers of the pieces that lie within these offsets."""
        return range(-(-begin // self.piece_size), end // self.piece_size)

    def wanted(self, left_out: Iterable[str] = ()) -> int:
        """Return the pieces that a node needs, as bits: all except those that lie within these members.

        A member without data of its own, such as a link to another member, is ignored.
        """
        bits = (1 << len(self.digests)) - 1
        for begin, end, _sha256 in (self.layers[name] for name in left_out if name in self.layers):
            for number in self.within(begin, end):
                bits &= ~(1 << number)
        return bits


def count(bits: int) -> int:
    """Return how many bits are set."""
    return bin(bits).count("1")


def numbers(bits: int) -> List[int]:
    """Return the numbers of the bits that are set."""
    return [number for number, bit in enumerate(reversed(bin(bits)[2:])) if bit == "1"]


def piece_size(size: int) -> int:
    """Return the length of an archive's pieces, a power of two."""
    length = SMALLEST
    while length < LARGEST and length * PIECES < size:
        length *= 2
    return length


def read_pieces(path: str, index: ArchiveIndex, whole: Any = None) -> PieceList:
    """Read an archive once, and return its pieces.

    Args:
        path: of the archive.
        index: of the archive.
        whole: a hash object that gets the whole archive, or None.

    Raises:
        NodeError: it cannot be read.
    """
    with explained(path), open(path, "rb") as raw:
        layers = _layers(path, index)
        return hash_pieces(
            index.size, layers, lambda begin, length: os.pread(raw.fileno(), length, begin), whole
        )


def hash_pieces(
    size: int, layers: Dict[str, Tuple[int, int, str]], read: Callable[[int, int], bytes], whole: Any = None
) -> PieceList:
    """Return the pieces of an archive.

    Args:
        size: bytes of the archive.
        layers: as in `PieceList`.
        read: returns the bytes from an offset on, in this length; threads call it.
        whole: as for `read_pieces`.

    Raises:
        EOFError: it ends before its size.
    """
    pieces = PieceList(size, piece_size(size), [], layers)

    def digest(number: int) -> Tuple[str, bytes]:
        begin, length = pieces.span(number)
        data = read(begin, length)
        if len(data) != length:
            raise EOFError
        return hashlib.sha256(data).hexdigest(), data if whole is not None else b""

    left = iter(range(-(-size // pieces.piece_size)))
    with ThreadPoolExecutor(_THREADS) as pool:
        # Few at a time: each is in memory until its turn has come.
        running = collections.deque(pool.submit(digest, number) for number in islice(left, _THREADS + 1))
        while running:
            one, data = running.popleft().result()
            running.extend(pool.submit(digest, number) for number in islice(left, 1))
            pieces.digests.append(one)
            if whole is not None:
                whole.update(data)
    return pieces


def _layers(path: str, index: ArchiveIndex) -> Dict[str, Tuple[int, int, str]]:
    if index.compression != "plain":
        return {}
    # Only the names in blobs/ are digests of what may be compressed.
    digests = {
        name: os.path.basename(name) if name.startswith("blobs/") else diff_id.partition(":")[2]
        for image in index.images
        for name, diff_id in zip(image.layer_paths, image.diff_ids)
    }
    with tarfile.open(path, mode="r:") as archive:
        return {
            member.name: (member.offset_data, member.offset_data + member.size, digests[member.name])
            for member in archive
            if member.name in digests and member.isreg()
        }


class PieceFile:
    """The pieces of an archive that are here, in a file with holes for the missing ones.

    A second file lists the pieces, so that a later run can continue. It hashes them before it trusts them.

    Args:
        path: of the file.
        pieces: of the archive.
        growing: another process writes the file.
        blobs: directory in which an engine keeps layers by their sha256; empty if there is none.

    Attributes:
        have: the pieces that are here, as bits.
        claimed: the pieces that an earlier run has listed or the engine has, and that are not verified yet.
        stored: bytes of the pieces that the engine has.
    """

    def __init__(self, path: str, pieces: PieceList, growing: bool = False, blobs: str = "") -> None:
        self.path = path
        self.pieces = pieces
        self.have = 0
        self._lock = threading.Lock()
        self._handle = os.open(path, os.O_RDONLY if growing else os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.claimed = 0 if growing else _noted(path, pieces)
        self._stored = _stored(blobs, pieces) if blobs else {}
        for number in self._stored:
            self.claimed |= 1 << number
        self.stored = sum(pieces.span(number)[1] for number in self._stored)

    def check_claimed(self, wants: Callable[[], bool] = lambda: True) -> None:
        """Copy the pieces that the engine has, and verify those that an earlier run has listed.

        Args:
            wants: returns whether pieces may still be copied; those that are in the file are verified anyway.
        """
        for number in numbers(self.claimed):
            if not (wants() and self._copy(number)):
                self.check(number)
            with self._lock:
                self.claimed &= ~(1 << number)

    def _copy(self, number: int) -> bool:
        """Copy a piece from the engine's blob of its layer, and return whether it is the right one."""
        if number in self._stored:
            path, offset = self._stored[number]
            # If the engine has removed the layer meanwhile, the piece is fetched.
            with contextlib.suppress(OSError, WrongPiece), open(path, "rb") as blob:
                self.write(number, os.pread(blob.fileno(), self.pieces.span(number)[1], offset))
                return True
        return False

    def check(self, number: int) -> bool:
        """Return whether a piece is in the file, and record it."""
        begin, length = self.pieces.span(number)
        if os.fstat(self._handle).st_size < begin + length:
            return False  # cheap: while a file grows, its next piece is checked many times a second
        try:
            data = os.pread(self._handle, length, begin)
        except OSError:
            return False  # it is fetched again
        if hashlib.sha256(data).hexdigest() != self.pieces.digests[number]:
            return False
        with self._lock:
            self.have |= 1 << number
        return True

    def allocated(self) -> int:
        """Return the bytes that the file occupies on its disk, with what an earlier run has left in it."""
        return os.fstat(self._handle).st_blocks * 512

    def streams(self, begin: int, length: int) -> Iterator[Tuple[IO[bytes], int, int]]:
        """Yield the open files that have a part of the archive, with offset and bytes.

        This is one file with its own position, even if its name now belongs to another file.
        """
        path = "/proc/self/fd/{0}".format(self._handle)
        yield open(path, "rb", buffering=0), begin, length  # noqa: SIM115

    def write(self, number: int, data: Union[bytes, bytearray]) -> None:
        """Write a piece into the file.

        Raises:
            WrongPiece: its digest differs.
            OSError: such as a full disk.
        """
        if hashlib.sha256(data).hexdigest() != self.pieces.digests[number]:
            raise WrongPiece("a piece has another digest")
        begin, _length = self.pieces.span(number)
        view = memoryview(data)
        while view:
            written = os.pwrite(self._handle, view, begin)
            begin, view = begin + written, view[written:]
        with self._lock:
            self.have |= 1 << number

    def note(self) -> None:
        """Save the list of pieces that are here, and set the file's length to the archive's."""
        digits = -(-len(self.pieces.digests) // 4)
        noted = "{0} {1:0{2}x}".format(self.pieces.digest, self.have | self.claimed, digits)
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, self.pieces.size)
            # The new list takes the room of the old one, which a full disk or a death would lose otherwise.
            file = os.open(self.path + NOTED, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(file, noted.encode(), 0)
                os.ftruncate(file, len(noted))
            finally:
                os.close(file)


def _noted(path: str, pieces: PieceList) -> int:
    try:
        with open(path + NOTED, encoding="ascii") as file:
            digest, bits = file.read().split()
            return int(bits, 16) & pieces.wanted() if digest == pieces.digest else 0
    except (OSError, ValueError):
        return 0


def _stored(blobs: str, pieces: PieceList) -> Dict[int, Tuple[str, int]]:
    """Return the pieces that lie within layers in a directory of blobs: number -> path, and offset in it."""
    found = {}
    for begin, end, sha256 in pieces.layers.values():
        path = os.path.join(blobs, sha256)
        with contextlib.suppress(OSError):
            if re.fullmatch("[0-9a-f]{64}", sha256) and os.stat(path).st_size == end - begin:
                for number in pieces.within(begin, end):
                    found[number] = path, pieces.span(number)[0] - begin
    return found
