# SPDX-License-Identifier: GPL-3.0-or-later
"""Which interfaces of an InfiniBand function are partitions', and who has them.

A container on a partition gets a child of the function's own interface, which stays in the node's network
namespace. So the kernel does not show that somebody has the function. Both interfaces are marked therefore,
in their alias: where the own one has a mark and no child with this mark is here, that child is in a
container. The kernel forgets marks with the interfaces, and so with a boot.

Since Linux 5.13 a child comes back from a namespace that dies, under the name and with the alias that it had
there. An older kernel takes it away: then the mark goes with the endpoint.

Sources: ip-link(8), IPOIB Type Support; the kernel's Documentation/infiniband/ipoib.rst and Documentation/ABI
(sysfs-class-net).

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import re
from typing import List, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import entries, read

MARK = "rdm-sriov "
"""How the alias of what was marked begins; then comes whom it is for."""

_NAME = re.compile(r"rdm-p\d+$")


def interfaces(device: str) -> Tuple[str, List[str]]:
    """Return the own interface of a function, "" for none, and the children on it that are here.

    Args:
        device: the function's directory in sysfs.
    """
    found = entries(device, "net")
    # A child's iflink is the interface below it; that of others is themselves.
    children = [name for name in found if _of(device, name, "iflink") != _of(device, name, "ifindex")]
    own = [name for name in found if name not in children]
    return own[0] if own else "", children


def mark(device: str, interface: str) -> str:
    """Return the mark of an interface of a function; "" when it has none of ours."""
    alias = _of(device, interface, "ifalias")
    return alias if alias.startswith(MARK) else ""


def free(device: str) -> str:
    """Return the own interface of a function that nobody has; "" when it, or its partition's, is not here."""
    own, children = interfaces(device)
    lent = mark(device, own) if own else ""
    return "" if lent and lent not in [mark(device, child) for child in children] else own


def is_ours(device: str, child: str) -> bool:
    """Say whether a child was made by rdm-sriov: it has a mark, or was about to get one."""
    return bool(mark(device, child) or _NAME.match(child))


def name_on(device: str, own: str) -> str:
    """Return how a child on an interface is named on the node."""
    return "rdm-p" + _of(device, own, "ifindex")


def _of(device: str, interface: str, name: str) -> str:
    return read(device, "net", interface, name)
