# SPDX-License-Identifier: GPL-3.0-or-later
"""The images of an archive: which of them a node needs, whether an engine has them, and the space they take.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
from typing import Any, Dict, FrozenSet, Iterable, List, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError

Json = Dict[str, Any]


AGAIN = "copy it there again"


MAKE = "make it with docker save, or a tar of an OCI layout"
"""The hint for an archive that is damaged, or for a file that is no archive."""


_CONFIG_KEYS = (
    "Cmd",
    "Entrypoint",
    "Env",
    "ExposedPorts",
    "Healthcheck",
    "Labels",
    "OnBuild",
    "Shell",
    "StopSignal",
    "User",
    "Volumes",
    "WorkingDir",
)


_NAME = re.compile(
    r"[a-zA-Z0-9]+([._-]+[a-zA-Z0-9]+)*(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:\w[\w.-]{0,127})?"
)


class ArchiveMissing(NodeError):  # noqa: N818  # a state of the node, not an error
    """There is no such file."""


class Image(NamedTuple):
    """One image of an archive.

    Attributes:
        ids: every Id that an engine may give it: first the config digest (classic store), then the digests
            of its manifest and of the index above it (containerd store).
        diff_ids: the digests of its uncompressed layers, lowest first.
        tags: its names in the archive, in the short form that Docker shows.
        architecture: such as amd64.
        traits: the other differences from an image with the same layers: see `traits`.
        config_path: the member of the archive that contains its configuration.
        layer_paths: the members that contain its layers, lowest first.
        layer_sizes: sizes of these members in bytes.
        zstd: whether layers are compressed with zstd.
    """

    ids: List[str]
    diff_ids: List[str]
    tags: List[str]
    architecture: str
    traits: Json
    config_path: str
    layer_paths: List[str]
    layer_sizes: List[int]
    zstd: bool


class ArchiveIndex(NamedTuple):
    """The content of an archive.

    Attributes:
        compression: plain, gzip or zstd.
        size: bytes of the file.
        sha256: of the file, in hexadecimal; empty if the file was not read completely.
        unpacked: bytes of the uncompressed tar, up to the end of its last member.
        classic: it has the manifest.json that every engine can load.
        images: the images in it.
    """

    compression: str
    size: int
    sha256: str
    unpacked: int
    classic: bool
    images: List[Image]

    def to_json(self) -> Json:
        """Return it as plain JSON values."""
        return {**self._asdict(), "images": [image._asdict() for image in self.images]}

    @classmethod
    def from_json(cls, value: Json) -> ArchiveIndex:
        """Return the index that `to_json` was called on.

        Raises:
            KeyError, TypeError: the value was not made by `to_json`.
        """
        return cls(**{**value, "images": [Image(**image) for image in value["images"]]})


def short_name(name: str) -> str:
    """Return an image name as Docker shows it: without docker.io/library, with its tag.

    Raises:
        NodeError: this cannot be the name of an image in an archive.
    """
    for prefix in ("index.docker.io/", "docker.io/"):
        if name.startswith(prefix):
            name = name[len(prefix) :]
            if name.startswith("library/"):
                name = name[len("library/") :]
    if not _NAME.fullmatch(name):
        raise NodeError("{0!r} is not an image name".format(name), "write repository:tag")
    return name if ":" in name.rpartition("/")[2] else name + ":latest"


def traits(created: str, config: Json | None) -> Json:
    """Return the traits that distinguish images with the same layers, from an image's or an engine's JSON.

    Engines write empty values and fractions of seconds differently; both are normalised.
    """
    kept = {key: value for key, value in (config or {}).items() if key in _CONFIG_KEYS and value}
    moment, _, fraction = created.rstrip("Z").partition(".")
    if moment.startswith("0001-"):  # how Go writes "not known"
        moment = ""
    return {"created": "{0}.{1}".format(moment, fraction.rstrip("0")).rstrip("."), "config": kept}


def same_image(image: Image, inspected: Json) -> bool:
    """Return whether this is the image that the engine shows under /images/NAME/json.

    The Id is the config digest in the classic store, and the digest of a manifest in the containerd store.
    The latter changes when layers are compressed again; then layers and configuration are compared.
    """
    if inspected["Id"] in image.ids:
        return True
    layers = (inspected.get("RootFS") or {}).get("Layers") or []
    return layers == image.diff_ids and image.traits == traits(
        inspected.get("Created") or "", inspected.get("Config")
    )


def wanted_images(
    index: ArchiveIndex, path: str, name: str, architecture: str
) -> list[tuple[Image, list[str]]]:
    """Return the images that must be in the engine, each with its tags.

    Args:
        index: of the archive.
        path: of the archive, for messages.
        name: the expected tag; empty means all images with the tags that the archive gives them.
        architecture: the engine's, such as amd64; an archive may have an image for several.

    Raises:
        NodeError: the archive has no such image.
    """
    images = [image for image in index.images if image.architecture in ("", architecture)]
    if not images:
        raise NodeError(
            "{0} holds an image for {1}, and this engine runs {2}".format(
                path, ", ".join(sorted({image.architecture for image in index.images})), architecture
            ),
            "use an archive for {0}".format(architecture),
        )
    if not name:
        return [(image, image.tags) for image in images]
    name = short_name(name)
    for image in images:
        if name in image.tags:
            return [(image, [name])]
    if len(images) == 1 and not images[0].tags:
        return [(images[0], [name])]
    tags = sorted({tag for image in images for tag in image.tags})
    raise NodeError(
        "{0} does not hold {1}; it holds {2}".format(
            path, name, ", ".join(tags) or "several images without name"
        ),
        "use a name that it holds" if tags else "make an archive of one image",
    )


def new_layers(images: Iterable[Image], chains: Iterable[List[str]]) -> Dict[str, int]:
    """Return the layers that an engine would have to store, with their sizes in the archive, in bytes.

    An engine that has an image with the same lowest layers shares them.

    Args:
        images: the images to load.
        chains: the diff_ids of each image that the engine has, lowest first.
    """
    known = {tuple(chain[:length]) for chain in chains for length in range(1, len(chain) + 1)}
    new: Dict[str, int] = {}
    for image in images:
        for height, (diff_id, size) in enumerate(zip(image.diff_ids, image.layer_sizes), start=1):
            if tuple(image.diff_ids[:height]) not in known:
                new[diff_id] = max(size, new.get(diff_id, 0))
    return new


def skippable_members(index: ArchiveIndex, new: Iterable[str]) -> FrozenSet[str]:
    """Return the members of an archive that an engine with the classic store has already.

    Such an engine unpacks all members before it checks which ones it has, so these need not be sent. The
    result is empty for compressed archives: their stream must be read anyway, and no part can be skipped.

    Args:
        index: of the archive.
        new: the diff_ids of the layers that the engine has to store; see `new_layers`.
    """
    if index.compression != "plain" or not index.classic:
        return frozenset()
    needed = set(new)
    layers = [pair for image in index.images for pair in zip(image.diff_ids, image.layer_paths)]
    kept = {path for diff_id, path in layers if diff_id in needed}
    return frozenset(path for _diff_id, path in layers if path not in kept)


def room_to_load(archives: Iterable[Json], classic: bool) -> int:
    """Return the bytes that an engine needs at least to load these archives, one after the other.

    An engine with the classic store unpacks an archive, stores the layers that it lacks, and removes the
    unpacked archive. With the containerd store it reads the layers from the stream, and keeps each twice: as
    a blob, and unpacked.

    Args:
        archives: the result of `inspection` for each of them.
        classic: the engine has the classic store.
    """
    stored: Dict[str, int] = {}
    most = 0
    for archive in archives:
        stored.update(archive["new_layers"])
        layers = sum(stored.values())
        most = max(most, layers + (archive["unpacked"] if classic else layers))
    return most


def inspection(path: str, problem: str = "", hint: str = "") -> Json:
    """Return the result of an inspection of an archive that cannot be used, or that is not needed."""
    return {
        "changed": False,
        "actions": [],
        "copy_needed": False,
        "path": path,
        "problem": problem,
        "hint": hint,
        "needed": False,
        "load": False,
        "unpacked": 0,
        "storage": {},
        "new_layers": {},
        "size": 0,
        "present_members": [],
        "new_bytes": 0,
    }
