# SPDX-License-Identifier: GPL-3.0-or-later
"""Reading of DeepSpeed's checkpoint files as pure data, without DeepSpeed."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch


class _Attributes:
    """A stand-in for a class of DeepSpeed's that has attributes alone, so that DeepSpeed is not needed."""


class _Stage(int):
    """A stand-in for an enumeration of DeepSpeed's."""


_STAGES = {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3}


def _stage(kind: Any, name: str) -> _Stage:
    """Return a stage by its name: Python 3.11.0 to 3.11.3 pickle it as ``getattr`` of the enumeration."""
    if kind is not _Stage or name not in _STAGES:
        raise pickle.UnpicklingError(f"attribute {name} of {kind!r} is not read from a checkpoint")
    return _Stage(_STAGES[name])


_OF_DEEPSPEED: list[tuple[Any, str]] = [
    (_Attributes, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (_Attributes, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (_Attributes, "deepspeed.utils.tensor_fragment.fragment_address"),
    (_Stage, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (_stage, "builtins.getattr"),
]
"""What DeepSpeed 0.19.8 writes in addition to tensors and plain values, by name."""


def load_mapped(path: Path) -> Any:
    """Map a file of DeepSpeed's, so that only the parts in use are read.

    Only the pickle is compared with its checksum.

    Raises:
        zipfile.BadZipFile: The pickle that describes the content is damaged. Damage can cause other errors.
    """
    with torch.serialization.safe_globals([*_OF_DEEPSPEED]):
        with zipfile.ZipFile(path) as archive:
            for part in archive.infolist():
                if part.filename.endswith("/data.pkl"):
                    archive.read(part)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
