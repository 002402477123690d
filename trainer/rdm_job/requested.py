# SPDX-License-Identifier: GPL-3.0-or-later
"""A requested job: its configuration, and the checks that apply under every launcher."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

from rdm_core import config as configuration
from rdm_core.config import JobConfig, workload_of
from rdm_job.directory import JobDirectory, here, jobs_root
from rdm_job.protocol import Request

_IN = {"container": "in the container", "host": "on the host"}
_MOUNT = {"container": "; mount it with container_volumes", "host": ""}


def read_config(request: Request) -> JobConfig:
    """Return the job's configuration: the request, on top of the job's own when it resumes.

    Raises:
        TrainerError: It cannot be read.
    """
    # launcher.env may hold secrets: never write it to a temporary file.
    return configuration.load_text(*written(request))


def written(request: Request) -> tuple[str, list[str]]:
    """Return the source of a job's configuration: YAML, and the overrides."""
    overrides = list(request.overrides)
    if request.config:
        return request.config, overrides
    before = JobDirectory.named(request.name)
    return before.config.read_text(encoding="utf-8"), [*before.request().overrides, *overrides]


def with_slots(request: Request, config: JobConfig) -> Request:
    """Return the request with the configured number of processes on each node."""
    each = config.launcher.devices_per_node
    if each is None:
        return request
    nodes = tuple(dataclasses.replace(node, slots=each) for node in request.nodes)
    return dataclasses.replace(request, nodes=nodes)


def directory_problems(request: Request) -> Iterator[str]:
    """Yield the problems of the jobs' directory, and of a job of this name in it."""
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


def missing_files(config: JobConfig) -> Iterator[str]:
    """Yield a problem for each of the job's files that is missing here; only absolute paths are checked."""
    for key, name in workload_of(config).files(config):
        if Path(name).is_absolute() and not Path(name).is_file():
            yield f"{key} {name} is no file {_IN[here()]}{_MOUNT[here()]}."
