# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired ssh configuration of a bare host."""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.owned_files import (
    OwnedFiles,
    absent,
    owner_marker,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.sample import lines_of_peers
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_directory import host_directories

_PARENT = "~/.ssh/rdm-provision"
_FILES = ("config", "known_hosts")
_LOGIN_SAMPLE_ABOVE = 64
"""In a larger cluster, each node logs in to a sample of the others."""


class DesiredSshConfig(NamedTuple):
    """Desired state of the role ssh_config; the same on all nodes, since they may share the home.

    Attributes:
        owner_marker: the file that says whose the directory is.
        directory: of the cluster's files for ssh.
        identity: the file with the private key.
        directories: the directories, the outer one first.
    """

    owner_marker: dict[str, str]
    directory: str
    identity: str
    directories: list[dict[str, Any]]


def desired_ssh_config(variables: NodeVariables, _entry: PlanEntry) -> DesiredSshConfig:
    """Return the desired configuration of a node."""
    directory = _directory(variables)
    return DesiredSshConfig(
        owner_marker=owner_marker(directory, variables),
        directory=directory,
        identity=f"{host_directories(variables.value)['config_dir']}/ssh/id_ed25519",
        directories=[{"path": _PARENT}, {"path": directory}],
    )


def absent_ssh_config(variables: NodeVariables, _entry: PlanEntry) -> OwnedFiles:
    """Return what to remove; the first block is the only one that the controller has too."""
    directory = _directory(variables)
    name = _block_name(variables)
    return OwnedFiles(
        owner_marker=owner_marker(directory, variables),
        directories=absent(_PARENT, directory),
        files=absent(*(f"{directory}/{file}" for file in _FILES)),
        blocks=[{**one, "name": name} for one in absent("~/.ssh/config", "~/.ssh/authorized_keys")],
    )


def ssh_config_steps(
    part: DesiredSshConfig, variables: NodeVariables, entry: PlanEntry, observed: Observed
) -> dict[str, Any]:
    """Return what the role's tasks read in addition to the part.

    `files` and `blocks` are the node's, `controller_files` and `controller_blocks` the controller's, with the
    contents that the action `ssh_config_plan` has returned. `peers` are the nodes to log in to, one line
    `node MY_IP` each. `tests_logins` is whether to do so.
    """
    planned, name = observed.result("__ssh_config_plan"), _block_name(variables)
    include = {
        "path": "~/.ssh/config",
        "name": name,
        "content": f"Include {part.directory}/config",
        "insert": "start",
        "mode": "0600",
    }
    # Allows logins with the cluster's key over the fabric only.
    login = {
        "path": "~/.ssh/authorized_keys",
        "name": name,
        "content": f'from="{entry.subnet}",restrict,pty {entry.keys.get("authorized_keys", "")}',
        "mode": "0600",
    }

    def files(*contents: str) -> list[dict[str, str]]:
        return [
            {"path": f"{part.directory}/{file}", "content": planned.get(content, "")}
            for file, content in zip(_FILES, contents, strict=True)
        ]

    return {
        "files": files("config", "known_hosts"),
        "blocks": [include, login],
        "controller_files": files("controller_config", "known_hosts"),
        "controller_blocks": [include],
        "peers": lines_of_peers(
            entry.address_map,
            entry.node,
            observed.variables["ansible_play_hosts_all"],
            above=_LOGIN_SAMPLE_ABOVE,
        ),
        "tests_logins": variables.true("ssh_config_check") and not observed.check_mode,
    }


def _directory(variables: NodeVariables) -> str:
    return f"{_PARENT}/{variables.text('rdm_cluster')}"


def _block_name(variables: NodeVariables) -> str:
    return f"ssh_config {variables.text('rdm_cluster')}"
