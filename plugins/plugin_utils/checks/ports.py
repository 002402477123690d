# SPDX-License-Identifier: GPL-3.0-or-later
"""Check RDMA ports: linked, configured by a subnet manager, and so the ports of VFs.

These are warnings only: the network is created even if its port is down, and works when the port comes up.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import Vf
from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.sriov.pf import port_of
from ansible_collections.rdm.provision.plugins.plugin_utils.checks.findings import Findings
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem


def ports(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn of ports that are not active; for the networks' PFs, say why."""
    infiniband = facts["infiniband"]
    below = {one["name"] for one in facts["fabric_interfaces"]}
    idle = [
        f"port {port['port']} of {device['name']} ({port['state']}, {port['physical_state']})"
        for device in infiniband
        if not device["virtual"] and below.isdisjoint(device["netdevs"])
        for port in device["ports"]
        if port["state"] != "ACTIVE"
    ]
    if idle:
        findings.warn(want.node, f"not active: {', '.join(idle)}.")
    for interface in facts["fabric_interfaces"]:
        port = port_of(interface["name"], infiniband)
        if port["device"]:
            findings.warnings.extend(_port(want, interface, port))


def virtual_ports(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn of VFs whose InfiniBand ports are down while the PF's port is active."""
    infiniband = facts["infiniband"]
    for interface in facts["fabric_interfaces"]:
        port = port_of(interface["name"], infiniband)
        down = _down(facts, interface["name"]) if port.get("state") == "ACTIVE" else []
        if not down or port["link_layer"] != "InfiniBand":
            continue
        which = (
            f"the ports of VFs {names(map(str, down))} of {interface['name']} are down, and its own is active"
        )
        kept = [
            vf
            for vf in _vfs(facts, interface["name"])
            if vf["index"] in down and vf["policy"] not in ("", "Follow")
        ]
        if kept:
            findings.warnings.append(_unfollowing(want, interface["name"], which, kept))
        elif len(down) == _count(facts, interface["name"]):
            lid = port["sm_lid"]
            findings.warn(
                want.node,
                "subnet manager:",
                f"{which}, so most likely the subnet manager (LID {lid}) knows no virtual ports; only "
                "its own host knows for sure",
                "set virt_enabled 2 in its opensm.conf, and restart it (systemctl restart opensm); "
                f"smpquery nodedesc {lid} says which host that is",
            )


def opensm(want: DesiredState, facts: ObservedState, findings: Findings) -> None:
    """Warn if this node runs the subnet's master subnet manager and it is not configured to serve VFs."""
    configured = facts["opensm"]
    if want.network_driver != "sriov" or not configured or configured["virt_enabled"] == "2":
        return
    in_charge = any(
        port["lid"] and port["lid"] == port["sm_lid"]
        for device in facts["infiniband"]
        if not device["virtual"]
        for port in device["ports"]
    )
    if in_charge:
        printed = configured["virt_enabled"]
        has = f"has virt_enabled {printed}" if printed else "says nothing of virt_enabled"
        findings.warn(
            want.node,
            "subnet manager:",
            f"{configured['path']} {has}, and this node's is in charge: the ports of VFs stay down, "
            "unless opensm was started with another configuration",
            "set virt_enabled 2 there, and restart it (systemctl restart opensm). The opensm of "
            "MLNX_OFED and DOCA-OFED has that option",
        )


def _port(want: DesiredState, interface: Mapping[str, Any], port: Mapping[str, Any]) -> Iterator[Problem]:
    at = f"port {port['port']} of {port['device']} ({interface['name']})"
    query = f"sminfo -C {port['device']} -P {port['port']}"
    answer = interface["subnet_manager"]
    if port["state"] != "ACTIVE" and port["physical_state"] != "LinkUp":
        reason = f"{at} is {port['state']}, {port['physical_state']}: nobody at the other end"
        hint = f"check the cable and the switch's port (ibstat {port['device']}, ibportstate, mlxlink)"
        yield Problem(want.node, "link:", reason, hint)
    elif port["state"] != "ACTIVE" and port["link_layer"] == "InfiniBand":
        reason = f"{at} is {port['state']} with its link up, SM LID {port['sm_lid']}: none has configured it"
        hint = f"start one on a host of the subnet (systemctl start opensm), or the switch's own; {query}"
        yield Problem(want.node, "subnet manager:", reason, hint)
    elif port["state"] != "ACTIVE":
        yield Problem(want.node, "link:", f"{at} is {port['state']}", f"ip link set {interface['name']} up")
    elif answer.get("answer") == "no":
        reason = (
            f"{at} is active, and that with LID {port['sm_lid']} answers no more ({answer['text']}): what "
            "runs goes on, and no port that is new or comes back gets an address"
        )
        yield Problem(
            want.node, "subnet manager:", reason, f"start it again (systemctl restart opensm); {query}"
        )


def _unfollowing(want: DesiredState, name: str, which: str, kept: Sequence[Mapping[str, Any]]) -> Problem:
    """Warn of VFs whose link does not follow the PF's; `policy` comes from the driver's file or from `ip`."""
    number = kept[0]["index"]
    if kept[0]["by_files"]:
        path = f"/sys/class/net/{name}/device/sriov/{number}/policy"
        hint, shown = f"echo Follow > {path}, and rebind the VF", path
    else:
        hint, shown = f"ip link set {shlex.quote(name)} vf {number} state auto", f"ip link show {name}"
    reason = f"{which}: the policy of {names(str(vf['index']) for vf in kept)} is not Follow ({shown})"
    return Problem(want.node, "driver:", reason, hint)


def _down(facts: ObservedState, name: str) -> list[int]:
    """Return the indices of a PF's VFs whose RDMA port is down."""
    states = {
        device["pci"]: device["ports"][0]["state"]
        for device in facts["infiniband"]
        if device["virtual"] and device["ports"]
    }
    return [vf["index"] for vf in _vfs(facts, name) if states.get(vf["pci"]) == "DOWN"]


def _count(facts: ObservedState, name: str) -> int:
    """Return how many VFs of a PF have RDMA devices on the node."""
    devices = {device["pci"] for device in facts["infiniband"]}
    return sum(vf["pci"] in devices for vf in _vfs(facts, name))


def _vfs(facts: ObservedState, name: str) -> list[Vf]:
    return next((one["vfs"] for one in facts["sriov"] if one["pf"] == name), [])
