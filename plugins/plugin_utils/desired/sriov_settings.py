# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node's variables say of the interfaces below its network, and of making them ready for VFs."""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

OWN, UPSTREAM = "rdm-sriov", "upstream"
UPSTREAM_IMAGE = "rdma/sriov-plugin:latest"
DRIVERS_ON_A_PARENT = {"sriov", "macvlan", "ipvlan"}
"""The network drivers whose network lies on an interface of the node."""


class SriovSettings(NamedTuple):
    """What is wanted of a node's parent interfaces.

    Attributes:
        parents: names of the interfaces that the container network lies on.
        vfs: how many VFs each has to offer; 0 where the network needs none.
        firmware_vfs: how many the firmware may be set to allow, 0 where it is left alone.
        kernel_parameters: whether the kernel's command line may be changed.
        reboot_ok: whether the node may be rebooted for these.
        socket: at which the network plugin is to answer; empty where none is wanted.
        run_as: who starts the network plugin: `unit`, `container`, or `auto`.
        function_devices: whether the container gets the RDMA devices of just the function that it gets.
        stand_in: whether a program of the user's own is the network plugin, of which nothing is known.
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
    """Return what a node's variables say; nothing that is not a number or a name is taken for one."""
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
    """Return the SR-IOV network plugin that a node is to have; empty for none."""
    enabled = variables.true("sriov_enabled", otherwise=variables.text("network_driver") == "sriov")
    return variables.text("sriov_plugin") if enabled and variables.text("sriov_state") != "absent" else ""


def vf_parents(variables: NodeVariables) -> list[str]:
    """Return the interfaces, or PCI addresses, of the physical functions that are to have VFs."""
    named = variables.value("sriov_vf_pfs")
    # The default is a template, which says the same as the following lines.
    return [str(name) for name in named] if isinstance(named, list) else _below_networks(variables)


def _below_networks(variables: NodeVariables) -> list[str]:
    rails = variables.value("container_rails")
    # A pool of several physical functions is one text.
    pool = [name.strip() for name in variables.text("network_parent").split(",")]
    names = [*pool, *(rails if isinstance(rails, (list, tuple)) else ())]
    return list(dict.fromkeys(str(name) for name in names if name))
