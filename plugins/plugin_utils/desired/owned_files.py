# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of the cluster on a node, in the options of the module `rdm.provision.node_files`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.constants import CONFIG_DIR, USER_CONFIG_DIR
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


class OwnedFiles(NamedTuple):
    """What a role writes on a node, or takes away.

    Attributes:
        owner_marker: which file says that the directory is the cluster's.
        directories: the directories, the outer ones first.
        files: whole files.
        blocks: parts of files that belong to others.
        repairs: lines of others that are commented out.
    """

    owner_marker: dict[str, str]
    directories: list[dict[str, Any]]
    files: list[dict[str, Any]]
    blocks: Sequence[dict[str, Any]] = ()
    repairs: Sequence[dict[str, Any]] = ()


def owner_marker(directory: str, variables: NodeVariables) -> dict[str, str]:
    """Return the file that says whose a configuration directory is."""
    return {"path": f"{directory}/cluster", "name": variables.text("rdm_cluster")}


def absent(*paths: str) -> list[dict[str, Any]]:
    """Return entries that remove files or directories."""
    return [{"path": path, "state": "absent"} for path in paths]


def cluster_directory(variables: NodeVariables, entry: PlanEntry) -> str:
    """Return the directory for the cluster's files on a node.

    With facts it is a path; without, it may begin with `~`, and contain `%n` for the name of the host.
    """
    given = str(entry.observed.get("config_dir") or "") or variables.text("rdm_config_dir")
    return given or default_directory(variables.true("rdm_become", otherwise=True))


def default_directory(root: bool) -> str:
    """Return the directory for the cluster's files where the user sets none; not expanded."""
    return CONFIG_DIR if root else f"~/{USER_CONFIG_DIR}"
