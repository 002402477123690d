# SPDX-License-Identifier: GPL-3.0-or-later
"""The two generators of C++'s standard library that Megatron's BERT and T5 maps draw from.

Source: M. Matsumoto and T. Nishimura, "Mersenne Twister" (1998); T. Nishimura, "Tables of 64-bit Mersenne
Twisters" (2000).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["mt19937", "mt19937_64"]

WORDS = 312
MIDDLE = 156
MATRIX = np.uint64(0xB5026F5AA96619E9)
UPPER = np.uint64(0xFFFFFFFF80000000)
LOWER = np.uint64(0x7FFFFFFF)
MULTIPLIER = 6364136223846793005
MASK = (1 << 64) - 1


def mt19937(seed: int) -> np.random.RandomState:
    """The generator ``std::mt19937(seed)``; ``randint(2**32, size=n, dtype=uint32)`` gives its numbers."""
    return np.random.RandomState(seed % 2**32)


def mt19937_64(seed: int, count: int) -> npt.NDArray[np.uint64]:
    """The first numbers of ``std::mt19937_64(seed)``.

    Args:
        seed: Of the generator; a negative one wraps, as in C++.
        count: How many numbers.

    Returns:
        uint64 [count].
    """
    value = seed & MASK
    words = [value]
    for i in range(1, WORDS):
        value = (MULTIPLIER * (value ^ (value >> 62)) + i) & MASK
        words.append(value)
    state = np.array(words, np.uint64)
    blocks = -(-count // WORDS)
    result = np.empty((blocks, WORDS), np.uint64)
    for block in range(blocks):
        _twist(state)
        result[block] = state
    numbers = result.reshape(-1)[:count]
    numbers ^= (numbers >> np.uint64(29)) & np.uint64(0x5555555555555555)
    numbers ^= (numbers << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
    numbers ^= (numbers << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
    numbers ^= numbers >> np.uint64(43)
    return numbers


def _twist(state: npt.NDArray[np.uint64]) -> None:
    """Replace STATE, [312], by the next one: a word needs one that lies 156 ahead, so halves go at a time."""

    def mixed(high: npt.NDArray[np.uint64], low: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        x = (high & UPPER) | (low & LOWER)
        return (x >> np.uint64(1)) ^ np.where(x & np.uint64(1), MATRIX, np.uint64(0))

    state[:MIDDLE] = state[MIDDLE:] ^ mixed(state[:MIDDLE], state[1 : MIDDLE + 1])
    state[MIDDLE:-1] = state[: MIDDLE - 1] ^ mixed(state[MIDDLE:-1], state[MIDDLE + 1 :])
    state[-1:] = state[MIDDLE - 1 : MIDDLE] ^ mixed(state[-1:], state[:1])
