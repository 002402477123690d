# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the content of an image archive.

An archive is the output of `docker save` (manifest.json) or an OCI image layout (index.json), as a tar that
is plain, gzip or zstd. In a plain one only the headers and the small JSON members are read. Formats:
https://github.com/moby/docker-image-spec and https://github.com/opencontainers/image-spec.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tarfile
from typing import Any, Iterator, List, NamedTuple, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    AGAIN,
    MAKE,
    ArchiveIndex,
    Image,
    Json,
    short_name,
    traits,
)
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_stream import (
    CHUNK,
    ZSTD,
    Hashing,
    chunks,
    compression_of,
    decompressed,
    explained,
)

_JSON_MAX = 4 * 1024 * 1024  # bytes; a configuration with a long history has some 100 KB


_JSON_TOTAL = 16 * _JSON_MAX


def index_archive(path: str, digest: bool = False) -> ArchiveIndex:
    """Read an archive and return its index.

    A compressed archive is read whole, which also gives its sha256; a plain one is read whole only if the
    digest is requested.

    Args:
        path: of the archive.
        digest: compute the sha256 of the file.

    Raises:
        NodeError: the file is missing, unreadable, truncated, corrupt, or not an image archive.
    """
    with explained(path), open(path, "rb") as raw:
        compression = compression_of(raw, path)
        size = os.fstat(raw.fileno()).st_size
        hasher = hashlib.sha256()
        if compression == "plain":
            if digest:
                for _chunk in chunks(Hashing(raw, hasher)):
                    pass
            raw.seek(0)
            members = _read_members(raw, path, seekable=True)
        else:
            with decompressed(Hashing(raw, hasher), compression, path) as stream:
                members = _read_members(stream, path, seekable=False)
                for _chunk in chunks(stream):  # to the end: for the digest and the checksums
                    pass
    known = digest or compression != "plain"
    return ArchiveIndex(
        compression=compression,
        size=size,
        sha256=hasher.hexdigest() if known else "",
        unpacked=members.end,
        classic="manifest.json" in members.documents,
        images=_images(members, path),
    )


class _Members(NamedTuple):
    sizes: dict[str, int]
    documents: dict[str, bytes]
    zstd: set[str]
    end: int


def _read_members(stream: Any, path: str, seekable: bool) -> _Members:
    """Return the sizes of all members, the contents of the small JSON ones, and the names of zstd's."""
    sizes: dict[str, int] = {}
    documents: dict[str, bytes] = {}
    zstd: set[str] = set()
    total = 0
    with tarfile.open(fileobj=stream, mode="r:" if seekable else "r|", bufsize=CHUNK) as archive:
        for member in archive:
            name = os.path.normpath(member.name)
            sizes[name] = member.size
            source = archive.extractfile(member) if member.isreg() else None
            if source is None:
                continue
            may_be_json = member.size <= _JSON_MAX and _may_be_json(name)
            content = source.read(member.size if may_be_json else len(ZSTD))
            if content.startswith(ZSTD):
                zstd.add(name)
            elif may_be_json and content.lstrip()[:1] in (b"{", b"["):
                documents[name] = content
                total += len(content)
                if total > _JSON_TOTAL:
                    raise NodeError(
                        "{0} is not an image archive, since it has too many JSON files".format(path), MAKE
                    )
        end = archive.offset
        if seekable:
            # tarfile treats a damaged header as the end; a real end is a block of zeros.
            stream.seek(end)
            block = stream.read(tarfile.BLOCKSIZE)
            if block and block != bytes(tarfile.BLOCKSIZE):
                raise EOFError
    return _Members(sizes, documents, zstd, end)


def _may_be_json(name: str) -> bool:
    return name.startswith("blobs/sha256/") or ("/" not in name and name.endswith(".json"))


def _images(members: _Members, path: str) -> list[Image]:
    oci = list(_oci_images(members, path)) if "index.json" in members.documents else []
    if "manifest.json" in members.documents:
        ids = {image.ids[0]: image.ids for image in oci}
        images = [
            image._replace(ids=ids.get(image.ids[0], image.ids)) for image in _classic_images(members, path)
        ]
    else:
        images = oci
    if not images:
        raise NodeError(
            "{0} is not an image archive, since no manifest.json or index.json names an image".format(path),
            MAKE,
        )
    for image in images:
        for layer in image.layer_paths:
            if layer not in members.sizes:
                raise NodeError(
                    "{0} is incomplete, since layer {1} is missing in it".format(path, layer), AGAIN
                )
    return images


def _classic_images(members: _Members, path: str) -> Iterator[Image]:
    for entry in _document(members, "manifest.json", path):
        with _well_formed(path, "manifest.json"):
            config = os.path.normpath(entry["Config"])
            layers = [os.path.normpath(layer) for layer in entry.get("Layers") or []]
            tags = [short_name(tag) for tag in entry.get("RepoTags") or []]
        yield _image(members, path, config, layers, tags, [])


def _oci_images(members: _Members, path: str) -> Iterator[Image]:
    """Return the images of an OCI layout whose blobs are in the archive, each once, with all its tags."""
    pending: List[Tuple[Json, List[str], List[str]]] = []
    with _well_formed(path, "index.json"):
        for entry in _document(members, "index.json", path)["manifests"]:
            pending.append((entry, _oci_tags(entry.get("annotations") or {}), []))
    found: dict[str, Image] = {}
    while pending:
        descriptor, tags, parents = pending.pop(0)
        with _well_formed(path, "index.json"):
            blob = _blob(descriptor["digest"])
            ids = [descriptor["digest"], *parents]
            if blob not in members.sizes or "vnd.docker.reference.type" in (
                descriptor.get("annotations") or {}
            ):
                continue  # of a platform that was left out, or an attestation
            manifest = _document(members, blob, path)
            if "manifests" in manifest:
                pending[:0] = [(entry, tags, ids) for entry in manifest["manifests"]]
                continue
            config = _blob(manifest["config"]["digest"])
            layers = [_blob(layer["digest"]) for layer in manifest["layers"]]
        if config in found:
            known = found[config]
            found[config] = known._replace(tags=known.tags + [tag for tag in tags if tag not in known.tags])
            continue
        found[config] = _image(members, path, config, layers, tags, ids)
    return iter(found.values())


def _oci_tags(annotations: Json) -> list[str]:
    """Return the full name that an OCI layout gives an image; a tag alone ("latest") does not count."""
    for key in ("io.containerd.image.name", "org.opencontainers.image.ref.name"):
        name = annotations.get(key, "")
        if ":" in name or "/" in name:
            with contextlib.suppress(NodeError):
                return [short_name(name)]
    return []


def _image(
    members: _Members, path: str, config_path: str, layers: list[str], tags: list[str], ids: list[str]
) -> Image:
    config = _document(members, config_path, path)
    with _well_formed(path, config_path):
        return Image(
            ids=["sha256:" + hashlib.sha256(members.documents[config_path]).hexdigest(), *ids],
            diff_ids=list(config["rootfs"].get("diff_ids") or []),
            tags=tags,
            architecture=config.get("architecture") or "",
            traits=traits(config.get("created") or "", config.get("config")),
            config_path=config_path,
            layer_paths=layers,
            layer_sizes=[members.sizes.get(layer, 0) for layer in layers],
            zstd=not members.zstd.isdisjoint(layers),
        )


def _document(members: _Members, name: str, path: str) -> Any:
    """Return a JSON member, after its content was compared with the digest in its name."""
    content = members.documents.get(name)
    if content is None:
        raise NodeError("{0} is incomplete, since {1} is missing in it".format(path, name), AGAIN)
    digest = os.path.basename(name).partition(".")[0]
    if re.fullmatch("[0-9a-f]{64}", digest) and hashlib.sha256(content).hexdigest() != digest:
        raise NodeError("{0} is corrupt, since {1} does not match its digest".format(path, name), AGAIN)
    with _well_formed(path, name):
        return json.loads(content)


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


@contextlib.contextmanager
def _well_formed(path: str, name: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NodeError(
            "{0} is not an image archive, since {1} in it is malformed ({2})".format(path, name, error), MAKE
        ) from None
