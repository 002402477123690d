# SPDX-License-Identifier: GPL-3.0-or-later
"""How a data set is split into train, valid and test, and how many samples each of them is asked for.

Source: NVIDIA Megatron-LM, ``dataset_utils`` and ``training``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rdm_core.errors import TrainerError

__all__ = ["SPLITS", "bounds", "evaluations", "share"]

SPLITS = ("train", "valid", "test")

# A blend asks each data set for a little more than its share, so that rounding never exhausts one.
HEADROOM = 1.005


def bounds(split: str, size: int) -> tuple[int, int, int, int]:
    """Cut documents into three runs.

    Args:
        split: Three weights, as ``969,30,1``; missing ones are 0.
        size: Documents in the data set.

    Returns:
        Four bounds, the first 0 and the last ``size``. Each share is rounded by itself, and what the rounding
        adds or lacks in all is taken off the bounds after the first.

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
    """How many samples each data set of a blend is asked for.

    Args:
        samples: Of the blend.
        weights: Of the data sets, with the sum 1.

    Returns:
        Each one's part and half a percent more, rounded up.
    """
    return [math.ceil(samples * weight * HEADROOM) for weight in weights]


def evaluations(train_iterations: int, interval: int, iterations: int) -> tuple[int, int]:
    """How many iterations of evaluation a training takes.

    Args:
        train_iterations: Iterations of the training.
        interval: Iterations between evaluations; 0 for none.
        iterations: Of each evaluation.

    Returns:
        Iterations on the validation set in all, one evaluation after the end included, and on the test set.
    """
    times = train_iterations // interval + 1 if interval else 0
    return times * iterations, iterations if interval else 0
