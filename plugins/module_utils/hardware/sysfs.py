# SPDX-License-Identifier: GPL-3.0-or-later
"""GPUs and InfiniBand devices, read from sysfs and the device nodes.

No vendor tool is run: /sys and /dev have everything, for every user, with or without ROCm, CUDA or OFED.
Every function takes the roots as arguments, so that tests pass trees of their own. Missing files read as
empty. The returned paths are always those of the node (/dev/...).

Sources: the kernel's Documentation/ABI (sysfs-class-infiniband, sysfs-class-net).
"""

from __future__ import annotations

import os
import re
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import (
    DeviceNodes,
    Gpu,
    Interface,
    Port,
    RdmaDevice,
)
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import entries as _entries
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import link as _link
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import number as _number
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import read as _read

_PCI_DEVICES = "bus/pci/devices"
_KFD_NODES = "class/kfd/kfd/topology/nodes"

_GPU_VENDORS = {"0x1002": "amd", "0x10de": "nvidia"}
# PCI base classes: display controller; processing accelerator (MI300).
_GPU_CLASSES = ("0x03", "0x12")
# The kernel driver of a vendor's GPUs -> the accelerator.
_ACCELERATORS = {"amdgpu": "rocm", "nvidia": "cuda"}

# Class directory and name prefix of each kind of character device of an RDMA device.
RDMA_CLASSES = (
    ("class/infiniband_verbs", "uverbs"),
    ("class/infiniband_mad", "umad"),
    ("class/infiniband_mad", "issm"),
    ("class/infiniband_cm", "ucm"),
)


def gpus(root: str = "/sys") -> list[Gpu]:
    """Return the GPUs in PCI order: vendor (amd, nvidia), pci, driver, render_node.

    `driver` is the GPU's kernel driver and `render_node` its node in /dev/dri, each "" if there is none. On
    MI200 each of the two dies of a card counts as a GPU, as in ROCm. If the amdgpu driver provides compute
    (KFD), AMD GPUs without it, such as a console's, are left out.
    """
    compute = _kfd_addresses(root)
    found: list[Gpu] = []
    for pci in sorted(_entries(root, _PCI_DEVICES)):  # hexadecimal, so not in natural order
        device = os.path.join(root, _PCI_DEVICES, pci)
        vendor = _GPU_VENDORS.get(_read(device, "vendor"))
        if vendor is None or not _read(device, "class").startswith(_GPU_CLASSES):
            continue
        if vendor == "amd" and compute and pci not in compute:
            continue
        renders = [name for name in _entries(device, "drm") if name.startswith("renderD")]
        found.append(
            {
                "vendor": vendor,
                "pci": pci,
                "driver": _link(device, "driver"),
                "render_node": "/dev/dri/" + renders[0] if renders else "",
            }
        )
    return found


def accelerator(found: list[Gpu]) -> str:
    """Return rocm, cuda or cpu, by the driver of most GPUs.

    A GPU without its driver, or passed to a virtual machine, does not count. On a tie, such as one AMD APU
    and one NVIDIA card, it is cuda.
    """
    drivers = [gpu["driver"] for gpu in found if gpu["driver"] in _ACCELERATORS]
    if not drivers:
        return "cpu"
    return _ACCELERATORS[max(sorted(set(drivers), reverse=True), key=drivers.count)]


def unserved(found: list[Gpu]) -> list[Gpu]:
    """Return the GPUs without a compute driver."""
    return [gpu for gpu in found if gpu["driver"] not in _ACCELERATORS]


def device_nodes(dev_root: str = "/dev") -> DeviceNodes:
    """Return which device nodes that containers may need exist: kfd, dri, nvidia, rdma_cm.

    `groups` has the ids of the groups, without root's, that own AMD's device nodes.
    """
    amd = ["kfd", *("dri/" + name for name in _entries(dev_root, "dri") if name.startswith("renderD"))]
    return {
        "groups": sorted({_gid(os.path.join(dev_root, name)) for name in amd} - {0}),
        "kfd": os.path.exists(os.path.join(dev_root, "kfd")),
        "dri": [
            "/dev/dri/" + name for name in _entries(dev_root, "dri") if name.startswith(("card", "renderD"))
        ],
        "nvidia": ["/dev/" + name for name in _entries(dev_root) if re.match(r"nvidia\d+$", name)],
        "rdma_cm": os.path.exists(os.path.join(dev_root, "infiniband/rdma_cm")),
    }


def infiniband(root: str = "/sys", dev_root: str = "/dev") -> list[RdmaDevice]:
    """Return the RDMA devices (InfiniBand and RoCE), VFs included, with ports and character devices.

    `char_devices` are those that exist in dev_root, `virtual` is whether the device is a VF, and
    `driver_version` is empty for most of the kernel's own drivers.
    """
    found: list[RdmaDevice] = []
    for name in _entries(root, "class/infiniband"):
        device = os.path.join(root, "class/infiniband", name)
        found.append(
            {
                "name": name,
                "node_guid": _read(device, "node_guid"),
                "firmware": _read(device, "fw_ver"),
                "board_id": _read(device, "board_id"),
                "type": _read(device, "hca_type"),
                "driver": _link(device, "device/driver"),
                "driver_version": _read(device, "device/driver/module/version"),
                "pci": _link(device, "device"),
                "virtual": os.path.exists(os.path.join(device, "device/physfn")),
                "char_devices": _char_devices(name, root, dev_root),
                "netdevs": _entries(device, "device/net"),
                "ports": [_port(device, number) for number in _entries(device, "ports")],
            }
        )
    return found


def siblings(netdev: str, root: str = "/sys") -> list[str]:
    """Return the other interfaces on the PCI function of an interface (second port, IPoIB children)."""
    names = _entries(root, "class/net", netdev, "device/net")
    return [name for name in names if name != netdev]


def netdevs(root: str = "/sys") -> list[Interface]:
    """Return the network interfaces of this network namespace: name, mac."""
    return [
        {
            "name": name,
            "mac": _read(root, "class/net", name, "address"),
        }
        for name in _entries(root, "class/net")
        if os.path.isdir(os.path.join(root, "class/net", name))
    ]


def _kfd_addresses(root: str) -> set[str]:
    """Return the PCI addresses of the GPUs in KFD's topology (CPUs have gpu_id 0)."""
    addresses = set()
    for node in _entries(root, _KFD_NODES):
        if _number(root, _KFD_NODES, node, "gpu_id") == 0:
            continue
        lines = _read(root, _KFD_NODES, node, "properties").splitlines()
        properties = dict(line.split(None, 1) for line in lines if " " in line)
        location = int(properties.get("location_id", "0"))
        addresses.add(
            "{0:04x}:{1:02x}:{2:02x}.{3}".format(
                int(properties.get("domain", "0")), location >> 8, location >> 3 & 0x1F, location & 7
            )
        )
    return addresses


def _port(device: str, number: str) -> Port:
    port = os.path.join(device, "ports", number)
    lid = _read(port, "lid")
    return {
        "port": int(number),
        # Such as "4: ACTIVE" and "5: LinkUp".
        "state": _read(port, "state").partition(": ")[2],
        "physical_state": _read(port, "phys_state").partition(": ")[2],
        "rate": _read(port, "rate"),
        "link_layer": _read(port, "link_layer"),
        "lid": int(lid, 16) if lid else 0,
        # The subnet manager's LID; 0 if none has configured the port.
        "sm_lid": int(_read(port, "sm_lid") or "0", 16),
    }


def _char_devices(name: str, root: str, dev_root: str) -> list[str]:
    """Return the character devices whose class entry names this RDMA device in its `ibdev` file."""
    return [
        "/dev/infiniband/" + entry
        for class_dir, prefix in RDMA_CLASSES
        for entry in _entries(root, class_dir)
        if entry.startswith(prefix)
        and _read(root, class_dir, entry, "ibdev") == name
        and os.path.exists(os.path.join(dev_root, "infiniband", entry))
    ]


def _gid(path: str) -> int:
    """Return the group id of a file; 0 if there is no such file."""
    try:
        return os.stat(path).st_gid
    except OSError:
        return 0


def gpu_driver(root: str) -> dict[str, Any]:
    """Return what a torch build must match: the version of NVIDIA's driver, or AMD's GPU architectures."""
    found = set()
    for node in _entries(root, _KFD_NODES):
        lines = _read(root, _KFD_NODES, node, "properties").splitlines()
        properties = dict(line.split(None, 1) for line in lines if " " in line)
        version = int(properties.get("gfx_target_version", 0))
        if version:  # a processor has 0
            major, rest = divmod(version, 10000)
            found.add("gfx{0}{1:x}{2:x}".format(major, *divmod(rest, 100)))
    return {"nvidia": _read(root, "module/nvidia/version"), "amd": sorted(found)}
