# SPDX-License-Identifier: GPL-3.0-or-later
"""``python -m rdm_trainer.finetune.inspection``: what a fine-tuning lacks on this node. No torch."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rdm_core import config as configuration
from rdm_core import data_paths
from rdm_core.config.finetune import FinetuneConfig
from rdm_core.errors import ConfigError, TrainerError
from rdm_trainer.finetune.packages import require_packages


def missing(config: FinetuneConfig, *, is_of_nodes: bool = False) -> Iterator[str]:
    """Yield what a fine-tuning needs and this machine lacks, one sentence each.

    Args:
        config: The fine-tuning.
        is_of_nodes: The job was started on another machine, where a relative path names another file.
    """
    yield from _packages()
    for key, files in (("data.train", config.data.train), ("data.valid", config.data.valid)):
        for file in files:
            if is_of_nodes and not Path(file).is_absolute():
                yield f"{key} names {file}; give the path that it has on the nodes, from / on."
            elif not Path(file).is_file():
                yield f"{key} names {file}, which is no file."
    yield from _model(config, queries_hub=not is_of_nodes)


def _packages() -> Iterator[str]:
    try:
        require_packages()
    except TrainerError as error:
        yield str(error)


def _model(config: FinetuneConfig, *, queries_hub: bool) -> Iterator[str]:
    """Yield why the model is neither here nor on the hub. This is slow if the hub cannot be reached."""
    model = Path(config.model.path)
    if model.is_dir():
        if not (model / "config.json").is_file():
            yield f"model.path {model} has no config.json, and so is no model."
    elif model.is_absolute():
        yield f"model.path {model} is no directory."
    elif queries_hub and importlib.util.find_spec("huggingface_hub"):
        from huggingface_hub import hf_hub_download

        try:
            # A few kilobytes, which loading the model needs as well.
            hf_hub_download(config.model.path, "config.json", revision=config.model.revision)
        except (OSError, ValueError) as error:
            text = next((line.strip() for line in str(error).splitlines() if line.strip()), repr(error))
            yield f"model.path {config.model.path} is no directory here, and the hub does not give it: {text}"


def problems(job: dict[str, Any]) -> list[str]:
    """Return what is wrong on a node, one sentence each.

    Args:
        job: ``config``, ``overrides`` and ``jobs``; see ``rdm_job.inspection``.
    """
    try:
        config = configuration.load_text(job["config"], job["overrides"])
    except ConfigError:
        # The caller reports what does not fit.
        return list(_packages())
    assert isinstance(config, FinetuneConfig)
    return list(missing(data_paths.finetune_here(config, Path(job["jobs"])), is_of_nodes=True))


if __name__ == "__main__":
    json.dump(problems(json.load(sys.stdin)), sys.stdout)
