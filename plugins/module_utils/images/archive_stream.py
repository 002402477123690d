# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a plain, gzip or zstd archive as a stream in constant memory.

This runs on the controller and on nodes (Python 3.8 or newer). It needs the standard library and, for zstd,
the zstd program.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import subprocess
import tarfile
import threading
import zlib
from typing import IO, Any, BinaryIO, Iterator

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    AGAIN,
    MAKE,
    ArchiveMissing,
)

CHUNK = 1024 * 1024
"""Bytes in memory at a time."""


ZSTD = b"\x28\xb5\x2f\xfd"
"""How data that is compressed with zstd begins."""


_MAGIC = ((b"\x1f\x8b", "gzip"), (ZSTD, "zstd"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"))


_SUPPORTED = ("plain", "gzip", "zstd")


class Hashing:
    """A readable file that hashes all that is read from it."""

    def __init__(self, raw: BinaryIO, hasher: Any) -> None:
        self._raw = raw
        self._hasher = hasher

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes, or to the end."""
        data = self._raw.read(size)
        self._hasher.update(data)
        return data


def chunks(stream: Any) -> Iterator[bytes]:
    """Yield the rest of a stream, in parts of CHUNK bytes."""
    while True:
        chunk = stream.read(CHUNK)
        if not chunk:
            return
        yield chunk


def compression_of(raw: BinaryIO, path: str) -> str:
    """Return how a file is compressed, by its first bytes, and rewind it.

    Returns:
        ``gzip``, ``zstd`` or ``plain``.

    Raises:
        NodeError: it is compressed in a format that engines do not read.
    """
    start = raw.read(8)
    raw.seek(0)
    for magic, name in _MAGIC:
        if start.startswith(magic):
            if name not in _SUPPORTED:
                raise NodeError(
                    "{0} is compressed with {1}".format(path, name), "use a plain tar, gzip or zstd"
                )
            return name
    return "plain"


@contextlib.contextmanager
def decompressed(raw: Any, compression: str, path: str) -> Iterator[Any]:
    """Yield the uncompressed stream of a file-like object; the rest of `raw` is read at the end."""
    if compression == "gzip":
        with gzip.GzipFile(fileobj=raw, mode="rb") as stream:
            yield stream
    elif compression == "zstd":
        with _zstd(raw, path) as stream:
            yield stream
    else:
        yield raw
    for _chunk in chunks(raw):
        pass


@contextlib.contextmanager
def _zstd(raw: Any, path: str) -> Iterator[Any]:
    """Decompress through the zstd program (Python has zstd from 3.14 only)."""
    try:
        process = subprocess.Popen(
            ["zstd", "-dcq", "--long=31"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except FileNotFoundError:
        raise NodeError(
            "{0} is compressed with zstd, and the program zstd is missing here".format(path), "install it"
        ) from None
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    failures: list[BaseException] = []
    feeder = threading.Thread(target=_feed, args=(raw, process.stdin, failures), daemon=True)
    feeder.start()
    finished = False
    try:
        try:
            yield process.stdout
            finished = not process.stdout.read(1)
        except (EOFError, tarfile.TarError):
            finished = True  # the stream ended early: zstd may report why
            raise
        finally:
            if not finished:
                process.kill()
            process.stdout.close()
            words = process.stderr.read().decode("utf-8", "replace").strip()
            process.stderr.close()
            status = process.wait()
            feeder.join()
            if failures:
                raise failures[0]
            if finished and status not in (0, -13):  # -13: we stopped reading before its end
                raise (
                    EOFError if "premature end" in words else zlib.error(words or "status {0}".format(status))
                )
    finally:
        with contextlib.suppress(OSError):
            process.stdin.close()


def _feed(raw: Any, sink: IO[bytes], failures: list[BaseException]) -> None:
    try:
        for chunk in chunks(raw):
            sink.write(chunk)
    except BrokenPipeError:
        pass  # zstd has ended; its status shows whether it failed
    except Exception as error:
        failures.append(error)
    finally:
        with contextlib.suppress(OSError):
            sink.close()


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn errors of a file into a `NodeError` with one sentence."""
    try:
        yield
    except EOFError:
        raise NodeError("{0} is truncated (it ends in the middle)".format(path), AGAIN) from None
    except (zlib.error, gzip.BadGzipFile) as error:
        raise NodeError("{0} is corrupt ({1})".format(path, error), AGAIN) from None
    except tarfile.ReadError as error:
        if "unexpected end" in str(error):
            raise NodeError("{0} is truncated (it ends in the middle)".format(path), AGAIN) from None
        raise NodeError(
            "{0} is not an image archive, since it is not a tar ({1})".format(path, error), MAKE
        ) from None
    except OSError as error:
        if error.filename != path and error.errno not in (errno.EIO, errno.EISDIR, errno.ESTALE):
            raise  # not about this file
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise ArchiveMissing("{0} does not exist".format(path)) from None
        reason = os.strerror(error.errno or 0)
        hint = "let this user read it" if isinstance(error, PermissionError) else ""
        raise NodeError("{0} cannot be read ({1})".format(path, reason), hint) from None
