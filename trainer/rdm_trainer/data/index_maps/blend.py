# SPDX-License-Identifier: GPL-3.0-or-later
"""Blending: from which data set each sample of a mixture comes.

Source: NVIDIA Megatron-LM, ``BlendableDataset``. Sample i comes from the data set whose share so far lies
furthest below its weight: the largest weight * max(i, 1) - count, the first of equal ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["blend", "normalise"]

# Lanes are computed side by side. Each begins this many samples early, from counts that are only nearly
# right; by its true beginning it has met the true sequence, which is then checked.
WARM_UP = 256
LANE = 2048


def normalise(weights: Sequence[float]) -> list[float]:
    """WEIGHTS with the sum 1."""
    total = sum(weights)
    return [weight / total for weight in weights]


def blend(weights: Sequence[float], size: int) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.integer]]:
    """Compute a blend.

    Args:
        weights: Of the data sets, with the sum 1.
        size: Samples of the blend.

    Returns:
        For each sample its data set, int16 [size], and its number there, counting from 0, int32 [size] (int64
        from 2**31 samples up).
    """
    share = np.asarray(weights, np.float64)
    chosen = np.empty(size, np.int16)
    lanes = -(-size // LANE)
    starts = np.arange(lanes, dtype=np.int64) * LANE
    begins = np.maximum(starts - WARM_UP, 0)
    counts = np.floor(begins[:, None] * share).astype(np.int64)
    # Counts add up to the samples before: what rounding left over goes to the largest remainders.
    short = begins - counts.sum(axis=1)
    rank = np.argsort(np.argsort(-(begins[:, None] * share - counts), axis=1, kind="stable"), axis=1)
    counts += rank < short[:, None]
    _advance(share, counts, begins, starts - begins, None)
    entered = counts.copy()
    columns = np.full((lanes, LANE), -1, np.int16)
    _advance(share, counts, starts, np.minimum(LANE, size - starts), columns)
    for lane in range(1, lanes):
        if not np.array_equal(entered[lane], counts[lane - 1]):
            counts[lane] = counts[lane - 1]
            _advance(
                share,
                counts[lane : lane + 1],
                starts[lane : lane + 1],
                np.minimum(LANE, size - starts[lane : lane + 1]),
                columns[lane : lane + 1],
            )
    chosen[:] = columns.reshape(-1)[:size]
    number: npt.NDArray[np.integer] = np.zeros(size, "i4" if size <= np.iinfo(np.int32).max else "i8")
    for dataset in range(len(share)):
        where = np.flatnonzero(chosen == dataset)
        number[where] = np.arange(len(where))
    return chosen, number


def _advance(
    share: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    starts: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64],
    columns: npt.NDArray[np.int16] | None,
) -> None:
    """Let every lane choose its next samples.

    Args:
        share: [data sets].
        counts: [lanes, data sets], samples taken so far; changed.
        starts: [lanes], the sample at which each lane stands.
        steps: [lanes], how many samples each chooses.
        columns: [lanes, most steps], receives the choices.
    """
    rows = np.arange(len(starts))
    for step in range(int(steps.max(initial=0))):
        active = rows[steps > step]
        at = np.maximum(starts[active] + step, 1).astype(np.float64)
        choice = np.argmax(share * at[:, None] - counts[active], axis=1)
        counts[active, choice] += 1
        if columns is not None:
            columns[active, step] = choice
