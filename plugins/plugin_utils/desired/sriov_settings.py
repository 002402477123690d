# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's variables say of the interfaces below its network, and of making them ready for VFs."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.node_plan import (
    DRIVERS_ON_A_PARENT,
    SriovSettings,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import HostVariables


def sriov_settings(reader: HostVariables, node: str) -> SriovSettings:
    """Return what a node's variables say; nothing that is not a number or a name is taken for one."""
    driver = reader.text(node, "network_driver")
    if driver not in DRIVERS_ON_A_PARENT:
        return SriovSettings()
    if driver != "sriov":
        return SriovSettings(tuple(_below_networks(reader, node)))
    vfs = max(1, _number(reader, node, "sriov_vfs"))
    told = reader.true(node, "sriov_firmware")
    return SriovSettings(
        tuple(vf_parents(reader, node)),
        vfs,
        max(vfs, _number(reader, node, "sriov_firmware_vfs")) if told else 0,
        reader.true(node, "sriov_kernel_parameters"),
        reader.true(node, "sriov_reboot_ok"),
        run_as=reader.text(node, "sriov_run_as"),
        stand_in=bool(reader.role_value(node, "sriov_command")),
    )


def vf_parents(reader: HostVariables, node: str) -> list[str]:
    """Return the interfaces, or PCI addresses, of the physical functions that are to have VFs."""
    named = reader.role_value(node, "sriov_vf_parents")
    # Its default is a template that says what follows.
    return [str(name) for name in named] if isinstance(named, list) else _below_networks(reader, node)


def _below_networks(reader: HostVariables, node: str) -> list[str]:
    rails = reader.role_value(node, "container_rails")
    # A pool of several physical functions is one text.
    pool = [name.strip() for name in reader.text(node, "network_parent").split(",")]
    names = [*pool, *(rails if isinstance(rails, (list, tuple)) else ())]
    return list(dict.fromkeys(str(name) for name in names if name))


def _number(reader: HostVariables, node: str, name: str) -> int:
    text = reader.text(node, name)
    return int(text) if text.isdigit() else 0
