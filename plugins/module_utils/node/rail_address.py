# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a node is on a further rail.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network


def moved(address: str, first: IPv4Network, subnet: IPv4Network) -> str:
    """Return the address that has the same place in another subnet.

    Args:
        address: in the first subnet.
        first: the address plan's subnet.
        subnet: of the rail; as large.
    """
    return str(
        IPv4Address(int(IPv4Address(address)) - int(first.network_address) + int(subnet.network_address))
    )
