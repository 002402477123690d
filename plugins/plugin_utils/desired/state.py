# SPDX-License-Identifier: GPL-3.0-or-later
"""What one node should have: for each role a part of its own, made from the node's variables and the plan.

A role's YAML gets its part from the lookup `rdm.provision.desired`, with a plan or without one. Checks
compare the parts with what was gathered from the node. The state file on the node keeps each part's digest.
So a role has work where its part is another than at the last good run, and an edit of the collection that
leaves the part as it was makes no work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import Wanted
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.container import (
    DesiredContainer,
    absent_container,
    desired_container,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.docker_engine import (
    DesiredEngine,
    desired_docker_engine,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.hostfile import (
    absent_hostfile,
    desired_hostfile,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.images import (
    DesiredImages,
    desired_images,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.my_ip import absent_my_ip, desired_my_ip
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.network import (
    DesiredNetwork,
    DockerNetwork,
    desired_network,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry, needed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_keys import Origin
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov import desired_sriov
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import (
    DRIVERS_ON_A_PARENT,
    OWN,
    SriovSettings,
    plugin_of,
    sriov_settings,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

_OF_DEVICES = ("devices", "device_requests", "groups")

Make = Callable[[NodeVariables, PlanEntry], Any]


class Part(NamedTuple):
    """How a role's part of the desired state is made.

    Attributes:
        make: makes it; ValueError where the variables make no sense.
        absent: makes what takes it away again, where that is a list of files.
        version: to be raised when the role leaves something else on a node for the same part, as after a
            change of one of its tasks or modules: then every node has work once.
    """

    make: Make
    absent: Make | None = None
    version: int = 1


PARTS: Mapping[str, Part] = {
    "docker_engine": Part(desired_docker_engine),
    "images": Part(desired_images),
    "sriov": Part(desired_sriov),
    "network": Part(desired_network),
    "container": Part(desired_container, absent_container),
    "my_ip": Part(desired_my_ip, absent_my_ip),
    "hostfile": Part(desired_hostfile, absent_hostfile),
}


class Attachment(NamedTuple):
    """One of a node's container networks.

    Attributes:
        network: the network.
        interface: the node's interface below it; the inventory has a pool of several as one text.
        my_ip: the node's address on it.
    """

    network: DockerNetwork
    interface: str
    my_ip: str


class RunOptions(NamedTuple):
    """How a run may get a node to its desired state; none of it says where that ends.

    Attributes:
        install_engine: whether a missing engine is installed.
        replace_network: whether an existing network may be recreated.
        protect_jobs: refuse what would end a training job.
        memlock_required: refuse when containers cannot lock all memory.
        min_free_bytes: space that images need; 0 for no check.
        repair_strays: whether lines of others that give shells another MY_IP are commented out.
    """

    install_engine: bool = False
    replace_network: bool = False
    protect_jobs: bool = True
    memlock_required: bool = True
    min_free_bytes: int = 0
    repair_strays: bool = False


class DesiredState(NamedTuple):
    """What one node should have.

    Attributes:
        node: inventory name.
        cluster: the cluster's name.
        accelerator: `rocm`, `cuda` or `cpu`.
        slots: processes of a job on the node.
        become: whether root works there.
        my_ip: the node's address on the container network.
        parts: role -> its part. Where variables make no sense, only the engine's is sure to be there.
        undecided: the roles whose parts depend on what is not known before they run.
        interfaces: those below the container networks.
        chosen: what the user gives the container of its devices, its requests to device drivers, and its
            groups; the rest follows from the node's facts.
        image_listed: whether images_list brings the container's image; otherwise the node must have it.
        sriov: what is wanted of the interfaces below the networks.
        plugin: the SR-IOV network plugin, `rdm-sriov` or `upstream`; empty where none is needed.
        functions: what is wanted of the node's physical functions.
        run: how a run may get there.
        origin: where the cluster was made; None where its keys are not checked.
        others: MY_IP -> node, of all nodes.
    """

    node: str
    cluster: str
    accelerator: str
    slots: int
    become: bool
    my_ip: str
    parts: Mapping[str, Any]
    undecided: frozenset[str] = frozenset()
    interfaces: Sequence[str] = ()
    chosen: frozenset[str] = frozenset()
    image_listed: bool = True
    sriov: SriovSettings = SriovSettings()
    plugin: str = ""
    functions: Sequence[Wanted] = ()
    run: RunOptions = RunOptions()
    origin: Origin | None = None
    others: Mapping[str, str] = {}

    @property
    def engine(self) -> DesiredEngine:
        """The node's engine."""
        part: DesiredEngine = self.parts["docker_engine"]
        return part

    @property
    def container(self) -> DesiredContainer:
        """The node's container."""
        part: DesiredContainer = self.parts["container"]
        return part

    @property
    def network(self) -> DesiredNetwork:
        """The node's container networks."""
        part: DesiredNetwork = self.parts["network"]
        return part

    @property
    def network_driver(self) -> str:
        """The driver of these; empty where the variables make no sense."""
        return self.network.driver if "network" in self.parts else ""

    @property
    def attachments(self) -> list[Attachment]:
        """The node's container networks with what they join; the first is that of MY_IP."""
        rails = self.container.rails
        return [
            Attachment(network, interface, rails.get(network.name, self.my_ip))
            for network, interface in zip(self.network.networks, self.interfaces, strict=False)
        ]

    @property
    def below_first(self) -> list[str]:
        """The interfaces below the first network."""
        first = self.interfaces[0]
        return [name.strip() for name in first.split(",")] if self.network_driver == "sriov" else [first]

    @property
    def below_all(self) -> list[str]:
        """The interfaces below all networks."""
        return [*self.below_first, *self.interfaces[1:]]

    def parent_variable(self, interface: str) -> str:
        """Return the variable in which the user names an interface."""
        if interface in self.below_first:
            return "network_parent"
        return "container_rails" if interface in self.interfaces else "sriov_vf_pfs"

    @property
    def own_devices(self) -> bool:
        """Whether the user says which devices the container gets, and how."""
        return not self.chosen.isdisjoint(("devices", "device_requests"))

    @property
    def reserves_vf(self) -> bool:
        """Whether the network plugin hands out VFs before a container is made."""
        return self.network_driver == "sriov" and self.plugin == OWN

    @property
    def function_devices(self) -> bool:
        """Whether the container gets the RDMA devices of just its VF, where the plugin reserves that."""
        return self.container.devices_of != "all" and "devices" not in self.chosen

    @property
    def wire_addresses(self) -> dict[str, str]:
        """The node's address on the wire of each interface on which it can be probed."""
        if self.network_driver not in DRIVERS_ON_A_PARENT:
            return {}
        return {
            one.network.options.get("parent") or one.interface.partition(",")[0].strip(): one.my_ip
            for one in self.attachments
            # These options put VFs on another wire than their PF.
            if self.network_driver != "sriov" or not {"vlan", "pkey"} & set(one.network.options)
        }

    def digests(self, roles: Iterable[str]) -> dict[str, str]:
        """Return the digest of each role's part; empty where it is not known before the role runs."""
        return {
            role: "" if role in self.undecided or role not in self.parts else _digest(role, self.parts[role])
            for role in roles
        }


def desired_state(
    variables: NodeVariables, entry: PlanEntry, *, trusted: bool = True, **more: Any
) -> DesiredState:
    """Return what a node should have.

    Args:
        variables: the node's; what is not known yet has no value.
        entry: what the plan says of the node.
        trusted: whether all variables make sense; if not, only the engine is decided.
        more: further attributes of the state.
    """
    parts, undecided = {}, set()
    planned = entry.for_digest()
    for role in PARTS if trusted else ("docker_engine",):
        variables.missed = False
        try:
            parts[role] = PARTS[role].make(variables, planned)
        except ValueError:
            continue  # the role says so, or a check
        if variables.missed or _may_change(parts[role]):
            undecided.add(role)
    state = DesiredState(entry.node, my_ip=entry.my_ip, parts=parts, undecided=frozenset(undecided), **more)
    state = state._replace(run=_run(variables))
    if not trusted:
        return state
    return state._replace(
        interfaces=variables.texts("container_rails") or [variables.text("network_parent")],
        chosen=frozenset(one for one in _OF_DEVICES if variables.value(f"container_{one}") is not None),
        sriov=sriov_settings(variables),
        plugin=plugin_of(variables),
    )


def _may_change(part: Any) -> bool:
    """Tell whether a part does not say yet what a role will leave."""
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
        repair_strays=variables.true("my_ip_repair_strays"),
    )


def desired(role: str, variables: NodeVariables, entry: PlanEntry, absent: bool = False) -> dict[str, Any]:
    """Return a role's part of what a node should have, of plain types.

    Args:
        role: a name in PARTS.
        variables: the node's.
        entry: what the plan says of the node.
        absent: return how the part is taken away instead.

    Raises:
        ValueError: the variables make no sense, or lack what only a plan says.
        AnsibleError: a variable refers to something that is not known.
    """
    part = PARTS[role]
    make = part.absent if absent else part.make
    if make is None:
        raise ValueError(f"what the role {role} leaves is not taken away by a list")
    made = make(variables, entry)
    if isinstance(made, DesiredContainer):
        needed("container_image", variables, made.image)
    found: dict[str, Any] = plain(made)
    return found


def _digest(role: str, part: Any) -> str:
    """Return the version of a role's part and the part's digest, joined by `-`."""
    text = json.dumps(plain(part), sort_keys=True)
    return f"{PARTS[role].version}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def plain(value: Any) -> Any:
    """Return a value with dictionaries and lists in place of named and other tuples."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]
