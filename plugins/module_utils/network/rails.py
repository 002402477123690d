# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's addresses on further rails.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Mapping


def in_subnet(address: str, first: IPv4Network, subnet: IPv4Network) -> str:
    """Return the address with the same offset in another subnet.

    Args:
        address: in the first subnet.
        first: the address plan's subnet.
        subnet: the rail's, of the same size.
    """
    return str(
        IPv4Address(int(IPv4Address(address)) - int(first.network_address) + int(subnet.network_address))
    )


def on_rail(address: str, rails: Mapping[str, str], rail: str) -> str:
    """Return a node's address on a rail.

    Args:
        address: on the first rail.
        rails: name and subnet of each, in order; empty if there is only one rail.
        rail: name of a rail; "" for the first.

    Raises:
        ValueError: there is no such rail.
    """
    if not rail:
        return address
    if rail not in rails:
        raise ValueError("there is no rail {0}: choose one of {1}".format(rail, ", ".join(rails) or "none"))
    return in_subnet(address, IPv4Network(next(iter(rails.values()))), IPv4Network(rails[rail]))
