# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's settings of the interfaces of its networks, and of their preparation for VFs."""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

OWN, UPSTREAM = "rdm-sriov", "upstream"
UPSTREAM_IMAGE = "rdma/sriov-plugin:latest"
DRIVERS_ON_A_PARENT = {"sriov", "macvlan", "ipvlan"}
"""The network drivers whose networks use an interface of the node."""


class SriovSettings(NamedTuple):
    """Settings of the interfaces that a node's container networks use.

    Attributes:
        parents: names of the interfaces.
        vfs: how many VFs each must offer; 0 if the network needs none.
        firmware_vfs: how many VFs the run may set the firmware to allow; 0 to leave it unchanged.
        kernel_parameters: whether the run may change the kernel's command line.
        reboot_ok: whether the run may reboot the node for these.
        socket: the network plugin's socket; empty for no plugin.
        run_as: what starts the network plugin: `unit`, `container`, or `auto`.
        function_devices: whether the container gets only the RDMA devices of its VF.
        stand_in: whether the network plugin is an unknown program of the user's.
    """

    parents: tuple[str, ...] = ()
    vfs: int = 0
    firmware_vfs: int = 0
    kernel_parameters: bool = False
    reboot_ok: bool = False
    socket: str = ""
    run_as: str = ""
    function_devices: bool = False
    stand_in: bool = False

    def gathered(self) -> dict[str, Any]:
        """Return the option `sriov` of node_facts: what to gather from the node."""
        names = ("parents", "vfs", "firmware_vfs", "kernel_parameters", "socket", "function_devices")
        return {key: value for key, value in self._asdict().items() if key in names}


def sriov_settings(variables: NodeVariables) -> SriovSettings:
    """Return a node's settings; values of a wrong type are ignored."""
    driver = variables.text("network_driver")
    if driver not in DRIVERS_ON_A_PARENT:
        return SriovSettings()
    if driver != "sriov":
        return SriovSettings(tuple(_below_networks(variables)))
    vfs = max(1, variables.number("sriov_vfs"))
    set_firmware = variables.true("sriov_firmware")
    return SriovSettings(
        tuple(vf_parents(variables)),
        vfs,
        max(vfs, variables.number("sriov_firmware_vfs")) if set_firmware else 0,
        variables.true("sriov_kernel_parameters"),
        variables.true("sriov_reboot_ok"),
        run_as=variables.text("sriov_run_as"),
        stand_in=bool(variables.value("sriov_command")),
    )


def plugin_of(variables: NodeVariables) -> str:
    """Return the desired SR-IOV network plugin of a node; empty for none."""
    enabled = variables.true("sriov_enabled", otherwise=variables.text("network_driver") == "sriov")
    return variables.text("sriov_plugin") if enabled and variables.text("sriov_state") != "absent" else ""


def vf_parents(variables: NodeVariables) -> list[str]:
    """Return the interfaces, or PCI addresses, of the PFs that should have VFs."""
    named = variables.value("sriov_vf_pfs")
    # The default is a template that means the same as _below_networks().
    return [str(name) for name in named] if isinstance(named, list) else _below_networks(variables)


def _below_networks(variables: NodeVariables) -> list[str]:
    rails = variables.value("container_rails")
    # A pool of several PFs is one comma-separated text.
    pool = [name.strip() for name in variables.text("network_parent").split(",")]
    names = [*pool, *(rails if isinstance(rails, (list, tuple)) else ())]
    return list(dict.fromkeys(str(name) for name in names if name))
