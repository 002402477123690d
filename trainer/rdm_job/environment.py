# SPDX-License-Identifier: GPL-3.0-or-later
"""Translates the environment variables of launchers to torch's names."""

from __future__ import annotations

from collections.abc import MutableMapping

# torch's name → Open MPI's and Slurm's.
_NAMES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"),
}


def adopt_launcher_environment(environment: MutableMapping[str, str]) -> None:
    """Set RANK, LOCAL_RANK and WORLD_SIZE from Open MPI's or Slurm's variables where they are not set.

    LOCAL_WORLD_SIZE is set from the same variables, or from DeepSpeed's.

    Without RANK, DeepSpeed would use mpi4py, and a process would wait for ever for a sibling that has died.
    Slurm's variables count only in tasks that srun started, not in the batch script itself.

    Args:
        environment: Usually ``os.environ``.
    """
    if "RANK" in environment:
        # DeepSpeed's launcher has its own name for the number of ranks on a node.
        if "LOCAL_SIZE" in environment:
            environment.setdefault("LOCAL_WORLD_SIZE", environment["LOCAL_SIZE"])
        return
    for source in range(2):
        if source == 1 and "SLURM_STEP_ID" not in environment:
            return
        # All or none: a partly set world is worse than none.
        if all(_NAMES[name][source] in environment for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")):
            for name, sources in _NAMES.items():
                if sources[source] in environment:
                    environment.setdefault(name, environment[sources[source]])
            return
