# SPDX-License-Identifier: GPL-3.0-or-later
"""Detects duplicate addresses with the ARP probe of RFC 5227, which changes no host's ARP cache.

This runs on nodes (Python 3.8 or newer), as root.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from typing import Dict, List, Mapping

from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text

AGAIN_S = 0.3
"""Seconds until the second probe."""
LIMIT_S = 0.8
"""Seconds to wait for answers. The owner of an address answers within milliseconds."""

_ARP = 0x0806
_IPV4 = 0x0800
_ETHERNET, _INFINIBAND = 1, 32  # linux/if_arp.h
_REQUEST = 1
_FIXED = struct.Struct("!HHBBH")


def in_use(addresses: Mapping[str, str], sysfs_root: str = "/sys") -> List[Dict[str, str]]:
    """Return the addresses that other hosts on the link have, each with `interface`, `address` and `mac`.

    An interface that cannot send ARP is skipped.

    Args:
        addresses: interface -> the address to probe there.
        sysfs_root: where sysfs is.
    """
    found: Dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        wires = {}
        for interface in addresses:
            with contextlib.suppress(OSError, ValueError):
                wires[interface] = stack.enter_context(_Wire(interface, addresses[interface], sysfs_root))
        began = time.monotonic()
        for until in (AGAIN_S, LIMIT_S):
            for name in wires:
                if name not in found:
                    wires[name].probe()
            left = until
            while left > 0:
                silent = {wire.socket: wire for name, wire in wires.items() if name not in found}
                if not silent:
                    break
                # Where a busy node has stood still until now, the answers that have arrived count.
                left = began + until - time.monotonic()
                for ready in select.select(list(silent), [], [], max(left, 0.0))[0]:
                    mac = silent[ready].owner()
                    if mac:
                        found[silent[ready].interface] = mac
    return [
        {"interface": name, "address": address, "mac": found[name]}
        for name, address in addresses.items()
        if name in found
    ]


def request(mac: bytes, address: str, kind: int) -> bytes:
    """Return the ARP probe: a request without a sender address.

    Args:
        mac: hardware address of the interface.
        address: the address to probe.
        kind: the kernel's hardware type of the interface.
    """
    fixed = _FIXED.pack(kind, _IPV4, len(mac), 4, _REQUEST)
    return fixed + mac + bytes(4) + bytes(len(mac)) + socket.inet_aton(address)


def sender(packet: bytes, address: str) -> str:
    """Return the sender's hardware address if a packet comes from the owner of an address; else empty."""
    if len(packet) < _FIXED.size:
        return ""
    _, protocol, length, _, _ = _FIXED.unpack_from(packet)
    mac = packet[_FIXED.size : _FIXED.size + length]
    theirs = packet[_FIXED.size + length : _FIXED.size + length + 4]
    return mac.hex(":") if protocol == _IPV4 and theirs == socket.inet_aton(address) else ""


def frame(packet: bytes, mac: bytes, broadcast: bytes, kind: int) -> bytes:
    """Return a broadcast packet with the header of its link type."""
    if kind == _INFINIBAND:  # the kernel's header: destination and protocol
        return broadcast + struct.pack("!HH", _ARP, 0) + packet
    return broadcast + mac + struct.pack("!H", _ARP) + packet


class _Wire:
    """An interface, and the address to probe there.

    Raises:
        OSError: it cannot send ARP.
        ValueError: it has no hardware addresses.
    """

    def __init__(self, interface: str, address: str, sysfs_root: str) -> None:
        self.interface = interface
        self.address = address
        link = os.path.join(sysfs_root, "class", "net", interface)
        kind = int(read_text(os.path.join(link, "type")))
        if kind not in (_ETHERNET, _INFINIBAND):
            raise ValueError(interface)
        self._mac, broadcast = (
            bytes.fromhex(read_text(os.path.join(link, name)).strip().replace(":", ""))
            for name in ("address", "broadcast")
        )
        self._frame = frame(request(self._mac, address, kind), self._mac, broadcast, kind)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ARP))
        self._sends = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self.socket.bind((interface, _ARP))
            self.socket.setblocking(False)
            self._sends.bind((interface, 0))
        except OSError:
            self.close()
            raise

    def __enter__(self) -> "_Wire":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets."""
        self.socket.close()
        self._sends.close()

    def probe(self) -> None:
        """Send a probe; on a link that is down it is lost."""
        with contextlib.suppress(OSError):
            self._sends.send(self._frame)

    def owner(self) -> str:
        """Return the hardware address of the owner that has answered so far; empty for none."""
        while True:
            try:
                packet = self.socket.recv(1024)
            except OSError:
                return ""
            mac = sender(packet, self.address)
            if mac and mac != self._mac.hex(":"):
                return mac
