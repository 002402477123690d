# SPDX-License-Identifier: GPL-3.0-or-later
"""Boxes: parts of whole tensors, bounded in every dimension."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Box:
    """A part of a whole tensor.

    Attributes:
        key: The whole tensor's name in the files.
        shape: The whole tensor's shape.
        offsets: Where the part begins in the whole tensor.
        values: The part.
    """

    key: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    values: torch.Tensor


def boxes(shape: Sequence[int], begin: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Split a range of a flattened tensor into boxes, and yield their offsets and sizes in order.

    Args:
        shape: The tensor's shape.
        begin: The first element of the range.
        end: The element after its last.
    """
    if begin >= end:
        return
    if len(shape) == 1:
        yield (begin,), (end - begin,)
        return
    row = math.prod(shape[1:])
    # The whole rows. A part of a row may precede and follow them.
    first, last = -(-begin // row), end // row
    rests = [(last, begin - last * row, end - last * row)]
    if first <= last:
        rests = [(first - 1, begin - (first - 1) * row, row), (last, 0, end - last * row)]
    for place, low, high in rests:
        if place == last and first < last:
            yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
        for offsets, sizes in boxes(shape[1:], low, high):
            yield (place, *offsets), (1, *sizes)
