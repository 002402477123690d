# SPDX-License-Identifier: GPL-3.0-or-later
"""Check a node's devices: GPUs, interfaces, lockable and shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names, size_text
from ansible_collections.rdm.provision.plugins.module_utils.container.spec import (
    SHARED_MEMORY,
    memlock_shortage,
    nvidia_way,
    rdma_devices,
)
from ansible_collections.rdm.provision.plugins.module_utils.hardware.rdma import SHARED
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import (
    DRIVERS_ON_AN_INTERFACE,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

_INFINIBAND_ADDRESS = 20
"""Bytes in the address of an IPoIB interface (linux/if_infiniband.h)."""


def rdma_interfaces(want: DesiredState) -> list[str]:
    """Return the interfaces whose RDMA devices the container gets; none for all devices of the node."""
    if want.network_driver not in DRIVERS_ON_AN_INTERFACE or not want.interfaces[0]:
        return []
    return [] if want.container.devices_of == "all" else want.below_all


def accelerator(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report accelerators that differ from the desired ones."""
    has = facts["accelerator"]
    count = len(facts["gpus"])
    if want.accelerator == has:
        return
    if want.accelerator == "cpu":
        findings.warn(want.node, f"rdm_accelerator is cpu, so its {count} GPUs ({has}) stay unused.")
        return
    found = f"{count} GPUs ({has})" if has != "cpu" else "no GPU that its driver serves"
    findings.refuse(
        want.node,
        f"rdm_accelerator {want.accelerator}",
        f"does not fit the node, which has {found}",
        f"set rdm_accelerator: {has} for this node, or install the GPU driver",
    )


def gpu_access(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report what would make the engine refuse the GPUs to a container."""
    if want.accelerator != facts["accelerator"] or want.own_devices:
        return
    devices = facts["devices"]
    value = f"rdm_accelerator {want.accelerator}"
    if want.accelerator == "cuda" and not nvidia_way(facts):
        reason = "needs NVIDIA's container toolkit, and neither it nor a CDI specification is on the node"
        hint = (
            "install nvidia-container-toolkit, run nvidia-ctk runtime configure --runtime=docker, and "
            "restart Docker"
        )
        findings.refuse(want.node, value, reason, hint)
    elif want.accelerator == "cuda" and not devices["nvidia"]:
        findings.warn(
            want.node,
            "the NVIDIA driver is loaded, and there is no /dev/nvidia0 yet: nvidia-smi or "
            "nvidia-persistenced makes it, and the toolkit tries to.",
        )
    elif want.accelerator == "rocm":
        missing = [
            path for path, there in (("/dev/kfd", "kfd"), ("/dev/dri", "dri")) if not devices.get(there)
        ]
        if missing:
            hint = "load amdgpu with its compute part (modprobe amdgpu; dmesg says what it lacks)"
            findings.refuse(want.node, value, f"needs {names(missing)}, missing here", hint)
        groups = [str(group) for group in want.container.groups]
        lacking = [str(gid) for gid in devices["groups"] if str(gid) not in groups]
        if lacking and "groups" in want.chosen and all(group.isdigit() for group in groups):
            findings.warn(
                want.node,
                f"container_groups lacks {names(lacking)}, which owns the GPUs' devices: only root can use "
                "them in the container.",
            )


def parent(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report a network's interface that the node lacks or that cannot carry the network."""
    if want.network_driver not in DRIVERS_ON_AN_INTERFACE or not want.interfaces[0]:
        return
    existing = {one["name"]: one for one in facts["interfaces"]}
    driverless = facts["driverless"]
    choose = f"choose one of {names(name for name in existing if name != 'lo')}"
    for name in want.below_all:
        # For macvlan and ipvlan Docker creates the VLAN interface itself: ib0.100 needs only ib0.
        base = name if name in existing or want.network_driver == "sriov" else name.rpartition(".")[0]
        if base in existing:
            reason, hint = _unfit(want, existing[base], facts)
        else:
            reason = "is not an interface of the node"
            reason += f", whose kernel has no driver for {names(driverless)}" if driverless else ""
            hint = "load its driver (lspci -k names it) or install the kernel's further modules"
            hint = f"{hint}, or {choose}" if driverless else choose
        if reason:
            value = f"{want.variable_of(name)} {name}"
            findings.refuse(want.node, value, reason, hint or choose)


def _unfit(want: DesiredState, interface: Mapping[str, Any], facts: ObservedState) -> tuple[str, str]:
    """Return why an interface cannot carry the network, and the hint; empty if it can.

    Sources: the kernel's drivers/net/macvlan.c (macvlan_port_create) and ipvlan_main.c (ipvlan_link_new).
    """
    name = interface["name"]
    if name == "lo":
        return "is the loopback interface, which reaches no other node", ""
    if want.network_driver == "sriov":
        return "", ""
    if len(str(interface["mac"]).split(":")) == _INFINIBAND_ADDRESS:
        hint = "set network_driver: sriov, or choose an Ethernet interface"
        return f"is InfiniBand, and the kernel puts {want.network_driver} on Ethernet only", hint
    ports = {one["name"]: one["bond"] for one in facts["fabric_interfaces"]}
    if ports.get(name) not in (None, "", name):
        bond = ports[name]
        return f"is a port of the bond {bond}, which has all that arrives there", f"set it to {bond}"
    return "", ""


def memlock(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report a limit of locked memory that is too low for RDMA."""
    shortage = memlock_shortage(facts) if want.run.memlock_required else None
    if shortage is not None:
        hint = (
            "set LimitMEMLOCK=infinity for the docker service, "
            "or go on with less with container_memlock_required: false"
        )
        findings.refuse(want.node, "", shortage, hint)


def shared_memory(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Report too little shared memory for collectives between a node's processes."""
    own = want.container.own_memory
    has = int(facts["shared_memory"]) if own is None else own
    if want.accelerator == "cpu" or want.slots < 2 or has >= SHARED_MEMORY:
        return
    reason = (
        f"has {size_text(has)}, and NCCL or RCCL ends without {size_text(SHARED_MEMORY)} for "
        f"{want.slots} processes"
    )
    if own is not None:
        findings.refuse(want.node, "container_shm_size", reason, "set it to 1G or more, such as 64G")
    else:
        hint = (
            "give it more (mount -o remount,size=50% /dev/shm, and the same in /etc/fstab), or set "
            "container_shm_size: 64G"
        )
        findings.refuse(want.node, "/dev/shm", reason, hint)  # noqa: S108  # its name


def rdma(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn of RDMA devices that the container does not get, unless the user has chosen."""
    interfaces = rdma_interfaces(want)
    paths, left_out = rdma_devices(facts, *interfaces)
    if paths and not want.own_devices and facts["rdma"].get("netns_mode") == "exclusive":
        findings.problems.extend(_stay_out(want, facts))
    if left_out and want.container.devices_of == "auto":
        findings.warn(
            want.node,
            f"The container gets the RDMA devices of {names(interfaces)}, and not {names(left_out)}: set "
            "container_rdma to all if it shall have every one, or to interface if this is right.",
        )


def _stay_out(want: DesiredState, facts: ObservedState) -> list[Problem]:
    """Return why the container cannot get RDMA devices in exclusive mode."""
    value = "the mode exclusive of RDMA devices in network namespaces"
    shared = f"{SHARED}, and options ib_core netns_mode=1 in /etc/modprobe.d for the next boot"
    if not want.vf_devices:
        reason = "keeps them from every container: rdm-sriov alone moves one there, its VF's"
        return [Problem(want.node, value, reason, shared)]
    infiniband = [one["name"] for one in facts["fabric_interfaces"] if one["infiniband"]]
    if infiniband:
        reason = (
            f"keeps those of {names(infiniband)} from every container: when an InfiniBand device moves to "
            "one, the kernel takes its interface away"
        )
        return [Problem(want.node, value, reason, shared)]
    seen = facts["network_plugin"]
    if want.sriov.run_as == "container" or (want.sriov.run_as == "auto" and not seen["systemd"]):
        reason = "needs rdm-sriov as a systemd unit: in a container it sees no other one's namespace"
        hint = f"set sriov_run_as: unit, where systemd runs; or {shared}"
        return [Problem(want.node, value, reason, hint)]
    return []
