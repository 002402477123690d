# SPDX-License-Identifier: GPL-3.0-or-later
"""Finds the interface for a job's traffic, and the settings that make its libraries use it."""

from __future__ import annotations

import ctypes.util
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rdm_core.errors import TrainerError
from rdm_job.network import address_of, interface_of, outward_address

_SYSFS = Path("/sys")


@dataclass(frozen=True)
class Port:
    """An active RDMA port.

    Args:
        device: Such as ``mlx5_0``.
        number: From 1.
        is_ethernet: RoCE, not InfiniBand.
        interfaces: Network interfaces of its device in this network namespace.
        rate: Such as ``400 Gb/sec (4X NDR)``.
        is_vf: Its device is an SR-IOV VF.
    """

    device: str
    number: int
    is_ethernet: bool
    interfaces: tuple[str, ...]
    rate: str = ""
    is_vf: bool = False

    def __str__(self) -> str:
        return f"{self.device}:{self.number}"


@dataclass(frozen=True)
class Fabric:
    """The address at which others reach this member, and the RDMA ports that a job should use.

    Args:
        interface: Its name; empty if no interface of this network namespace has the address.
        address: Its IPv4 address.
        ports: Active RDMA ports: the interface's own and its rails; all if the interface has none.
    """

    interface: str
    address: str
    ports: tuple[Port, ...] = ()


def rdma_ports(sysfs: Path = _SYSFS) -> list[Port]:
    """Return the active RDMA ports of this host, by device and number."""
    ports = []
    for device in sorted((sysfs / "class/infiniband").glob("*")):
        interfaces = tuple(sorted(path.name for path in (device / "device/net").glob("*")))
        for port in sorted((device / "ports").glob("*")):
            # Such as "4: ACTIVE" (Documentation/ABI/stable/sysfs-class-infiniband).
            if _text(port / "state").endswith("ACTIVE") and port.name.isdigit():
                ports.append(
                    Port(
                        device.name,
                        int(port.name),
                        is_ethernet=_text(port / "link_layer") == "Ethernet",
                        interfaces=interfaces,
                        rate=_text(port / "rate"),
                        is_vf=(device / "device/physfn").exists(),
                    )
                )
    return ports


def find_fabric(interface: str = "", launcher: str = "", sysfs: Path = _SYSFS) -> Fabric:
    """Return the fabric on which others reach this member.

    Its interface is the given one, else that of an active RDMA port, else the one with the route to the
    launcher.

    Args:
        interface: The user's choice, if any.
        launcher: The launcher's address; empty on the launcher itself.
        sysfs: Where sysfs is mounted.

    Raises:
        TrainerError: There is none, or it has no address that others can reach.
    """
    ports = rdma_ports(sysfs)
    if interface:
        address = address_of(interface)
        if address is None:
            raise TrainerError(f"--interface is {interface}, which has no IPv4 address here.")
        return _checked(interface, address, ports)
    for port in ports:
        for name in port.interfaces:
            if address := address_of(name):
                return _checked(name, address, ports)
    address = outward_address(launcher) if launcher else outward_address()
    if address is None:
        raise TrainerError(
            "There is no route to other hosts; name the interface that they are on: --interface."
        )
    return _checked(interface_of(address) or "", address, ports)


def _checked(interface: str, address: str, ports: list[Port]) -> Fabric:
    if ipaddress.IPv4Address(address).is_loopback:
        raise TrainerError(
            f"This member's address would be {address}, which other hosts cannot reach; name the interface "
            "that they are on: --interface."
        )
    rails = tuple(port for port in ports if _is_rail(port, interface, ports))
    return Fabric(interface, address, rails or tuple(ports))


def _is_rail(port: Port, interface: str, ports: list[Port]) -> bool:
    """Whether a port is the interface's own, or another of the same kind.

    A port with another link layer or rate is for storage or management. A device without an interface here
    belongs to another container, and RoCE needs an address.
    """
    own = {(one.is_ethernet, one.rate, one.is_vf) for one in ports if interface in one.interfaces}
    is_here = any(map(address_of, port.interfaces)) if port.is_ethernet else bool(port.interfaces)
    return is_here and (port.is_ethernet, port.rate, port.is_vf) in own


def library_settings(fabric: Fabric, sysfs: Path = _SYSFS) -> dict[str, str]:
    """Return the variables that make NCCL, Gloo and UCX use a fabric."""
    settings = {}
    if fabric.interface:
        # The "=" makes NCCL match the whole name instead of a prefix.
        settings["NCCL_SOCKET_IFNAME"] = f"={fabric.interface}"
        settings["GLOO_SOCKET_IFNAME"] = fabric.interface
    if fabric.ports:
        settings["NCCL_IB_HCA"] = "=" + ",".join(map(str, fabric.ports))
        settings["UCX_NET_DEVICES"] = ",".join(map(str, fabric.ports))
        indices = {_gid_index(port, fabric.address, sysfs) for port in fabric.ports if port.is_ethernet}
        # NCCL uses one index for all devices.
        if len(indices) == 1 and (index := indices.pop()) is not None:
            settings["NCCL_IB_GID_INDEX"] = str(index)
    return settings


def _gid_index(port: Port, address: str, sysfs: Path) -> int | None:
    """Return the index of the RoCE v2 GID with this address, or with the port's own; None without one."""
    folder = sysfs / "class/infiniband" / port.device / "ports" / str(port.number)
    addresses = {address, *filter(None, map(address_of, port.interfaces))}
    sought = {ipaddress.IPv6Address(f"::ffff:{one}") for one in addresses}
    numbers = sorted(int(path.name) for path in (folder / "gids").glob("*") if path.name.isdigit())
    for number in numbers:
        try:
            found = ipaddress.IPv6Address(_text(folder / "gids" / str(number)))
        except ValueError:
            continue
        if found in sought and _text(folder / "gid_attrs/types" / str(number)) in ("RoCE v2", ""):
            return number
    return None


def missing_libraries(
    fabric: Fabric, find: Callable[[str], str | None] = ctypes.util.find_library
) -> dict[str, str]:
    """Return the user-space RDMA libraries that this host lacks, with the package of each.

    Args:
        fabric: The fabric.
        find: Works like :func:`ctypes.util.find_library`.
    """
    if not fabric.ports:
        return {}
    packages = {"ibverbs": "libibverbs1"}
    if any(port.device.startswith("mlx5") for port in fabric.ports):
        packages["mlx5"] = "libmlx5-1, in newer releases ibverbs-providers"
    return {f"lib{name}": package for name, package in packages.items() if not find(name)}


def adopt(settings: Mapping[str, str], environment: dict[str, str]) -> None:
    """Set variables that the user has not set."""
    environment.update((name, value) for name, value in settings.items() if not environment.get(name))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
