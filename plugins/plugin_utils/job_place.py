# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a node's jobs are, by its variables; plugins/module_utils/job/place.py goes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.constants import (
    RUNTIME_CONTAINER,
    RUNTIME_HOST,
    USER_CONFIG_DIR,
)


def job_place(variable: Callable[[str], Any], *, submits: bool = False) -> dict[str, str]:
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
    }
