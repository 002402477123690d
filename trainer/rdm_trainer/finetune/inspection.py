# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m rdm_trainer.finetune.inspection``: what a fine-tuning lacks on this node. No torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rdm_core import config as configuration
from rdm_core import data_place
from rdm_core.config.finetune import FinetuneConfig
from rdm_core.errors import ConfigError, TrainerError
from rdm_trainer.finetune.packages import require_packages

__all__ = ["problems"]


def problems(job: dict[str, Any]) -> list[str]:
    """Return what is wrong, one sentence each.

    Args:
        job: ``config``, ``overrides`` and ``jobs``; see ``rdm_job.inspection``.
    """
    found = []
    try:
        require_packages()
    except TrainerError as error:
        found.append(str(error))
    try:
        config = configuration.load_text(job["config"], job["overrides"])
    except ConfigError:
        # What does not fit is said by who asks.
        return found
    assert isinstance(config, FinetuneConfig)
    config = data_place.finetune_here(config, Path(job["jobs"]))
    for key, files in (("data.train", config.data.train), ("data.valid", config.data.valid)):
        for file in files:
            if not Path(file).is_absolute():
                found.append(f"{key} names {file}; give the path that it has on the nodes, from / on.")
            elif not Path(file).is_file():
                found.append(f"{key} names {file}, which is no file.")
    # Else it may be a name on the hub.
    model = Path(config.model.path)
    if model.is_absolute() and not model.is_dir():
        found.append(f"model.path {model} is no directory.")
    return found


if __name__ == "__main__":
    json.dump(problems(json.load(sys.stdin)), sys.stdout)
