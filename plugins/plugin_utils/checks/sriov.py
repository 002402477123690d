# SPDX-License-Identifier: GPL-3.0-or-later
"""Check what VFs need, layer by layer: BIOS, kernel command line, firmware, driver.

Each sentence begins with its layer, says what was read, and ends with the command that repairs it. What makes
VFs impossible is refused; what only slows them down, or is uncertain, is a warning.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Set
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NO_ENGINE
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import is_ours
from ansible_collections.rdm.provision.plugins.module_utils.hardware.iommu import (
    iommu_parameters,
    missing_parameters,
)
from ansible_collections.rdm.provision.plugins.module_utils.hardware.rdma_tools import allows, set_command
from ansible_collections.rdm.provision.plugins.module_utils.sriov import decision
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import from_fact
from ansible_collections.rdm.provision.plugins.module_utils.sriov.pf import MELLANOX
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.network_plugin import leaves_upstream
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import OWN, UPSTREAM
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

_FIRMWARE_VFS = 8
"""The least number of VFs in a hint, the default of sriov_firmware_vfs."""
_HAVE_VFS = ("running", "paused")


def vfs(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Refuse VFs that a PF cannot have, before any node gets VFs."""
    reported, refused = set(), set()
    for one in facts["fabric_interfaces"] if want.network_driver == "sriov" else []:
        unfit = _unfit(want, one)
        if unfit or (one["pci"] and one["total_vfs"] < want.vfs_needed):
            reported |= {one["name"], one["pci"]}
            problem = unfit or _too_few(want, one, findings)
            if problem:
                refused.add(one["name"])
                findings.problems.append(problem)
    findings.problems.extend(_none_to_give(want, facts, refused))
    if want.vfs.number and not want.become:
        reason = "needs root, which makes virtual functions, and rdm_become is false"
        findings.refuse(want.node, "sriov_vfs", reason, "set rdm_become to true")
    findings.problems.extend(_impossible(want, facts, reported))


def link_layer(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Refuse a VLAN on InfiniBand and a partition on Ethernet, as the plugin would later."""
    if want.network_driver != "sriov":
        return
    infiniband = {one["pf"]: one["infiniband"] for one in facts["sriov"]}
    infiniband.update({one["name"]: one["infiniband"] for one in facts["fabric_interfaces"] if one["pci"]})
    below = [
        (name, one.network.options)
        for number, one in enumerate(want.attachments)
        for name in ([one.interface] if number else want.below_first)
    ]
    vlan = [name for name, options in below if options.get("vlan") and infiniband.get(name) is True]
    pkey = [name for name, options in below if options.get("pkey") and infiniband.get(name) is False]
    for variable, wrong, kind, hint in (
        (
            "network_vlan",
            vlan,
            "InfiniBand, which has partitions",
            "leave it out, or set network_pkey to a partition",
        ),
        ("network_pkey", pkey, "Ethernet, which has no partitions", "leave it out, or set network_vlan"),
    ):
        if wrong:
            option = "vlan" if variable == "network_vlan" else "pkey"
            value = next(options[option] for name, options in below if name == wrong[0])
            reason = f"does not fit {names(wrong)}: {'that is' if len(wrong) == 1 else 'these are'} {kind}"
            reason += " in the place of VLANs" if option == "vlan" else ""
            findings.refuse(want.node, f"{variable} {value}", reason, hint)


def shared_pci_functions(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn of other interfaces on the PFs' PCI functions, which mislead the upstream plugin.

    These are partitions (pkeys) and second ports. rdm-sriov identifies functions by their PCI addresses.
    """
    if want.network_driver != "sriov" or want.plugin != UPSTREAM:
        return
    for one in facts["fabric_interfaces"]:
        others = [f"{child['name']} (pkey {child['pkey'] or 'unknown'})" for child in one["children"]]
        others += one["siblings"]
        if others and one["pci"]:
            findings.warn(
                want.node,
                f"host: {names(others)} on the PCI function of {one['name']}: rdma/sriov-plugin then "
                "takes it for one port of a multi-port card and makes no VFs. ip link delete takes a "
                "partition away.",
            )


def iommu(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn if the IOMMU is off, naming the layer, or slows devices down."""
    booted = facts["boot"]
    cpu = booted.get("cpu")
    if not cpu or booted["virtual"] or want.sriov.kernel_parameters:
        return  # an unknown CPU, a virtual machine (the hypervisor has the IOMMU), or set by the run
    wanted = iommu_parameters(cpu)
    hint = f"{_kernel_command(facts, wanted)}, and reboot; or set sriov_kernel_parameters: true"
    if not booted["iommu"]:
        table = {"intel": "DMAR", "amd": "IVRS"}[cpu]
        if not booted["table"]:
            reported = f"there is no {table} in /sys/firmware/acpi/tables, and no IOMMU group"
            name = "VT-d" if cpu == "intel" else "AMD-Vi (IOMMU)"
            findings.warn(
                want.node,
                "BIOS:",
                f"the IOMMU is off ({reported})",
                f"switch {name} on in the BIOS set-up, as well as SR-IOV, then {hint}",
            )
            return
        has = " ".join(booted["parameters"]) or "nothing about it"
        reason = f"the IOMMU is off (no IOMMU group, /proc/cmdline has {has})"
        findings.warn(want.node, "kernel command line:", reason, hint)
        return
    slow = [one for one in facts["fabric_interfaces"] if str(one["iommu"]).startswith("DMA")]
    if slow and missing_parameters(booted):
        reported = ", ".join(f"{one['name']} in a group of type {one['iommu']}" for one in slow)
        findings.warn(
            want.node,
            "kernel command line:",
            f"the IOMMU translates every transfer ({reported}), which costs bandwidth, and GPUs theirs",
            hint,
        )


def other_networks(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Refuse to replace the upstream plugin while it serves networks that are not the cluster's."""
    if not leaves_upstream(want, facts):
        return
    others = [
        one["name"]
        for one in (facts["docker"] or NO_ENGINE)["networks"]
        if one["driver"] == want.network_driver and not is_ours(one["labels"], want.cluster)
    ]
    if others:
        reason = f"serves {names(others)}, not of this cluster, too, so that it cannot be replaced"
        hint = f"remove {'it' if len(others) == 1 else 'them'}, or keep sriov_plugin: upstream"
        findings.refuse(want.node, "rdma/sriov-plugin", reason, hint)


def _none_to_give(want: DesiredState, facts: ObservedState, refused: Set[str]) -> Iterator[Problem]:
    """Yield a problem if PFs have no VFs and none are configured: our plugin creates none itself."""
    if want.plugin != OWN or want.vfs.number or _mode(want) == "passthrough":
        return
    below = set(want.below_all) - refused
    used = [one for one in facts["fabric_interfaces"] if one["pci"] and one["name"] in below]
    lost = leaves_upstream(want, facts)
    empty = used if lost else [one for one in used if not one["num_vfs"]]
    if not empty:
        return
    listed = names(one["name"] for one in empty)
    reason = f"makes no virtual functions, and {listed} {'has' if len(empty) == 1 else 'have'} none now"
    if lost:
        reason = f"makes no virtual functions, and rdma/sriov-plugin takes those of {listed} with it"
    most = min(max(one["total_vfs"], want.sriov.firmware_vfs) for one in empty)
    hint = f"set sriov_vfs to how many {'it' if len(empty) == 1 else 'each'} shall have, {most} at most"
    yield Problem(want.node, "sriov_vfs 0", reason, hint)


def ending(want: DesiredState, facts: ObservedState) -> dict[str, int]:
    """Return, by PF interface, how many VFs are used by containers that end before VFs are configured.

    The cluster's own containers end when another plugin replaces the one that created their networks.
    """
    if not leaves_upstream(want, facts):
        return {}
    counts = {fact["pf"]: _on_its_network(want, facts, fact["pf"]) for fact in facts["sriov"]}
    return {pf: count for pf, count in counts.items() if count}


def _on_its_network(want: DesiredState, facts: ObservedState, pf: str) -> int:
    """Return how many VFs of a PF the cluster's own containers use, through its networks there."""
    docker = facts["docker"] or NO_ENGINE
    on_pf = {
        one["name"]
        for one in docker["networks"]
        if one["driver"] == want.network_driver and is_ours(one["labels"], want.cluster)
        if one["options"].get("netdevice") == pf
    }
    return sum(
        len(on_pf & set(one["networks"]))
        for one in docker["containers"]
        if is_ours(one["labels"], want.cluster) and one["state"] in _HAVE_VFS
    )


def _impossible(want: DesiredState, facts: ObservedState, reported: Set[str]) -> Iterator[Problem]:
    """Yield why the desired VFs cannot be created, except for PFs that were already reported."""
    found = {name: one for one in facts["sriov"] for name in (one["pf"], one["pci"])}
    seen: dict[str, str] = {}
    ends = ending(want, facts)
    for wanted in want.vfs.of_pfs():
        if wanted.pf in reported:
            continue
        fact = found.get(wanted.pf)
        if fact is None:
            reason = "is to have virtual functions, and has no SR-IOV on this node"
            hint = f"choose one of {names(one['pf'] for one in facts.get('sriov') or [])}"
            if not found:
                hint = "switch SR-IOV on in its firmware and in the BIOS, and see that its driver is loaded"
            yield Problem(want.node, wanted.pf, reason, hint)
            continue
        other = seen.setdefault(fact["pci"], wanted.pf)
        if other != wanted.pf:
            reason = f"is the same PCI function as {other}"
            yield Problem(want.node, wanted.pf, reason, "name it once")
        for sentence in decision.problems(from_fact(fact), wanted, ends.get(fact["pf"], 0)):
            yield Problem(want.node, "", sentence, "")


def _unfit(want: DesiredState, one: Mapping[str, Any]) -> Problem | None:
    """Return why an interface cannot have VFs, whatever its firmware allows."""
    name, bond = one["name"], one["bond"]
    if bond == name:
        reason = "is a bond, and VFs belong to one PCI function"
        hint = f"name one of its ports (cat /sys/class/net/{name}/bonding/slaves), taken out of the bond"
    elif bond:
        reason = f"is a port of the bond {bond}, which its VFs would not be part of"
        hint = f"take it out (ip link set {shlex.quote(name)} nomaster), or name another interface"
    elif one["virtual"]:
        reason = f"is a VF itself ({one['pci']})"
        hint = "name its physical function, which /sys/class/net/" + f"{name}/device/physfn/net lists"
    elif one["driver"] == "mlx4_core":
        reason = (
            "is a ConnectX-3 or older (driver mlx4_core), which has its VFs by module options at boot only"
        )
        hint = "use a ConnectX-4 or newer"
        if not one["infiniband"]:
            hint += ", or network_driver ipvlan"
    elif not one["pci"] and name != "lo" and _mode(want) != "passthrough":
        if want.sriov.stand_in:
            return None
        reason = "is no PCI device, and VFs belong to one"
        hint = "name a card's interface (ls -l /sys/class/net/*/device), or set network_driver: macvlan"
    else:
        return None
    return Problem(want.node, f"host: {want.variable_of(name)} {name}", reason, hint)


def _too_few(want: DesiredState, one: Mapping[str, Any], findings: Findings) -> Problem | None:
    """Return which layer keeps a PF from offering the desired VFs; a warning if the run repairs it."""
    node, name, pci, total = want.node, one["name"], one["pci"], one["total_vfs"]
    offers = f"{name} ({pci}) offers {total} VFs (sriov_totalvfs), and sriov_vfs asks for {want.vfs_needed}"
    if total == 0:
        offers = f"{name} ({pci}) offers no VFs (sriov_totalvfs is 0 or missing)"
    if one["vendor"] != MELLANOX:
        if total:
            return Problem(node, "driver:", offers, f"set sriov_vfs to {total} or less")
        dmesg = f"dmesg | grep -i {pci}"
        return Problem(
            node, "BIOS:", offers, f"switch SR-IOV on in the BIOS set-up, if the adapter has it ({dmesg})"
        )
    firmware = one["firmware"]
    tool = firmware.get("tool") or "mstconfig"
    count = want.sriov.firmware_vfs or max(want.vfs_needed, _FIRMWARE_VFS)
    command = " ".join(set_command(tool, pci, count))
    fewer = f", or set sriov_vfs to {total} or less" if total else ""
    if firmware.get("error") or "next" not in firmware:
        reason = f"{offers}, and how it is set is not known: {firmware.get('error') or 'it was not gathered'}"
        first = "see as root why" if firmware.get("tool") else "install mstflint"
        hint = f"{first} ({tool} -d {pci} -e query), then {command}, and reboot{fewer}"
        return Problem(node, "firmware:", reason, hint)
    if allows(firmware["current"], want.vfs_needed):
        reason = f"{offers}, though the firmware allows {firmware['current']['vfs']} ({tool} -e query)"
        hint = (
            f"switch SR-IOV, and memory above 4 GB, on in the BIOS set-up (dmesg | grep -i {pci} says what "
            "it lacks)"
        )
        return Problem(node, "BIOS:", reason, hint)
    shown = f"SRIOV_EN={_shown(firmware['next']['sriov'])} NUM_OF_VFS={_shown(firmware['next']['vfs'])}"
    if allows(firmware["next"], want.vfs_needed):
        reason = f"{offers}; {shown} are set and wait for a reboot ({tool} -e query)"
        hint = "reboot the node (power it off and on where a reboot does not do)"
    else:
        reason = f"{offers}; after the next boot, too, it has {shown} ({tool} -e query)"
        hint = f"{command}, and reboot{fewer}"
    if want.sriov.firmware_vfs:
        then = "reboots the node" if want.run.reboot else "stops there until the node was rebooted"
        findings.warn(node, f"firmware: {reason}: the run sets it, as sriov_firmware says, and {then}.")
        return None
    hint += "; or set sriov_firmware: true (and sriov_reboot_ok: true)"
    return Problem(node, "firmware:", reason, hint)


def _mode(want: DesiredState) -> str:
    return next((one.network.options.get("mode", "") for one in want.attachments), "")


def _shown(value: Any) -> str:
    return "unknown" if value is None else str(value)


def _kernel_command(facts: ObservedState, parameters: list[str]) -> str:
    """Return the distribution's command that adds parameters to the next boot's command line."""
    words = " ".join(parameters)
    if facts["distribution"].get("id") in ("debian", "ubuntu"):
        line = f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {words}"'
        return f"echo '{line}' > /etc/default/grub.d/rdm.cfg && update-grub"
    return f'grubby --update-kernel=ALL --args="{words}"'
