# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks between the keys of a configuration, and between it and the world. Each problem is one sentence.

The checks for every job are here; each workload has its own in addition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rdm_core.config.job import JobConfig, step_range
from rdm_core.config.slurm import problems as slurm_problems
from rdm_core.config.workloads import workload_of
from rdm_core.errors import ConfigError, as_far_as_it_fits


def check(config: JobConfig, world_size: int | None = None, devices_per_node: int | None = None) -> list[str]:
    """Return the problems, one sentence each; an empty list if the job can start.

    Args:
        config: The configuration.
        world_size: Number of processes; without it, only checks that hold for any world run.
        devices_per_node: Processes on each node, if all nodes have the same number.
    """
    checks = [_names(config), _launcher(config), _profiler(config)]
    if world_size is not None and workload_of(config).needs_equal_nodes:
        checks.append(_nodes(config, world_size, devices_per_node))
    checks.append(_workload(config, world_size))
    return [problem for one in checks for problem in as_far_as_it_fits(one)]


def require(config: JobConfig, world_size: int | None = None, devices_per_node: int | None = None) -> None:
    """Raise a ConfigError with all problems that :func:`check` finds."""
    problems = check(config, world_size, devices_per_node)
    if problems:
        raise ConfigError(problems, source=f"the configuration of {config.name}")


def _names(config: JobConfig) -> Iterator[str]:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", config.name):
        yield (
            f"name is {config.name!r}; it must be letters, digits, '.', '_' and '-', begin with a letter or "
            "digit, and have at most 100 characters."
        )


def _launcher(config: JobConfig) -> Iterator[str]:
    for key in config.launcher.env:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            yield f"launcher.env has {key!r}, which is no name of an environment variable."
        elif "\n" in config.launcher.env[key]:
            yield f"launcher.env.{key} has a line break, which launchers cannot hand on."
    if config.launcher.kind == "slurm":
        yield from slurm_problems(config)


def _profiler(config: JobConfig) -> Iterator[str]:
    text = config.launcher.profiler_steps
    if not step_range(text):
        yield f"launcher.profiler_steps is {text!r}; give the first and the last step, as 20-22."


def _workload(config: JobConfig, world: int | None) -> Iterator[str]:
    yield from workload_of(config).check(config, world)


def _nodes(config: JobConfig, world: int, devices: int | None) -> Iterator[str]:
    launcher = config.launcher
    requested = launcher.devices_per_node
    if devices is not None and requested is not None and requested > devices:
        yield f"launcher.devices_per_node is {requested}, but a node has {devices}."
    each = requested or devices
    if each is None:
        return
    if world % each:
        yield f"A world of {world} does not fill nodes of {each} devices."
    elif launcher.nodes is not None and launcher.nodes * each != world:
        yield (
            f"launcher.nodes {launcher.nodes} x {each} devices = {launcher.nodes * each}, but the "
            f"world is {world}."
        )
