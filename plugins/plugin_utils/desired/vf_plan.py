# SPDX-License-Identifier: GPL-3.0-or-later
"""The cluster's desired virtual functions (VFs), with unique addresses.

A cluster's MACs and GUIDs begin with two bytes that the address plan keeps; the rest is derived from MY_IP,
so they are as unique and as stable as MY_IP (see module_utils/sriov/identity.py). The two bytes are derived
from the cluster's name and the nodes with which it first had VFs, so that other clusters have other
addresses.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NodeFacts
from ansible_collections.rdm.provision.plugins.module_utils.sriov.decision import Wanted
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import (
    ADDRESS_BITS,
    FUNCTIONS,
    MAC_BYTES,
    NUMBERS,
    addresses,
    bytes_of,
    first_mac,
    guid_of,
    normal,
    vf_of,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import AddressPlan
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.ipv4 import to_int
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import vf_parents
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.rdm_sriov.state import Network

_DOCKERS = "02:42"  # prefix of Docker's own MACs


class VfSettings(NamedTuple):
    """A node's VFs as the inventory sets them.

    Attributes:
        number: VFs per physical function (PF).
        parents: the PFs.
        pinned: PF -> MACs or GUIDs of its VFs, in order, normalised.
        policy: of InfiniBand VFs.
        vlan: of Ethernet VFs; this and the rest are None to leave the setting unchanged.
        trust: of Ethernet VFs.
        spoof_check: of Ethernet VFs.
    """

    number: int
    parents: list[str]
    pinned: Mapping[str, list[str]] = {}
    policy: str = "Follow"
    vlan: int | None = None
    trust: bool | None = None
    spoof_check: bool | None = None

    def wanted(self, first: str) -> list[Wanted]:
        """Return the desired VFs of each PF, with addresses derived from the node's first MAC."""
        return [
            Wanted(
                parent,
                self.number,
                self.pinned.get(parent) or addresses(first, index, self.number),
                self.policy,
                self.vlan,
                self.trust,
                self.spoof_check,
            )
            for index, parent in enumerate(self.parents)
        ]

    def pins(self) -> Iterator[tuple[str, str]]:
        """Yield the pinned addresses, and the VFs that get them."""
        for parent, listed in self.pinned.items():
            for number, address in enumerate(listed[: self.number]):
                yield address, f"VF {number} of {parent}"


NONE = VfSettings(0, [])


def shown(wanted: Wanted) -> list[str]:
    """Return the settings of each VF of a PF that are gathered to detect drift."""
    given = {"vlan": wanted.vlan, "trust": wanted.trust, "spoof_check": wanted.spoof_check}
    return ["address", "policy", *(name for name, value in given.items() if value is not None)]


def functions_of(variables: NodeVariables) -> VfSettings:
    """Return a node's VFs as the inventory sets them; ValueError if the settings are invalid.

    Values of a wrong type are ignored, since another check reports them.
    """
    try:
        number = int(variables.text("sriov_vfs") or 0)
    except ValueError:
        return NONE
    enabled = variables.true("sriov_enabled", otherwise=variables.text("network_driver") == "sriov")
    if not enabled or not number or variables.text("sriov_state") == "absent":
        return NONE
    if not 0 < number <= NUMBERS:
        raise ValueError(f"sriov_vfs {number} is not between 0 and {NUMBERS}")
    parents = vf_parents(variables)
    if not 0 < len(parents) <= FUNCTIONS or len(set(parents)) < len(parents) or not all(parents):
        raise ValueError(
            f"sriov_vf_pfs {parents} does not name 1 to {FUNCTIONS} physical functions, each of them once"
        )
    return VfSettings(
        number,
        parents,
        _pinned(variables.value("sriov_vf_addresses"), parents, number),
        variables.text("sriov_vf_policy") or "Follow",
        _optional(variables, "sriov_vf_vlan", int),
        _optional(variables, "sriov_vf_trust", boolean),
        _optional(variables, "sriov_vf_spoof_check", boolean),
    )


def refuse_undone(functions: VfSettings, network: Network) -> None:
    """Raise ValueError if rdm-sriov would undo a setting of a VF at each start of its container.

    Args:
        functions: the node's desired VFs.
        network: the containers' network.
    """
    if network.mode != "sriov":
        return
    privileged = network.privileged
    settings = (
        ("sriov_vf_vlan", functions.vlan, network.vlan, "network_vlan", network.vlan),
        ("sriov_vf_trust", functions.trust, privileged, "network_privileged", privileged),
        ("sriov_vf_spoof_check", functions.spoof_check, not privileged, "network_privileged", privileged),
    )
    for name, wanted, sets, of_network, has in settings:
        if wanted is not None and wanted != sets:
            raise ValueError(
                f"{name} {_text(wanted)} contradicts {of_network} {_text(has)}, from which rdm-sriov sets it "
                f"to {_text(sets)} at each start of a container; leave {name} out"
            )


def assigned(
    plan: AddressPlan, wanted: Mapping[str, VfSettings], name: str, ssh: Mapping[str, str]
) -> AddressPlan:
    """Return the plan with the first two bytes of MACs and GUIDs, if there are VFs.

    Args:
        plan: the address plan.
        wanted: the VFs of each node.
        name: of the cluster.
        ssh: node -> its ssh address.
    """
    if plan.vf_prefix or not any(one.number for one in wanted.values()):
        return plan
    output = repr((name, [(node, ssh.get(node, "")) for node in plan.nodes]))
    for attempt in itertools.count():
        drawn = hashlib.sha256(f"{attempt} {output}".encode()).digest()
        # Locally administered (bit 1 set), unicast (bit 0 clear); IEEE 802.
        prefix = f"{drawn[0] & 0xFC | 2:02x}:{drawn[1]:02x}"
        if prefix != _DOCKERS:
            break
    return plan._replace(vf_prefix=prefix)


def first_of(plan: AddressPlan, node: str) -> str:
    """Return the first MAC of a node; empty if the cluster has no VFs."""
    return first_mac(plan.vf_prefix, to_int(plan.nodes[node])) if plan.vf_prefix else ""


def clashes(plan: AddressPlan, wanted: Mapping[str, VfSettings]) -> list[Problem]:
    """Return a problem for each VF that would get the address of another VF.

    Args:
        plan: the address plan.
        wanted: the VFs of each node that has VFs.
    """
    problems = []
    holders: dict[int, tuple[str, str]] = {}
    for node, at in {**plan.removed, **plan.nodes}.items():
        other, other_at = holders.setdefault(_low(at), (node, at))
        if other != node and (node in wanted or other in wanted):
            reason = f"and {other_at} of {other} differ in what is left out of MACs, their first bits"
            hint = f"choose a my_ip that differs in the last {ADDRESS_BITS} bits"
            problems.append(Problem(node, f"its address {at}", reason, hint))
    owners = _Owners(plan, wanted)
    pinned: dict[str, tuple[str, str]] = {}
    for node, one in wanted.items():
        for address, vf in one.pins():
            other, other_vf = owners.by_address(address) or pinned.setdefault(_key(address), (node, vf))
            if (other, other_vf) != (node, vf):
                reason = f"of {vf} is that of {other_vf} of {other}"
                hint = "give each VF its own in sriov_vf_addresses"
                problems.append(Problem(node, f"the address {address}", reason, hint))
    return problems


def taken(
    plan: AddressPlan, wanted: Mapping[str, VfSettings], facts: Mapping[str, NodeFacts]
) -> list[Problem]:
    """Return a problem for each VF whose address a device of another node already has.

    Args:
        plan: the address plan.
        wanted: the VFs of each node that has VFs.
        facts: node -> what `node_facts` found there.
    """
    owners = _Owners(plan, wanted)
    pinned = {_key(address): (node, vf) for node, one in wanted.items() for address, vf in one.pins()}
    problems = []
    for node, found in facts.items() if wanted else ():
        # The node's own VFs get their addresses in this run.
        for address, device in _seen(found, but_vfs=node in wanted):
            owner, vf = pinned.get(_key(address)) or owners.by_address(address) or (node, "")
            if owner != node:
                reason = f"of {vf} is that of {device} of {node}"
                hint = "set others with sriov_vf_addresses, or change vf_prefix in the address plan"
                problems.append(Problem(owner, f"the address {address}", reason, hint))
    return problems


class _Owners:
    """Finds the VF that an address belongs to, from the values encoded in the address."""

    def __init__(self, plan: AddressPlan, wanted: Mapping[str, VfSettings]) -> None:
        self._prefix = plan.vf_prefix
        self._wanted = wanted
        self._nodes = {_low(plan.nodes[node]): node for node in wanted}

    def by_address(self, address: str) -> tuple[str, str] | None:
        """Return node and VF; None if it is not an address of this cluster's VFs."""
        vf = vf_of(address)
        node = self._nodes.get(vf.address) if vf and vf.prefix == self._prefix else None
        if vf is None or node is None:
            return None
        one = self._wanted[node]
        if vf.function >= len(one.parents) or vf.number >= one.number:
            return None
        parent = one.parents[vf.function]
        return None if parent in one.pinned else (node, f"VF {vf.number} of {parent}")


def _seen(found: NodeFacts, but_vfs: bool) -> Iterator[tuple[str, str]]:
    """Yield the MACs and GUIDs of a node's devices, each with a description of the device."""
    functions = found["sriov"]
    vfs = [vf for function in functions for vf in function["vfs"]] if but_vfs else []
    ours = {vf[key] for vf in vfs for key in ("pci", "netdev")}
    listed: list[tuple[str, str]] = [
        (one.get("mac") or "", f"the interface {one['name']}")
        for one in found["interfaces"]
        if one["name"] not in ours
    ]
    listed += [
        (one["node_guid"], f"the RDMA device {one['name']}")
        for one in found["infiniband"]
        if one["pci"] not in ours
    ]
    for text, device in listed:
        # The last 8 bytes of an IPoIB interface's address are its port's GUID.
        with contextlib.suppress(ValueError):
            yield normal(text[-23:]), device


def _key(address: str) -> str:
    """Return the GUID of an address, so that a MAC equals its GUID."""
    return guid_of(address) if bytes_of(address) == MAC_BYTES else address


def _low(address: str) -> int:
    return to_int(address) & (1 << ADDRESS_BITS) - 1


def _pinned(value: Any, parents: list[str], number: int) -> dict[str, list[str]]:
    if not isinstance(value, dict):
        return {}
    pinned: dict[str, list[str]] = {}
    for parent, listed in value.items():
        if parent not in parents:
            raise ValueError(f"sriov_vf_addresses names {parent}, which is none of {', '.join(parents)}")
        if not isinstance(listed, list) or len(listed) < number:
            raise ValueError(f"sriov_vf_addresses has no list of {number} addresses for {parent}")
        pinned[parent] = []
        for text in listed:
            try:
                pinned[parent].append(normal(str(text)))
            except ValueError as error:
                raise ValueError(f"sriov_vf_addresses {text} of {parent} {error}") from None
    return pinned


def _text(value: int) -> str:
    """Return a setting as it is written in an inventory."""
    return str(value).lower()


def _optional(variables: NodeVariables, name: str, kind: Any) -> Any:
    value = variables.value(name)
    try:
        return None if value is None else kind(value)
    except (TypeError, ValueError):
        return None  # another check reports it
