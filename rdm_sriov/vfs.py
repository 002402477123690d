# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual functions (VFs), or in passthrough mode interfaces, that containers can get, by PCI address.

The name of a network interface does not identify a VF: when a container's network
namespace ends, the kernel returns the interface with the name that it had there.

Sources: the kernel's Documentation/PCI/pci-iov-howto.rst and Documentation/ABI (sysfs-bus-pci,
sysfs-class-net); ip-link(8).

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import json
import os
import re
from typing import List, NamedTuple, Sequence

from ansible_collections.rdm.provision.plugins.module_utils.base.iproute2 import IpMissing, iproute2
from ansible_collections.rdm.provision.plugins.module_utils.hardware import partitions
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import read

ETHERNET = 1
"""Of /sys/class/net/*/type (ARPHRD_ETHER of linux/if_arp.h)."""

_UNSUPPORTED = "not supported"
_NO_ADDRESS = "00:00:00:00:00:00"


class VfProblem(Exception):  # noqa: N818  # most are the node's state, not errors
    """A VF, network or request is not usable; the text is one sentence."""


class Vf(NamedTuple):
    """A VF that a container can get, or an interface in passthrough mode.

    Attributes:
        key: its PCI address, or the name of an interface without one.
        pf: the interface of the physical function (PF); in passthrough mode, its own.
        number: the VF's number on the PF; -1 in passthrough mode.
    """

    key: str
    pf: str
    number: int


class NodeVfs:
    """The VFs of this node, as sysfs shows them to this network namespace."""

    def __init__(self, root: str = "/sys") -> None:
        self._root = root

    def virtual(self, pf: str) -> List[Vf]:
        """Return the VFs of a PF, by number.

        Raises:
            VfProblem: there is no such interface, it cannot have VFs, or it has none.
        """
        device = self._device(pf)
        if not os.path.exists(os.path.join(device, "sriov_totalvfs")):
            raise VfProblem(
                "{0} has no virtual functions to give: it is not the interface of a physical function "
                "with SR-IOV".format(pf)
            )
        entries = [re.match(r"virtfn(\d+)$", entry) for entry in os.listdir(device)]
        numbers = sorted(int(found.group(1)) for found in entries if found)
        if not numbers:
            raise VfProblem(
                "{0} has no virtual function now: write a number of them, {1} at most, to {2}".format(
                    pf,
                    read(device, "sriov_totalvfs") or "?",
                    os.path.join(self._root, "class/net", pf, "device/sriov_numvfs"),
                )
            )
        links = [os.readlink("{0}/virtfn{1}".format(device, number)) for number in numbers]
        return [Vf(path.rpartition("/")[2], pf, number) for path, number in zip(links, numbers)]

    def whole(self, name: str) -> Vf:
        """Return an interface in passthrough mode.

        Raises:
            VfProblem: there is no such interface.
        """
        if not self._is_interface(name):
            raise VfProblem("there is no network interface {0} on this node".format(name))
        device = os.path.join(self._root, "class/net", name, "device")
        # If a PCI function has one interface, its PCI address finds the interface under any name.
        if os.path.isdir(os.path.join(device, "net")) and len(os.listdir(os.path.join(device, "net"))) == 1:
            return Vf(os.path.basename(os.path.realpath(device)), name, -1)
        return Vf(name, name, -1)

    def interface(self, vf: Vf) -> str:
        """Return the name of a VF's interface; "" if it is not in this network namespace.

        It is also "" if the VF's partition interface is in another namespace.
        """
        if vf.key == vf.pf:
            return vf.key if self._is_interface(vf.key) else ""
        return partitions.free(self._directory(vf))

    def is_idle(self, vf: Vf) -> bool:
        """Return whether a VF has no driver, and so no interface."""
        device = self._directory(vf)
        return os.path.isdir(device) and not os.path.exists(os.path.join(device, "driver"))

    def partition(self, vf: Vf, pkey: int, name: str) -> str:
        """Create a partition's interface on a VF's own, after cleaning up a previous one.

        Args:
            vf: an InfiniBand VF.
            pkey: the partition's key; 0 creates none.
            name: the endpoint.

        Returns:
            The name of the interface; "" for none.

        Raises:
            VfProblem: the kernel refuses; the VF is still free.
        """
        self.reunite(vf)
        device = self._directory(vf)
        own, _ = partitions.interfaces(device)
        if not pkey:
            return ""
        child = partitions.name_on(device, own)
        # A child is up only while its parent is.
        self.up(own)
        self._ip(["link", "add", "link", own, "name", child, "type", "ipoib", "pkey", hex(pkey)])
        try:
            for one in (child, own):
                self._ip(["link", "set", "dev", one, "alias", partitions.MARK + name])
        except VfProblem:
            self._ip(["link", "del", "dev", child])
            raise
        return child

    def child(self, vf: Vf, name: str) -> str:
        """Return the partition interface of an endpoint; "" if it is not in this namespace."""
        device = self._directory(vf)
        _, children = partitions.interfaces(device)
        mine = [one for one in children if partitions.mark(device, one) == partitions.MARK + name]
        return next(iter(mine), "")

    def reunite(self, vf: Vf, name: str = "") -> None:
        """Remove the partition interfaces and marks of a VF, so that it is free.

        If an interface is still in another namespace, the kernel returns or deletes it when that namespace
        ends.

        Args:
            vf: the VF.
            name: only those of this endpoint; "" for any.

        Raises:
            VfProblem: the kernel refuses.
        """
        device = self._directory(vf)
        own, children = partitions.interfaces(device)
        lent = partitions.mark(device, own) if own else ""
        if name and lent != partitions.MARK + name:
            return
        if lent:
            self._ip(["link", "set", "dev", own, "alias", ""])
        for child in children:
            if partitions.is_ours(device, child):
                self._ip(["link", "del", "dev", child])

    def address(self, interface: str) -> str:
        """Return the hardware address of an interface, in lower case."""
        return read(self._root, "class/net", interface, "address").lower()

    def is_ethernet(self, interface: str) -> bool:
        """Return whether an interface is Ethernet rather than InfiniBand."""
        return read(self._root, "class/net", interface, "type") == str(ETHERNET)

    def up(self, interface: str) -> None:
        """Set an interface up.

        Raises:
            VfProblem: the kernel refuses.
        """
        self._ip(["link", "set", "dev", interface, "up"])

    def set_mtu(self, interface: str, mtu: int) -> None:
        """Set the MTU of an interface, in bytes.

        Raises:
            VfProblem: the kernel refuses.
        """
        if read(self._root, "class/net", interface, "mtu") != str(mtu):
            self._ip(["link", "set", "dev", interface, "mtu", str(mtu)])

    def isolate(self, vf: Vf, vlan: int, trusted: bool) -> None:
        """Set the VLAN and the address checks of a VF.

        Args:
            vf: an Ethernet VF.
            vlan: the VLAN of all its packets; 0 for none.
            trusted: whether it may choose its own addresses.

        Raises:
            VfProblem: the kernel refuses.
        """
        command = ["link", "set", "dev", vf.pf, "vf", str(vf.number)]
        changes = [] if trusted else self._lacking_address(vf)
        changes += [["vlan", str(vlan)], ["trust", "on" if trusted else "off"]]
        changes += [["spoofchk", "off" if trusted else "on"]]
        # In one command, since starting it takes the time.
        try:
            self._ip([*command, *(word for words in changes for word in words)])
        except VfProblem as problem:
            if _UNSUPPORTED not in str(problem):
                raise
        else:
            return
        # Not every driver supports the checks, and without them it blocks other senders anyway. But a
        # requested VLAN must be set.
        for words in changes:
            try:
                self._ip([*command, *words])
            except VfProblem as problem:
                if _UNSUPPORTED not in str(problem) or (words[0] == "vlan" and vlan):
                    raise

    def _lacking_address(self, vf: Vf) -> List[List[str]]:
        """Return the `ip` arguments that set a VF's address on its PF if that has none.

        mlx5 checks senders against that address: with an all-zero one it drops all packets of the VF.
        """
        try:
            shown = self._ip(["-j", "link", "show", "dev", vf.pf])
        except VfProblem:
            return []  # an ip without JSON
        own = self.address(self.interface(vf))
        return [["mac", own]] if own and _administered(shown, vf.number) == _NO_ADDRESS else []

    def _directory(self, vf: Vf) -> str:
        return os.path.join(self._root, "bus/pci/devices", vf.key)

    def _is_interface(self, name: str) -> bool:
        return os.path.isdir(os.path.join(self._root, "class/net", name))

    def _device(self, name: str) -> str:
        if not self._is_interface(name):
            raise VfProblem("there is no network interface {0} on this node".format(name))
        return os.path.realpath(os.path.join(self._root, "class/net", name, "device"))

    @staticmethod
    def _ip(words: Sequence[str]) -> str:
        return printed("ip", words)


def printed(command: str, words: Sequence[str]) -> str:
    """Return the output of a command of iproute2.

    Raises:
        VfProblem: it fails, or is missing.
    """
    try:
        done = iproute2(command, *words)
    except IpMissing as missing:
        raise VfProblem(str(missing)) from missing
    if done.returncode:
        refused = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise VfProblem("{0} {1}: {2}".format(command, " ".join(words), refused))
    return done.stdout.decode("utf-8", "replace")


def _administered(shown: str, number: int) -> str:
    """Return the address that a PF gave a VF, from `ip -j link show`; "" for none."""
    try:
        vfs = [vf for link in json.loads(shown or "[]") for vf in link.get("vfinfo_list") or []]
    except (ValueError, AttributeError):
        return ""
    # Older versions of iproute2 name it mac.
    return next((str(vf.get("address") or vf.get("mac")) for vf in vfs if vf.get("vf") == number), "")
