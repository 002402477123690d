# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan a whole cluster from the inventory alone, and report every problem with it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.constants import RUNTIME_CONTAINER, RUNTIME_HOST
from ansible_collections.rdm.provision.plugins.module_utils.sriov.desired_vfs import DesiredVfs
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import (
    AddressPlan,
    make_plan,
    widened,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.collision import (
    public_space_warning,
    ssh_address_problems,
    subnet_problems,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.owned_files import default_directory
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.cluster_variables import (
    Inventory,
    check_inventory,
)


class ClusterPlan(NamedTuple):
    """What the inventory alone decides.

    Attributes:
        inventory: the cluster as the user described it.
        addresses: the address plan.
        vfs: node name -> its desired VFs; nodes without are left out.
        warnings: sentences about problems that do not stop the run.
        rails: the subnets of the further rails.
    """

    inventory: Inventory
    addresses: AddressPlan
    warnings: list[str]
    vfs: Mapping[str, DesiredVfs] = {}
    rails: Sequence[IPv4Network] = ()


def plan_cluster(
    masters: Sequence[str],
    workers: Sequence[str],
    variables: Mapping[str, Mapping[str, Any]],
    previous: AddressPlan | None = None,
    replace_network: bool = False,
    problems: Sequence[Problem] = (),
) -> tuple[ClusterPlan | None, list[Problem]]:
    """Plan from the inventory, without querying a node.

    Args:
        masters: the hosts of group `master`.
        workers: the hosts of group `workers`.
        variables: for each host its cluster-wide and connection variables, evaluated.
        previous: the saved address plan, or None.
        replace_network: whether the user agrees to recreate the network on every node.
        problems: problems that the caller found in the inventory.

    Returns:
        The plan, with defaults for invalid values, or None if no plan is possible; and every problem.
    """
    inventory = check_inventory(masters, workers, variables)
    found = [*problems, *inventory.problems]
    addresses: AddressPlan | None = None
    if inventory.nodes:
        try:
            addresses = make_plan(
                list(inventory.nodes),
                subnet=inventory.subnet,
                gateway=inventory.gateway,
                previous=previous,
                pins=inventory.pins,
                replace_network=replace_network,
            )
        except PreconditionFailed as refused:
            found += refused.problems
        else:
            found += subnet_problems(addresses.subnet)
            # A bare host is reached at its own address.
            if inventory.runtime == RUNTIME_CONTAINER:
                found += ssh_address_problems(addresses.subnet, inventory.ssh_addresses)
    if addresses is None:
        return None, found
    bare = inventory.runtime == RUNTIME_HOST
    # Warn only once: with a saved plan the user has seen it.
    known = previous is not None and previous.subnet == addresses.subnet
    sentences = (
        ()
        if bare or known
        else (
            widened(addresses, previous, inventory.subnet),
            public_space_warning(addresses.subnet, inventory.ssh_addresses.values()),
        )
    )
    return ClusterPlan(inventory, addresses, [sentence for sentence in sentences if sentence]), found


def presumed_config_dir(plan: ClusterPlan, node: str) -> str:
    """Return the directory for the cluster's files, before the node is queried; `~` is not expanded."""
    mine = plan.inventory.nodes[node]
    return mine.config_dir or default_directory(mine.become)
