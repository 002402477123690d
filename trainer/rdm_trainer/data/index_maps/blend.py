# SPDX-License-Identifier: GPL-3.0-or-later
"""Blending: from which data set each sample of a mixture comes.

Source: NVIDIA Megatron-LM, ``BlendableDataset``. Sample i comes from the data set whose share so far lies
furthest below its weight: the largest weight * max(i, 1) - count, the first of equal ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rdm_core.errors import TrainerError
from rdm_trainer.data.index_maps.files import misfit, read
from rdm_trainer.data.index_maps.maker import MapMaker, Progress


def normalise(weights: Sequence[float]) -> list[float]:
    """Return the weights divided by their sum."""
    total = sum(weights)
    return [weight / total for weight in weights]


def blend(weights: Sequence[float], size: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.integer]]:
    """Compute a blend.

    Args:
        weights: Weights of the data sets; their sum is 1.
        size: Samples of the blend.

    Returns:
        For each sample its data set, int16 [size], and its number there, counting from 0, int32 [size] (int64
        from 2**31 samples up).
    """
    from rdm_trainer.data.index_maps import kernels

    chosen = np.empty(size, np.int16)
    number: npt.NDArray[np.integer] = np.empty(size, "i4" if size <= np.iinfo(np.int32).max else "i8")
    kernels.blend(np.asarray(weights, np.float64), chosen, number)
    return chosen, number


def load_or_build(
    weights: Sequence[float], size: int, directory: Path, maps: MapMaker
) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.integer]]:
    """Read a blend; make it first if it is missing.

    Args:
        weights: As given to :func:`blend`.
        size: As given to :func:`blend`.
        directory: The directory of its two files, which depend only on the weights and the size. If it cannot
            be written, or the files are damaged, every process makes a blend for itself.
        maps: Makes what is missing.

    Returns:
        As :func:`blend`, mapped into memory.
    """
    digest = hashlib.sha256(np.asarray(weights, np.float64).tobytes()).hexdigest()[:16]
    files = [directory / f"blend_{digest}_{size}ns_{name}.npy" for name in ("dataset", "sample")]

    def make(_: Progress) -> Iterator[tuple[Path, npt.NDArray[np.generic]]]:
        yield from zip(files, blend(weights, size), strict=True)

    def check() -> None:
        for path in files:
            array = read(path)
            inside = not size or 0 <= int(array.min()) <= int(array.max()) < max(len(weights), size)
            if array.shape != (size,) or array.dtype.kind != "i" or not inside:
                raise misfit(path, "another blend")

    try:
        maps.make(f"a blend of {len(weights)} data sets", files, make, check)
    except TrainerError:
        return blend(weights, size)
    chosen, number = (read(path) for path in files)
    return chosen, number  # type: ignore[return-value]
