# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m rdm_trainer.inspection``: what is wrong with a training's data and libraries here. No torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rdm_core import config as configuration
from rdm_core import data_paths
from rdm_core.config import Config
from rdm_core.config.training import has_sound_data
from rdm_core.errors import ConfigError, as_far_as_it_fits
from rdm_trainer import data, writers


def problems(job: dict[str, Any]) -> list[str]:
    """Return what is wrong, one sentence each.

    Args:
        job: ``config``, ``overrides`` and ``jobs``; see ``rdm_job.inspection``.
    """
    try:
        config = configuration.load_text(job["config"], job["overrides"])
    except ConfigError as error:
        # The caller reports what does not fit.
        if error.rest is None:
            return []
        config = error.rest
    assert isinstance(config, Config)
    found = list(as_far_as_it_fits(writers.missing(config)))
    if has_sound_data(config):
        found += data.checks(data_paths.here(config, Path(job["jobs"])))
    return found


if __name__ == "__main__":
    json.dump(problems(json.load(sys.stdin)), sys.stdout)
