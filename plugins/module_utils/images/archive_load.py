# SPDX-License-Identifier: GPL-3.0-or-later
"""Stream an archive to an engine in a form that it loads.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import tarfile
from typing import Any, BinaryIO, FrozenSet, Generator, Iterable, Iterator, List

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import ArchiveIndex, Json
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_stream import (
    CHUNK,
    Hashing,
    chunks,
    decompressed,
    explained,
)


class ArchiveChanged(NodeError):  # noqa: N818  # a state of the node, not an error
    """The archive has changed since it was inspected.

    Attributes:
        sha256: the file's current one.
    """

    def __init__(self, path: str, sha256: str) -> None:
        super().__init__("{0} has changed since it was inspected".format(path))
        self.sha256 = sha256


def load_chunks(
    path: str, index: ArchiveIndex, skipped: FrozenSet[str] = frozenset()
) -> Generator[bytes, None, None]:
    """Yield an archive in a form that every engine loads.

    Engines read plain and gzip tars, but not all read zstd, and old ones need the manifest.json that an OCI
    layout lacks: it is appended to the tar.

    The bytes that are sent are hashed. The last MiB is held back until the digest of the whole file matches
    the index: an engine keeps nothing of a stream that breaks off.

    The members in `skipped` are left out; `skippable_members` finds them.

    Raises:
        NodeError: the archive can no longer be read.
        ArchiveChanged: the digest differs, and the end was not sent.
    """
    hasher = hashlib.sha256()
    with explained(path), open(path, "rb") as raw:
        source = Hashing(raw, hasher) if index.sha256 else raw
        held: List[bytes] = []
        with contextlib.closing(_pieces(raw, source, path, index, skipped)) as pieces:
            size = 0
            for piece in pieces:
                held.append(piece)
                size += len(piece)
                while size - len(held[0]) >= CHUNK:
                    size -= len(held[0])
                    yield held.pop(0)
        if index.sha256:
            for _chunk in chunks(source):
                pass
            if hasher.hexdigest() != index.sha256:
                raise ArchiveChanged(path, hasher.hexdigest())
        yield from held


def _pieces(
    raw: BinaryIO, source: Any, path: str, index: ArchiveIndex, skipped: FrozenSet[str]
) -> Generator[bytes, None, None]:
    """Yield the bytes for the engine; `source` is `raw`, or a reader of `raw` that hashes what it reads."""
    if skipped:
        yield from _without(raw, source, skipped)
        return
    if index.classic and index.compression in ("plain", "gzip"):
        yield from chunks(source)
        return
    with decompressed(source, index.compression, path) as stream:
        if index.classic:
            yield from chunks(stream)
            return
        yield from _exactly(stream, index.unpacked)
        yield _classic_manifest(index)
        for _chunk in chunks(stream):
            pass


def _without(raw: BinaryIO, source: Any, skipped: FrozenSet[str]) -> Iterator[bytes]:
    """Yield a plain tar without some of its members, which are read only to hash them."""
    with tarfile.open(fileobj=raw, mode="r:") as archive:
        begins = [(member.offset, member.name) for member in archive]
    ends = [offset for offset, _name in begins[1:]] + [archive.offset]
    raw.seek(0)
    position = 0
    for (_begin, name), end in zip(begins, ends):
        if name not in skipped:
            yield from _exactly(source, end - position)
        elif source is raw:
            raw.seek(end)
        else:
            for _chunk in _exactly(source, end - position):
                pass
        position = end
    yield bytes(2 * tarfile.BLOCKSIZE)


def _exactly(stream: Any, count: int) -> Iterator[bytes]:
    """Yield the next `count` bytes of a stream; raise EOFError if it has fewer."""
    while count:
        chunk = stream.read(min(CHUNK, count))
        if not chunk:
            raise EOFError
        count -= len(chunk)
        yield chunk


def _classic_manifest(index: ArchiveIndex) -> bytes:
    """Return the end of a tar: a manifest.json for the images of an OCI layout."""
    entries: Iterable[Json] = (
        {"Config": image.config_path, "RepoTags": image.tags, "Layers": image.layer_paths}
        for image in index.images
    )
    content = json.dumps(list(entries)).encode()
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        member = tarfile.TarInfo("manifest.json")
        member.size = len(content)
        member.mode = 0o644
        archive.addfile(member, io.BytesIO(content))
    return output.getvalue()
