# SPDX-License-Identifier: GPL-3.0-or-later
"""A job's configuration: one YAML file, read into checked frozen dataclasses. No torch here.

:mod:`~rdm_core.config.job` has the keys of every job, :mod:`~rdm_core.config.schema` those of a training, and
:mod:`~rdm_core.config.workloads` all kinds of jobs. :mod:`~rdm_core.config.read` reads a configuration and
its overrides, with :mod:`~rdm_core.config.yaml_text` for YAML and :mod:`~rdm_core.config.convert` for types.
:mod:`~rdm_core.config.checks` checks what must hold between keys.
"""

from __future__ import annotations

from rdm_core.config.checks import check, require
from rdm_core.config.job import JobConfig, LauncherConfig, SlurmConfig
from rdm_core.config.read import dump, from_dict, load, load_as, load_job, load_text
from rdm_core.config.schema import (
    Blend,
    CheckpointConfig,
    Config,
    DataConfig,
    LoggingConfig,
    ModelConfig,
    OptimisationConfig,
    ParallelConfig,
    RampupConfig,
    TokenizerConfig,
)
from rdm_core.config.workloads import workload_of

__all__ = [
    "Blend",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "JobConfig",
    "LauncherConfig",
    "LoggingConfig",
    "ModelConfig",
    "OptimisationConfig",
    "ParallelConfig",
    "RampupConfig",
    "SlurmConfig",
    "TokenizerConfig",
    "check",
    "dump",
    "from_dict",
    "load",
    "load_as",
    "load_job",
    "load_text",
    "require",
    "workload_of",
]
