# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of text files, plain or compressed, in blocks whose bounds depend on nothing but the files."""

from __future__ import annotations

import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from rdm_trainer.errors import TrainerError

__all__ = ["BLOCK", "Block", "blocks"]

# Bytes of text in a block: enough that handing it to a process costs nothing beside the work on it.
BLOCK = 1 << 21
READ = 1 << 20
GZIP, XZ, ZSTD = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True)
class Block:
    """Whole lines of a file.

    Attributes:
        path: The file.
        line: Number of the first line, from 1.
        data: The lines.
        read: Bytes of all the files, as they lie on the disk, that were read so far.
    """

    path: Path
    line: int
    data: bytes
    read: int


def blocks(paths: Sequence[Path]) -> Iterator[Block]:
    """Read files one after the other.

    Args:
        paths: The files: plain, or compressed with gzip, xz or zstd, as their first bytes say.

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
                plain = not magic.startswith((GZIP, XZ, ZSTD))
                try:
                    for data in _decompressed(raw, magic):
                        carry += data
                        # The bound depends on the text alone, not on how much was read at a time.
                        while end := carry.find(b"\n", BLOCK - 1) + 1:
                            block = bytes(carry[:end])
                            del carry[:end]
                            # Of compressed data it is not known how much of what was read is left.
                            yield Block(path, line, block, before + raw.tell() - (len(carry) if plain else 0))
                            line += block.count(b"\n")
                except (EOFError, OSError, lzma.LZMAError, zlib.error, _DamagedError) as error:
                    raise TrainerError(
                        f"{path} is damaged near offset {raw.tell()}: {str(error).rstrip('.')}."
                    ) from error
                if carry:
                    yield Block(path, line, bytes(carry), before + raw.tell())
        except OSError as error:
            raise TrainerError(f"{path} cannot be read: {error.strerror}.") from error
        before += path.stat().st_size


class _DamagedError(Exception):
    """Compressed data that cannot be read on."""


def _decompressed(raw: BinaryIO, magic: bytes) -> Iterator[bytes]:
    """The content of a compressed file, known by how it begins, in parts."""
    if magic.startswith(ZSTD):
        yield from _zstd(raw)
        return
    stream: BinaryIO | gzip.GzipFile | lzma.LZMAFile = raw
    if magic.startswith(GZIP):
        stream = gzip.GzipFile(fileobj=raw)
    elif magic.startswith(XZ):
        stream = lzma.LZMAFile(raw)  # noqa: SIM115  # the caller closes what lies below
    while data := stream.read(READ):
        yield data


def _zstd(raw: BinaryIO) -> Iterator[bytes]:
    """The content of a file of zstd, one frame or several."""
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    begun = False
    while data := raw.read(READ):
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
                frame, begun = zstandard.ZstdDecompressor().decompressobj(), False
    if begun:
        raise _DamagedError("the compressed data ends before its end marker was reached")
