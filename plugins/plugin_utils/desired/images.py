# SPDX-License-Identifier: GPL-3.0-or-later
"""The images that a node should have."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import (
    UPSTREAM,
    UPSTREAM_IMAGE,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


class DesiredImages(NamedTuple):
    """What the role images leaves in a node's engine.

    Attributes:
        images: those that are listed for the node, with what the list says of each.
        plugin: that of the SR-IOV plugin, where it has one that no list brings.
        cache_dir: where the node remembers what is in archives.
        archives: path, size and time of the archives that are on the controller.
        mirrors: the registry mirrors that the engine is pointed at.
    """

    images: list[dict[str, Any]]
    plugin: list[dict[str, Any]]
    cache_dir: str
    archives: list[list[Any]]
    mirrors: list[str]


def desired_images(variables: NodeVariables, entry: PlanEntry) -> DesiredImages:
    """Return the images that a node should have.

    Args:
        variables: the node's.
        entry: what is known of it besides.
    """
    images = listed_images(variables)
    names = {image.get("name") for image in images}
    upstream = variables.text("sriov_plugin") == UPSTREAM
    plugin = variables.text("sriov_image") or (UPSTREAM_IMAGE if upstream else "")
    brings = variables.true("sriov_enabled") and plugin and plugin not in names
    return DesiredImages(
        images,
        [{"name": plugin, "source": "registry"}] if brings else [],
        variables.text("images_cache_dir"),
        [list(archive) for archive in entry.archives],
        variables.texts("images_mirror"),
    )


def listed_images(variables: NodeVariables) -> list[dict[str, Any]]:
    """Return the images of a node's list, or else of its accelerator's; with what is set of each."""
    profiles = variables.value("images_profiles") or {}
    listed = variables.value("images_list") or profiles.get(variables.text("rdm_accelerator") or "cpu") or []
    return [_set(image) for image in listed]


def archives(images: Iterable[Mapping[str, Any]], on_the_node: bool) -> Iterator[str]:
    """Yield the paths of image archives, those on the node or those on the controller."""
    for image in images:
        if image.get("source") == "archive" and bool(image.get("remote_src", True)) is on_the_node:
            yield str(image["path"])


def archives_here(images: Iterable[Mapping[str, Any]], inventory_dir: str) -> Iterator[tuple[Any, ...]]:
    """Yield path, size and time of the archives on the controller, where one is there."""
    for path in archives(images, on_the_node=False):
        try:
            now = os.stat(os.path.join(inventory_dir, os.path.expanduser(path)))
        except OSError:
            yield (path, None)
        else:
            yield (path, now.st_size, now.st_mtime_ns)


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is set: argument_specs give what is not the value None."""
    return {
        str(name): _set(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None
    }
