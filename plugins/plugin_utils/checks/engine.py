# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a node's engine: it answers, is new enough, and has room for the images."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NO_ENGINE, Engine
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names, size_text
from ansible_collections.rdm.provision.plugins.module_utils.docker import podman
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DEFAULT_SOCKET
from ansible_collections.rdm.provision.plugins.module_utils.images.archive_images import room_to_load
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import DRIVERS_ON_AN_INTERFACE
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import canonical

OLDEST_ENGINE = (20, 10)
OLDEST_API = (1, 41)
OLDEST_PODMAN = (4, 3)
# The Docker-compatible API offers NVIDIA GPUs (by CDI) from this version.
_PODMAN_WITH_GPUS = (5, 4)
_DOCKER_SOCKETS = ("", "/run/docker.sock", DEFAULT_SOCKET)
# Reason of node_facts why the cluster's files cannot be written -> sentence and hint.
_NOT_WRITABLE = {
    "read-only": ("is on a file system that is read-only", "mount it read-write, or set rdm_config_dir"),
    "full": ("is on a file system that is full", "free some space there, or set rdm_config_dir"),
    "forbidden": ("may not be written to by this user", "let the user write there, or set rdm_config_dir"),
}


def engine(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report a node without a usable engine, unless the run installs one."""
    docker = facts["docker"]
    others = facts["other_engines"]
    if not docker:
        if want.run.install_engine and facts["docker_state"] in ("absent", "stopped"):
            if facts["docker_state"] == "absent" and want.engine.socket not in (
                *_DOCKER_SOCKETS,
                podman.SOCKET,
            ):
                reason = "is not where an engine that docker_engine_install brings would answer"
                hint = (
                    f"leave rdm_docker_socket out ({DEFAULT_SOCKET} is the usual one), or set "
                    f"{podman.SOCKET} for Podman"
                )
                value = f"rdm_docker_socket {want.engine.socket}"
                findings.refuse(want.node, value, reason, hint)
            return
        hints = {
            "absent": _to_have_an_engine(want, "install Docker Engine 20.10 or newer", elsewhere=not others),
            "stopped": _to_have_an_engine(want, "start the Docker daemon", elsewhere=not others),
            "paused": "let the Docker daemon go on",
            "forbidden": "add the user to group docker, or set rdm_become: true",
        }
        reason = str(facts["docker_error"] or "Docker cannot be used").rstrip(". ")
        hint = hints.get(str(facts["docker_state"]), "make sure that the Docker daemon runs")
        for other in others:
            reason += f"; {_described(other)}"
            if other["address"].startswith("/") and _fits(want, other["kind"] == "rootless"):
                hint = f"set rdm_docker_socket: {other['address']}, or {hint}"
        findings.refuse(want.node, "", reason, hint)
        return
    for other in others:
        if other["kind"] == "context":
            findings.warn(
                want.node,
                f"{_described(other)}, and the cluster is on {docker['socket']} (rdm_docker_socket says "
                f"otherwise): `docker --context default` shows {other['user']} what runs there.",
            )
    if not _fits(want, "rootless" in docker["security_options"]):
        findings.refuse(
            want.node,
            f"the engine at {docker['socket']}",
            f"is rootless, and network_driver {want.network_driver} needs the node's own interfaces",
            "use an engine that root runs (rdm_docker_socket), or network_driver bridge on a single node",
        )
    too_old = "install Docker Engine 20.10 or newer"
    if docker["engine"] == "podman":
        _podman(want, docker, findings)
    elif version_of(docker["version"]) < OLDEST_ENGINE:
        findings.refuse(want.node, f"Docker Engine {docker['version']}", "is too old", too_old)
    elif version_of(docker["api_version"]) < OLDEST_API:
        findings.refuse(want.node, f"Docker API {docker['api_version']}", "is too old", too_old)
    if not facts.get("python_requests", True) and not want.run.install_engine:
        findings.refuse(
            want.node,
            "the Python package requests",
            "is missing; the modules that talk to Docker need it",
            "install python3-requests",
        )


def _podman(want: DesiredState, docker: Engine, findings: Findings) -> None:
    """Report what Podman cannot do, and refuse it if the user has not chosen it."""
    release, name = docker["version"], f"Podman {docker['version']}"
    use_docker = "use a Docker Engine"
    if want.engine.socket in _DOCKER_SOCKETS:
        reason = f"answers at {docker['socket']}, not a Docker Engine"
        hint = (
            f"set rdm_docker_socket: {podman.SOCKET} to use Podman, or install Docker Engine 20.10 or newer"
        )
        findings.refuse(want.node, name, reason, hint)
        return
    if version_of(release) < OLDEST_PODMAN:
        hint = f"install Podman {'.'.join(map(str, OLDEST_PODMAN))} or newer"
        findings.refuse(want.node, name, "is too old", hint)
    if "rootless" in docker["security_options"] and _fits(want, rootless=True):
        hint = f"set rdm_docker_socket: {podman.SOCKET}, which is root's, and leave rdm_become true"
        findings.refuse(want.node, name, "runs as a user", hint)
    drivers = docker["network_plugins"]
    if want.network_driver not in drivers:
        lacks = "takes no network plugins of Docker's" if want.network_driver == "sriov" else "lacks it"
        hint = f"choose network_driver {' or '.join(drivers)}, or {use_docker}"
        value = f"network_driver {want.network_driver}"
        findings.refuse(want.node, value, f"cannot be had: {name} {lacks}", hint)
    if want.accelerator == "cuda" and not want.own_devices and version_of(release) < _PODMAN_WITH_GPUS:
        reason = f"cannot be had: the Docker-compatible API of {name} gives out no NVIDIA GPUs"
        hint = f"install Podman 5.4 or newer, or {use_docker}"
        findings.refuse(want.node, "rdm_accelerator cuda", reason, hint)


def reported(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Pass on the findings of `node_facts`."""
    for finding in facts["findings"]:
        text = str(finding["text"]).rstrip(". ")
        if finding["level"] == "error":
            findings.refuse(want.node, "", text, "")
        else:
            findings.warn(want.node, f"{text}.")


def user_namespaces(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Refuse an engine that remaps users: the container's root could not read files of the node's root."""
    if (
        "userns" not in (facts["docker"] or NO_ENGINE)["security_options"]
        or want.container.userns_mode == "host"
    ):
        return
    reason = "hides the cluster's keys, job directories and devices from the containers' root"
    hint = (
        "set container_userns_mode: host, which runs the cluster's containers without it, or take it out of "
        "the engine's daemon.json"
    )
    findings.refuse(want.node, "userns-remap of the engine", reason, hint)


def selinux(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn of the user's mounts without an SELinux label; the cluster's own mounts have one."""
    mounts = want.container.unlabelled
    if mounts and "selinux" in (facts["docker"] or NO_ENGINE)["security_options"]:
        findings.warn(
            want.node,
            f"SELinux may keep the container from {names(mounts)} of container_volumes: give them "
            "the mode z (or Z for this container alone), or set container_security_opts: [label=disable].",
        )


def log_driver(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report a log driver that drops the line by which the container is known to be ready."""
    if want.container.ready_line and (facts["docker"] or NO_ENGINE)["log_driver"] == "none":
        reason = "keeps no line of a container's log, and one says that the container's sshd is up"
        hint = "set another in /etc/docker/daemon.json, such as local, and restart the engine"
        findings.refuse(want.node, "the engine's log driver none", reason, hint)


def config_dir(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report a directory where the cluster's files cannot be written."""
    there = facts["config_dir"]
    if why := there["why"]:
        findings.refuse(want.node, str(there["path"]), *_NOT_WRITABLE[why])


def image(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report an unlisted image that the node lacks; facts do not show images named by a digest."""
    docker, image = facts["docker"], want.container.image
    if not docker or not image or want.image_listed or "@" in image:
        return
    found = docker["images"]
    if canonical(image) not in {tag for one in found for tag in one["tags"]}:
        findings.refuse(
            want.node,
            f"container_image {image}",
            "is not on the node, and images_list is empty",
            "list it in images_list, or load it there",
        )


def archives(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report each image archive on the node that cannot be loaded."""
    for archive in facts.get("archives") or []:
        path, problem = str(archive["path"]), str(archive["problem"])
        if problem:
            value = path if problem.startswith(f"{path} ") else ""
            reason = problem[len(value) :].lstrip()
            findings.refuse(want.node, value, reason, str(archive["hint"]))


def disk(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report an engine's disk without room for the images to load."""
    disk = facts["disk"]
    if not disk["total"]:
        return
    classic = (facts["docker"] or NO_ENGINE)["image_store"] == "classic"
    to_load = room_to_load(facts.get("archives") or [], classic)
    if int(disk["free"]) < to_load:
        free, needed = size_text(disk["free"]), size_text(to_load)
        what = f"has {free} free, and loading the image archives needs {needed}"
        hint = "free some space there (docker image prune)"
    elif int(disk["free"]) < want.run.min_free_bytes:
        what = f"has {size_text(disk['free'])} free, and images need {size_text(want.run.min_free_bytes)}"
        hint = "free some space there (docker image prune), or lower images_min_free_bytes"
    else:
        return
    findings.refuse(want.node, str(disk["path"]), what, hint)


def _to_have_an_engine(want: DesiredState, do: str, *, elsewhere: bool) -> str:
    """Return the hint that gets the cluster an engine; `elsewhere`: one may run at an unknown socket."""
    if want.engine.socket:
        # An engine that this run installs listens on the default socket.
        return f"correct rdm_docker_socket if {want.engine.socket} is the wrong path, or {do}"
    if elsewhere:
        return f"{do}, set docker_engine_install: true, or say where its socket is with rdm_docker_socket"
    return f"{do}, or set docker_engine_install: true"


def _described(other: Mapping[str, Any]) -> str:
    """Return a description of another engine that the user may mean."""
    if other["kind"] == "rootless":
        return f"user {other['user']} has a rootless one at {other['address']}"
    at = "is not on this node" if "://" in other["address"] else f"is at {other['address']}"
    return f"the engine of {other['user']}'s Docker context {other['name']} {at}"


def _fits(want: DesiredState, rootless: bool) -> bool:
    """Return whether the engine can create the network: a rootless one has its own network stack."""
    return not rootless or want.network_driver not in DRIVERS_ON_AN_INTERFACE


def version_of(text: Any) -> tuple[int, ...]:
    """Return `20.10.24+dfsg1` as (20, 10, 24); an unknown version counts as (0,)."""
    match = re.match(r"\d+(\.\d+)*", str(text or ""))
    return tuple(int(part) for part in match.group().split(".")) if match else (0,)
