# SPDX-License-Identifier: GPL-3.0-or-later
"""The draft of a run: the plan from the inventory and the plan file alone, before any node is queried."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.constants import PLAN_FILE
from ansible_collections.rdm.provision.plugins.module_utils.sriov.desired_vfs import DesiredVfs
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses import address_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import AddressPlan
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.collision import (
    RAIL_SUBNETS,
    ssh_address_problems,
    subnet_problems,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.rails import (
    name_problems,
    rail_subnets,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired import vf_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.cluster_plan import (
    ClusterPlan,
    plan_cluster,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.images import archives_here, listed_images
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.network import network_options
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_keys import key_problems
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState, desired_state
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.validation import (
    contradictions,
    validate,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import (
    OWN,
    desired_vfs,
    has_vfs,
    plugin_of,
    refuse_undone,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import (
    HostVariables,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.image_list import Images
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.vault import undecryptable
from ansible_collections.rdm.provision.rdm_sriov.options import wanted_network
from ansible_collections.rdm.provision.rdm_sriov.state import Network
from ansible_collections.rdm.provision.rdm_sriov.vfs import VfProblem


class Draft(NamedTuple):
    """The plan from the inventory alone.

    Attributes:
        plan: the plan, with defaults for invalid values; None if no plan is possible.
        previous: the address plan in the plan file.
        images: the images of each node.
        problems: what is wrong with the inventory.
        warnings: what is suspicious in it.
    """

    plan: ClusterPlan | None
    previous: AddressPlan | None
    images: Mapping[str, Images]
    problems: list[Problem]
    warnings: list[str]

    @property
    def checked_plan(self) -> ClusterPlan:
        """The plan.

        Raises:
            PreconditionFailed: something is wrong with the inventory.
        """
        if self.problems or self.plan is None:
            raise PreconditionFailed(self.problems, warnings=self.warnings)
        return self.plan

    def result(self) -> dict[str, Any]:
        """Return the cluster's part of what the action `plan` returns, before any node was queried.

        Raises:
            PreconditionFailed: something is wrong with the inventory.
        """
        return result_of(self.checked_plan, self.previous, self.images)

    @property
    def saved(self) -> bool:
        """Whether the plan file has the same address plan."""
        text, plan = address_plan.format_plan, self.checked_plan.addresses
        return self.previous is not None and text(self.previous) == text(plan)

    def states(
        self, reader: HostVariables, nodes: Iterable[str], doubtful: frozenset[str | None] = frozenset()
    ) -> dict[str, DesiredState]:
        """Return the desired state of nodes.

        Args:
            reader: the variables.
            nodes: the nodes.
            doubtful: nodes with a problem: only their engine is decided; None in it means all nodes.
        """
        if self.plan is None:
            return {}
        plan, result = self.plan, result_of(self.plan, self.previous, self.images)
        return {
            node: _state(
                reader,
                PlanEntry.of(result, node),
                plan,
                self.images[node].listed,
                trusted=doubtful.isdisjoint({None, node}),
            )
            for node in nodes
        }


def draft_plan(
    reader: HostVariables, release: list[str], unseen: Sequence[Problem] = (), keys: bool = False
) -> Draft:
    """Validate the inventory, and plan from it alone.

    Args:
        reader: the variables.
        release: removed nodes whose addresses may be reused.
        unseen: problems with variables that the reader does not see.
        keys: whether the controller must have the ssh keys that the plan file records.

    Raises:
        PreconditionFailed: encrypted variables cannot be decrypted.
    """
    if found := undecryptable({host: reader.written(host) for host in reader.hosts}):
        raise PreconditionFailed(found)
    valid = validate(reader)
    problems = [*unseen, *valid.problems]
    previous, base = _read_plan(reader, release, keys, problems)
    # All nodes share one network, so it is recreated only if every node allows it.
    replace = all(reader.node(host).true("network_replace") for host in reader.hosts)
    plan, problems = plan_cluster(reader.masters, reader.workers, valid.cluster, base, replace, problems)
    warnings = valid.warnings
    if plan:
        problems += contradictions(reader, plan.addresses)
        subnets, found = _rail_subnets(reader, plan)
        problems += found
        warnings = [*plan.warnings, *warnings]
        addresses = plan.addresses
        if previous:
            addresses = addresses._replace(
                keys=previous.keys, vf_prefix=previous.vf_prefix, replaced=previous.replaced
            )
        plan = plan._replace(rails=subnets, warnings=warnings, addresses=addresses)
        plan = _with_vfs(reader, plan, problems)
    return Draft(plan, previous, valid.images, problems, warnings)


def _read_plan(
    reader: HostVariables, release: list[str], keys: bool, problems: list[Problem]
) -> tuple[AddressPlan | None, AddressPlan | None]:
    """Return the plan file's plan, and the plan to start from; add what is wrong with it to `problems`."""
    previous = base = None
    if reader.hosts:
        try:
            path = reader.plan_file()
            found = address_plan.read_plan(str(path))
            if found:
                address_plan.check_owner(found, reader.hosts, str(path))
            previous = base = found
            if keys:
                problems += key_problems(reader, previous, str(path))
            if release:
                base = _release(previous, release, reader.hosts)
        except PreconditionFailed as refused:
            problems += refused.problems
        except address_plan.PlanFileError as error:
            hint = "correct it, or restore it from version control"
            problems.append(Problem(None, str(path), str(error), hint))
    return previous, base


def _release(previous: AddressPlan | None, names: list[str], hosts: list[str]) -> AddressPlan:
    """Return the plan without the reservations of removed nodes; PreconditionFailed if they have none."""
    if previous is None:
        reason, hint = "has no reserved address", f"there is no {PLAN_FILE} yet"
        raise PreconditionFailed([Problem(None, name, reason, hint) for name in names])
    return address_plan.release(previous, names, hosts)


def _with_vfs(reader: HostVariables, plan: ClusterPlan, problems: list[Problem]) -> ClusterPlan:
    """Return the plan with the VFs, and add what is wrong with them to `problems`."""
    having = [host for host in plan.addresses.nodes if has_vfs(reader.node(host))]
    addresses = vf_plan.with_prefix(
        plan.addresses, having, plan.inventory.cluster, plan.inventory.ssh_addresses
    )
    vfs: dict[str, DesiredVfs] = {}
    for host in having:
        try:
            vfs[host] = desired_vfs(reader.node(host), vf_plan.first_of(addresses, host))
            if plugin_of(reader.node(host)) == OWN:
                refuse_undone(vfs[host], _sriov_network(reader, host))
        except ValueError as error:
            problems.append(Problem.of(host, "", error))
    problems += vf_plan.clashes(addresses, vfs)
    return plan._replace(addresses=addresses, vfs=vfs)


def _sriov_network(reader: HostVariables, host: str) -> Network:
    """Return the network that the plugin will create; a dummy one if its options are invalid."""
    try:
        return wanted_network(network_options(reader.node(host)))
    except (ValueError, VfProblem):
        return Network((), mode="")


def _rail_subnets(reader: HostVariables, plan: ClusterPlan) -> tuple[list[IPv4Network], list[Problem]]:
    """Return the subnets of the further rails, and what is wrong with the rails of all nodes."""
    variables = {host: reader.node(host) for host in reader.hosts}
    listed_rails = {host: one.texts("container_rails") for host, one in variables.items()}
    problems = [
        problem
        for host, rails in listed_rails.items()
        for problem in name_problems(
            host, rails, variables[host].text("network_parent"), variables[host].text("network_driver")
        )
    ]
    counts = {host: len(rails) for host, rails in listed_rails.items()}
    given = {host: one.texts(RAIL_SUBNETS) for host, one in variables.items()}
    subnets, found = rail_subnets(plan.addresses.subnet, counts, given)
    for subnet in subnets:
        found += subnet_problems(subnet, RAIL_SUBNETS)
        found += ssh_address_problems(subnet, plan.inventory.ssh_addresses, RAIL_SUBNETS)
    problems += found
    return ([], problems) if problems else (subnets, [])


def _state(
    reader: HostVariables, entry: PlanEntry, plan: ClusterPlan, image_listed: bool, trusted: bool
) -> DesiredState:
    """Return the desired state of one node; see :func:`desired_state`."""
    node, mine = entry.node, plan.inventory.nodes[entry.node]
    variables = reader.node(node)
    if trusted:
        directory = str(reader.written(node).get("inventory_dir") or "")
        entry = entry._replace(archives=tuple(archives_here(listed_images(variables), directory)))
    return desired_state(
        variables,
        entry,
        trusted=trusted,
        cluster=plan.inventory.cluster,
        accelerator=mine.accelerator,
        slots=mine.slots,
        become=mine.become,
        image_listed=image_listed,
    )


def result_of(
    plan: ClusterPlan, previous: AddressPlan | None, images: Mapping[str, Images]
) -> dict[str, Any]:
    """Return the plan as plugins/modules/plan.py documents it, without the nodes' observed state."""
    addresses, inventory = plan.addresses, plan.inventory
    notes = address_plan.notes(addresses, previous, inventory.pins)
    nodes = {
        name: {
            "address": inventory.ssh_addresses.get(name, name),
            "my_ip": addresses.nodes[name],
            "note": notes[name],
            "rank": rank,
            "slots": node.slots,
            "accelerator": node.accelerator,
            "image": images[name].image,
            "vf_mac": vf_plan.first_of(addresses, name),
        }
        for rank, (name, node) in enumerate(inventory.nodes.items())
    }
    master = next(iter(addresses.nodes))
    return {
        "cluster": inventory.cluster,
        "subnet": str(addresses.subnet),
        "prefixlen": addresses.subnet.prefixlen,
        "gateway": addresses.gateway,
        "master": master,
        "master_addr": addresses.nodes[master],
        "nodes": nodes,
        "hostfile": address_plan.hostfile(
            addresses, {name: one.slots for name, one in inventory.nodes.items()}
        ),
        "address_map": address_plan.address_map(addresses),
        "removed": addresses.removed,
        **({"rails": [str(subnet) for subnet in plan.rails]} if plan.rails else {}),
    }
