# SPDX-License-Identifier: GPL-3.0-or-later
"""Texts of numbers that are alike → the numbers, all at once and to the last bit. It needs numpy.

A number of at most fifteen digits times a power of ten up to 22 is exact in 64 bits before it is divided or
multiplied once, so that it is rounded as by whoever reads the text one by one (Clinger, "How to read floating
point numbers accurately", 1990).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Texts = np.ndarray[Any, np.dtype[np.uint8]]
    Integers = np.ndarray[Any, np.dtype[np.int64]]

__all__ = ["ENDING", "decimals", "ending_at"]

_SHAPE = re.compile(rb" *(-?)(\d+)(?:\.(\d*))?(?:E([+-])(\d{1,3}))? *")
_DIGITS = 15
ENDING = re.compile(rb"\d\.(\d{1,%d})\Z" % (_DIGITS - 1))
"""What ends like a number that ``ending_at`` reads; the digits behind its point."""
_SHARE = 8
"""When fewer than one number in so many has more digits, these alone are read on."""
_POWER = 22
_TENS = [float(10**power) for power in range(_POWER + 1)]


def decimals(texts: Texts, places: Sequence[int]) -> Any:
    """Return the numbers, integers where none has a point or an exponent; None where some are not plain.

    Args:
        texts: A row of bytes for each.
        places: Where they differ, ascending.
    """
    import numpy

    shape = _SHAPE.fullmatch(texts[0].tobytes())
    if shape is None or not places:
        return None
    # Where one has spaces before its digits another may have digits.
    begin = shape.start(2) if shape[1] else min(places[0], shape.start(2))
    head = range(begin, shape.end(2))
    mantissa = [*head, *range(*shape.span(3))]
    exponent = [*range(*shape.span(5))]
    if len(mantissa) > _DIGITS or not {*mantissa, *exponent}.issuperset(places):
        return None
    differing = numpy.ascontiguousarray(texts[:, places].T)
    digits = (differing ^ ord("0")).astype(numpy.int64)
    others = digits > 9
    if others.any():
        is_space = texts[:, begin : head.stop] == ord(" ")
        in_head = sum(place < head.stop for place in places)
        if (
            others[in_head:].any()
            or (differing[others] != ord(" ")).any()
            or is_space[:, -1].any()
            or (shape[1] and is_space.any())
            or (is_space[:, 1:] > is_space[:, :-1]).any()
        ):
            return None
        digits[others] = 0
    number = _number(texts[0], places, digits, mantissa)
    if shape[3] is None and shape[4] is None:
        return -1.0 * number if shape[1] else number
    power = _number(texts[0], places, digits, exponent)
    if shape[4] == b"-":
        power = -power
    power = power - len(shape[3] or b"")
    if numpy.abs(power).max() > _POWER:
        return None
    tens = numpy.asarray(_TENS)[numpy.abs(power)]
    found = numpy.where(power < 0, number / tens, number * tens)
    return -found if shape[1] else found


def ending_at(text: Texts, ends: Integers, behind: int) -> tuple[Integers, Integers]:
    """Return the plain numbers whose last digits stand before some places, without their points.

    Args:
        text: Bytes.
        ends: The places.
        behind: So many digits each of them has behind its point; 0 for those without a point.

    Returns:
        The numbers, each times ten to the power of ``behind``, and where each begins: at its end where there
        is no such number, or one of more digits than are exact.
    """
    import numpy

    numbers = numpy.zeros(len(ends), numpy.int64)
    sizes = numpy.zeros(len(ends), numpy.int8)
    # Of which numbers the next digit is looked for, and where.
    rows: Any = slice(None)
    at = ends - 1
    is_inside = numpy.ones(len(ends), numpy.bool_)
    for digit in range(_DIGITS + 1):
        if digit == behind > 0:
            is_inside &= text.take(numpy.maximum(at, 0, out=at)) == ord(".")
            at -= 1
        found = text.take(numpy.maximum(at, 0, out=at)) ^ ord("0")
        is_inside &= found <= 9
        count = int(numpy.count_nonzero(is_inside))
        if digit == _DIGITS or not count:
            break
        if count * _SHARE < len(at):
            rows = numpy.arange(len(ends))[rows][is_inside]
            at, found, is_inside = at[is_inside], found[is_inside], is_inside[is_inside]
        found *= is_inside
        numbers[rows] += numpy.multiply(found, 10**digit, dtype=numpy.int64)
        sizes[rows] += is_inside
        at -= 1
    too_long = numpy.zeros(len(ends), numpy.bool_)
    too_long[rows] = is_inside
    is_plain = (sizes > behind) & ~too_long
    return numbers, ends - (sizes + numpy.int8(behind > 0)) * is_plain


def _number(first: Texts, places: Sequence[int], digits: Any, where: Sequence[int]) -> Any:
    """Return the numbers whose digits stand at some places: one of all texts, or one of each.

    Args:
        first: The first text.
        places: Where the texts differ…
        digits: … and the digits that they have there, a row for each of the places.
        where: The number's places.
    """
    import numpy

    weights = {place: 10**power for power, place in enumerate(reversed(where))}
    shared = sum(
        weight * (int(first[place]) & 15) for place, weight in weights.items() if place not in places
    )
    rows = [row for row, place in enumerate(places) if place in weights]
    if not rows:
        return numpy.int64(shared)
    return numpy.asarray([weights[places[row]] for row in rows]) @ digits[rows] + shared
