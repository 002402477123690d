# SPDX-License-Identifier: GPL-3.0-or-later
"""IPv4 addresses as integers, and a parser of subnets with clear errors."""

from __future__ import annotations

import ipaddress
import re
from ipaddress import IPv4Network
from typing import Any

SMALLEST_PREFIX = 30


def to_int(text: str) -> int:
    """Return the address `text` as an integer; ValueError says what is wrong."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("is not an IPv4 address") from None
    if address.version != 4:
        raise ValueError("is an IPv6 address; the container network is IPv4")
    return int(address)


def to_text(address: int) -> str:
    """Return the integer `address` in dotted notation."""
    return f"{address >> 24}.{address >> 16 & 255}.{address >> 8 & 255}.{address & 255}"


def parse_subnet(text: Any) -> IPv4Network:
    """Return the IPv4 subnet that `text` names, such as `192.169.16.0/24`.

    Raises:
        ValueError: says what is wrong and, if possible, what to write.
    """
    match = re.fullmatch(r"([^/\s]+)/(\d{1,3})", str(text))
    if not match:
        raise ValueError("is not a subnet in CIDR form; write it like 192.169.16.0/24")
    try:
        interface = ipaddress.ip_interface(str(text))
    except ValueError:
        raise ValueError("is not a subnet in CIDR form; write it like 192.169.16.0/24") from None
    if interface.version != 4:
        raise ValueError(
            "is IPv6, which is out of scope: the container network is IPv4; write it like 192.169.16.0/24"
        )
    if interface.ip != interface.network.network_address:
        raise ValueError(f"has host bits set; the subnet is {interface.network}")
    if interface.network.prefixlen > SMALLEST_PREFIX:
        raise ValueError(
            f"has no room for a gateway and a node; use a prefix of /{SMALLEST_PREFIX} or shorter"
        )
    return interface.network


class HostRange:
    """The addresses of a subnet that a node may have, as integers.

    Attributes:
        base: the network address.
        first: the first usable address (offset 1).
        last: the last usable address (before the broadcast address).
        size: how many usable addresses there are.
    """

    def __init__(self, subnet: IPv4Network) -> None:
        self.base = int(subnet.network_address)
        self.first = self.base + 1
        self.last = int(subnet.broadcast_address) - 1
        self.size = self.last - self.base

    def __contains__(self, address: int) -> bool:
        return self.first <= address <= self.last

    def __str__(self) -> str:
        return f"{to_text(self.first)} to {to_text(self.last)}"
