# SPDX-License-Identifier: GPL-3.0-or-later
"""What the cluster wants of a node, and what is found wrong with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import Wanted
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.rails import Rail
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

OWN, UPSTREAM = "rdm-sriov", "upstream"
UPSTREAM_IMAGE = "rdma/sriov-plugin:latest"
DRIVERS_ON_A_PARENT = {"sriov", "macvlan", "ipvlan"}
"""The network drivers whose network lies on an interface of the node."""


class SriovSettings(NamedTuple):
    """What is wanted of a node's parent interfaces.

    Attributes:
        parents: names of the interfaces that the container network lies on.
        vfs: how many VFs each has to offer; 0 where the network needs none.
        firmware_vfs: how many the firmware may be told to allow, 0 where it is not to be touched.
        kernel_parameters: whether the kernel's command line may be changed.
        reboot_ok: whether the node may be rebooted for these.
        socket: at which the network plugin is to answer; empty where none is wanted.
        run_as: who starts the network plugin: `unit`, `container`, or `auto`.
        function_devices: whether the container gets the RDMA devices of just the function that it gets.
        stand_in: whether a program of the user's own is the network plugin, of which nothing is known.
    """

    parents: tuple[str, ...] = ()
    vfs: int = 0
    firmware_vfs: int = 0
    kernel_parameters: bool = False
    reboot_ok: bool = False
    socket: str = ""
    run_as: str = ""
    function_devices: bool = False
    stand_in: bool = False

    def look(self) -> dict[str, Any]:
        """Return the option `sriov` of node_facts: what a look at the node has to tell."""
        told = ("parents", "vfs", "firmware_vfs", "kernel_parameters", "socket", "function_devices")
        return {key: value for key, value in self._asdict().items() if key in told}


class Origin(NamedTuple):
    """What this inventory knows of the cluster, to compare with what a node carries of one of that name.

    Attributes:
        authority: fingerprint of the key that signs its containers' host keys; empty before it is made.
        new_keys: whether the user wants other keys than before.
        planned: whether there was an address plan before this run.
        before: the node's address in it; empty for a node that it does not have.
        replaced: fingerprints of the authorities that the cluster had before.
    """

    authority: str
    new_keys: bool
    planned: bool
    before: str
    replaced: tuple[str, ...]


class NodePlan(NamedTuple):
    """What the cluster wants of one node.

    Attributes:
        node: inventory name.
        cluster: the cluster's name.
        accelerator: `rocm`, `cuda` or `cpu`.
        my_ip: the node's address on the container network.
        subnet: that network's subnet.
        gateway: and its gateway.
        network_name: its name on the node.
        network_driver: its driver.
        network_parent: the node's interface below it, or empty.
        network_options: the driver's options.
        network_replace: whether the user agrees to make an existing network anew.
        container_name: the name of the training container.
        memlock_required: refuse when containers cannot lock all memory.
        slots: processes of a job on the node.
        own_memory: bytes of the container's own shared memory, None where it shares the node's.
        log_needed: whether the container's log says when it is ready.
        docker_socket: where the user says that the engine is; empty for the usual place.
        engine_install: whether a missing engine is installed later in the run.
        min_free_bytes: space that images need, 0 for no check.
        function_devices: whether the container gets the RDMA devices of just the function that it gets, where
            that can be known before.
        rails: the further rails of the node, each with a network of its own.
        image: what the training container runs; empty when that is not known.
        image_listed: whether images_list brings it; otherwise the node must have it.
        protect_jobs: refuse what would end a training job.
        own_devices: whether the user says which devices the container gets, and how.
        groups: the groups that the user gives the container, None for those of the node.
        userns_mode: `host` when the container is left out of the engine's user namespaces.
        unlabelled: mounts of the user that SELinux would have to allow.
        others: MY_IP -> node, of all nodes.
        rdma: whose RDMA devices the container gets: `interface`, `all`, or `auto`.
        functions: what is wanted of the node's physical functions.
        become: whether root works there.
        sriov: what is wanted of the interfaces below the network.
        plugin: the SR-IOV network plugin, `rdm-sriov` or `upstream`; empty where none is needed.
        origin: where the cluster was made; None where nobody asks for its keys.
        repairs: whether lines of others that give shells another MY_IP are commented out.
    """

    node: str
    cluster: str
    accelerator: str
    my_ip: str
    subnet: IPv4Network
    gateway: str
    network_name: str
    network_driver: str
    network_parent: str = ""
    network_options: Mapping[str, str] = {}
    network_replace: bool = False
    container_name: str = "rdm"
    memlock_required: bool = True
    slots: int = 1
    own_memory: int | None = None
    log_needed: bool = False
    docker_socket: str = ""
    engine_install: bool = False
    min_free_bytes: int = 0
    function_devices: bool = True
    rails: Sequence[Rail] = ()
    image: str = ""
    image_listed: bool = True
    protect_jobs: bool = True
    own_devices: bool = False
    groups: Sequence[str] | None = None
    userns_mode: str = ""
    unlabelled: Sequence[str] = ()
    others: Mapping[str, str] = {}
    rdma: str = "auto"
    functions: Sequence[Wanted] = ()
    become: bool = True
    sriov: SriovSettings = SriovSettings()
    plugin: str = ""
    origin: Origin | None = None
    repairs: bool = False


def parents(want: NodePlan) -> list[str]:
    """Return the interfaces below a node's first network; the inventory has a pool of several as one text."""
    pool = want.network_parent.split(",") if want.network_driver == "sriov" else [want.network_parent]
    return [name.strip() for name in pool]


def parent_variable(want: NodePlan, name: str) -> str:
    """Return the variable in which the user names an interface."""
    if name in parents(want):
        return "network_parent"
    return "container_rails" if name in [rail.parent for rail in want.rails] else "sriov_vf_pfs"


def of_rails(want: NodePlan) -> list[NodePlan]:
    """Return what is wanted of a node's further networks, as if each were its only one."""
    return [
        want._replace(
            my_ip=rail.my_ip,
            subnet=rail.subnet,
            gateway=rail.gateway,
            network_name=rail.network,
            network_parent=rail.parent,
            network_options=rail.options,
        )
        for rail in want.rails
    ]


class Findings(NamedTuple):
    """What was found wrong: problems refuse the run, warnings do not."""

    problems: list[Problem]
    warnings: list[Problem]

    def warn(self, node: str, text: str) -> None:
        """Add a warning, a whole sentence."""
        self.warnings.append(Problem(node, "", text, ""))
