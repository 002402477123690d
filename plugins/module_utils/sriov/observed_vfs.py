# SPDX-License-Identifier: GPL-3.0-or-later
"""Physical and virtual functions (PF, VF) as the kernel shows them.

Sources: the kernel's Documentation/PCI/pci-iov-howto.rst and Documentation/ABI (sysfs-bus-pci,
sysfs-class-net); ip-link(8). NVIDIA's own mlx5 driver (MLNX_OFED, DOCA) has the files
`sriov/N/{policy,node,port}`; with the kernel's driver, `ip link` sets and shows the same three.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.iproute2 import IpMissing, ip_json
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.hardware import partitions
from ansible_collections.rdm.provision.plugins.module_utils.hardware import sysfs_files as files
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import normal

PCI_DEVICES = "bus/pci/devices"

POLICIES = {"auto": "Follow", "enable": "Up", "disable": "Down"}
"""`ip link`'s state of an InfiniBand VF -> mlx5's policy for its port: Follow the physical port, Up, Down."""

Links = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Interface of a PF -> number of a VF -> its entry in `ip link show`."""

Addresses = Mapping[str, str]
"""Interface -> one of its addresses."""

CONTAINER = "a container"
"""The holder of a VF that is bound to a network driver and has no interface here."""

_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_VIRTFN = re.compile(r"virtfn(\d+)")
_INFINIBAND = "32"  # of /sys/class/net/*/type
_GIVEN_AWAY = ("vfio", "uio", "pci-stub", "pciback")


class Vf(NamedTuple):
    """A VF.

    Attributes:
        number: its number on its PF.
        pci: its PCI address; empty if it has vanished and its PF still has an entry for it.
        driver: its driver; empty for none.
        interface: its network interface in this network namespace, or empty.
        mac: hardware address of that interface, or empty.
        address: the MAC (Ethernet) or node GUID (InfiniBand) that its PF assigns; empty if not shown.
        port: the port GUID that its PF assigns; empty on Ethernet, or if not shown.
        policy: Follow, Up or Down on InfiniBand; empty if not shown.
        vlan: 0 for none; None if not shown.
        trust: None if not shown.
        spoof_check: None if not shown.
        by_files: whether its settings are in `sriov/N` of the PF, not in `ip link`.
        host_use: how the node itself uses its interface, as a clause that follows "interface NAME"; empty if
            it does not.
    """

    number: int
    pci: str
    driver: str = ""
    interface: str = ""
    mac: str = ""
    address: str = ""
    port: str = ""
    policy: str = ""
    vlan: Optional[int] = None
    trust: Optional[bool] = None
    spoof_check: Optional[bool] = None
    by_files: bool = False
    host_use: str = ""

    @property
    def holder(self) -> str:
        """Who uses it, as a noun; empty for nobody. An interface in a container is not visible here."""
        if not self.driver or self.interface:
            return ""
        return self.driver if self.driver.startswith(_GIVEN_AWAY) else CONTAINER


class Pf(NamedTuple):
    """A PF.

    Attributes:
        name: its network interface, or its PCI address if it has none.
        pci: its PCI address.
        driver: its driver.
        infiniband: whether its link is InfiniBand rather than Ethernet.
        total: how many VFs it can have; -1 if the kernel or the card does not support SR-IOV.
        number: how many it has.
        autoprobe: whether new VFs get a driver; None if the kernel has no such switch (then they do).
        bond: the bond of its interface, or empty.
        vfs: the VFs, by number. A vanished one is missing, or has no PCI address.
    """

    name: str
    pci: str
    driver: str
    infiniband: bool
    total: int
    number: int
    autoprobe: Optional[bool]
    bond: str
    vfs: Tuple[Vf, ...]

    @property
    def there(self) -> Tuple[Vf, ...]:
        """The VFs that have not vanished."""
        return tuple(vf for vf in self.vfs if vf.pci)

    @property
    def whole(self) -> bool:
        """Whether no VF has vanished."""
        return len(self.there) == self.number


def read_pf(
    pf: str, root: str = "/sys", links: Optional[Links] = None, addresses: Optional[Addresses] = None
) -> Pf:
    """Return a PF.

    Args:
        pf: its network interface, or its PCI address.
        root: where sysfs is.
        links: the result of :func:`vf_links`; None to query.
        addresses: the result of :func:`host_addresses`; None to query.

    Raises:
        NodeError: there is no such interface or PCI device, or it is not a PF.
    """
    device = _device(pf, root)
    pci = os.path.basename(device)
    name = pf if not _PCI_ADDRESS.fullmatch(pf) else _interface(device, root)
    infiniband = is_infiniband(name, root)
    shown = (vf_links() if links is None else links).get(name, {})
    numbers = sorted(int(found.group(1)) for found in map(_VIRTFN.fullmatch, files.entries(device)) if found)
    given = (host_addresses() if numbers else {}) if addresses is None else addresses
    total = files.read(device, "sriov_totalvfs")
    bond = files.link(root, "class/net", name, "master")
    return Pf(
        name=name or pci,
        pci=pci,
        driver=files.link(device, "driver"),
        infiniband=infiniband,
        total=int(total) if total.isdigit() else -1,
        number=files.number(device, "sriov_numvfs"),
        autoprobe={"0": False, "1": True}.get(files.read(device, "sriov_drivers_autoprobe")),
        bond=bond if os.path.isdir(os.path.join(root, "class/net", bond or "-", "bonding")) else "",
        vfs=tuple(_read_vf(device, number, infiniband, shown.get(number, {}), given) for number in numbers),
    )


def device_of(pf: str, root: str = "/sys") -> Tuple[str, str]:
    """Return an interface and the directory of its PCI function.

    Returns:
        The interface, or the PCI address of a function without one; and the directory, which does not exist
        for a virtual interface. Two empty strings if there is no such interface.
    """
    if _PCI_ADDRESS.fullmatch(pf):
        device = os.path.join(root, PCI_DEVICES, pf)
        return (_interface(device, root) or pf, device) if os.path.isdir(device) else ("", "")
    there = bool(pf) and os.path.exists(os.path.join(root, "class/net", pf))
    return (pf, os.path.join(root, "class/net", pf, "device")) if there else ("", "")


def facts(root: str = "/sys") -> List[Dict[str, Any]]:
    """Return the PFs that can have VFs, as the module node_facts reports them, sorted by name.

    A PF has the name of its interface. Child interfaces (IPoIB's, such as ib0.8001) are not PFs. A VF whose
    interface is in another network namespace has netdev and mac "".
    """
    names: Dict[str, str] = {}
    for name in files.entries(root, "class/net"):
        device = os.path.join(root, "class/net", name, "device")
        if files.number(device, "sriov_totalvfs") and not _is_child(name, root):
            names.setdefault(files.link(device), name)
    has_vfs = [
        name for name in names.values() if files.number(root, "class/net", name, "device/sriov_numvfs")
    ]
    links, given = (vf_links(), host_addresses()) if has_vfs else ({}, {})
    return [to_fact(read_pf(name, root, links, given)) for name in sorted(names.values(), key=files.natural)]


def to_fact(found: Pf) -> Dict[str, Any]:
    """Return a PF in the form of facts."""
    return {
        "pf": found.name,
        "pci": found.pci,
        "total_vfs": found.total,
        "num_vfs": found.number,
        "driver": found.driver,
        "infiniband": found.infiniband,
        "autoprobe": found.autoprobe,
        "bond": found.bond,
        "vfs": [
            {"index": vf.number, "netdev": vf.interface, **_without(vf, "number", "interface")}
            for vf in found.vfs
        ],
    }


def from_fact(fact: Mapping[str, Any]) -> Pf:
    """Return the PF from its form in facts."""
    vfs = tuple(
        Vf(
            number=one["index"],
            interface=one["netdev"],
            **{key: value for key, value in one.items() if key not in ("index", "netdev")},
        )
        for one in fact["vfs"]
    )
    return Pf(
        name=fact["pf"],
        pci=fact["pci"],
        driver=fact["driver"],
        infiniband=fact["infiniband"],
        total=fact["total_vfs"],
        number=fact["num_vfs"],
        autoprobe=fact["autoprobe"],
        bond=fact["bond"],
        vfs=vfs,
    )


def vf_links() -> Links:
    """Return the VFs in `ip link show`; empty if there is no such command."""
    try:
        shown = ip_json("link", "show")
    except IpMissing:
        return {}
    return {
        entry["ifname"]: {vf["vf"]: vf for vf in entry["vfinfo_list"] if "vf" in vf}
        for entry in shown
        if entry.get("vfinfo_list")
    }


def host_addresses() -> Addresses:
    """Return the first address of each interface, IPv6 link-local ones left out.

    Empty if there is no `ip` command; then only sysfs shows how an interface is used.
    """
    try:
        shown = ip_json("addr", "show")
    except IpMissing:
        return {}
    found: Dict[str, str] = {}
    for entry in shown:
        for one in entry.get("addr_info", []):
            if "local" in one and (one.get("family"), one.get("scope")) != ("inet6", "link"):
                found.setdefault(entry["ifname"], "{0}/{1}".format(one["local"], one.get("prefixlen", "")))
    return found


def _read_vf(
    device: str, number: int, infiniband: bool, shown: Mapping[str, Any], addresses: Addresses
) -> Vf:
    entry = os.path.join(device, "virtfn{0}".format(number))
    interface = partitions.free(entry)
    found = Vf(
        number=number,
        pci=files.link(entry),
        driver=files.link(entry, "driver"),
        interface=interface,
        mac=files.read(entry, "net", interface, "address").lower() if interface else "",
        host_use=_host_use(entry, interface, addresses) if interface else "",
    )
    settings = os.path.join(device, "sriov", str(number))
    if infiniband and os.path.exists(os.path.join(settings, "policy")):
        return found._replace(
            address=_address(files.read(settings, "node")),
            port=_address(files.read(settings, "port")),
            policy=files.read(settings, "policy"),
            by_files=True,
        )
    if infiniband:
        return found._replace(
            address=_address(shown.get("node guid", "")),
            port=_address(shown.get("port guid", "")),
            policy=POLICIES.get(shown.get("link_state", ""), ""),
        )
    vlans = shown.get("vlan_list", [shown])
    return found._replace(
        address=_address(shown.get("address", shown.get("mac", ""))),
        vlan=max([one.get("vlan", 0) for one in vlans] or [0]) if shown else None,
        trust=shown.get("trust"),
        spoof_check=shown.get("spoofchk"),
    )


def _host_use(entry: str, interface: str, addresses: Addresses) -> str:
    """Return how the node uses a VF's interface. Being up is no use: network managers set all links up."""
    if addresses.get(interface):
        return "has the address {0}".format(addresses[interface])
    directory = os.path.join(entry, "net", interface)
    master = files.link(directory, "master")
    if master:
        return "is a port of {0}".format(master)
    # A partition's child has a mark: see `partitions`.
    _, children = partitions.interfaces(entry)
    above = [name[len("upper_") :] for name in files.entries(directory) if name.startswith("upper_")]
    above = [name for name in above if name not in children or not partitions.is_ours(entry, name)]
    return "has {0} on top of it".format(above[0]) if above else ""


def _address(text: str) -> str:
    try:
        return normal(text)
    except ValueError:
        return ""


def _device(pf: str, root: str) -> str:
    """Return the directory of a PF."""
    if _PCI_ADDRESS.fullmatch(pf):
        device = os.path.join(root, PCI_DEVICES, pf)
        missing = "there is no PCI device {0} on this node"
    else:
        device = os.path.join(root, "class/net", pf, "device")
        missing = "there is no network interface {0} on this node: see that its driver is loaded"
        if pf and os.path.isdir(os.path.join(root, "class/net", pf)):
            missing = "{0} is no interface of a PCI device, so it has no virtual functions"
            if _is_child(pf, root):
                missing = "{0} is a partition's interface on a physical function: name that one"
                device = ""
    if not device or not os.path.isdir(device):
        raise NodeError(missing.format(pf))
    return os.path.realpath(device)


def _interface(device: str, root: str) -> str:
    names = [name for name in files.entries(device, "net") if not _is_child(name, root)]
    return names[0] if names else ""


def _is_child(name: str, root: str) -> bool:
    """Whether an interface is a child of another (an IPoIB partition's)."""
    return os.path.exists(os.path.join(root, "class/net", name, "parent"))


def is_infiniband(name: str, root: str = "/sys") -> bool:
    """Return whether an interface is InfiniBand rather than Ethernet."""
    kind = files.read(root, "class/net", name, "type")
    return kind == _INFINIBAND or (
        not kind and files.read(root, "class/net", name, "address").count(":") == 19
    )


def _without(vf: Vf, *left_out: str) -> Dict[str, Any]:
    return {key: value for key, value in vf._asdict().items() if key not in left_out}
