# SPDX-License-Identifier: GPL-3.0-or-later
"""The boot settings that SR-IOV depends on: the IOMMU and the kernel's command line.

Sources: the kernel's Documentation/admin-guide/kernel-parameters.txt and ABI (sysfs-kernel-iommu_groups,
sysfs-firmware-acpi); arch/x86/kernel/cpu/match.c for the modalias of CPUs.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import re
from typing import List, Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import Boot
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import entries
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import read as read_file

# The vendor's number in a CPU's modalias -> the kernel's name of its IOMMU.
_VENDORS = {"0000": "intel", "0002": "amd", "0009": "amd"}  # 9 is Hygon, whose IOMMU is AMD's
_HYPERVISOR = "009F"  # the CPU's feature flag for it
_TABLES = {"intel": "DMAR", "amd": "IVRS"}
_PARAMETERS = {
    "intel": ["intel_iommu=on", "iommu=pt"],
    "amd": ["amd_iommu=on", "iommu=pt"],
}
_RELEVANT = re.compile(r"(intel_iommu|amd_iommu|iommu|iommu\.passthrough|pci)=")


def iommu_parameters(cpu: str) -> List[str]:
    """Return the kernel parameters that enable a CPU's IOMMU, with devices at full speed."""
    return list(_PARAMETERS.get(cpu, []))


def cpu_vendor(root: str = "/sys") -> str:
    """Return the vendor of the CPU's IOMMU, intel or amd; empty for others."""
    match = re.match(r"cpu:type:x86,ven([0-9A-F]{4})", _modalias(root))
    return _VENDORS.get(match.group(1), "") if match else ""


def read(root: str = "/sys", command_line: str = "") -> Boot:
    """Return the state of the IOMMU.

    Returns:
        `cpu` (intel, amd or empty), `virtual` (whether the node is a virtual machine), `iommu` (whether
        devices are in IOMMU groups), `table` (the name of the ACPI table that announces the IOMMU, empty if
        there is none), `parameters` (the IOMMU's on the command line).
    """
    cpu = cpu_vendor(root)
    table = _TABLES.get(cpu, "")
    present = bool(table) and os.path.exists(os.path.join(root, "firmware/acpi/tables", table))
    features = _modalias(root).partition("feature:")[2].split(",")
    return {
        "cpu": cpu,
        "virtual": _HYPERVISOR in features,
        "iommu": bool(entries(root, "kernel/iommu_groups")),
        "table": table if present else "",
        "parameters": [word for word in command_line.split() if _RELEVANT.match(word)],
    }


def missing_parameters(booted: Boot) -> List[str]:
    """Return the parameters that the IOMMU needs and the command line lacks.

    Args:
        booted: the result of :func:`read`; empty if unknown.
    """
    return lacking(iommu_parameters(booted.get("cpu", "")), booted.get("parameters", []))


def lacking(wanted: Sequence[str], words: Sequence[str]) -> List[str]:
    """Return the wanted parameters that a command line lacks; `iommu=on,sm` includes `iommu=on`."""
    there = set(words)
    for word in words:
        key, _, values = word.partition("=")
        there.update("{0}={1}".format(key, value) for value in values.split(","))
    return [one for one in wanted if one not in there]


def _modalias(root: str) -> str:
    return read_file(root, "devices/system/cpu/modalias")
