# SPDX-License-Identifier: GPL-3.0-or-later
"""The hardware addresses of virtual functions: MACs, and GUIDs derived from them.

A cluster's MACs begin with two bytes from its address plan (locally administered, unicast). The other four
identify the VF: 20 bits of the node's MY_IP, 4 bits for the index of the physical function in the node's
list, 8 bits for the VF's number. They are as unique and permanent as MY_IP. An InfiniBand VF has one GUID as
node GUID and port GUID: the MAC as EUI-64, with ff:fe in the middle (IEEE's guidelines for EUI).

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
from typing import List, NamedTuple, Optional

MOST_PFS = 16
"""Physical functions of a node, at most."""
MOST_VFS = 256
"""VFs of a physical function, at most."""
ADDRESS_BITS = 20
"""The low bits of MY_IP that tell nodes apart, enough for a /12."""

MAC_BYTES = 6
GUID_BYTES = 8


def first_mac(prefix: str, address: int) -> str:
    """Return the first MAC of a node: that of VF 0 of its first physical function.

    Args:
        prefix: the cluster's two bytes, such as `06:5e`.
        address: the node's MY_IP.
    """
    return "{0}:{1}".format(prefix, _text((address & (1 << ADDRESS_BITS) - 1) << 12, 4))


def mac_of(first: str, pf: int, number: int) -> str:
    """Return the MAC of a VF.

    Args:
        first: the first MAC of its node.
        pf: index of the physical function in the node's list, from 0.
        number: of the VF.
    """
    if not (0 <= pf < MOST_PFS and 0 <= number < MOST_VFS):
        raise ValueError(
            "there are addresses for {0} physical functions with {1} VFs each, and not for VF {2} of number "
            "{3}".format(MOST_PFS, MOST_VFS, number, pf)
        )
    return _text(_number(first) + (pf << 8) + number, MAC_BYTES)


class VfOfAddress(NamedTuple):
    """The VF that one of our addresses identifies."""

    prefix: str
    address: int
    pf: int
    number: int


def vf_of(text: str) -> Optional[VfOfAddress]:
    """Return the VF of a normalised MAC or GUID; None for a GUID that is not derived from a MAC."""
    if bytes_of(text) == GUID_BYTES:
        if text[8:15] != ":ff:fe:":
            return None
        text = text[:9] + text[15:]
    value = _number(text[6:])
    return VfOfAddress(text[:5], value >> 12, value >> 8 & MOST_PFS - 1, value & MOST_VFS - 1)


def guid_of(mac: str) -> str:
    """Return a MAC as EUI-64."""
    return "{0}:ff:fe:{1}".format(mac[:8], mac[9:])


def normal(text: str) -> str:
    """Return a MAC or GUID as bytes with colons, as `ip` prints it. sysfs groups the digits of a GUID by 4.

    Raises:
        ValueError: it is neither.
    """
    digits = re.sub(r"[:.-]", "", text).lower()
    if not re.fullmatch(r"(?:[0-9a-f]{12}|[0-9a-f]{16})", digits):
        raise ValueError("is neither a MAC (6 bytes) nor a GUID (8 bytes)")
    return ":".join(digits[at : at + 2] for at in range(0, len(digits), 2))


def bytes_of(normalised: str) -> int:
    """Return the number of bytes of a normalised address."""
    return normalised.count(":") + 1


def addresses(first: str, pf: int, number: int) -> List[str]:
    """Return the MACs of the first VFs of a physical function.

    Args:
        first: the first MAC of the node; empty for no MACs.
        pf: the index of the physical function, as in :func:`mac_of`.
        number: how many VFs.
    """
    return [mac_of(first, pf, one) for one in range(number)] if first else []


def _number(mac: str) -> int:
    return int(mac.replace(":", ""), 16)


def _text(value: int, length: int) -> str:
    return ":".join("{0:02x}".format(byte) for byte in value.to_bytes(length, "big"))
