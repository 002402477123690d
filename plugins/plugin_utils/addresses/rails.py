# SPDX-License-Identifier: GPL-3.0-or-later
"""Rails: several interfaces of a node, each with its own container network.

All rails share one address plan: a node has the same offset in each rail's subnet, so that kept, pinned and
reserved addresses hold for every rail. The subnets of further rails follow the plan's, unless the user sets
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Network

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names as listed
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.ipv4 import parse_subnet
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

MOST = 16
"""Rails per node, the number of adapters of the largest machines."""

_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")


def name_problems(node: str, rails: Sequence[str], parent: str, driver: str) -> list[Problem]:
    """Return what is wrong with a node's list of rails.

    Args:
        node: inventory name.
        rails: its interfaces, as the user lists them; empty for no further rails.
        parent: the interface of its first network (`network_parent`).
        driver: the driver of its networks.
    """
    if not rails:
        return []
    value = f"container_rails {','.join(rails)}"
    hint = "list the interfaces of the node, such as [ib0, ib1]"
    wrong = [name for name in rails if not _INTERFACE.fullmatch(name)]
    if wrong:
        return [Problem(node, value, f"has {wrong[0]!r}, which is no name of an interface", hint)]
    twice = [name for name in rails if list(rails).count(name) > 1]
    if twice:
        return [Problem(node, value, f"has {twice[0]} more than once", hint)]
    if len(rails) > MOST:
        return [Problem(node, value, f"has more than {MOST} interfaces", f"list {MOST} at most")]
    if driver == "bridge":
        reason = "has no meaning for the driver bridge, whose networks lie on no interface"
        return [Problem(node, value, reason, "choose sriov, macvlan or ipvlan, or leave the rails out")]
    if rails[0] != parent:
        reason = f"begins with {rails[0]}, and MY_IP is on network_parent {parent}"
        return [Problem(node, value, reason, f"list {parent} first, or set network_parent: {rails[0]}")]
    return []


def rail_subnets(
    first: IPv4Network, counts: Mapping[str, int], given: Mapping[str, Sequence[str]]
) -> tuple[list[IPv4Network], list[Problem]]:
    """Return the subnets of the further rails, and what is wrong with them.

    Args:
        first: the address plan's subnet.
        counts: node -> its number of rails, including the first; 0 or 1 for only the first.
        given: node -> the user's subnets of the further rails (`container_rail_subnets`).
    """
    wanted = {max(count, 1) for count in counts.values()}
    if len(wanted) > 1:
        most = max(counts, key=lambda node: counts[node])
        fewer = [node for node in counts if max(counts[node], 1) < counts[most]]
        reason = f"has {counts[most]} interfaces on {most}, and fewer on {listed(fewer)}"
        hint = "give every node as many rails: what one cannot reach there, it waits for"
        return [], [Problem(None, "container_rails", reason, hint)]
    further = (wanted.pop() if wanted else 1) - 1
    texts = {tuple(subnets) for subnets in given.values()}
    if len(texts) > 1:
        return [], [
            Problem(None, "container_rail_subnets", "differs between nodes", "set it once, under all: vars:")
        ]
    mine = texts.pop() if texts else ()
    if mine and len(mine) != further:
        value = f"container_rail_subnets {','.join(mine)}"
        reason = f"has {len(mine)} subnets, and there are {further} rails after the first"
        return [], [Problem(None, value, reason, "give each of these one, or none to any")]
    found: list[IPv4Network] = []
    problems = []
    for index in range(further):
        try:
            found.append(parse_subnet(mine[index]) if mine else _next(first, index + 1))
        except ValueError as error:
            value = f"container_rail_subnets {mine[index] if mine else ''}".rstrip()
            problems.append(Problem.of(None, value, error))
    if not problems:
        problems = _disjoint(first, found)
    return ([], problems) if problems else (found, [])


def network_of(first: str, index: int) -> str:
    """Return the name of a rail's Docker network; the first rail, 0, has the name `first`."""
    return f"{first}-{index}" if index else first


def prefix_of(prefix: str, index: int) -> str:
    """Return the prefix of a rail's interface name in the container, for the driver `sriov`.

    An engine connects a container's networks in any order. With its own prefix, a rail has the same interface
    name after every start; the first rail keeps the name that it has without further rails.
    """
    return f"{prefix or 'eth'}{index}r" if index else prefix


def _next(first: IPv4Network, index: int) -> IPv4Network:
    base = int(first.network_address) + index * first.num_addresses
    if base + first.num_addresses > 1 << 32:
        raise ValueError(f"must be set: behind {first} there is no room for another rail")
    return IPv4Network((base, first.prefixlen))


def _disjoint(first: IPv4Network, found: Sequence[IPv4Network]) -> list[Problem]:
    """Return a problem for each subnet with another size than the first, or that overlaps an earlier one."""
    problems = []
    for index, subnet in enumerate(found):
        value = f"the subnet {subnet} of rail {index + 1}"
        before = [one for one in (first, *found[:index]) if one.overlaps(subnet)]
        if subnet.prefixlen != first.prefixlen:
            reason = f"is not as large as the address plan's {first}, whose offsets the rails share"
            problems.append(Problem(None, value, reason, f"use a prefix of /{first.prefixlen}"))
        elif before:
            reason = f"overlaps {before[0]} of another rail"
            problems.append(Problem(None, value, reason, "give each rail a subnet of its own"))
    return problems
