# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired hostfile of a node."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.owned_files import (
    OwnedFiles,
    absent,
    cluster_directory,
    owner_marker,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry, needed
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


def desired_hostfile(variables: NodeVariables, entry: PlanEntry) -> OwnedFiles:
    """Return the desired hostfile of a node.

    Raises:
        ValueError: the hostfile's content is missing.
    """
    directory = _directory(variables, entry)
    content = needed("hostfile_content", variables, entry.hostfile)
    return OwnedFiles(
        owner_marker=owner_marker(directory, variables),
        directories=[{"path": directory}, {"path": f"{directory}/job"}],
        files=[{"path": f"{directory}/job/hostfile", "content": content}],
    )


def absent_hostfile(variables: NodeVariables, entry: PlanEntry) -> OwnedFiles:
    """Return the files to remove."""
    directory = _directory(variables, entry)
    return OwnedFiles(
        owner_marker=owner_marker(directory, variables),
        directories=absent(directory, f"{directory}/job"),
        files=absent(f"{directory}/job/hostfile"),
    )


def _directory(variables: NodeVariables, entry: PlanEntry) -> str:
    return variables.text("hostfile_config_dir") or cluster_directory(variables, entry)
