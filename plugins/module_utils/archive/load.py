# SPDX-License-Identifier: GPL-3.0-or-later
"""Hand an archive to an engine, in a form that it loads.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import io
import json
import tarfile
from typing import BinaryIO, FrozenSet, Generator, Iterable, Iterator

from ansible_collections.rdm.provision.plugins.module_utils.archive.images import (
    ArchiveIndex,
    Json,
)
from ansible_collections.rdm.provision.plugins.module_utils.archive.stream import (
    CHUNK,
    chunks,
    decompressed,
    explained,
)


def load_chunks(
    path: str, index: ArchiveIndex, spare: FrozenSet[str] = frozenset()
) -> Generator[bytes, None, None]:
    """Yield an archive in a form that every engine loads.

    Engines read plain and gzip tars, but not all read zstd, and old ones want the manifest.json that an OCI
    layout lacks: it is added at the end of the tar.

    Args:
        path: of the archive.
        index: of the archive.
        spare: members to leave out; see `spare_members`.

    Raises:
        ArchiveProblem: the archive can no longer be read.
    """
    with explained(path), open(path, "rb") as raw:
        if spare:
            yield from _without(raw, spare)
            return
        if index.classic and index.compression in ("plain", "gzip"):
            yield from chunks(raw)
            return
        with decompressed(raw, index.compression, path) as stream:
            if index.classic:
                yield from chunks(stream)
                return
            left = index.unpacked
            while left:
                chunk = stream.read(min(CHUNK, left))
                if not chunk:
                    raise EOFError
                left -= len(chunk)
                yield chunk
            yield _classic_manifest(index)
            for _chunk in chunks(stream):
                pass


def _without(raw: BinaryIO, spare: FrozenSet[str]) -> Iterator[bytes]:
    """Yield a plain tar without some of its members."""
    with tarfile.open(fileobj=raw, mode="r:") as archive:
        begins = [(member.offset, member.name) for member in archive]
    ends = [offset for offset, _name in begins[1:]] + [archive.offset]
    for (begin, name), end in zip(begins, ends):
        if name in spare:
            continue
        raw.seek(begin)
        while begin < end:
            chunk = raw.read(min(CHUNK, end - begin))
            if not chunk:
                raise EOFError
            begin += len(chunk)
            yield chunk
    yield bytes(2 * tarfile.BLOCKSIZE)


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
