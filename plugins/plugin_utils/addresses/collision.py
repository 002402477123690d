# SPDX-License-Identifier: GPL-3.0-or-later
"""Find collisions of the container network's subnet with ranges that a node already uses.

The engine refuses only an overlap with its own networks; an interface or a route with the same range silently
misroutes traffic. So the subnet is compared with every address, route and Docker network that the nodes
report, with Kubernetes' ranges, and with the addresses that ssh uses. An overlap with an address pool of the
engine is only a warning. IPv6 is out of scope: the container network is IPv4.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from ipaddress import IPv4Network
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import (
    NO_ENGINE,
    KubernetesRange,
    Network,
    NodeFacts,
)
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import is_ours
from ansible_collections.rdm.provision.plugins.module_utils.network.free_subnet import (
    free_subnet,
    ipv4_network,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
SPECIAL = {
    IPv4Network("0.0.0.0/8"): "the range of 'this network'",
    IPv4Network("127.0.0.0/8"): "the loopback range",
    IPv4Network("169.254.0.0/16"): "the link-local range",
    IPv4Network("224.0.0.0/4"): "the multicast range",
    IPv4Network("240.0.0.0/4"): "a reserved range",
}
# Default routes, whole or as the two halves that VPN clients install.
EVERYWHERE = {"default", "0.0.0.0/0", "0.0.0.0/1", "128.0.0.0/1"}

SUBNET = "rdm_subnet"
RAIL_SUBNETS = "container_rail_subnets"
"""The variables that set a subnet."""


class Use(NamedTuple):
    """A range that a node uses.

    Attributes:
        network: the range.
        what: its description, such as `interface ib0 (10.0.0.1/24)`.
        removable: whether it can be removed from the node, unlike the addresses that ssh uses.
    """

    network: IPv4Network
    what: str
    removable: bool = True


def subnet_problems(subnet: IPv4Network, variable: str = SUBNET) -> list[Problem]:
    """Return a problem for each special range, such as loopback or multicast, that the subnet overlaps."""
    return [
        Problem(None, str(subnet), f"overlaps {what} {special}", _hint([special], subnet.prefixlen, variable))
        for special, what in SPECIAL.items()
        if subnet.overlaps(special)
    ]


def public_space_warning(subnet: IPv4Network, ssh_addresses: Iterable[str] = ()) -> str | None:
    """Return a warning with a private subnet that holds no ssh address; None if the subnet is private."""
    if any(subnet.subnet_of(private) for private in PRIVATE):
        return None
    return (
        f"The subnet {subnet} is not private address space (RFC 1918): nodes and containers cannot reach "
        "the hosts on the internet that own it. A private one would be "
        f"{free_subnet(ssh_addresses, subnet.prefixlen)} (rdm_subnet)."
    )


def ssh_address_problems(
    subnet: IPv4Network, addresses: Mapping[str, str], variable: str = SUBNET
) -> list[Problem]:
    """Return a problem for each node whose ssh address is inside the subnet.

    Args:
        subnet: of the container network.
        addresses: node name -> its `ansible_host`; host names are not resolved.
        variable: the variable that sets the subnet.
    """
    literals = {node: at for node, at in addresses.items() if ipv4_network(at) is not None}
    hint = _hint([*literals.values(), subnet], subnet.prefixlen, variable)
    return [
        Problem(node, f"ansible_host {at}", f"lies in the container network's subnet {subnet}", hint)
        for node, at in literals.items()
        if subnet.overlaps(ipv4_network(at) or subnet)
    ]


def collisions(
    subnet: IPv4Network,
    facts: Mapping[str, NodeFacts],
    network_names: Mapping[str, str],
    cluster: str,
    ssh_addresses: Iterable[str] = (),
    variable: str = SUBNET,
) -> list[Problem]:
    """Return one problem for each node on which the subnet is already in use.

    Args:
        subnet: of the container network.
        facts: node name -> what `node_facts` found there.
        network_names: node name -> the name of the cluster's own network there.
        cluster: the cluster's name, the value of our label.
        ssh_addresses: `ansible_host` of every node; the proposed subnet avoids them.
        variable: the variable that sets the subnet.
    """
    used: set[IPv4Network] = {network for at in ssh_addresses for network in [ipv4_network(at)] if network}
    hits: dict[str, list[Use]] = {}
    stands = False
    for node, found in facts.items():
        own = _own_networks(found, network_names[node], cluster, subnet)
        stands = stands or any(subnet in subnets_of(network) for network in own)
        uses = list(_uses(found, own))
        used.update(use.network for use in (*uses, *_pools(found)))
        overlapping = [use for use in uses if use.network.overlaps(subnet)]
        if overlapping:
            hits[node] = overlapping
    another = _hint([*used, subnet], subnet.prefixlen, variable) if hits else ""
    return [
        Problem(
            node,
            str(subnet),
            "overlaps " + ", ".join(use.what for use in uses),
            _removal(uses) if stands and all(use.removable for use in uses) else another,
        )
        for node, uses in hits.items()
    ]


def pool_warnings(
    subnet: IPv4Network, facts: Mapping[str, NodeFacts], with_network: Container[str] = ()
) -> list[Problem]:
    """Return one warning for each node whose engine may use a part of the subnet later.

    An engine gives networks without a subnet one from its pools that is not in use. Once the cluster's
    network exists, its subnet is safe.
    """
    hits = {
        node: pool
        for node, found in facts.items()
        if node not in with_network
        for pool in [next((one for one in _pools(found) if one.network.overlaps(subnet)), None)]
        if pool is not None
    }
    if not hits:
        return []
    used = [use.network for found in facts.values() for use in (*_uses(found, []), *_pools(found))]
    outside = free_subnet([*used, subnet], subnet.prefixlen)
    hint = "keep it while nobody makes networks there, or choose one outside with rdm_subnet"
    if outside is not None:
        hint += f", for example {outside}"
    return [
        Problem(node, str(subnet), f"lies in {pool.what} {pool.network}", hint) for node, pool in hits.items()
    ]


def subnets_of(network: Network) -> list[IPv4Network]:
    """Return the IPv4 subnets of a Docker network."""
    found = (ipv4_network(one["subnet"]) for one in network["subnets"])
    return [subnet for subnet in found if subnet is not None]


# --- ranges in use -----------------------------------------------------------------------------------


def _own_networks(facts: NodeFacts, name: str, cluster: str, subnet: IPv4Network) -> list[Network]:
    networks = (facts["docker"] or NO_ENGINE)["networks"]
    return [
        network
        for network in networks
        if is_ours(network["labels"], cluster) or (network["name"] == name and subnet in subnets_of(network))
    ]


def _uses(facts: NodeFacts, own: list[Network]) -> Iterator[Use]:
    """Yield every range that a node uses, except those of its `own` networks.

    A range that appears several times (Docker network, its bridge, the bridge's route) is yielded once.
    """
    docker = facts["docker"] or NO_ENGINE
    # interface -> its ranges that were yielded, or must not be
    explained: dict[str, list[IPv4Network]] = {
        interface: subnets_of(network) for network in own for interface in _interfaces_of(network)
    }
    for network in docker["networks"]:
        if network in own:
            continue
        subnets = subnets_of(network)
        if subnets:
            explained.update((interface, subnets) for interface in _interfaces_of(network))
        for subnet in subnets:
            yield Use(subnet, f"Docker network {network['name']} ({subnet})")
    for interface in facts["interfaces"]:
        if interface["name"] in explained:
            continue
        named: list[IPv4Network] = []
        for address in interface["addresses"]:
            found = ipv4_network(address)
            if found is not None:
                yield Use(found, f"interface {interface['name']} ({address})")
                named.append(found)
        explained[interface["name"]] = named
    for route in facts["routes"]:
        found = None if route["destination"] in EVERYWHERE else ipv4_network(route["destination"])
        if found is None:
            continue
        ranges = [] if route["gateway"] else explained.get(route["interface"], [])
        of_own = any(route["interface"] in _interfaces_of(network) for network in own)
        if of_own or any(found.subnet_of(one) for one in ranges):
            continue
        way = f" via {route['gateway']}" if route["gateway"] else ""
        device = f" on {route['interface']}" if route["interface"] else ""
        yield Use(found, f"route {found}{way}{device} (table {route.get('table') or 'main'})")
    kubernetes, its_ranges = _kubernetes(facts)
    for its in its_ranges:
        found = ipv4_network(its["range"])
        if found is not None and its["known"]:
            yield Use(found, f"the range of {kubernetes}'s {its['of']} ({found})", removable=False)
    for end, address in facts["ssh"].items():
        found = ipv4_network(address)
        if found is not None:
            yield Use(found, f"the address {address} of the ssh {end}", removable=False)


def _pools(facts: NodeFacts) -> Iterator[Use]:
    """Yield the ranges from which the node's engine or Kubernetes may assign a part automatically."""
    docker = facts["docker"] or NO_ENGINE
    for pools, whose in (
        (docker["default_address_pools"], "the Docker daemon's address pool"),
        (docker["swarm_address_pools"], "the swarm's address pool"),
        (facts["pools_to_come"], "an address pool of the engine that is yet to be installed,"),
    ):
        for pool in pools or []:
            base = ipv4_network(pool)
            if base is not None:
                yield Use(base, whose)
    name, ranges = _kubernetes(facts)
    for one in ranges:
        found = ipv4_network(one["range"])
        if found is not None and not one["known"]:
            yield Use(found, f"the range that {name} gives {one['of']} by default,")


def _kubernetes(facts: NodeFacts) -> tuple[str, list[KubernetesRange]]:
    """Return the name of the node's Kubernetes, for messages, and its ranges."""
    found = facts["kubernetes"]
    name = str(found["name"])
    return f"Kubernetes ({name})", found["ranges"]


def _interfaces_of(network: Network) -> tuple[str, ...]:
    """Return the names of a network's interfaces on the node."""
    short = str(network["id"])[:12]
    named = network["options"].get("com.docker.network.bridge.name")
    return (*([named] if named else []), *(f"{kind}-{short}" for kind in ("br", "dm", "di")))


def _removal(uses: Iterable[Use]) -> str:
    """Return the hint for a cluster that already has the subnet: a change would recreate every network."""
    return f"remove {', '.join(use.what for use in uses)} from this node; the cluster already has the subnet"


def _hint(used: Iterable[IPv4Network | str], prefixlen: int, variable: str) -> str:
    free = free_subnet(used, prefixlen)
    example = f", for example {free}" if free is not None else ""
    return f"choose another subnet with {variable}{example}"
