# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired files of a node with MY_IP and with the addresses of all nodes."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.module_utils.base.shell_files import shell_blocks
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.owned_files import (
    OwnedFiles,
    absent,
    cluster_directory,
    owner_marker,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry, needed
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


def desired_my_ip(variables: NodeVariables, entry: PlanEntry) -> OwnedFiles:
    """Return the files with MY_IP, and the blocks that export it in every kind of shell.

    Raises:
        ValueError: an address is missing or invalid.
    """
    my_ip = needed("my_ip_address", variables, entry.my_ip)
    directory, system = _directory(variables), _system(variables)
    shells = entry.observed.get("shells") or {}
    environment = f"MY_IP={my_ip}\nMASTER_ADDR={needed('my_ip_master_addr', variables, entry.master_addr)}\n"
    return OwnedFiles(
        owner_marker=owner_marker(directory, variables),
        directories=[{"path": directory}],
        files=[
            {
                "path": f"{directory}/nodes",
                "content": needed("my_ip_address_map", variables, entry.address_map),
            },
            {"path": f"{directory}/env", "content": environment},
        ],
        blocks=shell_blocks(
            {"MY_IP": my_ip},
            variables.text("rdm_cluster"),
            system,
            zsh=variables.true("my_ip_zsh", otherwise=bool(shells.get("zsh"))),
            csh=variables.true("my_ip_csh", otherwise=bool(shells.get("csh"))),
            source=f"{directory}/env",
        ),
        repairs=[{"variable": "MY_IP", "value": my_ip, "system": system}]
        if variables.true("my_ip_repair_strays")
        else [],
    )


def absent_my_ip(variables: NodeVariables, _entry: PlanEntry) -> OwnedFiles:
    """Return the files and blocks to remove."""
    directory = _directory(variables)
    return OwnedFiles(
        owner_marker=owner_marker(directory, variables),
        directories=absent(directory),
        files=absent(f"{directory}/nodes", f"{directory}/env"),
        blocks=shell_blocks(
            {},
            variables.text("rdm_cluster"),
            _system(variables),
            zsh=False,
            state="absent",
            source=f"{directory}/env",
        ),
    )


def _directory(variables: NodeVariables) -> str:
    # Not expanded: in a home directory that nodes share, the blocks must be the same for all of them.
    return variables.text("my_ip_config_dir") or cluster_directory(variables, PlanEntry(""))


def _system(variables: NodeVariables) -> bool:
    return variables.true("my_ip_system", otherwise=variables.true("rdm_become", otherwise=True))
