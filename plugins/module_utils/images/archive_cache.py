# SPDX-License-Identifier: GPL-3.0-or-later
"""Remember what is in an archive, since a compressed one has to be read whole.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from typing import IO, Any, Iterator

from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    ArchiveIndex,
    ArchiveProblem,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_index import index_archive
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_stream import (
    compression_of,
    explained,
)


def default_cache_dir() -> str:
    """Return where indexes are kept: for the machine when root, else for the user."""
    return "/var/cache/rdm" if os.geteuid() == 0 else os.path.expanduser("~/.cache/rdm")


def cached_index(path: str, sha256: str, cache_dir: str, stale: bool = False) -> ArchiveIndex:
    """Return what is in an archive, reading it only when it has changed since the last time.

    An index that was cheap to make (plain archive, no digest) is not kept. Processes that ask for the same
    archive at the same time wait for the first one.

    Args:
        path: of the archive.
        sha256: what its digest must be, in hexadecimal; empty means that any will do.
        cache_dir: where indexes are kept; made when missing. Where that is not possible, none is kept.
        stale: when the archive is missing, what was in it the last time will do.

    Raises:
        ArchiveMissing: there is no archive, and none was remembered.
        ArchiveProblem: as `index_archive`, or the digest differs.
    """
    if not sha256 and not stale and _is_plain(path):
        return index_archive(path)
    with _cache_file(path, cache_dir) as cache:
        if stale and not os.path.exists(path):
            known = _recall(cache, None)
            return known if known is not None else index_archive(path)
        with explained(path):
            identity = _identity(path)
        index = _recall(cache, identity)
        if index is None or (sha256 and not index.sha256):
            index = index_archive(path, digest=bool(sha256))
            if cache is not None and index.sha256:
                _remember(cache, identity, index)
    if sha256 and index.sha256 != sha256.lower():
        raise ArchiveProblem(
            "{0} has sha256 {1}, not {2}".format(path, index.sha256, sha256.lower()),
            "use the right archive, or correct the sha256",
        )
    return index


def forget_index(path: str, cache_dir: str) -> None:
    """Remove what was remembered of an archive, and the directory when nothing else is in it."""
    with contextlib.suppress(OSError):
        os.unlink(_cache_path(path, cache_dir))
    with contextlib.suppress(OSError):
        os.rmdir(cache_dir)


def _is_plain(path: str) -> bool:
    with explained(path), open(path, "rb") as raw:
        return compression_of(raw, path) == "plain"


def _cache_path(path: str, cache_dir: str) -> str:
    name = hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:32]
    return os.path.join(cache_dir, name + ".json")


@contextlib.contextmanager
def _cache_file(path: str, cache_dir: str) -> Iterator[IO[str] | None]:
    """Open and lock the file that remembers an archive; None where that is not possible."""
    try:
        os.makedirs(cache_dir, mode=0o700, exist_ok=True)
        cache = open(_cache_path(path, cache_dir), "a+", encoding="utf-8")  # noqa: SIM115
    except OSError:
        yield None
        return
    with cache:
        with contextlib.suppress(OSError):  # some network file systems have no locks
            fcntl.flock(cache, fcntl.LOCK_EX)
        yield cache
        if os.fstat(cache.fileno()).st_size == 0:
            forget_index(path, cache_dir)


def _identity(path: str) -> list[Any]:
    status = os.stat(path)
    return [os.path.realpath(path), status.st_size, status.st_mtime_ns, status.st_ino]


def _recall(cache: IO[str] | None, identity: list[Any] | None) -> ArchiveIndex | None:
    """Return the remembered index if it is of this very file (None: of any)."""
    if cache is None:
        return None
    cache.seek(0)
    try:
        entry = json.load(cache)
        index = ArchiveIndex.from_json(entry["index"])
    except (ValueError, KeyError, TypeError):  # empty, cut short, or of another version
        return None
    return index if identity in (None, entry["identity"]) else None


def _remember(cache: IO[str], identity: list[Any], index: ArchiveIndex) -> None:
    entry = json.dumps({"identity": identity, "index": index.to_json()})
    with contextlib.suppress(OSError):  # a disk that is full is told where it matters
        cache.truncate(0)
        os.write(cache.fileno(), entry.encode())
