# SPDX-License-Identifier: GPL-3.0-or-later
"""The workloads: what a job can run. The key ``workload`` of a job names one; by default, it trains.

A workload is an entry of :data:`WORKLOADS` with these parts:

- ``schema``: a frozen dataclass in ``rdm_core/config/`` that extends
  :class:`~rdm_core.config.job.JobConfig` by the workload's sections, with the workload's name as default of
  ``workload``. Write types, bounds and the texts below fields as in ``schema.py``; messages with file and
  line follow from them. Its ``resolved()`` fills in the keys that follow from others;
- ``check``: checks between its keys, and between them and the world. Checks for every job (its name, its
  launcher, Slurm) run before;
- ``command``: what one rank runs, in the job's directory, with torchrun's variables set. ``PYTHON -m MODULE``
  runs in the rank's own process, anything else as its child process. A module ends with ``sys.exit(0)``, and
  raises a TrainerError for errors that the user can fix. On SIGTERM it saves and ends;
- ``inspect``: a module that checks a node before a job starts there: ``python -m MODULE`` reads the job as
  JSON from standard input (see ``rdm_job.inspection``) and prints a JSON list of problems;
- ``files``: keys that name a file which each node must have;
- ``checkpoints``: the steps between checkpoints and the bytes of one; 0 if unknown;
- ``needs_equal_nodes``: all nodes must have the same number of devices;
- ``reports_progress``: the workload writes its own progress, with ``rdm_core.progress`` and
  ``rdm_core.heartbeat``, including the total number of iterations if it knows that. Otherwise its progress is
  read from its log lines.
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


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A kind of job; the module's docstring describes its parts.

    Each callable takes a configuration of type ``schema``; ``check`` also takes the number of processes or
    None, and ``command`` the file of the resolved configuration and the arguments that the launcher adds.
    """

    schema: type[JobConfig]
    check: Callable[[Any, int | None], Iterator[str]]
    command: Callable[[Any, Path, Sequence[str]], list[str]]
    inspect: Callable[[Any], str] = lambda _config: ""
    files: Callable[[Any], Iterator[tuple[str, str]]] = lambda _config: iter(())
    checkpoints: Callable[[Any], tuple[int, int]] = lambda _config: (0, 0)
    reports_progress: bool = True
    needs_equal_nodes: bool = True


def _module(name: str) -> Callable[[Any, Path, Sequence[str]], list[str]]:
    """Return a ``command`` that runs one of our modules with the resolved configuration."""
    return lambda _config, resolved, _arguments: [sys.executable, "-m", name, str(resolved)]


def _of_program(config: Config, _resolved: Path, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, *config.launcher.program, *arguments]


def _training_inspection(config: Config) -> str:
    """Return the module that checks the training's data and libraries, if it uses any."""
    return "rdm_trainer.inspection" if not config.data.mock or config.logging.trackers else ""


WORKLOADS = {
    "train": Workload(
        schema=Config,
        check=check_training,
        command=_module("rdm_trainer.rank"),
        inspect=_training_inspection,
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
        reports_progress=False,
        needs_equal_nodes=False,
    ),
}
_PROGRAM = Workload(
    schema=Config,
    check=check_program,
    command=_of_program,
    files=lambda config: iter([("launcher.program", config.launcher.program[0])]),
    reports_progress=False,
    needs_equal_nodes=False,
)
"""A training with ``launcher.program``: another program, with its own model and batch, replaces ours."""


def workload_of(config: JobConfig) -> Workload:
    """Return the workload of a job."""
    is_program = isinstance(config, Config) and config.launcher.program
    return _PROGRAM if is_program else WORKLOADS[config.workload]
