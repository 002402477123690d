# SPDX-License-Identifier: GPL-3.0-or-later
"""Facts of the interfaces of container networks, as VFs and RDMA need them.

Sources: the kernel's Documentation/ABI (sysfs-bus-pci, sysfs-class-net, sysfs-class-infiniband,
sysfs-kernel-iommu_groups); drivers/infiniband/ulp/ipoib for `parent` and `pkey` of IPoIB interfaces.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import (
    Boot,
    FabricInterface,
    Opensm,
    Rdma,
    RdmaDevice,
)
from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text
from ansible_collections.rdm.provision.plugins.module_utils.hardware import rdma_tools
from ansible_collections.rdm.provision.plugins.module_utils.hardware.iommu import missing_parameters
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs import siblings
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import (
    entries,
    link,
    number,
    read,
)
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import device_of, is_infiniband

MELLANOX = "0x15b3"
_DEVICES = "bus/pci/devices"
_NETWORK_CLASS = "0x02"  # PCI_BASE_CLASS_NETWORK of linux/pci_ids.h, Ethernet and InfiniBand
_SM_CONFIGURATIONS = ("/etc/opensm/opensm.conf", "/etc/rdma/opensm.conf")


def fabric_interface(name: str, root: str = "/sys") -> FabricInterface:
    """Return the facts of an interface, given its name or the PCI address of its function.

    Returns:
        `name` (the PCI address if the function has no interface); `pci`, `driver` and `vendor` of its PCI
        function, empty for a virtual interface; `total_vfs` and `num_vfs`; `virtual` (whether it is a VF
        itself); `bond` (the bond that it is a port of, or its own name if it is a bond); `iommu` (the type of
        its IOMMU group, such as identity or DMA-FQ; empty for none); `children` (its IPoIB interfaces of
        other partitions, with `name` and `pkey`); `siblings` (other interfaces of its function); `infiniband`
        (whether it is InfiniBand rather than Ethernet).
    """
    name, device = device_of(name, root)
    others = siblings(name, root)
    children = [other for other in others if read(root, "class/net", other, "parent") == name]
    return {
        "name": name,
        "pci": link(device),
        "driver": link(device, "driver"),
        "vendor": read(device, "vendor"),
        "total_vfs": number(device, "sriov_totalvfs"),
        "num_vfs": number(device, "sriov_numvfs"),
        "virtual": os.path.exists(os.path.join(device, "physfn")),
        "bond": _bond(name, root),
        "iommu": read(device, "iommu_group/type"),
        "children": [
            {"name": child, "pkey": read(root, "class/net", child, "pkey")} for child in sorted(children)
        ],
        "siblings": sorted(set(others) - set(children)),
        "infiniband": is_infiniband(name, root),
    }


def driverless(root: str = "/sys") -> List[str]:
    """Return the network cards without a driver, as `0000:41:00.0 (15b3:101b)`, PCI address and IDs.

    VFs are left out: they may wait for their addresses, or for a virtual machine.
    """
    found = []
    for pci in entries(root, _DEVICES):
        device = os.path.join(root, _DEVICES, pci)
        if not read(device, "class").startswith(_NETWORK_CLASS):
            continue
        if not any(os.path.exists(os.path.join(device, name)) for name in ("driver", "physfn")):
            identity = ":".join(read(device, name).replace("0x", "") for name in ("vendor", "device"))
            found.append("{0} ({1})".format(pci, identity))
    return found


def firmware_needed(found: FabricInterface, vfs: int) -> bool:
    """Return whether a PF offers too few VFs, and its firmware settings may explain it."""
    return found["vendor"] == MELLANOX and not found["virtual"] and found["total_vfs"] < vfs


def port_of(name: str, infiniband: List[RdmaDevice]) -> Dict[str, Any]:
    """Return the RDMA device and port of an interface; `device` is empty if there is none.

    For a device with several ports (mlx4, which is refused for SR-IOV) it is the first port.
    """
    for device in infiniband:
        if name in device["netdevs"] and device["ports"]:
            return {"device": device["name"], **device["ports"][0]}
    return {"device": "", "port": 0}


def subnet_manager(name: str, infiniband: List[RdmaDevice]) -> Dict[str, str]:
    """Query the subnet manager from an interface's port, if that is InfiniBand and its link is up.

    Returns:
        As :func:`rdma_tools.subnet_manager`; empty for other ports.
    """
    port = port_of(name, infiniband)
    if not port["device"] or port["link_layer"] != "InfiniBand" or port["physical_state"] != "LinkUp":
        return {}
    return rdma_tools.subnet_manager(port["device"], port["port"])


def unready(interfaces: List[FabricInterface], booted: Boot, wanted: Mapping[str, Any]) -> List[str]:
    """Return what the role sriov still has to prepare for VFs, in sentences.

    Args:
        interfaces: the results of :func:`fabric_interface`.
        booted: the result of :func:`iommu.read`.
        wanted: the option `sriov` of node_facts.
    """
    found = [
        "{0[name]} offers {0[total_vfs]} of {1} VFs".format(one, wanted["vfs"])
        for one in interfaces
        if wanted.get("firmware_vfs") and firmware_needed(one, wanted["vfs"])
    ]
    lacking = missing_parameters(booted) if wanted.get("kernel_parameters") else []
    if lacking:
        found.append("the kernel was booted without {0}".format(" ".join(lacking)))
    return found


def opensm(root: str = "/") -> Opensm:
    """Return this node's configuration of the subnet manager: `path` and `virt_enabled`; empty for none.

    It may not be in use: opensm takes another one with -F.
    """
    for path in _SM_CONFIGURATIONS:
        text = read_text(os.path.join(root, path.lstrip("/")))
        if text:
            output = re.findall(r"^\s*virt_enabled\s+(\S+)", text, re.MULTILINE)
            return {"path": path, "virt_enabled": output[-1] if output else ""}
    return {}


def rdma(root: str = "/sys") -> Rdma:
    """Return RDMA's settings.

    Returns:
        ``netns_mode`` (shared or exclusive, empty if the kernel does not show it) and ``ofed`` (whether the
        drivers are those of MLNX_OFED or DOCA-OFED, not the kernel's own).
    """
    mode = read(root, "module/ib_core/parameters/netns_mode")
    return {
        "netns_mode": {"Y": "shared", "N": "exclusive"}.get(mode, ""),
        # Their compatibility layer for the running kernel.
        "ofed": os.path.isdir(os.path.join(root, "module/mlx_compat")),
    }


def _bond(name: str, root: str) -> str:
    if os.path.isdir(os.path.join(root, "class/net", name, "bonding")):
        return name
    master = link(root, "class/net", name, "master")
    is_bond = bool(master) and os.path.isdir(os.path.join(root, "class/net", master, "bonding"))
    return master if is_bond else ""
