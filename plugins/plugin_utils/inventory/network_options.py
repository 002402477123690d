# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the container network's driver."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.rdm_sriov.options import partition_key
from ansible_collections.rdm.provision.rdm_sriov.vfs import VfProblem

# Each driver's option for the mode, and its modes; the first is the driver's default.
_MODES = {
    "sriov": ("mode", ["sriov", "passthrough"]),
    "macvlan": ("macvlan_mode", ["bridge", "vepa", "passthru", "private"]),
    "ipvlan": ("ipvlan_mode", ["l2", "l3", "l3s"]),
}
DRIVERS = [*_MODES, "bridge"]
_VLANS = range(4096)  # 0: none


def driver_options(
    driver: str,
    parent: str = "",
    mode: str = "",
    vlan: int = 0,
    privileged: bool = False,
    prefix: str = "",
    pkey: str = "",
    extra: dict[str, Any] | None = None,
) -> dict[str, str]:
    """Return the driver's options for Docker; only those that differ from the driver's defaults.

    Sources: the README of docker-sriov-plugin; https://docs.docker.com/engine/network/drivers/macvlan/ and
    https://docs.docker.com/engine/network/drivers/ipvlan/.

    Args:
        driver: sriov, macvlan, ipvlan or bridge.
        parent: the node's interface below the network; for sriov the PF.
        mode: of the driver; empty means its default.
        vlan: VLAN ID, 0 for none. For macvlan and ipvlan the interface `parent.vlan` is used.
        privileged: with sriov, let containers set their own MAC addresses (VF trust on, spoof check off).
        prefix: with sriov, prefix of the interfaces' names in the container; empty means eth.
        pkey: with sriov, the InfiniBand partition, such as 0x8001; empty for none.
        extra: further options, which take precedence.

    Raises:
        ValueError: the driver has no such option.
    """
    if driver not in DRIVERS:
        raise ValueError("network_driver {!r} is none of {}".format(driver, ", ".join(DRIVERS)))
    if vlan not in _VLANS:
        raise ValueError(f"network_vlan {vlan} is not between 0 and {_VLANS[-1]}")
    options: dict[str, str] = {}
    if driver == "bridge":
        for name, value in (("network_mode", mode), ("network_vlan", vlan)):
            if value:
                raise ValueError(f"{name} {value} has no meaning for the driver bridge")
    else:
        key, modes = _MODES[driver]
        if mode and mode not in modes:
            raise ValueError(f"network_mode {mode!r} is no mode of {driver}; choose {', '.join(modes)}")
        if not parent:
            raise ValueError(f"network_parent is empty, but {driver} needs an interface")
        if driver == "sriov":
            options["netdevice"] = parent
        else:
            options["parent"] = f"{parent}.{vlan}" if vlan else parent
        if mode:
            options[key] = mode
    if driver == "sriov":
        if vlan:
            options["vlan"] = str(vlan)
        if privileged:
            options["privileged"] = "1"
        if prefix:
            options["prefix"] = prefix
        if pkey:
            options["pkey"] = _partition_key(pkey, mode, vlan)
    elif privileged or prefix or pkey:
        raise ValueError(
            "network_privileged, network_prefix and network_pkey have a meaning for the driver sriov only"
        )
    options.update({str(name): _text(value) for name, value in (extra or {}).items()})
    return options


def _partition_key(text: str, mode: str, vlan: int) -> str:
    """Return a partition key in the form that the plugin accepts and `docker network inspect` shows."""
    try:
        key = partition_key(text)
    except VfProblem as problem:
        raise ValueError(f"network_{problem}") from None
    if vlan or mode == "passthrough":
        other = f"network_vlan {vlan}" if vlan else f"network_mode {mode}"
        raise ValueError(f"network_pkey {text} goes with virtual functions of InfiniBand, not with {other}")
    return f"{key:#06x}"


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
