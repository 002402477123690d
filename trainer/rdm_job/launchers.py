# SPDX-License-Identifier: GPL-3.0-or-later
"""The launchers: the command with which a node's agent starts the job's processes. Pure functions in a table.

Each launcher starts ``python -m rdm_job.rank`` once per device, and only sets the variables that identify
the processes: RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rdm_core.config.job import LauncherConfig
from rdm_core.heartbeat import NODE_VARIABLE
from rdm_job.processes import ATTEMPT_VARIABLE, JOB_VARIABLE
from rdm_job.protocol import Node
from rdm_job.rank import DIRECTORY_VARIABLE

_RANK_MODULE = "rdm_job.rank"
_DEEPSPEED_SHOWS = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
"""Prefixes of variables that DeepSpeed puts on pdsh's command line: EXPORT_ENVS and its accelerator's."""


@dataclass(frozen=True)
class Attempt:
    """One start of a job's processes.

    Attributes:
        job: The id in its processes' environment, ``Request.job_id``.
        directory: Its directory, by a path that leads to each node's own.
        nodes: By rank.
        network: The master's network on the fabric, as CIDR.
        port: Where the processes meet on the master.
        number: 0, then one more for each restart.
        accelerator: ``cuda``, ``rocm`` or ``cpu``.
        extra: The configuration's ``launcher.env``.
        python: The Python of the processes, by a path of the same kind.
        srun: srun's options for the processes, for each component of a Slurm job.
    """

    job: str
    directory: str
    nodes: tuple[Node, ...]
    network: str
    port: int
    number: int = 0
    accelerator: str = "cpu"
    extra: Mapping[str, str] = field(default_factory=dict)
    python: str = sys.executable
    srun: tuple[tuple[str, ...], ...] = ()

    @property
    def world_size(self) -> int:
        """How many processes there are."""
        return sum(node.slots for node in self.nodes)


@dataclass(frozen=True)
class Launcher:
    """A way of starting processes.

    Attributes:
        command: (attempt, number of this node) → the command for its agent.
        everywhere: Each node's agent runs it; otherwise only the master's.
        programs: What it needs on the PATH.
        uses_ssh: It reaches the other nodes over ssh.
        shows: Prefixes of variables that it would put on a command line: with several nodes it gets none.
    """

    command: Callable[[Attempt, int], list[str]]
    everywhere: bool
    programs: tuple[str, ...] = ()
    uses_ssh: bool = False
    shows: tuple[str, ...] = ()


def environment(attempt: Attempt) -> dict[str, str]:
    """Return the variables that every process of an attempt has, whoever starts it."""
    return {**_own(attempt), **attempt.extra}


def environment_of_launcher(
    launcher: Launcher, attempt: Attempt, before: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a launcher itself."""
    variables = {**before, **environment(attempt)}
    if launcher.shows and len(attempt.nodes) > 1:
        variables = {name: value for name, value in variables.items() if not name.startswith(launcher.shows)}
        # The launcher's own Python may need the agent's PYTHON variables.
        python = {name: value for name, value in before.items() if name.startswith("PYTHON")}
        variables.update({**python, **_own(attempt)})
    return variables


def _own(attempt: Attempt) -> dict[str, str]:
    """Return the variables that are ours. None is a secret, and none needs quotes in a shell."""
    variables = {
        JOB_VARIABLE: attempt.job,
        DIRECTORY_VARIABLE: attempt.directory,
        ATTEMPT_VARIABLE: str(attempt.number),
        "MASTER_ADDR": attempt.nodes[0].address,
        "MASTER_PORT": str(attempt.port),
        "PYTHONUNBUFFERED": "1",
    }
    if attempt.accelerator == "cpu":
        variables["DS_ACCELERATOR"] = "cpu"
    return variables


def exports(attempt: Attempt) -> str:
    """Return ``.deepspeed_env``: DeepSpeed puts its content on pdsh's command line, which all users can see.

    So ``launcher.env`` is not in it. Each process reads that from the configuration; see ``rank``.
    """
    return "".join(f"{name}={value}\n" for name, value in _own(attempt).items())


def _no_ssh(attempt: Attempt, node: int) -> list[str]:
    """DeepSpeed's launcher of one node."""
    world = {one.address: list(range(one.slots)) for one in attempt.nodes}
    info = base64.urlsafe_b64encode(json.dumps(world).encode()).decode()
    return [
        *(attempt.python, "-m", "deepspeed.launcher.launch"),
        f"--world_info={info}",
        f"--node_rank={node}",
        f"--master_addr={attempt.nodes[0].address}",
        f"--master_port={attempt.port}",
        *("--log_level", "warning", "--module", _RANK_MODULE),
    ]


def _deepspeed(attempt: Attempt, _node: int) -> list[str]:
    """DeepSpeed's launcher of all nodes, which starts each node's over pdsh and ssh.

    A single node starts without pdsh, which would not substitute the node's number in the command.
    """
    return [
        *(attempt.python, "-m", "deepspeed.launcher.runner"),
        f"--hostfile={attempt.directory}/hostfile",
        *(("--force_multi", "--launcher=pdsh") if len(attempt.nodes) > 1 else ()),
        "--no_ssh_check",
        f"--master_addr={attempt.nodes[0].address}",
        f"--master_port={attempt.port}",
        *("--log_level", "warning", "--module", _RANK_MODULE),
    ]


def _torchrun(attempt: Attempt, node: int) -> list[str]:
    """Torch's launcher with a static rendezvous on the master: a dynamic one would order nodes by address."""
    mine = attempt.nodes[node]
    return [
        *(attempt.python, "-m", "rdm_trainer.torchrun"),
        f"--nnodes={len(attempt.nodes)}",
        f"--node-rank={node}",
        f"--nproc-per-node={mine.slots}",
        "--max-restarts=0",
        "--rdzv-backend=static",
        f"--rdzv-id={attempt.job}-{attempt.number}",
        f"--master-addr={attempt.nodes[0].address}",
        f"--master-port={attempt.port}",
        f"--local-addr={mine.address}",
        # By default each attempt leaves a directory in /tmp for ever; this one is removed with the job.
        f"--log-dir={attempt.directory}/torchrun",
        *("--module", _RANK_MODULE),
    ]


def _mpirun(attempt: Attempt, _node: int) -> list[str]:
    """Open MPI, as a starter only: the processes do not load MPI, so none of them hangs when another ends."""
    hosts = ",".join(f"{node.address}:{node.slots}" for node in attempt.nodes)
    return [
        *("mpirun", "--allow-run-as-root", "-np", str(attempt.world_size), "-H", hosts),
        *("--map-by", "slot", "--bind-to", "none"),
        # Names only: all users can see the values on a command line.
        *(word for name in environment(attempt) for word in ("-x", name)),
        *("--mca", "oob_tcp_if_include", attempt.network),
        *("--mca", "btl_tcp_if_include", attempt.network),
        *("--mca", "orte_keep_fqdn_hostnames", "1"),
        # If mpirun is killed, its files remain; here they are removed with the job's links on each node.
        *("--mca", "orte_tmpdir_base", str(Path(attempt.directory).parent)),
        *(attempt.python, "-m", _RANK_MODULE),
    ]


def _srun(attempt: Attempt, _node: int) -> list[str]:
    """Slurm, with a second step next to that of the agents."""
    rank = [attempt.python, "-m", _RANK_MODULE]
    parts = [word for options in attempt.srun for word in (":", *options, *rank)]
    # Unset, because each task must find the name of its own node.
    return ["env", f"--unset={NODE_VARIABLE}", "srun", *parts[1:]]


LAUNCHERS: dict[str, Launcher] = {
    "no_ssh": Launcher(_no_ssh, everywhere=True),
    "deepspeed": Launcher(
        _deepspeed, everywhere=False, programs=("pdsh", "ssh"), uses_ssh=True, shows=_DEEPSPEED_SHOWS
    ),
    "torchrun": Launcher(_torchrun, everywhere=True),
    "mpirun": Launcher(_mpirun, everywhere=False, programs=("mpirun", "ssh"), uses_ssh=True),
    # Slurm starts the agents; each starts its node's processes with torch's launcher, which forwards SIGTERM.
    "slurm": Launcher(_torchrun, everywhere=True),
}
_SLURM_RANKS = Launcher(_srun, everywhere=False)


def launcher_of(config: LauncherConfig) -> Launcher:
    """Return how a job's processes are started."""
    if config.kind == "slurm" and config.slurm.step == "ranks":
        return _SLURM_RANKS
    return LAUNCHERS[config.kind]
