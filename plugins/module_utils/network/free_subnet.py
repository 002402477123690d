# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds an unused subnet, for the planner and the lab (Python 3.8 or newer)."""

from __future__ import annotations

import ipaddress
from bisect import bisect_left
from ipaddress import IPv4Network
from typing import Iterable, List, Optional, Tuple, Union

# The ranges to search, in order. The first ones leave out the part of 10/8 that sites use most.
SEARCH = (
    ("10.20.0.0", "10.255.255.255"),
    ("10.0.0.0", "10.255.255.255"),
    ("172.16.0.0", "172.31.255.255"),
    ("192.168.0.0", "192.168.255.255"),
)


def free_subnet(used: Iterable[Union[IPv4Network, str]], prefixlen: int) -> Optional[IPv4Network]:
    """Return a private (RFC 1918) subnet that overlaps none of `used`; None if there is none.

    Args:
        used: networks, as objects or in CIDR form; IPv6 ones are ignored.
        prefixlen: the prefix length of the free subnet.
    """
    ranges = _merged(used)
    ends = [end for _, end in ranges]
    size = 1 << (32 - prefixlen)
    for first, last in SEARCH:
        start, stop = int(ipaddress.IPv4Address(first)), int(ipaddress.IPv4Address(last))
        while True:
            start = (start + size - 1) // size * size
            if start + size - 1 > stop:
                break
            position = bisect_left(ends, start)
            if position == len(ranges) or ranges[position][0] > start + size - 1:
                return IPv4Network((start, prefixlen))
            start = ranges[position][1] + 1
    return None


def ipv4_network(text: str) -> Optional[IPv4Network]:
    """Return the IPv4 network of an address or CIDR text; None for anything else."""
    try:
        found = ipaddress.ip_interface(text).network
    except ValueError:
        return None
    return found if isinstance(found, IPv4Network) else None


def _merged(used: Iterable[Union[IPv4Network, str]]) -> List[Tuple[int, int]]:
    networks = (one if isinstance(one, IPv4Network) else ipv4_network(str(one)) for one in used)
    ranges = sorted(
        (int(one.network_address), int(one.broadcast_address)) for one in networks if one is not None
    )
    merged: List[Tuple[int, int]] = []
    for start, end in ranges:
        if merged and start <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
