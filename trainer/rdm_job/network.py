# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric's interface of this container, and ports on it."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

import psutil

__all__ = ["address_of", "interface_of", "is_free", "network_of", "outward_address", "take_free_ports"]

# Below the range from which Linux takes ports for outgoing connections.
_PORTS = range(20000, 32000)
_BLOCK = 32
# Not to the next block, which is for the next job. A prime number, so that all blocks are looked at.
_STRIDE = 101


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has an address, or None when this container has no such."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family == socket.AF_INET and entry.address == address for entry in entries):
            return name
    return None


def address_of(interface: str) -> str | None:
    """Return the first IPv4 address of an interface, or None when it has none."""
    entries = psutil.net_if_addrs().get(interface, [])
    return next((entry.address for entry in entries if entry.family == socket.AF_INET), None)


def outward_address(to: str = "192.0.2.1") -> str | None:
    """Return the address that this machine talks to another with; None without a route to it.

    Args:
        to: The other machine; when not given one of other networks: 192.0.2.0/24 is nobody's (RFC 5737).
    """
    # Nothing is sent: to connect a datagram socket only chooses a route.
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((to, 9))
        return str(probe.getsockname()[0])
    return None


def network_of(address: str) -> str:
    """Return the network of an address of this container, as CIDR."""
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family == socket.AF_INET and entry.address == address and entry.netmask:
                return str(ipaddress.ip_network(f"{address}/{entry.netmask}", strict=False))
    return f"{address}/32"


def is_free(address: str, port: int) -> bool:
    """Whether a port can be listened on, at an address and, as torch does, at all of them."""
    for place in (address, ""):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((place, port))
                probe.listen()
            except OSError:
                return False
    return True


def take_free_ports(address: str, count: int, start: int) -> list[int] | None:
    """Return ports in a row that are free, or None when there are none.

    They are of one block. So two jobs that look at once, and both before either listens, do not find the same
    ones unless they begin at the same block.

    Args:
        address: Where.
        count: How many.
        start: Which block to begin with, and where in it, by its number; different jobs begin with different
            ones.
    """
    size = -(-count // _BLOCK) * _BLOCK
    blocks = len(_PORTS) // size
    # Numbers that come to the same block, as hashes of names do, are apart in it as far as they can be.
    inside = start // blocks % (size - count + 1)
    for step in range(blocks):
        first = _PORTS[(start + _STRIDE * step) % blocks * size + inside]
        ports = list(range(first, first + count))
        if all(is_free(address, port) for port in ports):
            return ports
    return None
