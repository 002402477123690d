# SPDX-License-Identifier: GPL-3.0-or-later
"""The loops of the index maps that no array operation can replace, compiled when they are first called.

Importing this takes a second or two, so functions import it only when they need a loop: a map is made once.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

# Other threads run meanwhile, so that the process can still answer other processes.
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
        targets: Target lengths of the samples, in order; one for each sentence and each document suffice.
        rows: [sentences or more, 3]; receives first sentence, the one after the last, target.

    Returns:
        The number of rows that were filled, and of targets that were used.
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
    """For each number, swap a row with itself or an earlier one, from ``rows[end - 1]`` backwards."""
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
        share: [data sets]; their sum is 1.
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
        state: [312]; changes with the draws.
        drawn: How many numbers were drawn before.
        numbers: Receives the next ones.
    """
    upper, lower = np.uint64(0xFFFFFFFF80000000), np.uint64(0x7FFFFFFF)
    matrix, one, zero = np.uint64(0xB5026F5AA96619E9), np.uint64(1), np.uint64(0)
    words = len(state)
    for draw in range(len(numbers)):
        place = (drawn + draw) % words
        # Each word of the state is replaced in turn, from itself, the next one, and the one 156 ahead.
        mixed = (state[place] & upper) | (state[(place + 1) % words] & lower)
        flip = matrix if mixed & one else zero
        value = state[(place + words // 2) % words] ^ (mixed >> one) ^ flip
        state[place] = value
        value ^= (value >> np.uint64(29)) & np.uint64(0x5555555555555555)
        value ^= (value << np.uint64(17)) & np.uint64(0x71D67FFFEDA60000)
        value ^= (value << np.uint64(37)) & np.uint64(0xFFF7EEE000000000)
        value ^= value >> np.uint64(43)
        numbers[draw] = value
