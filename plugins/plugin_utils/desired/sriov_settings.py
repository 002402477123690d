# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's variables say of the interfaces below its network, and of making them ready for VFs."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.node_plan import (
    DRIVERS_ON_A_PARENT,
    SriovSettings,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


def sriov_settings(variables: NodeVariables) -> SriovSettings:
    """Return what a node's variables say; nothing that is not a number or a name is taken for one."""
    driver = variables.text("network_driver")
    if driver not in DRIVERS_ON_A_PARENT:
        return SriovSettings()
    if driver != "sriov":
        return SriovSettings(tuple(_below_networks(variables)))
    vfs = max(1, variables.number("sriov_vfs"))
    told = variables.true("sriov_firmware")
    return SriovSettings(
        tuple(vf_parents(variables)),
        vfs,
        max(vfs, variables.number("sriov_firmware_vfs")) if told else 0,
        variables.true("sriov_kernel_parameters"),
        variables.true("sriov_reboot_ok"),
        run_as=variables.text("sriov_run_as"),
        stand_in=bool(variables.value("sriov_command")),
    )


def plugin_of(variables: NodeVariables) -> str:
    """Return the SR-IOV network plugin that a node is to have; empty for none."""
    enabled = variables.true("sriov_enabled", otherwise=variables.text("network_driver") == "sriov")
    return variables.text("sriov_plugin") if enabled and variables.text("sriov_state") != "absent" else ""


def vf_parents(variables: NodeVariables) -> list[str]:
    """Return the interfaces, or PCI addresses, of the physical functions that are to have VFs."""
    named = variables.value("sriov_vf_pfs")
    # Its default is a template that says what follows.
    return [str(name) for name in named] if isinstance(named, list) else _below_networks(variables)


def _below_networks(variables: NodeVariables) -> list[str]:
    rails = variables.value("container_rails")
    # A pool of several physical functions is one text.
    pool = [name.strip() for name in variables.text("network_parent").split(",")]
    names = [*pool, *(rails if isinstance(rails, (list, tuple)) else ())]
    return list(dict.fromkeys(str(name) for name in names if name))
