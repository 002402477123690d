# SPDX-License-Identifier: GPL-3.0-or-later
"""A job that runs any command once per device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rdm_core.config.job import JobConfig


@dataclass(frozen=True, kw_only=True)
class CommandConfig(JobConfig):
    """One job of `workload: command`."""

    workload: str = "command"
    command: tuple[str, ...]
    """The program and its arguments, as `[bash, run.sh]`. RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and
    MASTER_PORT are set, as torchrun sets them."""


def check(config: CommandConfig) -> Iterator[str]:
    """Yield the problems between the keys, one sentence each."""
    if not config.command or not config.command[0].strip():
        yield "command names no program; give it and its arguments, as [bash, run.sh]."
    if config.launcher.program:
        yield "launcher.program is for the workload train; put the program and its arguments into command."
    if config.launcher.profiler == "torch":
        yield "launcher.profiler torch is for our own training; use nsys or rocprof for a command."
