# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired Python environment of a bare host."""

from __future__ import annotations

from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base import shell_files
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.observed import Observed
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.owned_files import owner_marker
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import registered
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_directory import NODES, host_directories


class DesiredPythonEnv(NamedTuple):
    """Desired state of the role python_env.

    Attributes:
        owner_marker: the file that says whose the configuration directory is.
        config_dir: the directory of the cluster's files.
        directory: the environment's directory.
        jobs: the directory of jobs.
        files: the file that activates the environment.
        blocks: what sources that file in the user's shells: bash, and zsh if it has a `.zshenv`.
    """

    owner_marker: dict[str, str]
    config_dir: str
    directory: str
    jobs: str
    files: list[dict[str, Any]]
    blocks: list[dict[str, Any]]


def desired_python_env(variables: NodeVariables, _entry: PlanEntry) -> DesiredPythonEnv:
    """Return the desired environment of a node.

    Raises:
        ValueError: a path is invalid.
    """
    directories: dict[str, Any] = host_directories(variables.value)
    owner = owner_marker(directories["config_dir"], variables)
    active = variables.text("python_env_state") == "present" and variables.true("python_env_activate")
    file = f"{directories['config_dir']}/activate"
    shells = activation(directories["directory"], file, owner["name"], "present" if active else "absent")
    return DesiredPythonEnv(owner_marker=owner, **directories, **shells)


def activation(directory: str, file: str, cluster: str, state: str = "present") -> dict[str, Any]:
    """Return `files` with the one that puts an environment first on the PATH, and `blocks` that source it.

    Args:
        directory: of the environment; `%n` is the node's host name.
        file: the file's path.
        cluster: its name, for the blocks' markers.
        state: `present` or `absent`.

    Raises:
        ValueError: a path is invalid.
    """
    content = {"content": shell_files.activation(directory)} if state == "present" else {}
    return {
        "files": [{"path": file, "state": state, **content}],
        "blocks": shell_files.source_blocks(file, f"Python environment ({cluster})", state=state),
    }


def python_env_steps(
    _part: DesiredPythonEnv, variables: NodeVariables, entry: PlanEntry, observed: Observed
) -> dict[str, Any]:
    """Return what the role's tasks read in addition to the part.

    `makes` is whether this node makes the environment: of those that share it, only the first does.
    `for_all` is whether no node outside this run shares it. `protect` are the environments in use that the
    nodes of this run reported. `makes_megatron` and `removes_megatron` are the same for Megatron's helpers.
    """
    hosts, groups = observed.variables["ansible_play_hosts"], observed.variables["groups"]
    first = entry.node == observed.variables["ansible_play_hosts_all"][0]
    whole = all(node in hosts for group in NODES for node in groups.get(group, ()))
    shared, megatron_shared = (
        variables.true(name) for name in ("python_env_shared", "python_env_megatron_shared")
    )
    made: dict[str, dict[str, Any]] = {}
    # Only the node that makes it reads the variables of all hosts, and only after a check of its own.
    if shared and first and observed.result("__python_env_made"):
        made = registered("__python_env_made", observed.variables, hosts)
    for_all = not shared or whole
    return {
        "makes": not shared or first,
        "for_all": for_all,
        "protect": list(dict.fromkeys(used for one in made.values() for used in one.get("used") or ())),
        "makes_megatron": not megatron_shared or first,
        "removes_megatron": for_all and (not megatron_shared or (first and whole)),
    }
