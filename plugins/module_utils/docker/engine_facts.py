# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of a Docker Engine, as far as the plan needs them.

read() queries the engine; all other functions are pure.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import (
    Container,
    Engine,
    Image,
    Network,
)
from ansible_collections.rdm.provision.plugins.module_utils.constants import JOBS, LABEL_ROLE
from ansible_collections.rdm.provision.plugins.module_utils.docker import registry_mirrors
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI

NVIDIA_CDI = "nvidia.com/gpu"
"""The kind of NVIDIA's GPUs in the Container Device Interface."""

# The pools of an engine without default-address-pools (moby, ipamutils).
BUILT_IN_POOLS = (
    "172.17.0.0/16",
    "172.18.0.0/16",
    "172.19.0.0/16",
    "172.20.0.0/14",
    "172.24.0.0/14",
    "172.28.0.0/14",
    "192.168.0.0/16",
)

_SYSTEM_CONTAINERD = "/run/containerd/containerd.sock"
# Lines such as `|-- 192.169.16.100` with `/32 host LOCAL` below it (net/ipv4/fib_trie.c).
_LOCAL_ADDRESS = re.compile(r"\|-- (\S+)\n +/32 host LOCAL")


def read(api: DockerAPI, daemon_json: str) -> Engine:
    """Return the state of the engine, in five requests.

    Args:
        api: the engine.
        daemon_json: the text of its configuration file; "" if there is none or it cannot be read.

    Raises:
        DockerProblem: the query failed.
    """
    version = api.version()
    info = api.get("/info")
    found = api.get("/containers/json", all=True)
    return {
        "engine": "podman" if api.podman else "docker",
        "socket": api.socket,
        "version": version.get("Version", ""),
        "api_version": version.get("ApiVersion", ""),
        "min_api_version": version.get("MinAPIVersion", ""),
        "image_store": image_store(info),
        "image_dir": image_dir(info),
        "registry_mirrors": registry_mirrors.used(info),
        "log_driver": info.get("LoggingDriver", ""),
        "default_address_pools": default_address_pools(info, daemon_json),
        "swarm_address_pools": swarm_address_pools(info),
        "networks": networks(api.get("/networks"), found),
        "containers": containers(found),
        "images": images(api.get("/images/json")),
        "network_plugins": (info.get("Plugins") or {}).get("Network") or [],
        "security_options": security_options(info),
        "nvidia": nvidia(info),
    }


def security_options(info: dict[str, Any]) -> list[str]:
    """Return the names of the engine's security options, such as seccomp, selinux, userns and rootless."""
    words = (option.partition(",")[0] for option in info.get("SecurityOptions") or [])
    return [word[len("name=") :] for word in words if word.startswith("name=")]


def nvidia(info: dict[str, Any]) -> list[str]:
    """Return the ways in which the engine reports that it provides NVIDIA GPUs: runtime, cdi.

    It does not report the hook of NVIDIA's toolkit, which it finds in its PATH.
    """
    ways = ["runtime"] if "nvidia" in (info.get("Runtimes") or {}) else []
    discovered = (str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or [])
    if any(name.startswith(NVIDIA_CDI + "=") for name in discovered) or any(
        _mentions(directory, NVIDIA_CDI) for directory in info.get("CDISpecDirs") or []
    ):
        ways.append("cdi")
    return ways


def image_store(info: dict[str, Any]) -> str:
    """Return the image store, containerd or classic; it decides what an image's ID is the digest of."""
    status = dict(pair for pair in info.get("DriverStatus") or [] if len(pair) == 2)
    return "containerd" if status.get("driver-type") == "io.containerd.snapshotter.v1" else "classic"


def image_dir(info: dict[str, Any]) -> str:
    """Return the directory that holds the images."""
    address = (info.get("Containerd") or {}).get("Address", "")
    if image_store(info) == "containerd" and address == _SYSTEM_CONTAINERD:
        return "/var/lib/containerd"
    return info.get("DockerRootDir", "")


def blob_dir(info: dict[str, Any]) -> str:
    """Return the directory in which containerd keeps layers by their sha256; empty with the classic store."""
    if image_store(info) == "classic":
        return ""
    root = image_dir(info)
    if root == info.get("DockerRootDir", ""):
        root = os.path.join(root, "containerd/daemon")  # of the containerd that dockerd starts
    return os.path.join(root, "io.containerd.content.v1.content/blobs/sha256")


def default_address_pools(info: dict[str, Any], daemon_json: str) -> list[str]:
    """Return the pools from which the engine allocates subnets."""
    pools = info.get("DefaultAddressPools")
    if pools:
        return [pool["Base"] for pool in pools]
    try:
        configured = json.loads(daemon_json or "{}").get("default-address-pools") or []
        pools = [pool["base"] for pool in configured if pool["size"]]
    except (ValueError, KeyError, TypeError, AttributeError):
        pools = []
    return pools or list(BUILT_IN_POOLS)


def swarm_address_pools(info: dict[str, Any]) -> list[str]:
    """Return the pools from which the engine's swarm allocates subnets of overlay networks.

    Only managers know the configured pools; for a worker these are the defaults.
    """
    swarm = info.get("Swarm") or {}
    if swarm.get("LocalNodeState") != "active":
        return []
    cluster = swarm.get("Cluster") or {}
    return cluster.get("DefaultAddrPool") or ["10.0.0.0/8"]


def networks(found: list[dict[str, Any]], all_containers: list[dict[str, Any]]) -> list[Network]:
    """Return the networks; `containers` names the attached ones, also if stopped."""
    return [
        {
            "id": network["Id"],
            "name": network["Name"],
            "driver": network.get("Driver", ""),
            "subnets": [
                {"subnet": pool.get("Subnet", ""), "gateway": pool.get("Gateway", "")}
                for pool in (network.get("IPAM") or {}).get("Config") or []
            ],
            "options": network.get("Options") or {},
            "labels": network.get("Labels") or {},
            "containers": [
                listed_name(container)
                for container in all_containers
                if any(
                    network["Id"] == end.get("NetworkID") or network["Name"] == name
                    for name, end in _attachments(container).items()
                )
            ],
        }
        for network in found
    ]


def containers(found: list[dict[str, Any]]) -> list[Container]:
    """Return the containers; `networks` maps each network's name to the container's address.

    For a stopped container it is the requested address. `job_directory` is the directory on the node that a
    training container mounts at /jobs; empty for others.
    """
    return [
        {
            "id": container["Id"],
            "name": listed_name(container),
            "image": container.get("Image", ""),
            "state": container.get("State", ""),
            "labels": container.get("Labels") or {},
            "networks": {
                name: end.get("IPAddress") or (end.get("IPAMConfig") or {}).get("IPv4Address", "")
                for name, end in _attachments(container).items()
            },
            "job_directory": job_directory(container) if _trains(container) else "",
        }
        for container in found
    ]


def job_directory(container: dict[str, Any]) -> str:
    """Return the directory on the node that a listed container mounts at /jobs; empty for none."""
    mounts = container.get("Mounts") or []
    return next((str(mount.get("Source", "")) for mount in mounts if mount.get("Destination") == JOBS), "")


def lost_addresses(container: Mapping[str, Any]) -> list[str]:
    """Return the addresses of a running container that none of its interfaces has.

    If an interface vanishes, such as that of a removed VF, the engine does not notice and still reports the
    address. So the kernel is queried.

    Args:
        container: as the engine shows it.
    """
    if not container["State"].get("Running"):
        return []
    try:
        with open(f"/proc/{container['State']['Pid']}/net/fib_trie", encoding="ascii") as file:
            has = set(_LOCAL_ADDRESS.findall(file.read()))
    except (OSError, KeyError):
        return []  # it has just ended, or may not be read
    addresses = [str(end.get("IPAddress") or "") for end in _attachments(dict(container)).values()]
    return [address for address in addresses if address and address not in has]


def images(found: list[dict[str, Any]]) -> list[Image]:
    """Return the images: id, tags."""
    return [
        {"id": image["Id"], "tags": [tag for tag in image.get("RepoTags") or [] if tag != "<none>:<none>"]}
        for image in found
    ]


def _mentions(directory: str, kind: str) -> bool:
    """Return whether a directory has a CDI specification for a kind of devices."""
    try:
        names = os.listdir(directory)
    except OSError:
        return False
    for name in names:
        if name.endswith((".json", ".yaml", ".yml")):
            try:
                with open(os.path.join(directory, name), encoding="utf-8", errors="replace") as file:
                    if kind in file.read():
                        return True
            except OSError:
                continue
    return False


def _trains(container: dict[str, Any]) -> bool:
    return (container.get("Labels") or {}).get(LABEL_ROLE) == "container"


def listed_name(container: Mapping[str, Any]) -> str:
    """Return the name of a listed container, or its short id if it has no name."""
    # A legacy link adds names such as /other/alias.
    names = [name[1:] for name in container.get("Names") or [] if name.count("/") == 1]
    return names[0] if names else container["Id"][:12]


def _attachments(container: dict[str, Any]) -> dict[str, dict[str, Any]]:
    attached = (container.get("NetworkSettings") or {}).get("Networks") or {}
    return {name: end or {} for name, end in attached.items()}
