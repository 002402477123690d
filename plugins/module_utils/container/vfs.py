# SPDX-License-Identifier: GPL-3.0-or-later
"""The VFs that the training container gets from rdm-sriov, with their RDMA devices and hardware addresses.

A VF is reserved before the container is created, since the engine must be given the RDMA devices then. The
reservation is for the container's address, and holds until the engine requests an endpoint with that address.
After the start the result is checked: with the RDMA devices of another container's VF, a container could not
communicate and would disturb the other.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import ipaddress
import os
import re
import time
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import DockerAPI
from ansible_collections.rdm.provision.plugins.module_utils.docker.ownership import inspect
from ansible_collections.rdm.provision.plugins.module_utils.docker.plugin_client import (
    FORMER_VF,
    RESERVE,
    VF,
    PluginProblem,
    call_plugin,
)
from ansible_collections.rdm.provision.plugins.module_utils.hardware import rdma
from ansible_collections.rdm.provision.plugins.module_utils.hardware.rdma import SHARED
from ansible_collections.rdm.provision.plugins.module_utils.hardware.sysfs_files import read
from ansible_collections.rdm.provision.plugins.module_utils.sriov import pf
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import is_infiniband

Settings = Dict[str, Dict[str, Any]]
"""Network -> `devices` (paths of RDMA devices), `vf` (the key of their VF) and `mac` (the hardware
address), without empty ones."""

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_ETHERNET = re.compile(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}$")
_RANDOM = "1"  # NET_ADDR_RANDOM of linux/netdevice.h
_TIMEOUT = 30.0  # seconds, for a plugin that serves many at once
_MOVES_S = 30.0  # for an RDMA device to move, after its container has started


class Given(NamedTuple):
    """A VF that a container has, or will get.

    Attributes:
        key: its PCI address, or its name if it has none; empty if unknown.
        interface: its interface in the node's network namespace; empty while it is in a container.
        mac: its hardware address; empty if unknown.
    """

    key: str
    interface: str = ""
    mac: str = ""


def held(socket: str, found: Optional[Mapping[str, Any]], network: str) -> str:
    """Return the key of a running container's VF on a network.

    Empty if the container does not run, or the plugin does not answer or does not know it.

    Args:
        socket: the plugin's.
        found: the container, as inspect() returns it.
        network: the network's name.
    """
    end = ((found or {}).get("NetworkSettings") or {}).get("Networks", {}).get(network) or {}
    if not socket or not end.get("EndpointID") or not (found or {})["State"]["Running"]:
        return ""
    body = {"NetworkID": end["NetworkID"], "EndpointID": end["EndpointID"]}
    try:
        value = call_plugin(socket, "NetworkDriver.EndpointOperInfo", body).get("Value")
    except PluginProblem:
        return ""
    known = value if isinstance(value, dict) else {}
    return str(known.get(VF) or known.get(FORMER_VF) or "")


def devices(given: Given, root: str = "/sys", dev_root: str = "/dev") -> Optional[List[str]]:
    """Return the RDMA character devices of a VF; None if they cannot be found out from here.

    Args:
        given: the VF.
        root: where sysfs is.
        dev_root: where the device nodes are.

    Raises:
        NodeError: they are missing or ambiguous, or no container could open them.
    """
    name = given.key if _PCI.match(given.key) else given.interface
    if not name:
        return None
    what = rdma.function(name, root)
    found = rdma.required(what, rdma.expected(what, root), root, dev_root)
    if found.device and given.interface and is_infiniband(given.interface, root) and _exclusive(root):
        raise NodeError(
            "RDMA devices are in the mode exclusive, in which no container can open {0}: when it moves to "
            "one, the kernel takes its InfiniBand interface {1} away: {2}".format(
                found.device, given.interface, SHARED
            )
        )
    return found.paths


def stayed_behind(key: str, root: str = "/sys") -> str:
    """Return why a running container cannot open its VF's RDMA device; empty if it can.

    Args:
        key: of the container's VF.
        root: where sysfs is.
    """
    device = rdma.in_this_namespace(key, root) if _PCI.match(key) and _exclusive(root) else ""
    return device and (
        "RDMA devices are in the mode exclusive, and {0} of {1} did not move to its container: "
        "journalctl -u rdm-sriov says why".format(device, key)
    )


def _exclusive(root: str) -> bool:
    return bool(pf.rdma(root)["netns_mode"] == "exclusive")


def still_there(key: str, root: str = "/sys") -> str:
    """Return the key of a VF; empty if the VF was removed while its container ran."""
    gone = _PCI.match(key) and not os.path.isdir(os.path.join(root, "bus/pci/devices", key))
    return "" if gone else key


def lasting_mac(given: Given, root: str = "/sys") -> Optional[str]:
    """Return the hardware address by which the engine can request a VF; None if it cannot be found out.

    Empty for an address that changes with the next boot, since a container that requires it would never start
    again, and on InfiniBand, whose addresses an engine cannot set.
    """
    if not given.interface:
        return None
    if read(root, "class/net", given.interface, "addr_assign_type") == _RANDOM:
        return ""
    return given.mac if _ETHERNET.match(given.mac) else ""


class ContainerVfs:
    """The VFs of one container.

    Args:
        api: the engine.
        socket: the plugin's socket; empty where another driver makes the networks, and nothing is reserved.
        ends: the container's networks, and its address on each.
        rdma: whether it gets the RDMA devices of its VFs.

    Attributes:
        incomplete: whether :meth:`settings` found that the running container lacks an RDMA device. A restart
            gives it the device again.
    """

    def __init__(self, api: DockerAPI, socket: str, ends: List[Tuple[str, str]], rdma: bool = True) -> None:
        self._api = api
        self._socket = socket
        self._ends = ends if socket else []
        self._rdma = rdma
        self._keys: Dict[str, str] = {}
        self.incomplete = False

    def settings(self, found: Optional[Mapping[str, Any]], before: Settings, check: bool) -> Settings:
        """Return the settings that come with the container's VFs.

        A running container keeps its VF. Otherwise one is reserved; in check mode the previous settings
        count.

        Args:
            found: the existing container.
            before: its settings.
            check: whether nothing may be changed.

        Raises:
            PluginProblem: no VF can be reserved.
            NodeError: its RDMA devices cannot be found out.
        """
        settings: Settings = {}
        for network, address in self._ends:
            had = before.get(network) or {}
            given = Given(still_there(held(self._socket, found, network)))
            self.incomplete |= self._rdma and bool(stayed_behind(given.key))
            if not given.key and not check:
                given = self._reserve(network, address)
            self._keys[network] = given.key
            mac = lasting_mac(given)
            paths = devices(given) if self._rdma else []
            mine = {
                "mac": had.get("mac") if mac is None else mac,
                "devices": had.get("devices") if paths is None else paths,
            }
            # The devices belong to one VF, so the container requests that VF at every start.
            mine["vf"] = (given.key or had.get("vf")) if mine["devices"] else ""
            if any(mine.values()):
                settings[network] = {name: value for name, value in mine.items() if value}
        return settings

    def hold(self) -> None:
        """Check that the VFs are still reserved for the container that is about to start.

        Raises:
            PluginProblem: another container has taken one.
        """
        for network, address in self._ends:
            now = self._reserve(network, address).key
            if now != self._keys[network]:
                raise PluginProblem(
                    "the VF {0}, which was reserved for {1} on the network {2}, went to another "
                    "container: run it again".format(self._keys[network], address, network)
                )

    def confirm(self, found: Optional[Mapping[str, Any]]) -> None:
        """Check that the container got its VFs.

        Raises:
            PluginProblem: it got another VF.
            NodeError: it did not get the RDMA device.
        """
        for network, _ in self._ends:
            has = held(self._socket, found, network)
            if has and has != self._keys[network]:
                raise PluginProblem(
                    "the container should have got the VF {0} on the network {1}, but got {2}: run "
                    "it again".format(self._keys[network], network, has)
                )
            if has and self._rdma:
                _wait_for_devices(has)

    def _reserve(self, network: str, address: str) -> Given:
        known = inspect(self._api, "networks", network)
        if known is None:
            raise PluginProblem("there is no network {0} to reserve a VF on".format(network))
        body = {"NetworkID": known["Id"], "Address": _with_prefix(known, address)}
        answer = call_plugin(self._socket, RESERVE, body, _TIMEOUT)
        given = answer.get("Vf") or answer.get("Function")
        if not isinstance(given, dict):
            raise PluginProblem("{0} reserves no VF: {1!r}".format(self._socket, given))
        key = str(given.get("pci") or given.get("pf") or given.get("parent") or "")
        return Given(key, str(given.get("interface") or ""), str(given.get("mac") or "").lower())


def _wait_for_devices(key: str) -> None:
    """Wait until a VF's RDMA device has moved to its container.

    Raises:
        NodeError: it did not move in time.
    """
    until = time.monotonic() + _MOVES_S
    while True:
        try:
            devices(Given(key))
            why = stayed_behind(key)
            if why:
                raise NodeError(why)
        except NodeError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
        else:
            return


def _with_prefix(network: Mapping[str, Any], address: str) -> str:
    """Return an address with the prefix length of its subnet."""
    for pool in (network.get("IPAM") or {}).get("Config") or []:
        subnet = ipaddress.ip_network(pool["Subnet"])
        if ipaddress.ip_address(address) in subnet:
            return "{0}/{1}".format(address, subnet.prefixlen)
    raise PluginProblem("the network {0} has no subnet with {1}".format(network["Name"], address))
