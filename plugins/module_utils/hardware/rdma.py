# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the RDMA device and the character devices of a network function.

There are four ways from a physical or virtual function to its RDMA device. No driver supports all of them:

* `device`: the RDMA device's link to its PCI function (mlx4, mlx5; not soft RoCE, which is in
devices/virtual);
* `gid_attrs`: the interfaces of its GIDs (RoCE of any kind; empty on InfiniBand);
* `parent`: the interface on which it was created (soft RoCE);
* `guid`: the last eight bytes of an IPoIB interface's address are the GUID of its port.

All ways with a result must agree. Otherwise a container might get another container's device, or none, and
only a job would notice.

Sources: the kernel's Documentation/ABI (sysfs-class-infiniband, sysfs-bus-pci, sysfs-class-net); RFC 4391
(section 9.1.1, the address of IPoIB).

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import re
from typing import Dict, List, NamedTuple, Set

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.hardware import sysfs
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import entries, link, read

RDMA_CM = "/dev/infiniband/rdma_cm"
SHARED = "rdma system set netns shared, while no container runs"
WAYS = {
    "device": "its PCI function",
    "gid_attrs": "the interfaces of their GIDs",
    "parent": "the interface that they were made on",
    "guid": "the GUID in its address",
}
"""The ways, as messages name them."""

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_INFINIBAND = "32"  # ARPHRD_INFINIBAND of linux/if_arp.h
_CLASS = "class/infiniband"
_VERBS = "class/infiniband_verbs"
_NET = "class/net"
_FUNCTIONS = "bus/pci/devices"


class Function(NamedTuple):
    """A network function of a node.

    Attributes:
        pci: its PCI address; empty for an interface without one, such as a bond.
        interfaces: names of its interfaces in this network namespace; none while a container has them.
    """

    pci: str
    interfaces: List[str]


class RdmaDevices(NamedTuple):
    """The devices that a program needs for RDMA through a function.

    Attributes:
        device: the RDMA device, such as mlx5_3; empty if the function has none.
        paths: its character devices, /dev/infiniband/..., and rdma_cm, which is shared by all.
        ways: each way with a result -> the RDMA devices that it leads to.
    """

    device: str
    paths: List[str]
    ways: Dict[str, List[str]]


def function(name: str, root: str = "/sys") -> Function:
    """Return the function with this interface or PCI address.

    Raises:
        NodeError: the node has neither.
    """
    if _PCI.match(name.lower()):
        pci = name.lower()
        if not os.path.isdir(os.path.join(root, _FUNCTIONS, pci)):
            raise NodeError("there is no PCI function {0} on this node".format(pci))
        return Function(pci, entries(root, _FUNCTIONS, pci, "net"))
    if not name or "/" in name or not os.path.isdir(os.path.join(root, _NET, name)):
        raise NodeError("there is no network interface {0} on this node".format(name))
    pci = link(root, _NET, name, "device")
    return Function(pci if _PCI.match(pci) else "", [name])


def rdma_devices(what: Function, root: str = "/sys", dev_root: str = "/dev") -> RdmaDevices:
    """Return the RDMA device of a function.

    Raises:
        NodeError: two ways lead to different devices, or a device cannot be used from programs.
    """
    ways = {
        "device": _by_function(what, root),
        "gid_attrs": _by_gids(what, root),
        "parent": {name for name in _all(root) if read(root, _CLASS, name, "parent") in what.interfaces},
        "guid": _by_guid(what, root),
    }
    output = {way: sorted(found) for way, found in ways.items() if found}
    devices = sorted({name for found in output.values() for name in found})
    if len(devices) > 1:
        raise NodeError(
            "{0} has more than one RDMA device: {1}. It must have one: see whether GUIDs are given twice, "
            "and take away what was made on top of it (rdma link delete)".format(
                _shown(what),
                "; ".join("by {0} {1}".format(WAYS[way], ", ".join(found)) for way, found in output.items()),
            )
        )
    paths = _char_devices(devices[0], root, dev_root) if devices else []
    return RdmaDevices(devices[0] if devices else "", paths, output)


def in_this_namespace(pci: str, root: str = "/sys") -> str:
    """Return the RDMA device of a PCI function if that device is in this network namespace; else "".

    In RDMA's mode shared, all devices are.
    """
    return next((name for name in _all(root) if link(root, _CLASS, name, "device") == pci), "")


def expected(what: Function, root: str = "/sys") -> str:
    """Return why a function must have an RDMA device; empty if it need not."""
    if any(read(root, _NET, name, "type") == _INFINIBAND for name in what.interfaces):
        return "{0} is InfiniBand".format(", ".join(what.interfaces))
    physical = link(root, _FUNCTIONS, what.pci, "physfn") if what.pci else ""
    of_physical = sorted(_by_function(Function(physical, []), root)) if physical else []
    if of_physical:
        return "its physical function {0} has {1}".format(physical, ", ".join(of_physical))
    return ""


def required(what: Function, why: str, root: str = "/sys", dev_root: str = "/dev") -> RdmaDevices:
    """Return the RDMA device of a function that must have one.

    Args:
        what: the function.
        why: the reason as a clause, as from :func:`expected`; empty if it need not have one.
        root: where sysfs is.
        dev_root: where the device nodes are.

    Raises:
        NodeError: it has none, or :func:`rdma_devices` fails.
    """
    found = rdma_devices(what, root, dev_root)
    if why and not found.device:
        raise NodeError(
            "{0} has no RDMA device and must have one, since {1}: none of those of the node ({2}) is on its "
            "PCI function, names its interface or has its GUID. Bind the function to its driver again, with "
            "that driver's RDMA module loaded (mlx5_ib, mlx4_ib)".format(
                _shown(what), why, ", ".join(_all(root)) or "there are none"
            )
        )
    return found


def _all(root: str) -> List[str]:
    return entries(root, _CLASS)


def _by_function(what: Function, root: str) -> Set[str]:
    if not what.pci:
        return set()
    found = {name for name in _all(root) if link(root, _CLASS, name, "device") == what.pci}
    # A device in a container's network namespace is not listed in the class here, but its character devices
    # are.
    return found or {
        read(root, _VERBS, entry, "ibdev")
        for entry in entries(root, _VERBS)
        if link(root, _VERBS, entry, "device") == what.pci
    }


def _by_gids(what: Function, root: str) -> Set[str]:
    found = set()
    for name in _all(root):
        ports = os.path.join(root, _CLASS, name, "ports")
        named = {
            # There is an entry per GID, and the kernel refuses to read unset ones.
            read(ports, port, "gid_attrs/ndevs", entry)
            for port in entries(ports)
            for entry in entries(ports, port, "gid_attrs/ndevs")
        }
        if named.intersection(what.interfaces) and _is_here(name, root):
            found.add(name)
    return found


def _is_here(name: str, root: str) -> bool:
    """Return whether the interfaces of an RDMA device's GIDs are in this network namespace.

    The kernel shows their names, but not their namespaces. A container's interface may have the same name as
    one here, but then its function has no interface here.
    """
    has_function = bool(link(root, _CLASS, name, "device"))
    return not has_function or bool(entries(root, _CLASS, name, "device/net"))


def _by_guid(what: Function, root: str) -> Set[str]:
    guids = set()
    for interface in what.interfaces:
        address = read(root, _NET, interface, "address").lower().split(":")
        if read(root, _NET, interface, "type") == _INFINIBAND and len(address) == 20:
            guids.add("".join(address[12:]))
    guids.discard("0" * 16)  # of a VF without one
    return {name for name in _all(root) if guids.intersection(_guids(name, root))}


def _guids(name: str, root: str) -> Set[str]:
    """Return the port GUIDs of an RDMA device, or its node GUID if it shows no GIDs."""
    ports = os.path.join(root, _CLASS, name, "ports")
    gids = (read(ports, port, "gids/0") for port in entries(ports))
    found = {gid.replace(":", "").lower()[16:] for gid in gids if gid}
    found.discard("0" * 16)
    return found or {read(root, _CLASS, name, "node_guid").replace(":", "").lower()}


def _char_devices(device: str, root: str, dev_root: str) -> List[str]:
    listed = [
        entry
        for directory, prefix in sysfs.RDMA_CLASSES
        for entry in entries(root, directory)
        if entry.startswith(prefix) and read(root, directory, entry, "ibdev") == device
    ]
    if not any(entry.startswith("uverbs") for entry in listed):
        raise NodeError(
            "the RDMA device {0} cannot be used from programs: load the module ib_uverbs".format(device)
        )
    missing = [entry for entry in listed if not os.path.exists(os.path.join(dev_root, "infiniband", entry))]
    if missing:
        raise NodeError(
            "the kernel has {0} for the RDMA device {1}, and there is no /dev/infiniband/{2}: see whether "
            "udev works (udevadm trigger)".format(", ".join(missing), device, missing[0])
        )
    paths = ["/dev/infiniband/" + entry for entry in listed]
    return paths + [RDMA_CM] * os.path.exists(os.path.join(dev_root, "infiniband/rdma_cm"))


def _shown(what: Function) -> str:
    names = ", ".join(what.interfaces)
    return "{0} ({1})".format(names, what.pci) if names and what.pci else names or what.pci
