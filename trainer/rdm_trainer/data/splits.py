# SPDX-License-Identifier: GPL-3.0-or-later
"""How a data set is split into train, valid and test, and how many samples each of them needs.

Source: NVIDIA Megatron-LM, ``dataset_utils`` and ``training``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rdm_core.errors import TrainerError

SPLITS = ("train", "valid", "test")

# A blend reserves a little more than each data set's share, so that rounding never exhausts one.
_HEADROOM = 1.005


def bounds(split: str, size: int) -> tuple[int, int, int, int]:
    """Cut documents into three runs.

    Args:
        split: Three weights, such as ``969,30,1``; missing ones are 0.
        size: Documents in the data set.

    Returns:
        Four bounds, the first 0 and the last ``size``. Each share is rounded by itself; the sum's surplus or
        deficit is subtracted from the bounds after the first.

    Raises:
        TrainerError: The weights are not up to three numbers from 0 up with a sum above 0.
    """
    words = split.replace("/", ",").split(",")
    try:
        weights = [float(word) for word in words]
    except ValueError:
        weights = []
    if not weights or len(weights) > 3 or not all(0 <= w < math.inf for w in weights) or not sum(weights):
        raise TrainerError(
            f"data.split is {split!r}: give up to three weights from 0 up, as 969,30,1 for train, valid and "
            "test."
        )
    weights += [0.0] * (3 - len(weights))
    total = sum(weights)
    ends = [0]
    for weight in weights:
        ends.append(ends[-1] + round(weight / total * size))
    surplus = ends[-1] - size
    return (0, ends[1] - surplus, ends[2] - surplus, ends[3] - surplus)


def share(samples: int, weights: Sequence[float]) -> list[int]:
    """Return how many samples a blend reserves of each data set.

    Args:
        samples: Samples of the blend.
        weights: Weights of the data sets; their sum is 1.

    Returns:
        Each one's share plus half a percent, rounded up.
    """
    return [math.ceil(samples * weight * _HEADROOM) for weight in weights]


def evaluations(train_iterations: int, interval: int, iterations: int) -> tuple[int, int]:
    """Return how many iterations of evaluation a training takes.

    Args:
        train_iterations: Iterations of the training.
        interval: Iterations between evaluations; 0 for none.
        iterations: Iterations of each evaluation.

    Returns:
        Iterations on the validation set in all, one evaluation after the end included, and on the test set.
    """
    times = train_iterations // interval + 1 if interval else 0
    return times * iterations, iterations if interval else 0
