# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired container networks of a node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from ipaddress import IPv4Network
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.constants import LABEL_CLUSTER, LABEL_ROLE
from ansible_collections.rdm.provision.plugins.module_utils.network.rails import in_subnet
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.rails import network_of, prefix_of
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry, needed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import plugin_of
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
    interfaces = variables.texts("container_rails")
    plan = IPv4Network(first.subnet)
    rails = [
        DockerNetwork(
            network_of(first.name, index),
            subnet,
            in_subnet(first.gateway, plan, IPv4Network(subnet)),
            network_options(variables, interfaces[index], index),
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
        raise ValueError(f"network_pkey {pkey} means nothing to sriov_plugin upstream; choose rdm-sriov")
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


def absent_network(variables: NodeVariables, _entry: PlanEntry) -> dict[str, Any]:
    """Return how the cluster's networks are removed."""
    return {
        "cluster": variables.text("rdm_cluster"),
        "socket": variables.text("sriov_socket"),
        "protect_jobs": variables.true("container_protect_jobs", otherwise=True),
        "stop_timeout": variables.number("container_stop_timeout"),
    }


def network_steps(
    part: DesiredNetwork, variables: NodeVariables, entry: PlanEntry, observed: Observed
) -> dict[str, Any]:
    """Return what the role's tasks read in addition to the part.

    `networks` have labels too, and in `compared` the options to compare. `is_new` is whether preflight found
    that there is none, which it does not know of further rails, or if no engine ran. `problem` is why a
    network that differs is not replaced.
    """
    is_podman = observed.engine.get("engine") == "podman"
    labels = {LABEL_CLUSTER: part.cluster, LABEL_ROLE: "network"}
    known = observed.preflight.get("docker") is not None
    is_new = known and not entry.observed.get("network_present", True)
    return {
        "networks": [
            {
                **one._asdict(),
                # Podman does not show a network's driver options, so a label holds them for the comparison.
                "labels": {**labels, "rdm.provision.driver_options": json.dumps(one.options, sort_keys=True)}
                if is_podman
                else labels,
                "compared": {} if is_podman else one.options,
                "is_new": is_new and one is part.networks[0],
            }
            for one in part.networks
        ],
        "problem": _problem(part, variables.true("network_replace"), observed.result("__network_compared")),
    }


def _problem(part: DesiredNetwork, may_replace: bool, compared: Mapping[str, Any]) -> str:
    """Return why a network is not replaced; empty if it may be, or if there is none."""
    found = compared.get("network")
    if not found:
        return ""
    other = "choose another network_name"
    if (found.get("Labels") or {}).get(LABEL_CLUSTER) != part.cluster:
        label = f"{LABEL_CLUSTER}={part.cluster}"
        return f"that is not ours (it lacks the label {label}): remove it, or {other}"
    if may_replace:
        return ""
    before, after = compared["diff"]["before"], compared["diff"]["after"]
    differences = "; ".join(
        f"{what} is {before.get(what) or 'none'}, not {after.get(what, '')}"
        for what in compared["diff"]["differences"]
    )
    return f"with other settings ({differences}): set network_replace: true to replace it, or {other}"
