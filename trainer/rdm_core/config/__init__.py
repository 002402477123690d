# SPDX-License-Identifier: GPL-3.0-or-later
"""A training job's configuration: one YAML file, checked frozen dataclasses. Nothing here needs torch.

:mod:`~rdm_core.config.schema` has the keys, :mod:`~rdm_core.config.read` the way from YAML and
overrides to them, :mod:`~rdm_core.config.checks` what must hold between them.
"""

from __future__ import annotations

from rdm_core.config.checks import as_far_as_it_fits, check, has_sound_data, require
from rdm_core.config.read import dump, from_dict, load, load_text, resolve
from rdm_core.config.schema import (
    Blend,
    CheckpointConfig,
    Config,
    DataConfig,
    LauncherConfig,
    LoggingConfig,
    ModelConfig,
    OptimisationConfig,
    ParallelConfig,
    SlurmConfig,
    TokenizerConfig,
)

__all__ = [
    "Blend",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "LauncherConfig",
    "LoggingConfig",
    "ModelConfig",
    "OptimisationConfig",
    "ParallelConfig",
    "SlurmConfig",
    "TokenizerConfig",
    "as_far_as_it_fits",
    "check",
    "dump",
    "from_dict",
    "has_sound_data",
    "load",
    "load_text",
    "require",
    "resolve",
]
