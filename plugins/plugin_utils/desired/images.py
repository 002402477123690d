# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired images of a node."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import (
    UPSTREAM,
    UPSTREAM_IMAGE,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import SOURCES, canonical
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


class DesiredImages(NamedTuple):
    """Desired state of the role images.

    Attributes:
        images: the entries of the node's list of images.
        plugin: an entry for the SR-IOV plugin's image, if it has one that is not listed.
        cache_dir: where the node caches the contents of archives.
        archives: path, size and time of the archives on the controller.
        mirrors: the registry mirrors to configure in the engine.
    """

    images: list[dict[str, Any]]
    plugin: list[dict[str, Any]]
    cache_dir: str
    archives: list[list[Any]]
    mirrors: list[str]


def desired_images(variables: NodeVariables, entry: PlanEntry) -> DesiredImages:
    """Return the desired images of a node."""
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


def images_steps(
    part: DesiredImages, variables: NodeVariables, entry: PlanEntry, observed: Observed
) -> dict[str, Any]:
    """Return what the role's tasks read in addition to the part.

    The images are in `archive`, `registry` and `build`, by their source. `to_load` are archives that the node
    needs, or those with a problem alone, so that they fail before others are loaded. `uninspected` is whether
    archives were not inspected, `imageless` whether there is no image to run, `mirrored` whether mirrors are
    desired or were added by an earlier run, and `others` whether there is more to do than to load archives.
    `elsewhere` is the file of tasks for images that are not archives, empty if there are none: `shared` also
    sends images of registries from node to node.

    `lacking` are the images of registries that the engine did not have in preflight, with the node's
    architecture. `pulled` are those that this node has pulled for others, and `shared` those that another
    node has sent to this one.

    Raises:
        ValueError: an image has no known source. Preflight refuses that too, but a role can be used alone.
    """
    of: dict[str, list[dict[str, Any]]] = {source: [] for source in SOURCES}
    for image in (*part.images, *part.plugin):
        if image.get("source") not in SOURCES:
            known = ", ".join(SOURCES)
            raise ValueError(
                f"image {image.get('name')} has the source {image.get('source')!r}: choose one of {known}"
            )
        of[image["source"]].append(image)
    inspected = [one for one in observed.result("images_inspection").get("results") or () if "problem" in one]
    # The results are valid if they are for exactly these archives.
    uninspected = not observed.planned or [one["item"] for one in inspected] != of["archive"]
    mirrored = bool(part.mirrors or (observed.preflight.get("docker") or {}).get("added_mirrors"))
    to_load = [one["item"] for one in inspected if one["problem"]] or [
        one["item"] for one in inspected if one.get("needed")
    ]
    registry = [{**image, "path": canonical(image["name"])} for image in of["registry"]]
    peers = registry and variables.text("images_distribution") == "peers"
    elsewhere = "shared" if peers else "elsewhere" if registry or of["build"] else ""
    shared = observed.result("__images_shared")
    pulled = (shared.get("pulled") or {}).get(entry.node) or ()
    return {
        **of,
        "uninspected": uninspected,
        "imageless": not part.images and not entry.image,
        "mirrored": mirrored,
        "elsewhere": elsewhere,
        "others": bool(uninspected or mirrored or elsewhere),
        # Each with what was brought: the loop over them replaces the registered inspection.
        "to_load": _with_brought(to_load, observed.result("__images_brought"), entry.node),
        "lacking": {
            "architecture": str(observed.facts.get("architecture") or ""),
            "images": _lacking(of["registry"], observed.engine),
        },
        "pulled": [one["name"] for one in registry if one["path"] in pulled],
        "shared": [one for one in _with_brought(registry, shared, entry.node) if "brought" in one],
    }


def _lacking(images: Iterable[Mapping[str, Any]], engine: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the images of registries that an engine does not have, or pulls in each run; none if unknown.

    Engines report the tags of images, so one with a digest counts as lacking.
    """
    if not engine:
        return []
    tags = {tag for one in engine.get("images") or () for tag in one["tags"]}
    return [one for one in images if one.get("pull") == "always" or canonical(one["name"]) not in tags]


def _with_brought(
    to_load: list[dict[str, Any]], brought: Mapping[str, Any], node: str
) -> list[dict[str, Any]]:
    """Return archives with what other nodes sent of them to this one; one that is loaded again is kept."""
    sent = (brought.get("nodes") or {}).get(node) or {}
    paths = [str(one["path"]) for one in to_load]
    return [
        {**one, "brought": {**sent[path], "index": brought["indexes"][path], "keep": path in paths[number:]}}
        if sent.get(path)
        else one
        for number, (path, one) in enumerate(zip(paths, to_load, strict=True), start=1)
    ]


def listed_images(variables: NodeVariables) -> list[dict[str, Any]]:
    """Return the entries of a node's list of images, or else of its accelerator's; only set values."""
    profiles = variables.value("images_profiles") or {}
    listed = variables.value("images_list") or profiles.get(variables.text("rdm_accelerator") or "cpu") or []
    return [_set(image) for image in listed]


def archives(images: Iterable[Mapping[str, Any]], on_the_node: bool) -> Iterator[str]:
    """Yield the paths of the image archives on the node, or of those on the controller."""
    for image in images:
        if image.get("source") == "archive" and bool(image.get("remote_src", True)) is on_the_node:
            yield str(image["path"])


def archives_here(images: Iterable[Mapping[str, Any]], inventory_dir: str) -> Iterator[tuple[Any, ...]]:
    """Yield path, size and time of each archive on the controller; (path, None) if it does not exist."""
    for path in archives(images, on_the_node=False):
        try:
            now = os.stat(os.path.join(inventory_dir, os.path.expanduser(path)))
        except OSError:
            yield (path, None)
        else:
            yield (path, now.st_size, now.st_mtime_ns)


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are set: argument_specs set the others to None."""
    return {
        str(name): _set(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not None
    }
