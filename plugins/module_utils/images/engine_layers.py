# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare an archive's layers with those of an engine.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
from typing import Any, Dict, FrozenSet, Iterable, Optional
from urllib.parse import quote

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import image_store
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    ArchiveIndex,
    Image,
    Json,
    new_layers,
    skippable_members,
)

_READS_ZSTD = 23
"""Major version of the first Docker Engine that decompresses such layers (moby/moby#41759)."""


def require_readable(api: DockerAPI, path: str, images: Iterable[Image]) -> None:
    """Raise NodeError if the engine cannot decompress layers of these images."""
    version = str(api.version().get("Version", ""))
    major = re.match("[1-9][0-9]*", version)  # a nightly build has 0.0.0
    if api.podman or major is None or int(major.group()) >= _READS_ZSTD:
        return
    if any(image.zstd for image in images):
        raise NodeError(
            "{0} has layers that are compressed with zstd, which Docker Engine {1} cannot read".format(
                path, version
            ),
            "update it to 23.0 or newer, or make an archive with plain or gzip layers",
        )


def inspected(api: DockerAPI, name: str) -> Optional[Json]:
    """Return what an engine knows of an image; None if it has no such image."""
    try:
        found: Json = api.get("/images/{0}/json".format(quote(name, safe="/:@")))
    except DockerError as error:
        if error.status == 404:
            return None
        raise
    return found


def lacking_layers(api: DockerAPI, images: Iterable[Image]) -> Dict[str, int]:
    """Return the layers of images that an engine would have to store; see `new_layers`."""
    present: Iterable[Dict[str, Any]] = (
        inspected(api, image["Id"]) or {} for image in api.get("/images/json")
    )
    return new_layers(images, ((found.get("RootFS") or {}).get("Layers") or [] for found in present))


def present_members(api: DockerAPI, index: ArchiveIndex, new: Iterable[str]) -> FrozenSet[str]:
    """Return the members of an archive that an engine need not get; see `skippable_members`.

    Podman refuses an archive without layers that it has.
    """
    takes_parts = not api.podman and image_store(api.get("/info")) == "classic"
    return skippable_members(index, new) if takes_parts else frozenset()
