# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare an archive's layers with those of an engine.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Iterable, Optional
from urllib.parse import quote

from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI, DockerError
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import image_store
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import (
    ArchiveIndex,
    Image,
    Json,
    new_layers,
    skippable_members,
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
