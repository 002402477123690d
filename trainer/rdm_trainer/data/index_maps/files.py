# SPDX-License-Identifier: GPL-3.0-or-later
"""Index maps as files: one array each, next to the data or in ``data.index_cache``."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rdm_core.atomic_file import replacing
from rdm_core.errors import TrainerError


def require_writable(path: Path) -> None:
    """Create a file's directory, and reject one that cannot be written: a map may take long to compute.

    Raises:
        TrainerError: It cannot be created or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def save(path: Path, array: npt.NDArray[np.generic]) -> None:
    """Write an array; the file appears only when it is complete.

    Raises:
        TrainerError: The directory cannot be written.
    """
    try:
        with replacing(path, durable=True) as file:
            np.save(file, array, allow_pickle=False)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> TrainerError:
    # numpy gives no reason when a disk takes only a part.
    reason = error.strerror or f"{error}: is the disk full?"
    return TrainerError(
        f"{path} cannot be written ({reason}): give data.index_cache a directory that every node can write."
    )


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
    """Return the error for a map that belongs to other data."""
    return TrainerError(
        f"{path} does not fit the data ({what}): the data set was changed or split differently since; remove "
        "the map, and it is made again at the next start, or keep it and set data.index_cache to a directory "
        "for this job's maps."
    )
