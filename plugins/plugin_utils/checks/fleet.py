# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the nodes' fabric hardware: collective operations are as fast as the slowest node.

Each property is compared with what most nodes have. Interfaces are compared by rail, their position in the
list of the networks' interfaces, since nodes may name them differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.module_utils.sriov.pf import port_of
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import ObservedState
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem


class Trait(NamedTuple):
    """Something that should be the same on all nodes.

    Attributes:
        layer: its layer, such as link or firmware.
        what: its name for messages, with {} for the node's interface.
        rail: the rail of the interface.
        among: only nodes with the same value here are compared; empty for all.
    """

    layer: str
    what: str
    rail: int = 0
    among: str = ""


class Seen(NamedTuple):
    """A trait of one node.

    Attributes:
        trait: the trait.
        value: its value, for messages.
        interface: the node's interface; empty for a trait of the node itself.
        command: what shows or repairs it.
    """

    trait: Trait
    value: str
    interface: str
    command: str


def differences(facts: Mapping[str, ObservedState]) -> list[Problem]:
    """Return a warning for each node that differs from the majority; one for all if there is no majority."""
    groups: dict[Trait, dict[str, list[str]]] = {}
    seen: dict[tuple[Trait, str], Seen] = {}
    for node, found in facts.items():
        for one in _traits(found):
            groups.setdefault(one.trait, {}).setdefault(one.value, []).append(node)
            seen[one.trait, node] = one
    warnings: list[Problem] = []
    for trait, by_value in groups.items():
        if len(by_value) < 2:
            continue
        usual, having = max(by_value.items(), key=lambda item: len(item[1]))
        value = f"{trait.layer}:"
        if 2 * len(having) <= sum(map(len, by_value.values())):
            values = "; ".join(f"{one} on {names(nodes)}" for one, nodes in by_value.items())
            nodes = [node for nodes in by_value.values() for node in nodes]
            interfaces = dict.fromkeys(seen[trait, node].interface for node in nodes)
            what = trait.what.format(names(interfaces))
            command = seen[trait, having[0]].command
            warnings.append(Problem(None, value, f"the nodes differ in the {what}: {values}", command))
            continue
        count = len(having)
        most = f"the {count} others have" if count > 1 else f"{having[0]} has"
        for other, nodes in by_value.items():
            if other == usual:
                continue
            for node in nodes:
                one = seen[trait, node]
                reason = f"the {trait.what.format(one.interface)} is {other}, and {most} {usual}"
                warnings.append(Problem(node, value, reason, one.command))
    return warnings


def _traits(facts: ObservedState) -> Iterator[Seen]:
    """Yield the traits of one node."""
    infiniband = facts["infiniband"]
    devices = {device["name"]: device for device in infiniband}
    interfaces = facts["fabric_interfaces"]
    for interface in interfaces:
        rail = interface["rail"]
        port = port_of(interface["name"], infiniband)
        if not port["device"]:
            continue
        name, device = interface["name"], devices[port["device"]]
        pci = device["pci"]
        # A port that is down has the lowest rate, and another check reports it.
        if port["state"] == "ACTIVE" and port["rate"]:
            yield Seen(
                Trait("link", "rate of {}", rail),
                port["rate"],
                name,
                f"check the cable and the switch's port (ibstat {device['name']}, mlxlink -d {pci})",
            )
        if slowest := _slowest_function(facts, name):
            yield Seen(
                Trait("link", "rate of the VFs of {}", rail),
                slowest,
                name,
                f"compare the VFs' limits (ip link show {name}) and the rate of {name} itself",
            )
        if device["type"] or device["board_id"]:
            adapter = " ".join(part for part in (device["type"], device["board_id"]) if part)
            yield Seen(
                Trait("host", "adapter of {}", rail),
                adapter,
                name,
                f"keep nodes of another kind in a cluster of their own (lspci -s {pci})",
            )
        if device["firmware"]:
            yield Seen(
                Trait("firmware", "version in {}", rail, device["board_id"]),
                device["firmware"],
                name,
                f"burn the same release on all (mstflint -d {pci} query, mstflint -d {pci} -i FILE burn)",
            )
        if device["driver"]:
            yield Seen(
                Trait("driver", "one of {}", rail),
                _driver(facts, device),
                name,
                f"install the same on all (ofed_info -s, modinfo {device['driver']})",
            )
    mode = facts["rdma"].get("netns_mode")
    if interfaces and mode:
        yield Seen(
            Trait("driver", "mode of RDMA devices in network namespaces"),
            mode,
            "",
            "set shared on all (rdma system show; rdma system set netns shared, and "
            "netns_mode=1 of ib_core in /etc/modprobe.d for the next boot)",
        )


def _driver(facts: ObservedState, device: Mapping[str, Any]) -> str:
    if not facts["rdma"].get("ofed"):
        return f"{device['driver']} of the kernel"
    return f"{device['driver']} {device['driver_version']} of OFED".replace("  ", " ")


def _slowest_function(facts: ObservedState, name: str) -> str:
    """Return the lowest rate of a PF's active VFs; empty for none."""
    addresses = {vf["pci"] for one in facts["sriov"] if one["pf"] == name for vf in one["vfs"]}
    rates = (
        port["rate"]
        for device in facts["infiniband"]
        if device["virtual"] and device["pci"] in addresses
        for port in device["ports"]
        if port["state"] == "ACTIVE" and port["rate"]
    )
    return min(rates, key=_gigabits, default="")


def _gigabits(rate: str) -> float:
    """Return 200.0 for `200 Gb/sec (4X HDR)`."""
    match = re.match(r"[\d.]+", rate)
    return float(match.group()) if match else 0.0
