# SPDX-License-Identifier: GPL-3.0-or-later
"""The loops of the index maps that no array operation replaces, compiled when they are first called.

Importing this takes a second or two, so whoever needs a loop imports it then: a map is made once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

__all__ = ["blend", "mt19937_64", "sentence_rows", "swap_rows"]

# While one of these runs, other threads do, too: the process answers the others' questions.
_compiled = numba.njit(nogil=True)


@_compiled
def sentence_rows(
    sizes: npt.NDArray[np.int32],
    firsts: npt.NDArray[np.int64],
    lasts: npt.NDArray[np.int64],
    targets: npt.NDArray[np.int64],
    rows: npt.NDArray[Any],
) -> tuple[int, int]:
    """Cut documents into samples.

    A sample ends where its target is reached and at least two sentences follow, or with the document.

    Args:
        sizes: Tokens of every sentence.
        firsts: First sentence of each document.
        lasts: The one after its last.
        targets: Lengths that samples aim at, one after the other; one for each sentence and document suffice.
        rows: [at least as many as sentences, 3]; receives first sentence, the one after the last, target.

    Returns:
        Rows that were filled, and targets that were taken.
    """
    count = taken = 0
    for document in range(len(firsts)):
        last = lasts[document]
        begin = firsts[document]
        wanted = targets[taken]
        taken += 1
        filled = 0
        for sentence in range(begin, last):
            filled += sizes[sentence]
            follow = last - sentence - 1
            if follow == 0 or (filled >= wanted and follow > 1):
                rows[count, 0] = begin
                rows[count, 1] = sentence + 1
                rows[count, 2] = wanted
                count += 1
                begin = sentence + 1
                filled = 0
                wanted = targets[taken]
                taken += 1
    return count, taken


@_compiled
def swap_rows(rows: npt.NDArray[Any], numbers: npt.NDArray[np.uint64], end: int) -> None:
    """Swap ``rows[end - 1]`` with another one before it, then the one before, once for each number."""
    for draw in range(len(numbers)):
        one = end - 1 - draw
        other = numbers[draw] % np.uint64(one + 1)
        for column in range(rows.shape[1]):
            value = rows[one, column]
            rows[one, column] = rows[other, column]
            rows[other, column] = value


@_compiled
def blend(share: npt.NDArray[np.float64], chosen: npt.NDArray[np.int16], number: npt.NDArray[Any]) -> None:
    """Give each sample to the data set that lacks most.

    Args:
        share: [data sets], with the sum 1.
        chosen: [samples], receives each one's data set.
        number: [samples], receives its number there.
    """
    counts = np.zeros(len(share), np.int64)
    for sample in range(len(chosen)):
        at = max(sample, 1)
        best = 0
        most = share[0] * at - counts[0]
        for dataset in range(1, len(share)):
            lack = share[dataset] * at - counts[dataset]
            if lack > most:
                best, most = dataset, lack
        chosen[sample] = best
        number[sample] = counts[best]
        counts[best] += 1


@_compiled
def mt19937_64(state: npt.NDArray[np.uint64], drawn: int, numbers: npt.NDArray[np.uint64]) -> None:
    """Draw the next numbers of C++'s 64-bit Mersenne Twister.

    Args:
        state: [312]; goes on with the numbers.
        drawn: Numbers that were drawn before.
        numbers: Receives the next ones.
    """
    upper, lower = np.uint64(0xFFFFFFFF80000000), np.uint64(0x7FFFFFFF)
    matrix, one, zero = np.uint64(0xB5026F5AA96619E9), np.uint64(1), np.uint64(0)
    words = len(state)
    for draw in range(len(numbers)):
        place = (drawn + draw) % words
        # Each word of the state is replaced when it is its turn: it needs the next one, and one 156 ahead.
        mixed = (state[place] & upper) | (state[(place + 1) % words] & lower)
        flip = matrix if mixed & one else zero
        value = state[(place + words // 2) % words] ^ (mixed >> one) ^ flip
        state[place] = value
        value ^= (value >> np.uint64(29)) & np.uint64(0x5555555555555555)
        value ^= (value << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
        value ^= (value << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
        value ^= value >> np.uint64(43)
        numbers[draw] = value
