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
from collections.abc import Collection, Iterator, Mapping

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import NodeFacts
from ansible_collections.rdm.provision.plugins.module_utils.sriov.desired_vfs import DesiredVfs
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import (
    ADDRESS_BITS,
    MAC_BYTES,
    bytes_of,
    first_mac,
    guid_of,
    normal,
    vf_of,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import AddressPlan
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.ipv4 import to_int
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

_DOCKERS = "02:42"  # prefix of Docker's own MACs


def with_prefix(plan: AddressPlan, having: Collection[str], name: str, ssh: Mapping[str, str]) -> AddressPlan:
    """Return the plan with the first two bytes of MACs and GUIDs, if there are VFs.

    Args:
        plan: the address plan.
        having: the nodes that have VFs.
        name: of the cluster.
        ssh: node -> its ssh address.
    """
    if plan.vf_prefix or not having:
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


def clashes(plan: AddressPlan, vfs: Mapping[str, DesiredVfs]) -> list[Problem]:
    """Return a problem for each VF that would get the address of another VF."""
    problems = []
    owners = _Owners(plan, vfs)
    holders: dict[int, tuple[str, str]] = {}
    for node, at in {**plan.removed, **plan.nodes}.items():
        other, other_at = holders.setdefault(_low(at), (node, at))
        if other != node and not owners.planned.isdisjoint((node, other)):
            reason = f"and {other_at} of {other} differ in what is left out of MACs, their first bits"
            hint = f"choose a my_ip that differs in the last {ADDRESS_BITS} bits"
            problems.append(Problem(node, f"its address {at}", reason, hint))
    chosen: dict[str, tuple[str, str]] = {}
    for node in vfs:
        for address, vf, derived in owners.chosen(node):
            other, other_vf = owners.by_address(address) or chosen.setdefault(_key(address), (node, vf))
            if (other, other_vf) == (node, vf):
                continue
            own = "node its own sriov_vf_first_mac" if derived else "VF its own in sriov_vf_addresses"
            reason = f"of {vf} is that of {other_vf} of {other}"
            problems.append(Problem(node, f"the address {address}", reason, f"give each {own}"))
            if derived:
                break  # so are those that follow
    return problems


def taken(plan: AddressPlan, vfs: Mapping[str, DesiredVfs], facts: Mapping[str, NodeFacts]) -> list[Problem]:
    """Return a problem for each VF whose address a device of another node already has."""
    owners = _Owners(plan, vfs)
    chosen = {_key(one[0]): (node, *one[1:]) for node in vfs for one in owners.chosen(node)}
    problems = []
    for node, found in facts.items() if vfs else ():
        # The node's own VFs get their addresses in this run.
        for address, device in _seen(found, but_vfs=node in vfs):
            owner, vf = owners.by_address(address) or (node, "")
            hint = "set others with sriov_vf_addresses, or change vf_prefix in the address plan"
            if known := chosen.get(_key(address)):
                owner, vf, derived = known
                hint = f"set {'another sriov_vf_first_mac' if derived else 'others in sriov_vf_addresses'}"
            if owner != node:
                reason = f"of {vf} is that of {device} of {node}"
                problems.append(Problem(owner, f"the address {address}", reason, hint))
    return problems


class _Owners:
    """Finds the VF that an address belongs to, from the values encoded in the address.

    Attributes:
        planned: the nodes whose first MAC is that of the plan.
    """

    def __init__(self, plan: AddressPlan, vfs: Mapping[str, DesiredVfs]) -> None:
        self._prefix = plan.vf_prefix
        self._vfs = vfs
        self.planned = frozenset(
            node for node, one in vfs.items() if one.first_mac and one.first_mac == first_of(plan, node)
        )
        self._nodes = {_low(plan.nodes[node]): node for node in self.planned}

    def chosen(self, node: str) -> Iterator[tuple[str, str, bool]]:
        """Yield the addresses that the user chose, as `assigned` does."""
        planned = node in self.planned
        if not planned or self._vfs[node].addresses:
            yield from (one for one in self._vfs[node].assigned() if not (planned and one[2]))

    def by_address(self, address: str) -> tuple[str, str] | None:
        """Return node and VF; None if it is not an address of this cluster's VFs."""
        vf = vf_of(address)
        node = self._nodes.get(vf.address) if vf and vf.prefix == self._prefix else None
        if vf is None or node is None:
            return None
        one = self._vfs[node]
        if vf.pf >= len(one.pfs) or vf.number >= one.number:
            return None
        pf = one.pfs[vf.pf]
        return None if pf in one.addresses else (node, f"VF {vf.number} of {pf}")


def _seen(found: NodeFacts, but_vfs: bool) -> Iterator[tuple[str, str]]:
    """Yield the MACs and GUIDs of a node's devices, each with a description of the device."""
    vfs = [vf for pf in found["sriov"] for vf in pf["vfs"]] if but_vfs else []
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
