# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a node's jobs live, from its variables; module_utils/jobs/execution_environment.py uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    RUNTIME_CONTAINER,
    RUNTIME_HOST,
    USER_CONFIG_DIR,
)

NODES = ("master", "workers")
"""The groups of nodes."""


def environment_options(variable: Callable[[str], Any], *, submits: bool = False) -> dict[str, Any]:
    """Return the option `execution_environment` of rdm.provision.job for a node.

    Args:
        variable: returns a variable of the node, None or empty if it is not set.
        submits: whether the node submits jobs to Slurm; the agents of those use the job's own key.
    """
    if variable("rdm_runtime") != RUNTIME_HOST and not submits:
        return {"runtime": RUNTIME_CONTAINER}
    directories = host_directories(variable)
    return {
        "runtime": RUNTIME_HOST,
        "environment": directories["directory"],
        "directory": directories["jobs"],
        "key": "" if submits else f"{directories['config_dir']}/ssh/id_ed25519",
        "my_ip": str(variable("my_ip") or ""),
        **({"slurm": True} if submits else {}),
    }


def host_directories(variable: Callable[[str], Any]) -> dict[str, str]:
    """Return the directories of a bare host: `config_dir`, `directory` of the environment, and `jobs`."""
    config_dir = str(variable("rdm_config_dir") or f"~/{USER_CONFIG_DIR}")
    return {
        "config_dir": config_dir,
        "directory": str(variable("python_env_directory") or f"{config_dir}/python"),
        "jobs": str(variable("job_directory") or f"{config_dir}/jobs"),
    }


def ways(groups: Mapping[str, Sequence[str]], host: str, slurm: bool | None = None) -> list[bool]:
    """Return, for each execution environment of jobs on a host, whether it is Slurm; Slurm comes first.

    Args:
        groups: the inventory's groups.
        host: one of `job_hosts`.
        slurm: whether the job runs through Slurm; None if that is not known.
    """
    if slurm is not None:
        return [slurm]
    submits = host in (groups.get("login") or ())[:1]
    node = any(host in groups.get(name, ()) for name in NODES)
    return [True] * submits + [False] * (node or not submits)


def both(groups: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the inventory has both nodes and Slurm, so that a host may have only one of them."""
    return bool(groups.get("login")) and any(groups.get(name) for name in NODES)
