# SPDX-License-Identifier: GPL-3.0-or-later
"""The workloads: what a job can run. A job's YAML names one with ``workload``; without it, it trains.

A workload is one entry of :data:`WORKLOADS`, and gives

- ``schema``: a frozen dataclass that extends :class:`~rdm_core.config.job.JobConfig` by the workload's
  sections, in ``rdm_core/config/``, with the workload's name as default of ``workload``. Types, bounds and
  the texts below fields are written as in ``schema.py``; the sentences with file and line follow from them.
  Its ``resolved()`` fills in the keys that follow from others;
- ``check``: what must hold between its keys, and between them and the world. What is true of every job (its
  name, its launcher, Slurm) is checked already;
- ``command``: what one rank runs, in the job's directory, with torchrun's variables set. ``PYTHON -m MODULE``
  runs in the rank's own process, anything else as its child. A module ends by ``sys.exit(0)``, and raises a
  TrainerError for what the user can mend; SIGTERM tells it to save and end;
- ``inspect``: a module that looks at a node before a job starts there: ``python -m MODULE`` reads the job as
  JSON from its standard input, see ``rdm_job.inspection``, and prints a JSON list of what is wrong;
- ``files``: keys that name a file which each node must have;
- ``checkpoints``: the steps between its checkpoints and the bytes of one; 0 where that is not known before;
- ``needs_equal_nodes``: every node must have as many devices.

A workload writes its own progress, by ``rdm_core.progress`` and ``rdm_core.heartbeat``, with the number of
its iterations where it knows it. One without ``tells_progress`` is followed by its log lines.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rdm_core.config.command import CommandConfig
from rdm_core.config.command import check as check_command
from rdm_core.config.finetune import FinetuneConfig
from rdm_core.config.finetune import check as check_finetune
from rdm_core.config.job import JobConfig
from rdm_core.config.schema import Config
from rdm_core.config.training import check as check_training
from rdm_core.config.training import check_program
from rdm_core.cost import flops

__all__ = ["WORKLOADS", "Workload", "workload_of"]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A kind of job; see the module for what its parts are.

    Each part is called with a configuration of ``schema``; ``check`` also with the number of processes or
    None, ``command`` with the file of the resolved configuration and the arguments that the launcher adds.
    """

    schema: type[JobConfig]
    check: Callable[[Any, int | None], Iterator[str]]
    command: Callable[[Any, Path, Sequence[str]], list[str]]
    inspect: Callable[[Any], str] = lambda _config: ""
    files: Callable[[Any], Iterator[tuple[str, str]]] = lambda _config: iter(())
    checkpoints: Callable[[Any], tuple[int, int]] = lambda _config: (0, 0)
    tells_progress: bool = True
    needs_equal_nodes: bool = True


def _module(name: str) -> Callable[[Any, Path, Sequence[str]], list[str]]:
    """Return what runs a module of ours with the resolved configuration."""
    return lambda _config, resolved, _arguments: [sys.executable, "-m", name, str(resolved)]


def _of_program(config: Config, _resolved: Path, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, *config.launcher.program, *arguments]


def _training_looks(config: Config) -> str:
    """Return what looks at the training's data and libraries, where there are any."""
    return "rdm_trainer.inspection" if not config.data.mock or config.logging.trackers else ""


WORKLOADS = {
    "train": Workload(
        schema=Config,
        check=check_training,
        command=_module("rdm_trainer.rank"),
        inspect=_training_looks,
        checkpoints=lambda config: (config.checkpoint.interval, flops.checkpoint_bytes(config.spec)),
    ),
    "finetune": Workload(
        schema=FinetuneConfig,
        check=check_finetune,
        command=_module("rdm_trainer.finetune.rank"),
        inspect=lambda _config: "rdm_trainer.finetune.inspection",
        checkpoints=lambda config: (config.checkpoint.interval, 0),
    ),
    "command": Workload(
        schema=CommandConfig,
        check=lambda config, _world_size: check_command(config),
        command=lambda config, _resolved, _arguments: [*config.command],
        files=lambda config: iter([("command", config.command[0])]),
        tells_progress=False,
        needs_equal_nodes=False,
    ),
}
_PROGRAM = Workload(
    schema=Config,
    check=check_program,
    command=_of_program,
    files=lambda config: iter([("launcher.program", config.launcher.program[0])]),
    tells_progress=False,
    needs_equal_nodes=False,
)
"""A training with ``launcher.program``: another program in its place, whose model and batch are its own."""


def workload_of(config: JobConfig) -> Workload:
    """Return what a job runs."""
    is_program = isinstance(config, Config) and config.launcher.program
    return _PROGRAM if is_program else WORKLOADS[config.workload]
