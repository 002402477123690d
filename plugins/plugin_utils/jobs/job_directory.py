# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a node's jobs are, by its variables; module_utils/jobs/execution_environment.py goes there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    RUNTIME_CONTAINER,
    RUNTIME_HOST,
    USER_CONFIG_DIR,
)

NODES = ("master", "workers")
"""The groups of the nodes."""


def job_place(variable: Callable[[str], Any], *, submits: bool = False) -> dict[str, Any]:
    """Return the option `place` of rdm.provision.job for a node.

    Args:
        variable: gives the value of a variable of the node, None or empty where it has none.
        submits: whether jobs are submitted to Slurm from there. Their agents have a key of the job's own.
    """
    if variable("rdm_runtime") != RUNTIME_HOST and not submits:
        return {"runtime": RUNTIME_CONTAINER}
    config_dir = str(variable("rdm_config_dir") or f"~/{USER_CONFIG_DIR}")
    return {
        "runtime": RUNTIME_HOST,
        "environment": str(variable("python_env_directory") or f"{config_dir}/python"),
        "directory": str(variable("job_directory") or f"{config_dir}/jobs"),
        "key": "" if submits else f"{config_dir}/ssh/id_ed25519",
        "my_ip": str(variable("my_ip") or ""),
        **({"slurm": True} if submits else {}),
    }


def ways(groups: Mapping[str, Sequence[str]], host: str, slurm: bool | None = None) -> list[bool]:
    """Return for each place of jobs on a host whether they go through Slurm there, which is asked first.

    Args:
        groups: the inventory's.
        host: one that `job_hosts` names.
        slurm: which way the job goes that is asked about, when that is known.
    """
    if slurm is not None:
        return [slurm]
    submits = host in (groups.get("login") or ())[:1]
    node = any(host in groups.get(name, ()) for name in NODES)
    return [True] * submits + [False] * (node or not submits)


def both(groups: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the inventory has nodes and Slurm, so that a host may lack the place of one."""
    return bool(groups.get("login")) and any(groups.get(name) for name in NODES)
