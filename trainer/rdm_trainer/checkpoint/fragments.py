# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank's part of the weights and of AdamW's moments, as boxes of whole tensors without padding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from rdm_trainer.checkpoint.boxes import Box, boxes
from rdm_trainer.distributed.parameters import ShardSpec, shard_spec_of

STATES = ("fp32", "exp_avg", "exp_avg_sq")
"""The states of each weight, by their names in DeepSpeed's files."""

STEP = "step"
"""The key of the number of updates."""


@dataclass(frozen=True)
class Fragment:
    """This replica's fragment of a weight: elements ``begin`` to ``end`` of this rank's flattened part.

    Attributes:
        name: The weight's name.
        weight: The weight, for its shard spec.
        begin: The first element.
        end: The element after the last.
        states: The states of these elements, flat fp32, by the names of ``STATES``.
    """

    name: str
    weight: nn.Parameter
    begin: int
    end: int
    states: Mapping[str, torch.Tensor]


def whole_shape(shard_spec: ShardSpec, vocabulary: int) -> tuple[int, ...]:
    """Return the shape of a whole tensor without padding, which depends on the layout."""
    return (vocabulary, *shard_spec.shape[1:]) if shard_spec.vocabulary else shard_spec.shape


def shard_boxes(
    shard_spec: ShardSpec, vocabulary: int, begin: int, end: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """Split a range of a flattened shard into boxes of the whole tensor, without padding.

    Args:
        shard_spec: The shard.
        vocabulary: Number of tokens.
        begin: The first element of the range.
        end: The element after its last.

    Yields:
        A box's offsets in the whole tensor, its sizes, and its first element in the range.
    """
    local, axis = shard_spec.local_shape, shard_spec.dimension
    rows = whole_shape(shard_spec, vocabulary)[0]
    done = 0
    for offsets, sizes in boxes(local, begin, end):
        start, size = list(offsets), list(sizes)
        if axis is not None:
            start[axis] += shard_spec.index * local[axis]
        size[0] = min(size[0], rows - start[0])
        if size[0] > 0:
            yield tuple(start), tuple(size), done
        done += math.prod(sizes)


def boxes_of(fragment: Fragment, vocabulary: int) -> Iterator[Box]:
    """Yield a fragment's states as boxes; their values are views."""
    shard_spec = shard_spec_of(fragment.weight)
    shape = whole_shape(shard_spec, vocabulary)
    for offsets, sizes, skipped in shard_boxes(shard_spec, vocabulary, fragment.begin, fragment.end):
        for state in STATES:
            values = fragment.states[state][skipped:][: math.prod(sizes)].view(sizes)
            yield Box(f"{state}.{fragment.name}", shape, offsets, values)
