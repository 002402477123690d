# SPDX-License-Identifier: GPL-3.0-or-later
"""Translates the environment variables of launchers to torch's names, and checks them."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping

from rdm_core.errors import TrainerError

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


def require_launcher_environment(environment: Mapping[str, str]) -> None:
    """Refuse variables with which torch could not join the ranks. Without WORLD_SIZE, the process is alone.

    Raises:
        TrainerError: One of them is missing, or is no number.
    """
    if "WORLD_SIZE" not in environment:
        return
    hint = "start the ranks with a launcher, such as torchrun, or unset WORLD_SIZE to train on one device"
    if not environment.get("RANK"):
        raise TrainerError(f"WORLD_SIZE is set, but not RANK; {hint}.")
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environment.get(name)]:
        # Open MPI and Slurm set neither, and one may be in a shell that srun started.
        raise TrainerError(
            f"This is rank {environment['RANK']} of {environment['WORLD_SIZE']}, but {' and '.join(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} not set; set MASTER_ADDR to the host of rank 0, and "
            "MASTER_PORT to a free port there."
        )
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT"):
        value = environment.get(name, "0")
        if not value.isdecimal():
            raise TrainerError(f"{name} is {value!r} instead of a number; {hint}.")
    if int(environment["RANK"]) >= int(environment["WORLD_SIZE"]):
        raise TrainerError(
            f"RANK is {environment['RANK']} and WORLD_SIZE {environment['WORLD_SIZE']}; ranks begin with 0."
        )
