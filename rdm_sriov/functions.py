# SPDX-License-Identifier: GPL-3.0-or-later
"""The network functions of a node that can be handed to containers, by PCI address.

A virtual function (VF) is never known by the name of its network interface: when a container's network
namespace dies, the kernel gives the interface back under the name that it had in there.

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

ETHERNET = 1
INFINIBAND = 32
"""Of /sys/class/net/*/type (ARPHRD_ETHER, ARPHRD_INFINIBAND of linux/if_arp.h)."""

_UNSUPPORTED = "not supported"
_NO_ADDRESS = "00:00:00:00:00:00"


class FunctionProblem(Exception):  # noqa: N818  # most are the node's state, not errors
    """Something is not as it has to be; its text is one sentence for a person."""


class Function(NamedTuple):
    """What a container can get.

    Attributes:
        key: its PCI address; for an interface without one, its name.
        parent: the interface of the physical function, or of the function itself when it is handed on whole.
        number: which VF of the physical function it is; -1 for an interface that is handed on whole.
    """

    key: str
    parent: str
    number: int


class Functions:
    """The functions of this node, as sysfs shows them to this network namespace.

    Args:
        root: where sysfs is.
    """

    def __init__(self, root: str = "/sys") -> None:
        self._root = root

    def virtual(self, parent: str) -> List[Function]:
        """Return the VFs of a physical function, in the order of their numbers.

        Args:
            parent: the interface of the physical function.

        Raises:
            FunctionProblem: there is no such interface, or it cannot have VFs, or has none.
        """
        device = self._device(parent)
        if not os.path.exists(os.path.join(device, "sriov_totalvfs")):
            raise FunctionProblem(
                "{0} has no virtual functions to give: it is not the interface of a physical function "
                "with SR-IOV".format(parent)
            )
        entries = [re.match(r"virtfn(\d+)$", entry) for entry in os.listdir(device)]
        numbers = sorted(int(found.group(1)) for found in entries if found)
        if not numbers:
            raise FunctionProblem(
                "{0} has no virtual function now: write a number of them, {1} at most, to {2}".format(
                    parent,
                    _read(device, "sriov_totalvfs") or "?",
                    os.path.join(self._root, "class/net", parent, "device/sriov_numvfs"),
                )
            )
        links = [os.readlink("{0}/virtfn{1}".format(device, number)) for number in numbers]
        return [Function(path.rpartition("/")[2], parent, number) for path, number in zip(links, numbers)]

    def whole(self, name: str) -> Function:
        """Return an interface as something that is handed on whole.

        Raises:
            FunctionProblem: there is no such interface.
        """
        if not self._is_interface(name):
            raise FunctionProblem("there is no network interface {0} on this node".format(name))
        device = os.path.join(self._root, "class/net", name, "device")
        # Where a function has one interface, its address finds it under whatever name.
        if os.path.isdir(os.path.join(device, "net")) and len(os.listdir(os.path.join(device, "net"))) == 1:
            return Function(_target(device), name, -1)
        return Function(name, name, -1)

    def interface(self, function: Function) -> str:
        """Return the name of a function's interface; "" when it is not in this network namespace.

        Nor is one free whose partition's interface is in another.
        """
        if function.key == function.parent:
            return function.key if self._is_interface(function.key) else ""
        return partitions.free(self._directory(function))

    def is_idle(self, function: Function) -> bool:
        """Say whether a function has no driver, so that it has no interface to give to anybody."""
        device = self._directory(function)
        return os.path.isdir(device) and not os.path.exists(os.path.join(device, "driver"))

    def partition(self, function: Function, pkey: int, name: str) -> str:
        """Make the interface of a partition on a function's own, in place of what an earlier one has left.

        Args:
            function: one that is InfiniBand.
            pkey: the partition's key; 0 makes none.
            name: whom it is for.

        Returns:
            The name of the interface; "" for none.

        Raises:
            FunctionProblem: the kernel refuses; the function is as free as before.
        """
        self.reunite(function)
        device = self._directory(function)
        own, _ = partitions.interfaces(device)
        if not pkey:
            return ""
        child = partitions.name_on(device, own)
        # A child is up only while the interface below it is.
        self.up(own)
        self._ip(["link", "add", "link", own, "name", child, "type", "ipoib", "pkey", hex(pkey)])
        try:
            for one in (child, own):
                self._ip(["link", "set", "dev", one, "alias", partitions.MARK + name])
        except FunctionProblem:
            self._ip(["link", "del", "dev", child])
            raise
        return child

    def child(self, function: Function, name: str) -> str:
        """Return the interface of the partition that was made for somebody; "" when it is not here."""
        device = self._directory(function)
        _, children = partitions.interfaces(device)
        mine = [one for one in children if partitions.mark(device, one) == partitions.MARK + name]
        return next(iter(mine), "")

    def reunite(self, function: Function, name: str = "") -> None:
        """Take away what partitions have left on a function, so that it is free.

        What is still in another namespace, the kernel gives back or takes away with that.

        Args:
            function: the function.
            name: only when its partition is this one's; "" whoever it was for.

        Raises:
            FunctionProblem: the kernel refuses.
        """
        device = self._directory(function)
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
        return _read(self._root, "class/net", interface, "address").lower()

    def is_ethernet(self, interface: str) -> bool:
        """Say whether an interface is Ethernet, and not InfiniBand."""
        return _read(self._root, "class/net", interface, "type") == str(ETHERNET)

    def up(self, interface: str) -> None:
        """Switch an interface on.

        Raises:
            FunctionProblem: the kernel refuses.
        """
        self._ip(["link", "set", "dev", interface, "up"])

    def set_mtu(self, interface: str, mtu: int) -> None:
        """Set the largest packet, in bytes, of an interface.

        Raises:
            FunctionProblem: the kernel refuses.
        """
        if _read(self._root, "class/net", interface, "mtu") != str(mtu):
            self._ip(["link", "set", "dev", interface, "mtu", str(mtu)])

    def isolate(self, function: Function, vlan: int, trusted: bool) -> None:
        """Set what the physical function lets a VF do.

        Args:
            function: a VF of an Ethernet function.
            vlan: the VLAN of all its packets; 0 for none.
            trusted: it may choose its own addresses.

        Raises:
            FunctionProblem: the kernel refuses.
        """
        vf = ["link", "set", "dev", function.parent, "vf", str(function.number)]
        changes = [] if trusted else self._lacking_address(function)
        changes += [["vlan", str(vlan)], ["trust", "on" if trusted else "off"]]
        changes += [["spoofchk", "off" if trusted else "on"]]
        # At once, since starting a command is what takes time here.
        try:
            self._ip([*vf, *(word for words in changes for word in words)])
        except FunctionProblem as problem:
            if _UNSUPPORTED not in str(problem):
                raise
        else:
            return
        # Not every driver knows these, and one that knows none lets nothing through that they would stop;
        # but a VLAN that is wanted has to be there.
        for words in changes:
            try:
                self._ip([*vf, *words])
            except FunctionProblem as problem:
                if _UNSUPPORTED not in str(problem) or (words[0] == "vlan" and vlan):
                    raise

    def _lacking_address(self, function: Function) -> List[List[str]]:
        """Return what tells the physical function a VF's address where it knows none.

        mlx5 checks senders against the address that it knows: against an all-zero one, a VF is mute.
        """
        try:
            shown = self._ip(["-j", "link", "show", "dev", function.parent])
        except FunctionProblem:
            return []  # an ip without JSON
        own = self.address(self.interface(function))
        return [["mac", own]] if own and _administered(shown, function.number) == _NO_ADDRESS else []

    def _directory(self, function: Function) -> str:
        return os.path.join(self._root, "bus/pci/devices", function.key)

    def _is_interface(self, name: str) -> bool:
        return os.path.isdir(os.path.join(self._root, "class/net", name))

    def _device(self, name: str) -> str:
        if not self._is_interface(name):
            raise FunctionProblem("there is no network interface {0} on this node".format(name))
        return os.path.realpath(os.path.join(self._root, "class/net", name, "device"))

    @staticmethod
    def _ip(words: Sequence[str]) -> str:
        return printed("ip", words)


def printed(command: str, words: Sequence[str]) -> str:
    """Return what a command of iproute2 prints.

    Raises:
        FunctionProblem: it refuses, or is not there.
    """
    try:
        done = iproute2(command, *words)
    except IpMissing as missing:
        raise FunctionProblem(str(missing)) from missing
    if done.returncode:
        refused = " ".join(done.stderr.decode("utf-8", "replace").split())
        raise FunctionProblem("{0} {1}: {2}".format(command, " ".join(words), refused))
    return done.stdout.decode("utf-8", "replace")


def _administered(shown: str, number: int) -> str:
    """Return the address that `ip -j link show` says a physical function gave a VF; "" for none."""
    try:
        vfs = [vf for link in json.loads(shown or "[]") for vf in link.get("vfinfo_list") or []]
    except (ValueError, AttributeError):
        return ""
    # Older versions of iproute2 call it mac.
    return next((str(vf.get("address") or vf.get("mac")) for vf in vfs if vf.get("vf") == number), "")


def _read(*parts: str) -> str:
    try:
        with open(os.path.join(*parts), encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def _target(link: str) -> str:
    return os.path.basename(os.path.realpath(link))
