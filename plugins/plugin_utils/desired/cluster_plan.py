# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan for a whole cluster from the inventory alone, or every problem with it at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    CONFIG_DIR,
    RUNTIME_CONTAINER,
    RUNTIME_HOST,
    USER_CONFIG_DIR,
)
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
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vf_plan import Functions
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
        functions: node name -> what the inventory says of its virtual functions; those without are left out.
        warnings: sentences about what is not as it should be but refuses nothing.
        rails: the subnets of the further rails.
    """

    inventory: Inventory
    addresses: AddressPlan
    warnings: list[str]
    functions: Mapping[str, Functions] = {}
    rails: Sequence[IPv4Network] = ()


def plan_cluster(
    masters: Sequence[str],
    workers: Sequence[str],
    variables: Mapping[str, Mapping[str, Any]],
    previous: AddressPlan | None = None,
    replace_network: bool = False,
    problems: Sequence[Problem] = (),
) -> tuple[ClusterPlan | None, list[Problem]]:
    """Plan from the inventory, without asking a node.

    Args:
        masters: the hosts of group `master`.
        workers: the hosts of group `workers`.
        variables: for each host its cluster-wide and connection variables, evaluated.
        previous: the address plan before, or None.
        replace_network: the user agrees to recreate the network on every node.
        problems: what the caller already found wrong with the inventory.

    Returns:
        The plan, with defaults for what is wrong, or None where there can be none; and every problem.
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
    # Only once: whoever has a saved plan has seen it.
    known = previous is not None and previous.subnet == addresses.subnet
    sentences = (
        ()
        if bare or known
        else (widened(addresses, previous, inventory.subnet), public_space_warning(addresses.subnet))
    )
    return ClusterPlan(inventory, addresses, [sentence for sentence in sentences if sentence]), found


def presumed_config_dir(plan: ClusterPlan, node: str) -> str:
    """Return the directory that the cluster's files go to, as it is written before the node is known."""
    mine = plan.inventory.nodes[node]
    return mine.config_dir or (CONFIG_DIR if mine.become else f"~/{USER_CONFIG_DIR}")
