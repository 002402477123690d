# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's variables say of the interfaces below its network, and of making them ready for VFs."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.host_variables import HostVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.node_plan import (
    DRIVERS_ON_A_PARENT,
    SriovSettings,
)


def sriov_settings(reader: HostVariables, node: str) -> SriovSettings:
    """Return what a node's variables say; nothing that is not a number or a name is taken for one."""
    driver = reader.text(node, "network_driver")
    if driver not in DRIVERS_ON_A_PARENT:
        return SriovSettings()
    rails = reader.role_value(node, "container_rails")
    # A pool of several physical functions is one text.
    pool = [name.strip() for name in reader.text(node, "network_parent").split(",")]
    names = [*pool, *(rails if isinstance(rails, (list, tuple)) else ())]
    parents = tuple(dict.fromkeys(str(name) for name in names if name))
    if driver != "sriov":
        return SriovSettings(parents)
    vfs = max(1, _number(reader, node, "sriov_vfs"))
    told = reader.true(node, "sriov_firmware")
    return SriovSettings(
        parents,
        vfs,
        max(vfs, _number(reader, node, "sriov_firmware_vfs")) if told else 0,
        reader.true(node, "sriov_kernel_parameters"),
        reader.true(node, "sriov_reboot_ok"),
        reader.text(node, "sriov_plugin") in ("", "upstream"),
    )


def _number(reader: HostVariables, node: str, name: str) -> int:
    text = reader.text(node, name)
    return int(text) if text.isdigit() else 0
