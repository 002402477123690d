# SPDX-License-Identifier: GPL-3.0-or-later
"""An archive in pieces, each with its digest: what peers hand to one another, and what a node keeps of them.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import hashlib
import json
import os
import tarfile
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import IO, Any, Dict, Iterable, List, NamedTuple, Tuple, Union

from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_stream import explained

PIECES = 1024
"""About how many pieces an archive has: enough to be in many hands at once, few enough to keep track of."""
SMALLEST, LARGEST = 1 << 19, 1 << 25
NOTED = ".have"
"""What the name of the file ends with that says which pieces are there."""
_THREADS = 4


class WrongPiece(Exception):  # noqa: N818  # it is caught where the peer is known
    """What was received is not the piece that was asked for."""


class PieceList(NamedTuple):
    """The pieces of an archive.

    Attributes:
        size: bytes of the archive.
        piece_size: bytes of each piece but the last.
        digests: sha256 of each, in hexadecimal.
        layers: members of a plain archive that hold layers -> where their data begins and ends.
    """

    size: int
    piece_size: int
    digests: List[str]
    layers: Dict[str, Tuple[int, int]]

    def encoded(self) -> bytes:
        """Return it as the bytes that are sent, and of which `digest` is."""
        return json.dumps(self._asdict(), sort_keys=True, separators=(",", ":")).encode()

    @property
    def digest(self) -> str:
        """The sha256 of the list: whoever knows it can trust a list and pieces from anybody."""
        return hashlib.sha256(self.encoded()).hexdigest()

    @classmethod
    def decoded(cls, data: bytes, digest: str) -> PieceList:
        """Return the list that was encoded.

        Raises:
            WrongPiece: it is another one.
        """
        if hashlib.sha256(data).hexdigest() != digest:
            raise WrongPiece("the list of pieces is another one")
        return cls(**json.loads(data))

    def span(self, number: int) -> Tuple[int, int]:
        """Return where a piece begins, and its length."""
        begin = number * self.piece_size
        return begin, min(self.piece_size, self.size - begin)

    def wanted(self, left_out: Iterable[str] = ()) -> int:
        """Return the pieces that a node needs, as bits: all but those that lie within these members.

        A member without data of its own, such as a link to another, changes nothing.
        """
        bits = (1 << len(self.digests)) - 1
        for begin, end in (self.layers[name] for name in left_out if name in self.layers):
            first, last = -(-begin // self.piece_size), end // self.piece_size
            for number in range(first, last):
                bits &= ~(1 << number)
        return bits


def count(bits: int) -> int:
    """Return how many bits are set."""
    return bin(bits).count("1")


def numbers(bits: int) -> List[int]:
    """Return the numbers of the bits that are set."""
    return [number for number, bit in enumerate(reversed(bin(bits)[2:])) if bit == "1"]


def piece_size(size: int) -> int:
    """Return how long the pieces of an archive are: a power of two."""
    length = SMALLEST
    while length < LARGEST and length * PIECES < size:
        length *= 2
    return length


def read_pieces(path: str, index: ArchiveIndex, whole: Any = None) -> PieceList:
    """Read an archive once, and return its pieces.

    Args:
        path: of the archive.
        index: of the archive.
        whole: a hash object, which gets all of it; None for none.

    Raises:
        ArchiveProblem: it cannot be read.
    """
    with explained(path), open(path, "rb") as raw:
        pieces = PieceList(index.size, piece_size(index.size), [], _layers(path, index))

        def digest(number: int) -> Tuple[str, bytes]:
            begin, length = pieces.span(number)
            data = os.pread(raw.fileno(), length, begin)
            if len(data) != length:
                raise EOFError
            return hashlib.sha256(data).hexdigest(), data if whole is not None else b""

        left = iter(range(-(-pieces.size // pieces.piece_size)))
        with ThreadPoolExecutor(_THREADS) as pool:
            # Few at a time: they are in memory until their turn has come.
            running = collections.deque(pool.submit(digest, number) for number in islice(left, _THREADS + 1))
            while running:
                one, data = running.popleft().result()
                running.extend(pool.submit(digest, number) for number in islice(left, 1))
                pieces.digests.append(one)
                if whole is not None:
                    whole.update(data)
    return pieces


def _layers(path: str, index: ArchiveIndex) -> Dict[str, Tuple[int, int]]:
    if index.compression != "plain":
        return {}
    names = {name for image in index.images for name in image.layer_paths}
    with tarfile.open(path, mode="r:") as archive:
        return {
            member.name: (member.offset_data, member.offset_data + member.size)
            for member in archive
            if member.name in names and member.isreg()
        }


class PieceFile:
    """The pieces of an archive that are here, in a file with holes for those that are not.

    Beside it lies which pieces are there, so that a later run goes on; it hashes them before it trusts them.

    Args:
        path: of the file.
        pieces: of the archive.
        growing: somebody else writes the file.

    Attributes:
        have: the pieces that are there, as bits.
        claimed: those that an earlier run says it has left.
    """

    def __init__(self, path: str, pieces: PieceList, growing: bool = False) -> None:
        self.path = path
        self.pieces = pieces
        self.have = 0
        self._lock = threading.Lock()
        self._handle = os.open(path, os.O_RDONLY if growing else os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.claimed = 0 if growing else _noted(path, pieces)

    def check_claimed(self) -> None:
        """Make sure of the pieces that an earlier run has left."""
        for number in numbers(self.claimed):
            self.check(number)
            with self._lock:
                self.claimed &= ~(1 << number)

    def check(self, number: int) -> bool:
        """Return whether a piece lies in the file, and note it."""
        begin, length = self.pieces.span(number)
        if os.fstat(self._handle).st_size < begin + length:
            return False  # of a file that grows, the next piece is asked for many times a second
        try:
            data = os.pread(self._handle, length, begin)
        except OSError:
            return False  # fetched again, then
        if hashlib.sha256(data).hexdigest() != self.pieces.digests[number]:
            return False
        with self._lock:
            self.have |= 1 << number
        return True

    def opened(self) -> IO[bytes]:
        """Return the file, with a position of its own, whatever has its name by now."""
        return open("/proc/self/fd/{0}".format(self._handle), "rb", buffering=0)

    def write(self, number: int, data: Union[bytes, bytearray]) -> None:
        """Put a piece into the file.

        Raises:
            WrongPiece: its digest is another one.
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
        """Keep which pieces are there, and the length of the archive."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, self.pieces.size)
            with open(self.path + NOTED, "w", encoding="ascii") as file:
                file.write("{0} {1:x}".format(self.pieces.digest, self.have | self.claimed))


def _noted(path: str, pieces: PieceList) -> int:
    try:
        with open(path + NOTED, encoding="ascii") as file:
            digest, bits = file.read().split()
            return int(bits, 16) & pieces.wanted() if digest == pieces.digest else 0
    except (OSError, ValueError):
        return 0


def held(path: str) -> Any:
    """Return a file that is locked for whoever brings pieces to `path`, or None when somebody else does.

    Raises:
        OSError: the file system does not lock.
    """
    while True:
        file = open(path + ".lock", "a+", encoding="ascii")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            file.close()
            raise OSError(error.errno, error.strerror, file.name) from None
        # Whoever held it before may have removed it meanwhile, and then another may hold a new one.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                return file
        file.close()
