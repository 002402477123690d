# SPDX-License-Identifier: GPL-3.0-or-later
"""Validate the list of images that a node needs, and choose the one that its container runs.

Nothing here queries a node; nodes verify archives themselves.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_network
from typing import Any, NamedTuple

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import short_name
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory import role_specs
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.role_variables import shown, value_hint

SOURCES = ("registry", "archive", "build")
DOCKER_HUB = "docker.io"

_SHA256 = re.compile("[0-9a-fA-F]{64}")
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
_EXAMPLE = "{name: training:1, source: archive, path: /shared/training.tar}"


class Images(NamedTuple):
    """The images of one node.

    Attributes:
        image: the image of the training container; empty for none.
        listed: whether the list provides it; otherwise the node must have it already.
        problems: what is wrong.
    """

    image: str
    listed: bool
    problems: list[Problem]


def check_images(
    node: str, images: Any, profiles: Mapping[str, Any], accelerator: str, container_image: str
) -> Images:
    """Return the image of a node's container, and everything that is wrong with the list of images.

    Args:
        node: inventory name.
        images: `images_list` as the user wrote it; empty for the profile's list.
        profiles: `images_profiles`: accelerator -> list.
        accelerator: the node's accelerator.
        container_image: the image that the user chose for the container, or empty.
    """
    problems: list[Problem] = []
    source = "images_list" if images else "images_profiles"
    found = _entries(node, images or profiles.get(accelerator) or [], source, problems)
    if problems:
        return Images(container_image, False, problems)
    if container_image:
        listed = canonical(container_image) in found
        if found and not listed:
            what = f"container_image {container_image}"
            hint = f"list it in images_list, or choose one of {names(found.values())}"
            problems.append(Problem(node, what, f"is not in {source}", hint))
        return Images(container_image, listed, problems)
    if not found:
        hint = f"list the image to run, such as {_EXAMPLE}"
        reason = f"is empty, and images_profiles has nothing for {accelerator}"
        problems.append(Problem(node, "images_list", reason, hint))
    return Images(next(iter(found.values()), ""), bool(found), problems)


def distribution_problems(node: str, variables: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with the options for the transfer of images and for their disks.

    Args:
        node: inventory name.
        variables: the variables that the user set, with the right types.
    """
    network = str(variables.get("images_network") or "")
    port = int(variables.get("images_port") or 1)
    bandwidth = float(variables.get("images_bandwidth") or 0)
    free = int(variables.get("images_min_free_bytes") or 0)
    cache = str(variables.get("images_cache_dir") or "/")
    problems = []
    try:
        ip_network(network or "0.0.0.0/0", strict=False)
    except ValueError:
        what, hint = f"images_network {network}", "write it as address/prefix, such as 10.1.0.0/16"
        problems.append(Problem(node, what, "is not a network", hint))
    if not 0 < port < 1 << 16:
        problems.append(Problem(node, f"images_port {port}", "is not a TCP port", "choose 1 to 65535"))
    if not bandwidth >= 0:
        what, hint = f"images_bandwidth {bandwidth:g}", "give megabits per second, or 0 for no limit"
        problems.append(Problem(node, what, "is less than nothing", hint))
    if free < 0:
        what, hint = f"images_min_free_bytes {free}", "give bytes, or 0 to need no more than the archives"
        problems.append(Problem(node, what, "is less than nothing", hint))
    if not cache.startswith("/"):
        hint = "write it as an absolute path, such as /var/cache/rdm"
        problems.append(Problem(node, f"images_cache_dir {cache}", "is relative", hint))
    return problems


def mirror_problems(node: str, variables: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong if images come through a mirror.

    Args:
        node: inventory name.
        variables: the variables that the user set, with the right types.
    """
    if variables.get("images_distribution") != "mirror" or variables.get("images_mirror"):
        return []
    hint = "name one in images_mirror, such as http://cache.example.com:5000"
    return [Problem(node, "images_distribution mirror", "has no mirror", hint)]


def unpinned(node: str, powerful: Mapping[str, str], images: Any) -> list[Problem]:
    """Return a problem for each image with full rights on the node that is not pinned to its content.

    The owner of a repository, or whoever takes it over, can move a tag to another image.

    Args:
        node: inventory name.
        powerful: variable that names such an image -> the image.
        images: `images_list`; an archive with a sha256, or a build on the node, counts as pinned.
    """
    bound = {
        canonical(str(entry.get("name")))
        for entry in (images if isinstance(images, (list, tuple)) else ())
        if isinstance(entry, dict)
        if entry.get("source") == "build" or (entry.get("source") == "archive" and entry.get("sha256"))
    }
    problems = []
    for variable, image in powerful.items():
        repository, _, digest = image.partition("@")
        if _DIGEST.fullmatch(digest) or canonical(image) in bound:
            continue
        reason = "names no digest, and what it names runs with all rights on the node"
        hint = (
            f"write {_without_tag(repository)}@sha256:…, which `docker images --digests` shows, list it in "
            "images_list as an archive with sha256, or set sriov_allow_tag: true"
        )
        problems.append(Problem(node, f"{variable} {image}", reason, hint))
    return problems


def canonical(name: str) -> str:
    """Return an image name in the form that Docker shows, for comparisons."""
    repository, at, digest = name.partition("@")
    try:
        return short_name(repository) + at + digest
    except NodeError:
        return name


def registry_of(name: str) -> str:
    """Return the registry from which the engine pulls an image of this name."""
    registry, slash, _ = canonical(name).partition("/")
    named = slash and (set(registry) & {".", ":"} or registry == "localhost")
    return registry if named else DOCKER_HUB


def _without_tag(repository: str) -> str:
    registry, slash, name = repository.rpartition("/")
    return f"{registry}{slash}{name.partition(':')[0]}"


# --- entries -----------------------------------------------------------------------------------------


def _entries(node: str, images: Any, source: str, problems: list[Problem]) -> dict[str, str]:
    """Return the listed images, canonical name -> name as written; add what is wrong to `problems`."""
    if not isinstance(images, (list, tuple)):
        problems.append(Problem(node, source, "is not a list", f"write a list of {_EXAMPLE}"))
        return {}
    found: dict[str, str] = {}
    known: dict[str, Mapping[str, Any]] = {}
    for number, entry in enumerate(images, start=1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
            problems.append(
                Problem(node, f"entry {number} of {source}", "has no name", f"write it like {_EXAMPLE}")
            )
            continue
        what = f"{entry['name']} in {source}"
        wrong = _wrong(entry)
        if wrong:
            problems.append(Problem(node, what, *wrong))
            continue
        name = canonical(entry["name"])
        before = known.setdefault(name, entry)
        if before != entry:
            origins = {_origin(before): None, _origin(entry): None}
            how = "from " + " and from ".join(origins) if len(origins) > 1 else "with different settings"
            reason = f"is there twice, {how}"
            problems.append(Problem(node, what, reason, "leave one of them"))
        found.setdefault(name, entry["name"])
    return found


def _wrong(entry: Mapping[str, Any]) -> list[str]:
    """Return reason and hint of the first fault of an entry; empty for none."""
    repository, at, digest = entry["name"].partition("@")
    source = entry.get("source")
    try:
        short_name(repository)
    except NodeError:
        return ["is not an image name", "write repository:tag"]
    if source not in SOURCES:
        reason = f"has the source {source!r}" if source else "has no source"
        return [reason, f"choose one of {', '.join(SOURCES)}"]
    if wrong := _wrong_key(entry, role_specs.options()["images_list"]["options"]):
        return wrong
    if at and (source != "registry" or not _DIGEST.fullmatch(digest)):
        return ["is not an image name", "write repository:tag, or for a registry repository@sha256:digest"]
    if source == "archive":
        if not entry.get("path"):
            return ["is an archive without path", "say where it is, such as path: /shared/training.tar"]
        sha256 = entry.get("sha256")
        if sha256 and not _SHA256.fullmatch(str(sha256)):
            return [
                f"has the sha256 {sha256}, which is not 64 hexadecimal digits",
                "give what sha256sum prints",
            ]
    build = entry.get("build")
    if source == "build" and not (isinstance(build, dict) and build.get("path")):
        return ["is a build without build.path", "say from what, such as build: {path: /shared/training}"]
    return []


def _wrong_key(entry: Mapping[str, Any], options: Mapping[str, Any], above: str = "") -> list[str]:
    """Return reason and hint of the first key that is unknown or has a value of another type.

    Args:
        entry: or a mapping in it.
        options: of the argument_specs, by key.
        above: the keys above that mapping, such as `build.`.
    """
    for key, value in entry.items():
        name = f"{above}{key}"
        if key not in options:
            choices = ", ".join(above + option for option in options)
            return [f"has the key {name}, which means nothing there", f"choose one of {choices}"]
        option = options[key]
        if isinstance(value, dict) and "options" in option:
            if wrong := _wrong_key(value, option["options"], f"{name}."):
                return wrong
        elif value is not None and ArgumentSpecValidator({key: option}).validate({key: value}).error_messages:
            return [f"has a wrong value of {name}{shown(option, value)}", value_hint(option)]
    return []


def _origin(entry: Mapping[str, Any]) -> str:
    if entry["source"] == "archive":
        return f"the archive {entry['path']}"
    return f"the build of {entry['build']['path']}" if entry["source"] == "build" else "a registry"
