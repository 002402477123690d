# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a list of layers is cut into pipeline stages. Pure.

DeepSpeed cuts evenly, by type and by parameters, but not where one wishes; uneven cuts are what a pipeline
over unequal GPUs needs. The layers that are no transformer blocks stay beside the blocks: what comes before
the first block belongs to the first stage, what comes after the last one to the last stage, and what lies
between two blocks to the stage of the former.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import re
from collections.abc import Sequence

from rdm_core.errors import TrainerError

__all__ = ["explicit", "is_block", "stage_bounds", "work_of"]

_LIST = re.compile(r"[0-9]{1,9}(-[0-9]{1,9})*")
# Of the search for equal sizes: half a minute at the worst.
_MOST_WORK = 10**8


def is_block(name: str) -> bool:
    """Tell whether a layer of this name is a transformer block."""
    return name.endswith("Block")


def explicit(partition: str) -> list[int] | None:
    """Return the blocks of each stage.

    Args:
        partition: ``model.partition``.

    Returns:
        As many as there are stages; None when it is no list.
    """
    return [int(count) for count in partition.split("-")] if _LIST.fullmatch(partition) else None


def work_of(stage: int, stages: int, layer_names: Sequence[str]) -> str:
    """Return what stages with the same work have in common: their layers.

    What the embedding of the first and the head of the last take is no fixed share of a block, so each of
    these is alone.

    Args:
        stage: Which, from 0.
        stages: How many there are.
        layer_names: Its layers.
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
    """Return where each virtual stage begins, and the end of the last. Without chunks it is a stage.

    Args:
        layer_names: The layers in their order; a transformer block's name ends with ``Block``.
        weights: Parameters of each layer; needed by ``parameters`` only.
        partition: ``even``, ``parameters``, ``type:REGEX`` or the blocks of each stage, as ``0-11-8-5-0``.
        stages: Number of stages.
        chunks: Of each stage: chunk ``c`` of stage ``s`` is virtual stage ``c * stages + s``.

    Returns:
        ``stages * chunks + 1`` ascending bounds from 0 to the number of layers; virtual stage ``i`` has the
        layers from ``bounds[i]`` to ``bounds[i + 1] - 1``.

    Raises:
        TrainerError: The layers cannot be cut like that.
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
    _refuse_empty_middle(counts, partition)
    return _bounds(blocks, counts)


def _even(items: int, stages: int) -> list[int]:
    """Spread items; the first stages take one more, because the last one has the head to compute."""
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


def _refuse_empty_middle(counts: Sequence[int], partition: str) -> None:
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
    """Turn the marked layers of each stage into bounds: a stage ends before the next stage's first one."""
    places = [index for index, mark in enumerate(marked) if mark]
    bounds = [0]
    for taken in itertools.accumulate(counts[:-1]):
        # Before the first marked layer lies the embedding, which is the first stage's in any case.
        bounds.append(places[0] if taken == 0 else _after(places, taken, len(marked)))
    return [*bounds, len(marked)]


def _after(places: Sequence[int], taken: int, total: int) -> int:
    """Where the stage after so many marked layers begins."""
    if taken < len(places):
        return places[taken]
    # Nothing is left but what follows the last marked layer: it is the last stage's.
    return min(places[-1] + 1, total)


def _balanced(weights: Sequence[int], stages: int) -> list[int]:
    """Cut so that the heaviest stage is as light as possible and, among those cuts, the others are equal.

    Dynamic programming over (stages, layers); the cost is the heaviest stage, then the sum of squares. As a
    cut moves back, what lies before it does not grow heavier and the stage behind it does not grow lighter,
    so that only cuts around the place where the two are equal can be the best.
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
