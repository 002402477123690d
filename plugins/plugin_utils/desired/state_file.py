# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a node keeps its state file, and what `node_facts` compares in a run without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.owned_files import cluster_directory
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


class DesiredStateFile(NamedTuple):
    """Desired state of the role state_file.

    The rest are options of `node_facts`, as in `StateFile`: with these, everything counts as work.

    Attributes:
        directory: the file's directory, that of the files that the container reads.
        config_dir: the directory of the cluster's files, not expanded.
        mirrors: the registry mirrors that the engine should use.
    """

    directory: str
    config_dir: str
    mirrors: list[str]
    inputs: Mapping[str, str] = {}
    key_digests: Mapping[str, str] = {}
    sriov: Mapping[str, Any] = {}
    addresses: Mapping[str, str] = {}
    absent: tuple[str, ...] = ()


def desired_state_file(variables: NodeVariables, entry: PlanEntry) -> DesiredStateFile:
    """Return where the state file is; the same before and after the node's facts are known."""
    config_dir = cluster_directory(variables, PlanEntry(entry.node))
    directory = variables.text("container_config_dir") or config_dir
    return DesiredStateFile(directory, config_dir, variables.texts("images_mirror"))
