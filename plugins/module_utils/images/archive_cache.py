# SPDX-License-Identifier: GPL-3.0-or-later
"""A cache of archives' indexes, because a compressed archive must be read whole.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from typing import IO, Any, Callable, Iterator

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_stream import (
    compression_of,
    explained,
)


def default_cache_dir() -> str:
    """Return the cache's directory: the machine's for root, else the user's."""
    return "/var/cache/rdm" if os.geteuid() == 0 else os.path.expanduser("~/.cache/rdm")


class ArchiveUnread(NodeError):  # noqa: N818  # a state of the node, not an error
    """What is in the archive is not known here, and the archive was not to be read.

    Attributes:
        file: `file_identity`.
    """

    def __init__(self, path: str) -> None:
        super().__init__("{0} has not been read".format(path))
        self.file = file_identity(path)


def file_identity(path: str) -> str:
    """Return what is equal on all nodes that have the same file of a shared file system, and on no others.

    Programs that copy files can preserve the time of modification, but not that of the last status change.
    """
    now = os.stat(path)
    return "{0} {1} {2} {3}".format(now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


def cached_index(
    path: str,
    sha256: str,
    cache_dir: str,
    stale: bool = False,
    read: Callable[[str, bool], ArchiveIndex] | None = None,
) -> ArchiveIndex:
    """Return an archive's index, and read the archive only if it has changed since the last time.

    An index that is cheap to make (plain archive, no digest) is not cached. If several processes want the
    index of an archive at the same time, the others wait for the first.

    Args:
        path: of the archive.
        sha256: its expected digest, in hexadecimal; empty accepts any.
        cache_dir: the cache; made if it is missing. If that fails, or another user can put a file or a link
            there, nothing is cached.
        stale: if the archive is missing, return its last index.
        read: reads an archive whole, as `index_archive`; by default that.

    Raises:
        ArchiveMissing: there is no archive, and no index of it is cached.
        NodeError: as `read`, or the digest differs; then `result` has the `index`.
    """
    if not sha256 and not stale and is_plain(path):
        return index_archive(path)
    with _cache_file(path, cache_dir) as cache:
        if stale and not os.path.exists(path):
            known = _recall(cache, None)
            return known if known is not None else index_archive(path)
        with explained(path):
            identity = _identity(path)
        index = _recall(cache, identity)
        if index is None or (sha256 and not index.sha256):
            index = (read or index_archive)(path, bool(sha256))
            if cache is not None and index.sha256:
                _remember(cache, identity, index)
    if sha256 and index.sha256 != sha256.lower():
        raise NodeError(
            "{0} has sha256 {1}, not {2}".format(path, index.sha256, sha256.lower()),
            "use the right archive, or correct the sha256",
            index=index.to_json(),
        )
    return index


def forget_index(path: str, cache_dir: str) -> None:
    """Remove an archive's index from the cache, and the directory if it is then empty."""
    with contextlib.suppress(OSError):
        os.unlink(_cache_path(path, cache_dir))
    with contextlib.suppress(OSError):
        os.rmdir(cache_dir)


def is_plain(path: str) -> bool:
    """Return whether an archive is not compressed, so that only its headers must be read for its index."""
    with explained(path), open(path, "rb") as raw:
        return compression_of(raw, path) == "plain"


def _cache_path(path: str, cache_dir: str) -> str:
    name = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:32]
    return os.path.join(cache_dir, name + ".json")


@contextlib.contextmanager
def _cache_file(path: str, cache_dir: str) -> Iterator[IO[str] | None]:
    """Open and lock the cache file of an archive; yield None where that is not possible."""
    try:
        os.makedirs(cache_dir, mode=0o700, exist_ok=True)
        _require_private(cache_dir)
        cache = open(_cache_path(path, cache_dir), "a+", encoding="utf-8")  # noqa: SIM115
    except OSError:
        yield None
        return
    with cache:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(cache, fcntl.LOCK_EX)
        try:
            yield cache
        finally:
            if os.fstat(cache.fileno()).st_size == 0:
                forget_index(path, cache_dir)


def _require_private(directory: str) -> None:
    """Raise PermissionError unless only this user can write to a directory, and has made a link to it."""
    there = os.stat(directory)
    if {there.st_uid, os.lstat(directory).st_uid} != {os.geteuid()} or there.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "other users can write to it", directory)


def _identity(path: str) -> list[Any]:
    status = os.stat(path)
    return [os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino]


def _recall(cache: IO[str] | None, identity: list[Any] | None) -> ArchiveIndex | None:
    """Return the cached index if it is of this very file (of any file if `identity` is None)."""
    if cache is None:
        return None
    cache.seek(0)
    try:
        entry = json.load(cache)
        index = ArchiveIndex.from_json(entry["index"])
    except (ValueError, KeyError, TypeError):  # empty, truncated, or of another version
        return None
    return index if identity in (None, entry["identity"]) else None


def _remember(cache: IO[str], identity: list[Any], index: ArchiveIndex) -> None:
    entry = json.dumps({"identity": identity, "index": index.to_json()})
    with contextlib.suppress(OSError):  # a full disk is reported where it matters
        cache.truncate(0)
        os.write(cache.fileno(), entry.encode())
