# SPDX-License-Identifier: GPL-3.0-or-later
"""A job as it is asked for: its configuration, and what is in its way under any launcher."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from rdm_core import config as configuration
from rdm_core.config import JobConfig, workload_of
from rdm_job.directory import JobDirectory, here, jobs_root
from rdm_job.protocol import Request

__all__ = ["files_missing", "read_config", "standing_in_the_way", "with_slots", "written"]

_IN = {"container": "in the container", "host": "on the host"}
_MOUNT = {"container": "; mount it with container_volumes", "host": ""}


def read_config(request: Request) -> JobConfig:
    """Return the job's configuration: what is asked for, over what the job has when it goes on.

    Raises:
        TrainerError: It cannot be read.
    """
    # Never a file of its own, even for a moment: launcher.env may hold secrets.
    return configuration.load_text(*written(request))


def written(request: Request) -> tuple[str, list[str]]:
    """Return what a job's configuration is made of: YAML, and what goes over it."""
    overrides = list(request.overrides)
    if request.config:
        return request.config, overrides
    before = JobDirectory.named(request.name)
    return before.config.read_text(encoding="utf-8"), [*before.request().overrides, *overrides]


def with_slots(request: Request, config: JobConfig) -> Request:
    """Return the request with as many processes on each node as the configuration says."""
    each = config.launcher.devices_per_node
    if each is None:
        return request
    nodes = tuple(dataclasses.replace(node, slots=each) for node in request.nodes)
    return dataclasses.replace(request, nodes=nodes)


def standing_in_the_way(request: Request) -> Iterator[str]:
    """Yield what is wrong with the directory of the jobs, and with a job of this name in it."""
    root = jobs_root()
    job = JobDirectory(root / request.name, request.node)
    if not root.is_dir() or not os.access(root, os.W_OK):
        yield f"There is no writable directory {root} {_IN[here()]}."
    if request.resume and not job.exists:
        yield JobDirectory.missing(request.name)
    elif request.resume and job.has_agent:
        yield f"The job {request.name} runs; stop it first, or watch it."
    elif not request.resume and job.exists:
        yield f"There is a job {request.name} already; give this one another name, or resume that one."


def files_missing(config: JobConfig) -> Iterator[str]:
    """Yield which file of the job's is not here; what has no whole path may be on the PATH."""
    for key, name in workload_of(config).files(config):
        if Path(name).is_absolute() and not Path(name).is_file():
            yield f"{key} {name} is no file {_IN[here()]}{_MOUNT[here()]}."
