# SPDX-License-Identifier: GPL-3.0-or-later
"""What a lab consists of: names, container specifications and addresses. Pure decisions.

A lab consists of objects in this machine's Docker Engine with one label. So whoever may use the engine may
make a lab, and a lab can be removed completely at any moment by its label.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.network.free_subnet import free_subnet
from ansible_collections.rdm.provision.plugins.module_utils.network.interfaces import routes_without_ip

LABEL = "rdm.provision.lab"
DIRECTORY_LABEL = "rdm.provision.lab.directory"
NODE_LABEL = "rdm.provision.lab.node"
SPEC_LABEL = "rdm.provision.lab.spec"

MAX_NODES = 100
MAX_RAILS = 8
PODMAN = "podman"
"""The other engine of nodes that are containers, instead of this release's Docker Engine."""
PODMAN_DRIVERS = ("macvlan", "bridge")
SUBNET_PREFIX = 24
FIRST_HOST = 10  # node n1 has the 11th address of the management network

IMAGES_AT = "/srv/rdm/images"
KEYS_AT = "/srv/rdm/lab"
FILES_AT = ".rdm/lab"  # below the inventory
HOST_KEY = "ssh_host_ed25519_key"
SHARED_AT = "/shared"
SLURM_GPUS = 4
"""Device files that stand in for GPUs, per node of a Slurm lab."""

# In the order of their bits; linux/capability.h.
# fmt: off
CAPABILITIES = (
    "CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
    "LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
    "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
    "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL",
    "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
    "PERFMON", "BPF", "CHECKPOINT_RESTORE",
)
# fmt: on


class LabProblem(Exception):  # noqa: N818  # one sentence for the user
    """Why a lab cannot be made as requested, in one sentence."""


class Capabilities(NamedTuple):
    """What a lab node may be given.

    Attributes:
        names: Docker's names.
        complete: they are all that this kernel has, so that --privileged works.
    """

    names: tuple[str, ...]
    complete: bool


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node of a lab.

    Attributes:
        lab: its lab's name.
        name: of the node.
        image: of its container, in this machine's engine.
        address: on the management network.
        network: the engine's name of the management network.
        directory: of the inventory.
        archives: the directory of the image archives.
        cgroup_driver: of this machine's engine.
    """

    lab: str
    name: str
    image: str
    address: str
    network: str
    directory: str
    archives: str
    cgroup_driver: str = ""


@dataclass(frozen=True, kw_only=True)
class NodeSpec(Node):
    """A node that is a container itself."""

    capabilities: Capabilities
    cgroup_version: str
    slurm: bool = False
    podman: bool = False


# --- names ----------------------------------------------------------------------------------------------


def checked_name(name: str) -> str:
    """Return the lab's name.

    Raises:
        LabProblem: it cannot be part of host names and Docker's names.
    """
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,28}[a-z0-9])?", name):
        raise LabProblem(
            f"{name!r} is no name for a lab: use up to 30 lower-case letters, digits and inner hyphens"
        )
    return name


def checked_nodes(nodes: int) -> int:
    """Return the number of nodes.

    Raises:
        LabProblem: there are none, or too many for one machine.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise LabProblem(f"a lab of {nodes} nodes cannot be made: give a number from 1 to {MAX_NODES}")
    return nodes


def node_names(count: int) -> list[str]:
    """Return the names of the first `count` nodes."""
    return [f"n{number}" for number in range(1, count + 1)]


def checked_rails(rails: int, driver: str) -> int:
    """Return the number of rails.

    Raises:
        LabProblem: there are none or too many, or this driver cannot have several.
    """
    if not 1 <= rails <= MAX_RAILS:
        raise LabProblem(f"a lab of {rails} rails cannot be made: give a number from 1 to {MAX_RAILS}")
    if rails > 1 and driver == "bridge":
        raise LabProblem(
            f"networks of the driver bridge lie on no interface: --rails {rails} goes with --driver macvlan, "
            "ipvlan or sriov"
        )
    return rails


def checked_podman(engine: str, driver: str, slurm: bool) -> bool:
    """Return whether the nodes' engine is Podman.

    Raises:
        LabProblem: it is, and the other settings do not allow it.
    """
    if engine == PODMAN and slurm:
        raise LabProblem("nodes with --slurm run no containers: leave --engine podman out")
    if engine == PODMAN and driver not in PODMAN_DRIVERS:
        raise LabProblem(
            f"Podman has no network driver {driver}: --engine podman goes with --driver macvlan or bridge"
        )
    return engine == PODMAN


def port(node: str) -> str:
    """Return the switch's port of a node, on its first rail."""
    return f"port{node[1:]}"


def ports_of(node: str, ports: Iterable[str]) -> list[str]:
    """Return a node's ports among those of the switch, of all rails."""
    first = port(node)
    return [name for name in ports if name == first or name.startswith(first + "r")]


def is_plugged(node: str, ports: Iterable[str], rails: int) -> bool:
    """Whether a node's cables are plugged in on all rails; after an interruption, only some may be."""
    return len(ports_of(node, ports)) >= rails


def object_name(lab: str, part: str = "") -> str:
    """Return the name of a lab's container, volume or (without part) network."""
    return f"rdm-lab-{lab}-{part}" if part else f"rdm-lab-{lab}"


# --- addresses ------------------------------------------------------------------------------------------


def management_subnet(routes: str, networks: Iterable[Mapping[str, Any]], refused: Iterable[str] = ()) -> str:
    """Return a free subnet for the management network.

    Args:
        routes: the text of /proc/net/route.
        networks: the engine's networks, as its API returns them.
        refused: subnets that the engine has refused.

    Raises:
        LabProblem: no subnet is free.
    """
    used: set[str] = set(refused)
    used.update(route["destination"] for route in routes_without_ip(routes))
    used.discard("default")
    for network in networks:
        for config in (network.get("IPAM") or {}).get("Config") or []:
            if "." in config.get("Subnet", ""):
                used.add(config["Subnet"])
    found = free_subnet(used, SUBNET_PREFIX)
    if found is None:
        raise LabProblem("no private /24 network is free on this machine for the lab's management network")
    return str(found)


def node_address(subnet: str, node: str) -> str:
    """Return the management address of a node."""
    return str(ipaddress.IPv4Network(subnet)[FIRST_HOST + int(node[1:])])


# --- containers -----------------------------------------------------------------------------------------


def capabilities(status: str, last: int) -> Capabilities:
    """Return the capabilities that a node may be given.

    Args:
        status: the text of /proc/PID/status of a process with the engine's bounding set.
        last: the number in /proc/sys/kernel/cap_last_cap.
    """
    match = re.search(r"^CapBnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    mask = int(match[1], 16) if match else 0
    known = [name for bit, name in enumerate(CAPABILITIES) if bit <= last and mask >> bit & 1]
    return Capabilities(tuple(known), complete=mask & (1 << last + 1) - 1 == (1 << last + 1) - 1)


def labels(lab: str, **more: str) -> dict[str, str]:
    """Return the labels of a lab's object; the names in `more` are prefixed with the lab's label."""
    return {LABEL: lab, **{f"{LABEL}.{key}": value for key, value in more.items()}}


def network_body(lab: str, subnet: str, directory: str) -> dict[str, Any]:
    """Return the specification of the management network."""
    gateway = str(ipaddress.IPv4Network(subnet)[1])
    return {
        "name": object_name(lab),
        "driver": "bridge",
        "ipam": {"Config": [{"Subnet": subnet, "Gateway": gateway}]},
        "labels": labels(lab, directory=directory),
    }


def volume_body(lab: str, node: str) -> dict[str, Any]:
    """Return the specification of the volume for a node's own engine."""
    return {"name": object_name(lab, node), "labels": labels(lab, node=node)}


def shared_volume_body(lab: str) -> dict[str, Any]:
    """Return the specification of the volume that the nodes of a Slurm lab share."""
    return {"name": object_name(lab, "shared"), "labels": labels(lab)}


def rails_environment(rails: int) -> dict[str, Any]:
    """Return the environment that tells a switch or a virtual machine's container the number of rails."""
    return {"Env": [f"RDM_LAB_RAILS={rails}"]} if rails > 1 else {}


def switch_body(lab: str, image: str, rails: int = 1) -> dict[str, Any]:
    """Return the specification of the switch, which reaches network namespaces by the nodes' processes."""
    return stamped(
        {
            **rails_environment(rails),
            "Image": image,
            "Cmd": ["rdm-lab", "switch"],
            "Hostname": "switch",
            "Labels": labels(lab),
            "HostConfig": {
                "NetworkMode": "none",
                "PidMode": "host",
                "CapDrop": ["ALL"],
                "CapAdd": ["NET_ADMIN"],
                "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
            },
        }
    )


def container_body(
    node: Node, command: list[str], state_at: str, host: dict[str, Any], *binds: str, **more: str
) -> dict[str, Any]:
    """Return the specification of a node's container.

    Args:
        node: the node.
        command: what runs in it.
        state_at: the mount point of its volume.
        host: further keys of HostConfig for its kind.
        binds: binds besides archives and keys.
        more: labels of its kind.
    """
    own = [
        f"{object_name(node.lab, node.name)}:{state_at}",
        f"{node.archives}:{IMAGES_AT}:ro",
        f"{node.directory}/{FILES_AT}/{node.name}:{KEYS_AT}:ro",
    ]
    return {
        "Image": node.image,
        "Cmd": command,
        "Hostname": node.name,
        "StopSignal": "SIGTERM",
        "Labels": labels(node.lab, node=node.name, **more),
        "HostConfig": {
            "NetworkMode": node.network,
            "Init": True,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m"}},
            "Binds": [*own, *binds],
            # With cgroupfs, all containers of an engine together would get the CPU share of one process.
            **({"CgroupParent": "/"} if node.cgroup_driver == "cgroupfs" else {}),
            **host,
        },
        # Nodes resolve each other's names, like the hosts of a site.
        "NetworkingConfig": {
            "EndpointsConfig": {
                node.network: {"IPAMConfig": {"IPv4Address": node.address}, "Aliases": [node.name]}
            }
        },
    }


def node_body(node: NodeSpec) -> dict[str, Any]:
    """Return the specification of a node's container, as much of a host as this machine allows."""
    host: dict[str, Any] = {
        "Tmpfs": {"/run": "exec,mode=755", "/tmp": "exec,mode=1777"},  # noqa: S108  # the node's own
        "ShmSize": 2 << 30,  # as on a machine; Docker's default is 64 MB
        "CgroupnsMode": "private",
    }
    binds = []
    if node.capabilities.complete:
        host["Privileged"] = True
    else:
        host["CapAdd"] = list(node.capabilities.names)
        host["SecurityOpt"] = ["seccomp=unconfined", "apparmor=unconfined", "label=disable"]
        # systempaths=unconfined of the docker command.
        host["MaskedPaths"] = []
        host["ReadonlyPaths"] = []
        host["DeviceCgroupRules"] = ["a *:* rwm"]
    if node.cgroup_version == "1" and not node.podman:
        host["CgroupnsMode"] = "host"
        binds.append("/sys/fs/cgroup:/sys/fs/cgroup")
    if node.slurm:
        binds.append(f"{object_name(node.lab, 'shared')}:{SHARED_AT}")
    programs = {"rdm-slurm-node": node.slurm, "rdm-podman-node": node.podman}
    command = next(([name] for name, it in programs.items() if it), ["rdm-lab", "init"])
    state_at = f"/var/lib/{'containers' if node.podman else 'docker'}"
    environment = {"Env": [f"RDM_LAB_GPUS={SLURM_GPUS}"]} if node.slurm else {}
    return stamped({**environment, **container_body(node, command, state_at, host, *binds)})


def stamped(body: dict[str, Any]) -> dict[str, Any]:
    """Label a container with a digest of its specification, to detect changes later."""
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
    return {**body, "Labels": {**body["Labels"], SPEC_LABEL: digest}}


# --- changes --------------------------------------------------------------------------------------------


def stale(found: Mapping[str, Any] | None, body: Mapping[str, Any]) -> bool:
    """Whether an existing container was made from another specification.

    Args:
        found: the container as /containers/json lists it, or None.
        body: its specification now.
    """
    return found is not None and (found.get("Labels") or {}).get(SPEC_LABEL) != body["Labels"][SPEC_LABEL]
