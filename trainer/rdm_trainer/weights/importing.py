# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of a job that begins with a published model."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import yaml

from rdm_core.config import Config
from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint import files
from rdm_trainer.weights.sources import CONFIG, HuggingFaceSource, open_published


def configuration(directory: Path) -> str:
    """Return the YAML of a job with a model, its tokenizer and its weights.

    Args:
        directory: A model in Hugging Face's format, or checkpoints of Megatron's.

    Raises:
        TrainerError: It is neither, its family is not known, or tensors are missing.
    """
    where = directory.expanduser().resolve()
    source = open_published(where)
    if source is None and files.complete_steps([files.scan(files.checkpoints_of(where))]):
        raise TrainerError(
            f"{directory} is a job's directory, whose weights need no import; give it as "
            "checkpoint.init_from of another job with the same model."
        )
    if source is None:
        raise TrainerError(
            f"{directory} has no {CONFIG}, and no checkpoint of Megatron's; give a model's directory in "
            "Hugging Face's format, or Megatron's --save."
        )
    if isinstance(source, HuggingFaceSource) and source.ignored:
        note = f"{where / CONFIG} has {source.ignored}, but no tensor is quantised: it is ignored."
        print(note, file=sys.stderr)
    job: dict[str, Any] = {
        "name": directory.resolve().name.lower(),
        "model": _changed(source.model, Config().model),
        "checkpoint": {"init_from": str(where)},
    }
    if source.tokenizer is not None:
        job["data"] = {"tokenizer": {"kind": source.tokenizer.kind, "file": source.tokenizer.file}}
    return yaml.safe_dump(job, sort_keys=False, allow_unicode=True)


def _changed(section: Any, default: Any) -> dict[str, Any]:
    """Return the keys of a section that differ from the defaults."""
    plain = dataclasses.asdict(section)
    return {key: value for key, value in plain.items() if value != getattr(default, key)}
