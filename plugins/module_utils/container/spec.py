# SPDX-License-Identifier: GPL-3.0-or-later
"""Which devices, groups, limits and capabilities the training container of a node gets."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NO_ENGINE, NodeFacts
from ansible_collections.rdm.provision.plugins.module_utils.docker.engine_facts import NVIDIA_CDI

RDMA_CM = "/dev/infiniband/rdma_cm"
SHARED_MEMORY = 2**30
"""Bytes of shared memory that NCCL and RCCL need for the processes of a node, by their documentation."""


class ContainerSpec(NamedTuple):
    """Options of a container, in the form that `community.docker.docker_container` takes.

    Attributes:
        devices: `host path:container path:permissions`.
        groups: extra groups, by number where the node has them.
        device_requests: requests to device drivers, such as the NVIDIA runtime's.
        ulimits: `name:soft:hard`; memlock in bytes, -1 for unlimited.
        capabilities: capabilities to add.
        shm_size: size of its own shared memory.
    """

    devices: List[str]
    groups: List[str]
    device_requests: List[Dict[str, Any]]
    ulimits: List[str]
    capabilities: List[str]
    shm_size: str


def container_spec(facts: NodeFacts, accelerator: str, *interfaces: str, rdma: bool = True) -> ContainerSpec:
    """Return the hardware options of a node's container.

    Args:
        facts: what `node_facts` found on the node.
        accelerator: `rocm`, `cuda` or `cpu`.
        interfaces: the parents of the container's interfaces. The container gets the RDMA devices of their
            functions and of these functions' VFs. No interface means all devices.
        rdma: whether to include RDMA devices; False where they come with the container's VF.
    """
    paths: List[str] = []
    groups: List[str] = []
    requests: List[Dict[str, Any]] = []
    capabilities: List[str] = []
    if accelerator == "rocm":
        # The container's /etc/group may have other numbers for these groups.
        ids = facts["groups"]
        paths += ["/dev/kfd", "/dev/dri"]
        groups.append(str(ids["video"]) if ids.get("video") is not None else "video")
        groups += [str(ids["render"])] if ids.get("render") is not None else []
        owners = facts["devices"].get("groups") or []
        groups += [str(gid) for gid in owners if str(gid) not in groups]
    elif accelerator == "cuda":
        if nvidia_way(facts) == "cdi":
            requests.append({"driver": "cdi", "count": 0, "device_ids": [NVIDIA_CDI + "=all"]})
        else:
            requests.append({"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]})
    of_rdma = rdma_devices(facts, *interfaces).paths if rdma else []
    if of_rdma:
        paths += of_rdma
        capabilities.append("IPC_LOCK")
    limit = memlock_limit(facts)
    return ContainerSpec(
        devices=[f"{path}:{path}:rwm" for path in paths],
        groups=groups,
        device_requests=requests,
        ulimits=[f"memlock:{limit}:{limit}"],
        capabilities=capabilities,
        shm_size=own_shm_size(facts),
    )


def own_shm_size(facts: NodeFacts) -> str:
    """Return the size of a container's own shared memory: about the node's.

    It is a power of two, since the node's size varies a little with the kernel.
    """
    gibibytes = max(int(facts["shared_memory"] or 0), SHARED_MEMORY) // SHARED_MEMORY
    return "{0}G".format(2 ** (gibibytes.bit_length() - 1))


def nvidia_way(facts: NodeFacts) -> str:
    """Return how containers on the node get NVIDIA GPUs: toolkit, cdi, or "" if they cannot."""
    docker = facts["docker"] or NO_ENGINE
    output = docker["nvidia"]
    # Podman ignores the toolkit's hook in requests through its API.
    if (facts["nvidia_hook"] and docker["engine"] != "podman") or "runtime" in output:
        return "toolkit"
    return "cdi" if "cdi" in output else ""


def memlock_limit(facts: NodeFacts) -> int:
    """Return the locked-memory limit in bytes that a container can get on the node; -1 for unlimited.

    Where no engine is installed yet it is unlimited.
    """
    memlock = facts["memlock"]
    if not facts["docker"] or memlock["raise_allowed"]:
        return -1
    return int(memlock["hard"])


def memlock_shortage(facts: NodeFacts) -> Optional[str]:
    """Return why containers on the node cannot lock all memory; None if they can."""
    limit = memlock_limit(facts)
    if limit == -1:
        return None
    return f"memlock is limited to {limit} bytes and the Docker daemon may not raise it"


class RdmaDevices(NamedTuple):
    """The RDMA devices of a node that its container gets.

    Attributes:
        paths: their character devices, each once.
        left_out: names of the RDMA devices that it does not get.
    """

    paths: List[str]
    left_out: List[str]


def rdma_devices(facts: NodeFacts, *interfaces: str) -> RdmaDevices:
    """Return the RDMA devices of the interfaces' functions, and of these functions' VFs.

    Args:
        facts: what `node_facts` found on the node.
        interfaces: names of interfaces of the node; they need not exist yet, such as a VLAN. None means all
            devices.
    """
    named = {part for name in interfaces for part in (name, name.rpartition(".")[0])} - {""}
    functions = {
        str(address)
        for physical in facts["sriov"]
        if physical["pf"] in named
        for address in [physical["pci"], *(virtual["pci"] for virtual in physical["vfs"])]
    }
    paths: List[str] = []
    left_out: List[str] = []
    for device in facts["infiniband"]:
        below = device["pci"] in functions or named.intersection(device["netdevs"])
        if below or not named:
            paths += device["char_devices"]
        else:
            left_out.append(str(device["name"]))
    if paths and facts["devices"].get("rdma_cm"):
        paths.append(RDMA_CM)
    return RdmaDevices(list(dict.fromkeys(paths)), left_out)
