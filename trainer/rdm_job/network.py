# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric's interface of this container, and ports on it."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

import psutil

# Below the range from which Linux takes ports for outgoing connections.
_PORTS = range(20000, 32000)
_BLOCK = 32
# More than 1, because the next block is the next job's. A prime number, so that all blocks are tried.
_STRIDE = 101


def interface_of(address: str) -> str | None:
    """Return the name of the interface that has an address; None if this container has none."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family == socket.AF_INET and entry.address == address for entry in entries):
            return name
    return None


def address_of(interface: str) -> str | None:
    """Return the first IPv4 address of an interface; None if it has none."""
    entries = psutil.net_if_addrs().get(interface, [])
    return next((entry.address for entry in entries if entry.family == socket.AF_INET), None)


def outward_address(to: str = "192.0.2.1") -> str | None:
    """Return this machine's source address for connections to another; None without a route to it.

    Args:
        to: The other machine; by default one outside all networks here: 192.0.2.0/24 is unused (RFC 5737).
    """
    # Nothing is sent: connecting a datagram socket only chooses a route.
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
    """Whether a process can listen on a port, at one address and, like torch, at all addresses."""
    for host in (address, ""):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                probe.listen()
            except OSError:
                return False
    return True


def take_free_ports(address: str, count: int, start: int) -> list[int] | None:
    """Return consecutive free ports, or None when there are none.

    They are from one block. So two jobs that search before either listens find different ports, unless they
    start at the same block.

    Args:
        address: Where.
        count: How many.
        start: A number that selects the first block and the position in it; different jobs use different
            numbers.
    """
    size = -(-count // _BLOCK) * _BLOCK
    blocks = len(_PORTS) // size
    # Different numbers that select the same block, as hashes may, get different positions if possible.
    inside = start // blocks % (size - count + 1)
    for step in range(blocks):
        first = _PORTS[(start + _STRIDE * step) % blocks * size + inside]
        ports = list(range(first, first + count))
        if all(is_free(address, port) for port in ports):
            return ports
    return None
