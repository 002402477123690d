# SPDX-License-Identifier: GPL-3.0-or-later
"""Precondition checks of a job on one node, before anything starts: one sentence per problem."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import secrets
import shutil
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import rdm_core
from rdm_core import config as configuration
from rdm_core.config import JobConfig, workload_of
from rdm_core.errors import ConfigError, TrainerError, Unfit, as_far_as_it_fits
from rdm_job import devices, inspection, network
from rdm_job.directory import JobDirectory, here, jobs_root
from rdm_job.job_key import job_key
from rdm_job.launchers import LAUNCHERS
from rdm_job.protocol import Node, Request
from rdm_job.requested import directory_problems, missing_files, read_config, with_slots, written
from rdm_job.slurm import verbs as slurm
from rdm_log.wording import size_text

_SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")
_AT_ONCE = 32
_HINTS = {"container": "use a training image", "host": "make its environment with rdm-provision env up"}
_INSTALLS = {"pdsh": "pdsh_install", "mpirun": "openmpi_install"}
"""The inventory variables that install a launcher's program on the host."""


def check(request: Request) -> dict[str, Any]:
    """Check everything that a job needs here.

    Returns:
        The reply to ``check``: ``problems``, ``facts`` and, on the master, ``offer``.
    """
    with contextlib.suppress(TrainerError):
        config = read_config(request)
        if config.launcher.kind == "slurm":
            return slurm.check(request, config)
    problems: list[str] = [*directory_problems(request), *_address_and_key(request)]
    facts: dict[str, Any] = {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "rdm_trainer": rdm_core.__version__,
    }
    for package in ("torch", "deepspeed"):
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"The {here()} has no {package}; {_HINTS[here()]}.")
    facts["devices"] = devices.count(request.accelerator)
    facts["gpu"] = devices.name(request.accelerator)
    offer: dict[str, int | str] = {}
    try:
        config = read_config(request)
    except ConfigError as error:
        problems += [*error.problems, *_other_problems(request, error.rest)]
    except TrainerError as error:
        # If the job to resume is missing, so is its configuration: report it once.
        problems += [problem for problem in error.problems if problem not in problems]
    else:
        request = with_slots(request, config)
        problems += _configuration(request, config)
        problems += _devices(request, facts["devices"])
        problems += _disk(request, config, facts)
        if request.is_master:
            offer, found = _offer(request, config)
            problems += found
        problems += _metrics(request.own, config)
        problems += _launcher(request, config)
    return {"ok": not problems, "problems": problems, "facts": facts, **({"offer": offer} if offer else {})}


def _address_and_key(request: Request) -> Iterator[str]:
    address = request.own.address
    if network.interface_of(address) is None and not address.startswith("127."):
        yield f"No interface of the {here()} has the address {address}."
    try:
        job_key(request.name)
    except OSError as error:
        yield f"The cluster's key {error.filename} cannot be read: {error.strerror}."


def _configuration(request: Request, config: JobConfig) -> Iterator[str]:
    yield from configuration.check(config, request.world_size, request.own.slots)
    yield from as_far_as_it_fits(missing_files(config))
    yield from as_far_as_it_fits(inspection.problems(*written(request), config))


def _other_problems(request: Request, rest: JobConfig | None) -> list[str]:
    """Return the other problems of a configuration that has keys of the wrong type."""
    if rest is None:
        return []
    try:
        if rest.launcher.kind == "slurm":
            return configuration.check(rest)
        request = with_slots(request, rest)
    except Unfit:
        return configuration.check(rest)
    return list(_configuration(request, rest))


def _devices(request: Request, found: int | None) -> Iterator[str]:
    slots = request.own.slots
    if found is not None and found < slots:
        yield (
            f"The {here()} sees {found} {request.accelerator} devices, but {slots} processes are to "
            "run here; lower launcher.devices_per_node or repair the node."
        )


def _disk(request: Request, config: JobConfig, facts: dict[str, Any]) -> Iterator[str]:
    try:
        free = shutil.disk_usage(jobs_root()).free
    except OSError:
        return
    facts["disk_free"] = free
    # Two checkpoints exist for a moment: the old one is deleted when the new one is complete.
    _, size = workload_of(config).checkpoints(config)
    needed = 2 * size * request.own.slots // request.world_size
    if free < needed:
        yield (
            f"{jobs_root()} has {size_text(free)} free, and two checkpoints' part of this node take "
            f"{size_text(needed)}; free some, or set job_directory to a larger file system."
        )


def _metrics(mine: Node, config: JobConfig) -> Iterator[str]:
    port = config.logging.metrics_port
    if port is not None and not network.is_free(mine.address, port):
        yield (
            f"logging.metrics_port {port} is in use on {mine.name}, perhaps by another job; give each job of "
            "a node one of its own."
        )


def _offer(request: Request, config: JobConfig) -> tuple[dict[str, int | str], list[str]]:
    """Return the offer, free ports on the master and the job's mark, or else the problems."""
    address, requested = request.master.address, config.launcher.master_port
    attempts = 1 + config.launcher.max_restarts
    job = JobDirectory(jobs_root() / request.name, request.node)
    # Seeded by the directory: two users of a host may start jobs of one name at once.
    found = network.take_free_ports(address, 1 + attempts, zlib.crc32(str(job.path).encode()))
    if found is None:
        return {}, [f"No ports are free on {address}."]
    if requested is not None and not network.is_free(address, requested):
        return {}, [
            f"launcher.master_port {requested} is in use on {request.node}; leave it out to take a free one."
        ]
    mark = (job.request().offer.mark if job.exists else "") or secrets.token_hex(8)
    return {"agent_port": found[0], "master_port": requested or found[1], "mark": mark}, []


def _launcher(request: Request, config: JobConfig) -> Iterator[str]:
    kind = config.launcher.kind
    launcher = LAUNCHERS[kind]
    missing = [program for program in launcher.programs if shutil.which(program) is None]
    if missing:
        needed = " and ".join(missing)
        yield f"The launcher {kind} needs {needed}, which the {here()} does not have; {_hint_for(missing)}."
    elif launcher.uses_ssh and request.is_master and len(request.nodes) > 1:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from filter(None, pool.map(_ssh, request.nodes))


def _hint_for(programs: Sequence[str]) -> str:
    """Return a hint on how to install a launcher's programs where the job runs."""
    if here() == "container":
        return _HINTS["container"]
    settings = [f"{_INSTALLS[program]}: true" for program in programs if program in _INSTALLS]
    return f"set {' and '.join(settings)} for rdm-provision env up" if settings else "install it"


def _ssh(node: Node) -> str:
    """Return why a node's container or host cannot be reached over ssh; empty when it can."""
    try:
        done = subprocess.run(  # a list, and no shell
            [*_SSH, node.address, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"The {here()} of {node.name} does not answer over ssh at {node.address}."
    if done.returncode == 0:
        return ""
    message = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"The {here()} of {node.name} cannot be reached over ssh at {node.address}: {message}"
