# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired state of one node: a part for each role, made from the node's variables and the plan.

A role's YAML gets its part from the lookup `rdm.provision.desired`, with or without a plan. Checks compare
the parts with what was gathered from the node. The node's state file keeps the digest of each part, so a role
has work only if its part differs from that of the last good run; other edits of the collection make no work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, cast

from ansible_collections.rdm.provision.plugins.module_utils.sriov.desired_vfs import DesiredVfs
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.container import (
    DesiredContainer,
    absent_container,
    container_steps,
    desired_container,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.docker_engine import (
    DesiredEngine,
    desired_docker_engine,
    docker_engine_steps,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.hostfile import (
    absent_hostfile,
    desired_hostfile,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.images import (
    DesiredImages,
    desired_images,
    images_steps,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.my_ip import absent_my_ip, desired_my_ip
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.network import (
    DesiredNetwork,
    DockerNetwork,
    absent_network,
    desired_network,
    network_steps,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.owned_files import OwnedFiles
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry, needed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_keys import Origin
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.python_env import (
    desired_python_env,
    python_env_steps,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov import (
    DesiredSriov,
    desired_sriov,
    sriov_steps,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.ssh_config import (
    absent_ssh_config,
    desired_ssh_config,
    ssh_config_steps,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state_file import desired_state_file
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.verify import desired_verify, verify_steps
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import (
    DRIVERS_ON_AN_INTERFACE,
    OWN,
    plugin_of,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

_OF_DEVICES = {
    "devices": "container_devices",
    "device_requests": "container_device_requests",
    "groups": "container_groups",
}

Make = Callable[[NodeVariables, PlanEntry], Any]
Steps = Callable[[Any, NodeVariables, PlanEntry, Observed], dict[str, Any]]


class Part(NamedTuple):
    """How a role's part of the desired state is made.

    Attributes:
        make: returns the part; ValueError if the variables contradict each other.
        absent: returns the list that removes it, if a list suffices.
        version: raise it when a change of the role's tasks or modules leaves something else on a node for the
            same part; then every node has work once.
        steps: returns what else the role's tasks read: which of them run, from the part and from what was
            observed on the node. It is not in the digest, since it may differ in each run.
    """

    make: Make
    absent: Make | None = None
    version: int = 1
    steps: Steps | None = None


PARTS: Mapping[str, Part] = {
    "docker_engine": Part(desired_docker_engine, steps=docker_engine_steps),
    "images": Part(desired_images, steps=images_steps),
    "sriov": Part(desired_sriov, steps=sriov_steps),
    "network": Part(desired_network, absent_network, steps=network_steps),
    "my_ip": Part(desired_my_ip, absent_my_ip),
    "container": Part(desired_container, absent_container, steps=container_steps),
    "hostfile": Part(desired_hostfile, absent_hostfile),
}
"""The parts of roles with a state file, in the order in which a run takes the roles."""

OTHER_PARTS: Mapping[str, Part] = {
    "python_env": Part(desired_python_env, steps=python_env_steps),
    "ssh_config": Part(desired_ssh_config, absent_ssh_config, steps=ssh_config_steps),
    "state_file": Part(desired_state_file),
    "verify": Part(desired_verify, steps=verify_steps),
}
"""The parts whose digests are in no state file."""


class Parts(TypedDict, total=False):
    """The parts of one node, by role."""

    docker_engine: DesiredEngine
    images: DesiredImages
    sriov: DesiredSriov
    network: DesiredNetwork
    my_ip: OwnedFiles
    container: DesiredContainer
    hostfile: OwnedFiles


class Attachment(NamedTuple):
    """One of a node's container networks.

    Attributes:
        network: the network.
        interface: the node's interface that it uses; a pool of several is one comma-separated text.
        my_ip: the node's address on it.
    """

    network: DockerNetwork
    interface: str
    my_ip: str


class RunOptions(NamedTuple):
    """How a run may reach the desired state; not part of that state.

    Attributes:
        install_engine: whether to install a missing engine.
        replace_network: whether an existing network may be recreated.
        protect_jobs: whether to refuse what would end a running job.
        memlock_required: whether to refuse if containers cannot lock all memory.
        min_free_bytes: free space that images need; 0 for no check.
        distribution: `images_distribution`.
        repair_strays: whether to comment out others' lines that set another MY_IP in shells.
        reboot: whether a node may be rebooted for settings of firmware and kernel.
    """

    install_engine: bool = False
    replace_network: bool = False
    protect_jobs: bool = True
    memlock_required: bool = True
    min_free_bytes: int = 0
    distribution: str = "auto"
    repair_strays: bool = False
    reboot: bool = False


class DesiredState(NamedTuple):
    """The desired state of one node.

    Attributes:
        node: inventory name.
        cluster: the cluster's name.
        accelerator: `rocm`, `cuda` or `cpu`.
        slots: processes of a job on the node.
        become: whether tasks run as root there.
        my_ip: the node's address on the container network.
        parts: role -> its part. With invalid variables, only the engine's part is certain to be there.
        undecided: the roles whose parts are not fully known before they run.
        interfaces: the interfaces of the container networks.
        chosen: which of devices, device_requests and groups the user sets for the container; the others
            follow from the node's facts.
        image_listed: whether images_list provides the container's image; otherwise the node must have it.
        plugin: the SR-IOV network plugin, `rdm-sriov` or `upstream`; empty for none.
        run: how a run may reach this state.
        origin: what this inventory knows of the cluster; None if its keys are not checked.
        others: MY_IP -> node, of all nodes.
    """

    node: str
    cluster: str
    accelerator: str
    slots: int
    become: bool
    my_ip: str
    parts: Parts
    undecided: frozenset[str] = frozenset()
    interfaces: Sequence[str] = ()
    chosen: frozenset[str] = frozenset()
    image_listed: bool = True
    plugin: str = ""
    run: RunOptions = RunOptions()
    origin: Origin | None = None
    others: Mapping[str, str] = {}

    @property
    def engine(self) -> DesiredEngine:
        """The node's engine."""
        return self.parts["docker_engine"]

    @property
    def container(self) -> DesiredContainer:
        """The node's container."""
        return self.parts["container"]

    @property
    def network(self) -> DesiredNetwork:
        """The node's container networks."""
        return self.parts["network"]

    @property
    def sriov(self) -> DesiredSriov:
        """The node's network plugin and VFs."""
        return self.parts["sriov"]

    @property
    def vfs(self) -> DesiredVfs:
        """The VFs that are created on the node."""
        return self.sriov.vfs if "sriov" in self.parts and self.plugin else DesiredVfs()

    @property
    def vfs_needed(self) -> int:
        """How many VFs each of the networks' PFs must offer; 0 if the networks need none."""
        return max(1, self.sriov.vfs.number) if self.network_driver == "sriov" else 0

    @property
    def network_driver(self) -> str:
        """Their driver; empty if the variables are invalid."""
        return self.network.driver if "network" in self.parts else ""

    @property
    def attachments(self) -> list[Attachment]:
        """The node's container networks with interface and address; the first is that of MY_IP."""
        rails = self.container.rails
        return [
            Attachment(network, interface, rails.get(network.name, self.my_ip))
            for network, interface in zip(self.network.networks, self.interfaces, strict=False)
        ]

    @property
    def below_first(self) -> list[str]:
        """The interfaces of the first network."""
        first = self.interfaces[0]
        return [name.strip() for name in first.split(",")] if self.network_driver == "sriov" else [first]

    @property
    def below_all(self) -> list[str]:
        """The interfaces of all networks."""
        return [*self.below_first, *self.interfaces[1:]]

    def variable_of(self, interface: str) -> str:
        """Return the variable in which the user named an interface."""
        if interface in self.below_first:
            return "network_parent"
        return "container_rails" if interface in self.interfaces else "sriov_vf_pfs"

    @property
    def own_devices(self) -> bool:
        """Whether the user chooses the container's devices."""
        return not self.chosen.isdisjoint(("devices", "device_requests"))

    @property
    def reserves_vf(self) -> bool:
        """Whether the network plugin assigns VFs before a container is created."""
        return self.network_driver == "sriov" and self.plugin == OWN

    @property
    def vf_devices(self) -> bool:
        """Whether the container gets only the RDMA devices of its VF, which the plugin reserves."""
        return self.reserves_vf and self.container.rdma

    @property
    def wire_addresses(self) -> dict[str, str]:
        """Interface -> the node's address there, for the interfaces on which ARP can probe it."""
        if self.network_driver not in DRIVERS_ON_AN_INTERFACE:
            return {}
        return {
            one.network.options.get("parent") or one.interface.partition(",")[0].strip(): one.my_ip
            for one in self.attachments
            # These options put VFs on another link than their PF.
            if self.network_driver != "sriov" or not {"vlan", "pkey"} & set(one.network.options)
        }

    def digests(self, roles: Iterable[str]) -> dict[str, str]:
        """Return the digest of each role's part; empty if it is not known before the role runs."""
        parts: Mapping[str, object] = self.parts
        return {
            role: "" if role in self.undecided or role not in parts else _digest(role, parts[role])
            for role in roles
        }


def desired_state(
    variables: NodeVariables, entry: PlanEntry, *, trusted: bool = True, **more: Any
) -> DesiredState:
    """Return the desired state of a node.

    Args:
        variables: the node's variables; what is still undefined has no value.
        entry: its part of the plan.
        trusted: whether all variables are valid; if not, only the engine is decided.
        more: further attributes of the state.
    """
    parts: dict[str, Any] = {}
    undecided = set()
    planned = entry.for_digest()
    for role in PARTS if trusted else ("docker_engine",):
        variables.missed = False
        try:
            parts[role] = PARTS[role].make(variables, planned)
        except ValueError:
            continue  # a check or the role reports it
        if variables.missed or _may_change(parts[role]):
            undecided.add(role)
    state = DesiredState(
        entry.node,
        my_ip=entry.my_ip,
        parts=cast(Parts, parts),
        undecided=frozenset(undecided),
        run=_run(variables),
        **more,
    )
    if not trusted:
        return state
    return state._replace(
        interfaces=variables.texts("container_rails") or [variables.text("network_parent")],
        chosen=frozenset(one for one, name in _OF_DEVICES.items() if variables.value(name) is not None),
        plugin=plugin_of(variables),
    )


def _may_change(part: Any) -> bool:
    """Return whether the result of a role is not known from its part."""
    if isinstance(part, DesiredImages):
        return any(image.get("pull") == "always" for image in part.images)
    return isinstance(part, DesiredContainer) and not part.image


def _run(variables: NodeVariables) -> RunOptions:
    return RunOptions(
        install_engine=variables.true("docker_engine_install"),
        replace_network=variables.true("network_replace"),
        protect_jobs=variables.true("container_protect_jobs", otherwise=True),
        memlock_required=variables.true("container_memlock_required", otherwise=True),
        min_free_bytes=variables.number("images_min_free_bytes"),
        distribution=variables.text("images_distribution"),
        repair_strays=variables.true("my_ip_repair_strays"),
        reboot=variables.true("sriov_reboot_ok"),
    )


def desired(
    role: str,
    variables: NodeVariables,
    entry: PlanEntry,
    absent: bool = False,
    observed: Observed | None = None,
) -> dict[str, Any]:
    """Return a role's part of a node's desired state as plain data, with the steps that lead there.

    Args:
        role: a name in PARTS or OTHER_PARTS.
        variables: the node's variables.
        entry: its part of the plan.
        absent: return the files to remove instead.
        observed: what was observed on the node; None to return the part alone.

    Raises:
        ValueError: the variables contradict each other, or a value of the plan is missing.
        AnsibleError: a variable refers to something undefined.
    """
    part = {**PARTS, **OTHER_PARTS}[role]
    make = part.absent if absent else part.make
    if make is None:
        raise ValueError(f"what the role {role} leaves is not taken away by a list")
    made = make(variables, entry)
    if isinstance(made, DesiredContainer):
        needed("container_image", variables, made.image)
    found: dict[str, Any] = plain(made)
    if observed and part.steps and not absent:
        found |= part.steps(made, variables, entry, observed)
    return found


def _digest(role: str, part: Any) -> str:
    """Return the version of a role's part and the part's digest, joined by `-`."""
    text = json.dumps(plain(part), sort_keys=True)
    return f"{PARTS[role].version}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def plain(value: Any) -> Any:
    """Return a value with dictionaries and lists instead of named and other tuples."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]
