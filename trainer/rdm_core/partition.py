# SPDX-License-Identifier: GPL-3.0-or-later
"""Split a list of layers into pipeline stages. Pure functions.

DeepSpeed splits evenly, by type or by parameters, but not at given layers, which a pipeline over unequal GPUs
needs. Other layers stay with the transformer blocks: those before the first block belong to the first stage,
those after the last block to the last stage, and those between two blocks to the stage of the former.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import re
from collections.abc import Sequence

from rdm_core.errors import TrainerError

_LIST = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})*")
# The limit for the search for equal sizes: half a minute at worst.
_MOST_WORK = 10**8


def is_block(name: str) -> bool:
    """Return whether a layer of this name is a transformer block."""
    return name.endswith("Block")


def explicit(partition: str) -> list[int] | None:
    """Return the number of blocks of each stage.

    Returns:
        A number for each stage; None if ``partition`` is not such a list.
    """
    return [int(count) for count in partition.split("-")] if _LIST.fullmatch(partition) else None


def work_of(stage: int, stages: int, layer_names: Sequence[str]) -> str:
    """Return a text that is equal for stages with the same work, made from their layers.

    The first and the last stage each differ from all others: the cost of the embedding and of the head is
    not a fixed multiple of a block's.
    """
    if stage in (0, stages - 1):
        return f"stage {stage}"
    return ", ".join(f"{count} {name}" for name, count in collections.Counter(layer_names).items())


def stage_bounds(
    layer_names: Sequence[str],
    weights: Sequence[int] | None,
    partition: str,
    stages: int,
    chunks: int = 1,
) -> list[int]:
    """Return where each virtual stage begins, and where the last one ends.

    Args:
        layer_names: The layers in order; a transformer block's name ends with ``Block``.
        weights: Parameters of each layer; only ``parameters`` needs them.
        partition: ``even``, ``parameters``, ``type:REGEX`` or the blocks of each stage, as ``0-11-8-5-0``.
        stages: Number of stages.
        chunks: Virtual stages per stage: chunk ``c`` of stage ``s`` is virtual stage ``c * stages + s``.

    Returns:
        ``stages * chunks + 1`` ascending bounds from 0 to the number of layers; virtual stage ``i`` has the
        layers from ``bounds[i]`` to ``bounds[i + 1] - 1``.

    Raises:
        TrainerError: The layers cannot be split like that.
    """
    given = f"parallel.pipeline is {stages}"
    if chunks > 1:
        total, stages = sum(map(is_block, layer_names)), stages * chunks
        given += f" and parallel.virtual_pipeline {chunks}, {stages} chunks in all"
        if stages > total:
            raise TrainerError(f"{given}, but the model has only {total} blocks; take fewer.")
    if stages > len(layer_names):
        raise TrainerError(f"{given}, but the model has only {len(layer_names)} layers.")
    if partition == "parameters":
        if weights is None:
            raise ValueError("the partition by parameters needs the layers' sizes")
        return _balanced(weights, stages)
    if partition.startswith("type:"):
        marked = _matching(layer_names, partition.removeprefix("type:"))
        if sum(marked) < stages:
            raise TrainerError(
                f"parallel.partition {partition} matches {sum(marked)} layers, too few for {stages} stages; "
                f"the layers are {', '.join(dict.fromkeys(layer_names))}."
            )
        return _bounds(marked, _even(sum(marked), stages))
    blocks = [is_block(name) for name in layer_names]
    total = sum(blocks)
    counts = _even(total, stages) if partition == "even" else _listed(partition, total, stages, given)
    _check_middle_stages(counts, partition)
    return _bounds(blocks, counts)


def _even(items: int, stages: int) -> list[int]:
    """Spread items over stages. The first stages take the remainder, because the last one has the head."""
    share, rest = divmod(items, stages)
    return [share + (stage < rest) for stage in range(stages)]


def _listed(partition: str, blocks: int, stages: int, given: str) -> list[int]:
    counts = explicit(partition)
    if counts is None:
        raise TrainerError(
            f"parallel.partition is {partition!r}; it must be even, parameters, type:REGEX, or the blocks of "
            "each stage joined by '-', as 0-11-8-8-8-8-5-0."
        )
    if len(counts) != stages:
        raise TrainerError(f"parallel.partition {partition} is for {len(counts)} stages, but {given}.")
    if sum(counts) != blocks:
        raise TrainerError(
            f"parallel.partition {partition} sums to {sum(counts)} blocks, but the model has {blocks}."
        )
    return counts


def _check_middle_stages(counts: Sequence[int], partition: str) -> None:
    empty = [str(stage) for stage, count in enumerate(counts) if not count and 0 < stage < len(counts) - 1]
    if empty:
        raise TrainerError(
            f"parallel.partition {partition} leaves stage {', '.join(empty)} of {len(counts)} without a "
            "block, and a stage between the first, which has the embedding, and the last, which has the "
            "head, would have no parameters to optimise: give it a block or take fewer stages."
        )


def _matching(names: Sequence[str], pattern: str) -> list[bool]:
    try:
        expression = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise TrainerError(
            f"parallel.partition type:{pattern} is not a regular expression: {error}."
        ) from None
    return [expression.search(name) is not None for name in names]


def _bounds(marked: Sequence[bool], counts: Sequence[int]) -> list[int]:
    """Return bounds from the marked layers per stage: a stage ends before the next one's first marked one."""
    positions = [index for index, mark in enumerate(marked) if mark]
    bounds = [0]
    for taken in itertools.accumulate(counts[:-1]):
        # The layers before the first marked one, such as the embedding, always belong to the first stage.
        bounds.append(positions[0] if taken == 0 else _after(positions, taken, len(marked)))
    return [*bounds, len(marked)]


def _after(positions: Sequence[int], taken: int, total: int) -> int:
    """Return where the stage after so many marked layers begins."""
    if taken < len(positions):
        return positions[taken]
    # Only the layers after the last marked one are left: they belong to the last stage.
    return min(positions[-1] + 1, total)


def _balanced(weights: Sequence[int], stages: int) -> list[int]:
    """Minimise the heaviest stage, and then the sum of squares, so that the others are as equal as possible.

    Dynamic programming over (stages, layers). When a cut moves towards the beginning, the stages before it
    never get heavier and the stage after it never gets lighter, so only cuts around the point where the two
    are equal can be optimal.
    """
    layers = len(weights)
    if layers * layers * stages > _MOST_WORK:
        raise TrainerError(
            f"parallel.partition parameters would take too long for {layers} layers in {stages} stages; use "
            "even, or give the blocks of each stage."
        )
    ends = [0, *itertools.accumulate(weights)]
    heaviest = list(ends)
    squares = [end * end for end in ends]
    cuts: list[list[int]] = []
    for stage in range(1, stages):
        best = [(0, 0)] * (layers + 1)
        where = [0] * (layers + 1)
        cut = stage
        for end in range(stage + 1, layers + 1):
            whole = ends[end]
            while cut < end - 1 and heaviest[cut] < whole - ends[cut]:
                cut += 1
            least = max(heaviest[cut], whole - ends[cut])
            if cut > stage:
                least = min(least, whole - ends[cut - 1])
            first = bisect.bisect_left(ends, whole - least, stage, end)
            last = bisect.bisect_right(heaviest, least, stage, end)
            square, where[end] = min((squares[c] + (whole - ends[c]) ** 2, c) for c in range(first, last))
            best[end] = least, square
        heaviest = [weight for weight, _ in best]
        squares = [square for _, square in best]
        cuts.append(where)
    bounds = [layers]
    for where in reversed(cuts):
        bounds.append(where[bounds[-1]])
    return [0, *reversed(bounds)]
