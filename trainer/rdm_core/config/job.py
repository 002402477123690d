# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of every job, whatever it runs: its name, how its processes start, how their output is kept.

A workload's own configuration is a :class:`JobConfig` with more sections; see
:mod:`rdm_core.config.workloads`. ``docs/training-configuration.md`` is generated from this file: the
docstring of a class describes its section, and the text below a field describes the key.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from rdm_core.bounds import Bounds, Natural, Port, Positive


class ByPartition:
    """Marks a key with one text for all partitions of a job, stored under the name "", or one for each."""

    def __str__(self) -> str:
        return "or one for each partition"


class OfFile:
    """Marks a key with a path of a file or directory, in which ``~`` is a home directory."""


_Each = Annotated[dict[str, str], ByPartition()]
FilePath = Annotated[str, OfFile()]


def at_home(path: str) -> str:
    """Return a path with its home directory instead of ``~``; unchanged if there is no such directory."""
    # Path's method would shorten docker:// and raise an error for an unknown user.
    return os.path.expanduser(path)  # noqa: PTH111


@dataclass(frozen=True)
class JobLoggingConfig:
    """The processes' output, and how others can follow the job."""

    prometheus: bool = False
    """Each node's agent writes `metrics.<node>.prom` for Prometheus into the job's directory; in a training
    that was started by hand, the first rank of each node does."""
    metrics_port: Port | None = None
    """Also serve them at `http://MY_IP:PORT/metrics`. Jobs that share a node need a port each."""
    mark_ranks: bool = False
    """Each line that a rank writes begins with `[rank3]: `, for `rdm-provision logs JOB --rank 3`."""
    rotate_mebibytes: Natural = 256
    """Size at which a node's output, or errors, become `NODE.out.1`, and that `.2`. 0 rotates nothing."""
    rotate_keep: Positive = 8
    """How many of these pieces are kept."""


@dataclass(frozen=True)
class SlurmConfig:
    """What the launcher `slurm` requests. Slurm decides a key that is left out.

    Where a job takes nodes of several partitions, a key can have one text for all, or one for each:
    `gres: {hgx: gpu:hgx:4}`.
    """

    nodes: _Each = field(default_factory=dict)
    """Number of nodes, or of each partition (`{hgx: 1, gpu2: 7}`): one job over all of them, with rank 0 on
    the first node of the first partition. Defaults to `launcher.nodes`."""
    partition: str | None = None
    """The partition, if `nodes` names none. Defaults to Slurm's default partition."""
    gres: _Each = field(default_factory=dict)
    """Generic resources of each node, such as `gpu:a10:4`. A node gets as many processes as GPUs."""
    gpus_per_node: _Each = field(default_factory=dict)
    """GPUs of each node, such as `4` or `a10:4`, if `gres` has none. Defaults to `launcher.devices_per_node`,
    if the inventory's `rdm_accelerator` is not `cpu` and Slurm has GPUs."""
    cpus: _Each = field(default_factory=dict)
    """CPUs of each node."""
    mem: _Each = field(default_factory=dict)
    """Memory of each node, such as `64G`; `0` is all of it."""
    time: str | None = None
    """Time limit in quotes: minutes, `"hours:minutes:seconds"` or `"days-hours:minutes"`. Defaults to the
    partition's."""
    account: str | None = None
    """The account that is charged."""
    qos: str | None = None
    """Quality of service."""
    nodelist: _Each = field(default_factory=dict)
    """Nodes that the job must include, such as `n[060-067]`."""
    exclude: _Each = field(default_factory=dict)
    """Nodes that the job must not use."""
    constraint: _Each = field(default_factory=dict)
    """Features that the nodes must have, such as `ib&nvme`."""
    hint: Literal["compute_bound", "memory_bound", "multithread", "nomultithread"] | None = None
    """Slurm's `--hint`: `nomultithread` uses one hardware thread of each core."""
    signal: Natural = 300
    """Seconds before the time limit at which the job saves, and ends or is requeued; Slurm may be a minute
    early. With 0 the job ends at the limit without saving."""
    interface: str | None = None
    """Interface of the nodes that the ranks use, such as `ib0`. Defaults to the one with the address of the
    node's name."""
    step: Literal["agents", "ranks"] = "agents"
    """What starts the processes: each node's agent with `torchrun` (`agents`), or Slurm itself, with one task
    each (`ranks`)."""
    mpi: Literal["none", "pmix"] = "none"
    """srun's `--mpi` for these tasks."""
    image: FilePath | None = None
    """An image in which the processes run: a squashfs file (`.sqsh`), a Docker archive (`.tar`, `.tar.gz`),
    one in a registry (`docker://nvcr.io/nvidia/pytorch:23.04-py3`), a `.sif` or a directory; or the name of
    an entry in the inventory's `images_list`. The paths of the configuration, such as `data.blend`, are then
    paths in the image."""
    image_sha256: str | None = None
    """Expected sha256 of a Docker archive, in hexadecimal; verified before it is converted."""
    container: Literal["auto", "none", "enroot", "pyxis", "apptainer", "charliecloud"] = "auto"
    """What runs the image. `auto` is pyxis if srun has it, otherwise what is found on the nodes."""
    mounts: tuple[FilePath, ...] = ()
    """Directories of the nodes that are mounted in the image, besides the directory of the jobs: `/data`, or
    `/of/the/node:/data`."""
    image_program: str = "rdm-trainer"
    """The trainer's program in the image."""
    rest: str | None = None
    """A slurmrestd that replaces `sbatch`: `https://HOST:PORT`, `http://HOST:PORT` (others on the network can
    read everything, the token too) or `unix:/PATH`."""
    rest_jwt: FilePath | None = None
    """File with the user's token (JWT) for it, of mode 0600, on the host that submits jobs; by default
    `~/.slurm.jwt`. The environment variable `SLURM_JWT` overrides it. The token itself is no value of a
    configuration."""
    reload_container: bool = False
    """Start from the unchanged image. Otherwise enroot and pyxis keep a container on each node, with the
    changes of earlier jobs."""


@dataclass(frozen=True)
class LauncherConfig:
    """How the processes are started."""

    kind: Literal["no_ssh", "deepspeed", "torchrun", "mpirun", "slurm"] = "no_ssh"
    """One DeepSpeed launcher per node started by the collection (`no_ssh`), DeepSpeed over pdsh and ssh
    (`deepspeed`), `torchrun` with a static rendezvous, Open MPI over ssh (`mpirun`), or a job of Slurm
    (`slurm`)."""
    nodes: Positive | None = None
    """The first N nodes of the hostfile; all by default. Under Slurm, any N nodes; one by default."""
    nodelist: tuple[str, ...] = ()
    """These nodes of the inventory, in the order of ranks, such as `[n2, n1]`; `rdm-provision tune` sets it
    if nodes differ. Defaults to all, in the hostfile's order."""
    devices_per_node: Positive | None = None
    """Processes on each node. Defaults to the hostfile's slots; under Slurm to the requested GPUs, or one."""
    master_port: Port | None = None
    """Port of the rendezvous of ranks. Defaults to a free one."""
    max_restarts: Natural = 0
    """How often a failed job restarts from its last checkpoint."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables for every rank."""
    distributed_timeout_minutes: Annotated[float, Bounds(above=0, most=525_600)] = 10.0
    """A collective operation that takes longer than this fails."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """`auto` is NCCL (RCCL on ROCm) on GPUs and Gloo on CPUs."""
    profiler: Literal["none", "nsys", "rocprof", "torch"] = "none"
    """Runs some ranks under NVIDIA's `nsys`, AMD's `rocprofv3` or torch's own profiler, which write into
    `profile/` of the job's directory."""
    profiler_ranks: tuple[Natural, ...] = (0,)
    """The ranks that are profiled."""
    profiler_steps: str = "10-12"
    """The steps that are profiled."""
    program: tuple[str, ...] = ()
    """Another training program and its arguments instead of rdm_trainer, in the same launchers."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """What to request from Slurm."""

    @property
    def distributed_timeout(self) -> datetime.timedelta:
        """The most time of a collective operation."""
        return datetime.timedelta(minutes=self.distributed_timeout_minutes)


@dataclass(frozen=True, kw_only=True)
class JobConfig:
    """One job."""

    name: str = "job"
    """Names the job and its directory: letters, digits, `.`, `_` and `-`."""
    workload: str = "train"
    """What the job runs: `train`, `finetune`, or `command` with any other program."""
    logging: JobLoggingConfig = field(default_factory=JobLoggingConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain lists and dictionaries with every key."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        # In the usual order: first what runs, then how.
        last = {key: plain.pop(key) for key in ("logging", "launcher")}
        return {**plain, **last}

    def resolved(self, world_size: int | None = None) -> Self:  # noqa: ARG002  # of those who need it
        """Return the configuration with values for the keys that follow from others.

        Args:
            world_size: Number of processes; without it, keys that depend on it stay as they are.
        """
        return self

    @property
    def profiled_steps(self) -> range:
        """The steps of ``launcher.profiler_steps``, if a profiler is chosen."""
        return step_range(self.launcher.profiler_steps if self.launcher.profiler != "none" else "")


def step_range(text: str) -> range:
    """Return the steps in a text such as ``20-22`` or ``20``; an empty range for any other text.

    >>> list(step_range("20-22"))
    [20, 21, 22]
    """
    match = re.fullmatch(r"([1-9]\d{0,11})(?:-([1-9]\d{0,11}))?", text)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def _plain(value: Any) -> Any:
    """Turn tuples into lists, recursively."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
