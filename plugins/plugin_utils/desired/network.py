# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired container networks of a node."""

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
        name: its name.
        subnet: in CIDR notation.
        gateway: an address of the subnet.
        options: the driver's options.
    """

    name: str
    subnet: str
    gateway: str
    options: dict[str, str]


class DesiredNetwork(NamedTuple):
    """Desired state of the role network.

    Attributes:
        cluster: the cluster that owns the networks.
        driver: of all networks.
        networks: the network with MY_IP, then those of further rails.
    """

    cluster: str
    driver: str
    networks: list[DockerNetwork]


def desired_network(variables: NodeVariables, entry: PlanEntry) -> DesiredNetwork:
    """Return the desired networks of a node.

    Args:
        variables: the node's variables.
        entry: its part of the plan. Without a plan, the variables describe the only network.

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
        variables: the node's variables.
        parent: the interface of a further rail; empty for the first.
        rail: the rail's index; 0 for the first.

    Raises:
        ValueError: the options contradict each other.
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
