# SPDX-License-Identifier: GPL-3.0-or-later
"""The two generators of C++'s standard library that Megatron's BERT and T5 maps use.

Source: M. Matsumoto and T. Nishimura, "Mersenne Twister" (1998); T. Nishimura, "Tables of 64-bit Mersenne
Twisters" (2000).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

_WORDS = 312
_MULTIPLIER = 6364136223846793005
_MASK = (1 << 64) - 1

# Numbers that are drawn at a time.
_DRAWS = 1 << 18


def mt19937(seed: int) -> np.random.RandomState:
    """Return ``std::mt19937(seed)``; ``randint(2**32, size=n, dtype=uint32)`` returns its numbers."""
    return np.random.RandomState(seed % 2**32)


def mt19937_64(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """Return the first numbers of ``std::mt19937_64(seed)``, uint64."""
    return np.concatenate([np.empty(0, np.uint64), *blocks(seed, count)])


def blocks(seed: int, count: int) -> Iterator[npt.NDArray[np.uint64]]:
    """Yield the first numbers of ``std::mt19937_64(seed)``, some at a time.

    Args:
        seed: The generator's seed; a negative one wraps, as in C++.
        count: How many numbers in all.
    """
    from rdm_trainer.data.index_maps import kernels

    value = seed & _MASK
    words = [value]
    for i in range(1, _WORDS):
        value = (_MULTIPLIER * (value ^ (value >> 62)) + i) & _MASK
        words.append(value)
    state = np.array(words, np.uint64)
    for begin in range(0, count, _DRAWS):
        numbers = np.empty(min(_DRAWS, count - begin), np.uint64)
        kernels.mt19937_64(state, begin, numbers)
        yield numbers
