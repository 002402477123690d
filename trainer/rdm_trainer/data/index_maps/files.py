# SPDX-License-Identifier: GPL-3.0-or-later
"""Index maps as files: one array each, beside the data or in ``data.index_cache``."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rdm_trainer.errors import TrainerError

__all__ = ["misfit", "read", "save"]


def save(path: Path, array: npt.NDArray[np.generic]) -> None:
    """Write an array so that the file appears only when it is whole.

    Raises:
        TrainerError: The directory cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise TrainerError(
            f"{path} cannot be written ({error.strerror}): give data.index_cache a directory that every node "
            "can write."
        ) from error


def read(path: Path) -> npt.NDArray[np.generic]:
    """Map the array in a file.

    Raises:
        TrainerError: It is missing or damaged.
    """
    try:
        array: npt.NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise TrainerError(
            f"{path} is missing or damaged ({error}): remove it, and it is made again at the next start."
        ) from error
    return array


def misfit(path: Path, what: str) -> TrainerError:
    """Return the error for a map that belongs to other data.

    Args:
        path: The map.
        what: What does not fit.
    """
    return TrainerError(
        f"{path} does not fit the data ({what}): the data set was changed or split differently since; remove "
        "the map, and it is made again at the next start, or keep it and set data.index_cache to a directory "
        "for this job's maps."
    )
