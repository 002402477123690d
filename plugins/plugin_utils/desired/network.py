# SPDX-License-Identifier: GPL-3.0-or-later
"""The container networks that a node should have."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.network.rails import in_subnet
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.rails import network_of, prefix_of
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry, needed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import plugin_of
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.network_options import driver_options
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


class DockerNetwork(NamedTuple):
    """One Docker network.

    Attributes:
        name: on the node.
        subnet: in CIDR notation.
        gateway: an address of it.
        options: the driver's.
    """

    name: str
    subnet: str
    gateway: str
    options: dict[str, str]


class DesiredNetwork(NamedTuple):
    """What the role network leaves on a node.

    Attributes:
        cluster: the cluster that owns the networks.
        driver: of all of them.
        networks: the one with MY_IP, and after it those of further rails.
    """

    cluster: str
    driver: str
    networks: list[DockerNetwork]


def desired_network(variables: NodeVariables, entry: PlanEntry) -> DesiredNetwork:
    """Return the networks that a node should have.

    Args:
        variables: the node's.
        entry: what the plan says of it. Without a plan the variables say it all, and there is one network.

    Raises:
        ValueError: the variables contradict each other, or subnet or gateway is missing.
    """
    first = DockerNetwork(
        variables.text("network_name"),
        needed("network_subnet", variables, entry.subnet),
        needed("network_gateway", variables, entry.gateway),
        network_options(variables),
    )
    parents = variables.texts("container_rails")
    plan = IPv4Network(first.subnet)
    rails = [
        DockerNetwork(
            network_of(first.name, index),
            subnet,
            in_subnet(first.gateway, plan, IPv4Network(subnet)),
            network_options(variables, parents[index], index),
        )
        for index, subnet in enumerate(entry.rails, start=1)
    ]
    return DesiredNetwork(variables.text("rdm_cluster"), variables.text("network_driver"), [first, *rails])


def network_options(variables: NodeVariables, parent: str = "", rail: int = 0) -> dict[str, str]:
    """Return the options of a network's driver.

    Args:
        variables: the node's.
        parent: the interface below the network of a further rail.
        rail: which one that is; 0 for the first.

    Raises:
        ValueError: they make no sense together.
    """
    driver = variables.text("network_driver")
    prefix, pkey = variables.text("network_prefix"), variables.text("network_pkey")
    if pkey and plugin_of(variables) == "upstream":
        raise ValueError(f"network_pkey {pkey} means nothing to sriov_plugin upstream: rdm-sriov has it")
    return driver_options(
        driver,
        parent=parent or variables.text("network_parent"),
        mode=variables.text("network_mode"),
        vlan=int(variables.text("network_vlan") or 0),
        privileged=variables.true("network_privileged"),
        prefix=prefix_of(prefix, rail) if driver == "sriov" else prefix,
        pkey=pkey,
        extra=variables.value("network_options") or {},
    )
