# SPDX-License-Identifier: GPL-3.0-or-later
"""The partition interfaces of an InfiniBand function, and whether a container uses them.

A container on a partition gets a child of the function's own interface, which itself stays in the node's
network namespace. So the kernel does not show that the function is in use. Therefore both interfaces get a
mark in their alias. If the own interface has a mark and no child here has the same one, that child is in a
container. Marks vanish with the interfaces, and so at a boot.

Since Linux 5.13 a child returns from a namespace that ends, with the name and alias that it had there. An
older kernel deletes it; then the mark is removed with the endpoint.

Sources: ip-link(8), IPOIB Type Support; the kernel's Documentation/infiniband/ipoib.rst and Documentation/ABI
(sysfs-class-net).

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
from typing import List, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import entries, read

MARK = "rdm-sriov "
"""Prefix of the alias of a marked interface; the endpoint follows."""

_NAME = re.compile(r"rdm-p\d+$")


def interfaces(device: str) -> Tuple[str, List[str]]:
    """Return the own interface of a function ("" for none), and its children in this network namespace.

    Args:
        device: the function's directory in sysfs.
    """
    found = entries(device, "net")
    # The iflink of a child is its parent, that of other interfaces is themselves.
    children = [name for name in found if _of(device, name, "iflink") != _of(device, name, "ifindex")]
    own = [name for name in found if name not in children]
    return own[0] if own else "", children


def mark(device: str, interface: str) -> str:
    """Return the mark of an interface of a function; "" if it has none of ours."""
    alias = _of(device, interface, "ifalias")
    return alias if alias.startswith(MARK) else ""


def free(device: str) -> str:
    """Return the own interface of an unused function; "" if it, or its partition's, is in a container."""
    own, children = interfaces(device)
    lent = mark(device, own) if own else ""
    return "" if lent and lent not in [mark(device, child) for child in children] else own


def is_ours(device: str, child: str) -> bool:
    """Return whether rdm-sriov created a child: it has a mark, or a name of ours."""
    return bool(mark(device, child) or _NAME.match(child))


def name_on(device: str, own: str) -> str:
    """Return the name of a child of an interface on the node."""
    return "rdm-p" + _of(device, own, "ifindex")


def _of(device: str, interface: str, name: str) -> str:
    return read(device, "net", interface, name)
