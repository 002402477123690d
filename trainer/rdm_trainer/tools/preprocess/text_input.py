# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of text files, plain or compressed, in blocks whose bounds depend only on the files."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rdm_core.errors import TrainerError

# Bytes of text in a block: enough that passing it to a process costs little compared with the work on it.
BLOCK = 1 << 21
_READ = 1 << 20
GZIP, BZIP2, XZ = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00"
# A zstd file may begin with a skippable frame.
_ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes((byte,)) + b"\x2a\x4d\x18" for byte in range(0x50, 0x60)))
_COMPRESSED = (GZIP, BZIP2, XZ, *_ZSTD)
# The window of `zstd --long=31`; the library's own limit is that of --long=27.
_ZSTD_WINDOW = 1 << 31
# Files that are often mistaken for JSON lines, and are not read.
_FOREIGN = {
    b"PK\x03\x04": "a zip archive",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\x04\x22\x4d\x18": "compressed with lz4",
    b"\x5d\x00\x00": "compressed with LZMA",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
}


@dataclass(frozen=True)
class Block:
    """Whole lines of a file.

    Attributes:
        path: The file.
        line: Number of the first line, from 1.
        data: The lines.
        read: Bytes of all files, as stored on the disk, that were read so far.
    """

    path: Path
    line: int
    data: bytes
    read: int


def blocks(paths: Sequence[Path]) -> Iterator[Block]:
    """Read files one after the other.

    Args:
        paths: The files: plain, or compressed with gzip, bzip2, xz or zstd, according to their first bytes.

    Yields:
        Blocks of whole lines, about :data:`BLOCK` bytes each.

    Raises:
        TrainerError: A file cannot be read, or its compressed data is damaged; names the file and the offset.
    """
    before = 0
    for path in paths:
        line, carry = 1, bytearray()
        try:
            with path.open("rb") as raw:
                magic = raw.read(6)
                raw.seek(0)
                _refuse_foreign(path, magic)
                plain = not magic.startswith(_COMPRESSED)
                try:
                    for data in _decompressed(raw, magic):
                        carry += data
                        # The bound depends on the text alone, not on how much was read at a time.
                        while end := carry.find(b"\n", BLOCK - 1) + 1:
                            block = bytes(carry[:end])
                            del carry[:end]
                            # For compressed data, it is not known how much of the read bytes is left.
                            yield Block(path, line, block, before + raw.tell() - (len(carry) if plain else 0))
                            line += block.count(b"\n")
                except (EOFError, OSError, lzma.LZMAError, zlib.error, _DamagedError) as error:
                    if isinstance(error, OSError) and error.errno is not None:
                        raise
                    raise TrainerError(
                        f"{path} is damaged near offset {raw.tell()}: {str(error).rstrip('.')}."
                    ) from error
                if carry:
                    yield Block(path, line, bytes(carry), before + raw.tell())
        except OSError as error:
            raise TrainerError(f"{path} cannot be read: {error.strerror}.") from error
        before += path.stat().st_size


class _DamagedError(Exception):
    """Compressed data that cannot be read any further."""


def _refuse_foreign(path: Path, magic: bytes) -> None:
    """Raise a TrainerError if a file's first bytes show that it has no lines of JSON."""
    for begin, what in _FOREIGN.items():
        if magic.startswith(begin):
            raise TrainerError(
                f"{path} is {what}; give JSON lines, plain or compressed with gzip, bzip2, xz or zstd."
            )
    if magic and any(begin.startswith(magic) for begin in _COMPRESSED if begin != magic):
        raise TrainerError(f"{path} is damaged: it ends within the first bytes of compressed data.")


def _decompressed(raw: BinaryIO, magic: bytes) -> Iterator[bytes]:
    """Yield the content of a file in parts; its first bytes show how it is compressed."""
    if magic.startswith(_ZSTD):
        yield from _zstd(raw)
    elif magic.startswith(XZ):
        # The format allows zeros after a stream, in multiples of four.
        yield from _streams(raw, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ), padding=4)
    elif magic.startswith(BZIP2):
        yield from _streams(raw, bz2.BZ2Decompressor, padding=1)
    else:
        stream = gzip.GzipFile(fileobj=raw) if magic.startswith(GZIP) else raw
        while data := stream.read(_READ):
            yield data


def _streams(
    raw: BinaryIO, new: Callable[[], lzma.LZMADecompressor | bz2.BZ2Decompressor], *, padding: int
) -> Iterator[bytes]:
    """Yield the content of consecutive compressed streams, up to the end of the file.

    LZMAFile and BZ2File treat unreadable data after a stream as the end of the file.
    """
    data = raw.read(_READ)
    while data:
        stream = new()
        while not stream.eof:
            if stream.needs_input and not data and not (data := raw.read(_READ)):
                raise _DamagedError("the compressed data ends before its end marker was reached")
            yield stream.decompress(data, _READ)
            data = b""
        data = stream.unused_data or raw.read(_READ)
        zeros = 0
        while data and data[0] == 0:
            rest = data.lstrip(b"\0")
            zeros += len(data) - len(rest)
            data = rest or raw.read(_READ)
        if zeros % padding:
            raise _DamagedError(f"{zeros} zeros follow a stream, which is no multiple of {padding}")


def _zstd(raw: BinaryIO) -> Iterator[bytes]:
    """Yield the content of a zstd file, one frame or several."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
    frame = decompressor.decompressobj()
    begun = False
    while data := raw.read(_READ):
        while data:
            begun = True
            try:
                content = frame.decompress(data)
            except zstandard.ZstdError as error:
                raise _DamagedError(error) from error
            if content:
                yield content
            data = b""
            if frame.eof:
                data = frame.unused_data
                frame, begun = decompressor.decompressobj(), False
    if begun:
        raise _DamagedError("the compressed data ends before its end marker was reached")
