# SPDX-License-Identifier: GPL-3.0-or-later
"""A search's report besides the winner: why others are slower, what was left out, and what time costs."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rdm_planner.job import Job
from rdm_planner.layouts import Estimate
from rdm_planner.nodes import NodeKind
from rdm_planner.partition import ends_that_fit
from rdm_planner.trainer_model import TrainerModel

_MOST_TIMES = 64


@dataclass(frozen=True)
class Slower:
    """Why a layout is slower than the fastest.

    Args:
        share: How much slower it is, as a share of the fastest's time.
        parts: Extra seconds of each part of its step; negative where it is faster.
        most: The part with the most extra time.
    """

    share: float
    parts: Mapping[str, float]
    most: str


def slower(best: Estimate, other: Estimate) -> Slower:
    """Return why a layout is slower than the fastest."""
    parts = {name: other.parts[name] - seconds for name, seconds in best.parts.items()}
    return Slower(other.seconds / best.seconds - 1, parts, max(parts, key=lambda name: parts[name]))


def rejected(model: TrainerModel, unfit: int) -> dict[str, int]:
    """Return how many combinations of degrees are not layouts, by reason, and how many layouts do not fit.

    Args:
        model: The job on the nodes in any order.
        unfit: The number of tried layouts that do not fit the memory.
    """
    reasons = collections.Counter(model.job.space.rejections(model.world_size, model.gpus))
    if unfit:
        reasons["No cut of the layers fits the memory of the GPUs."] = unfit
    return dict(reasons.most_common())


def gpus_needed(job: Job, nodes: Sequence[NodeKind]) -> int | None:
    """Return how many GPUs a job needs if it fits these nodes in no layout; None if many more do not help.

    Args:
        job: The job.
        nodes: The nodes; each kind is multiplied.
    """
    for times in range(2, _MOST_TIMES + 1):
        model = TrainerModel(job, tuple(nodes) * times)
        if any(ends_that_fit(model.ideal(layout)) for layout in model.layouts()):
            return model.world_size
    return None


def nearest_batch(job: Job, world_size: int, gpus: int) -> int | None:
    """Return the global batch nearest to a job's that some layout divides; None if there is none.

    Args:
        job: The job; no layout divides its batch.
        world_size: GPUs of all nodes.
        gpus: GPUs of a node.
    """
    near = {
        max(1, count) * data
        for data in job.space.batch_steps(world_size, gpus)
        for count in (job.batch // data, job.batch // data + 1)
    }
    return min(near, key=lambda batch: (abs(batch - job.batch), batch), default=None)


@dataclass(frozen=True)
class Point:
    """The fastest layout on some of the nodes.

    Args:
        nodes: The number of nodes with each GPU.
        estimate: The layout.
        gpu_hours: GPU-hours of a step.
        price: Price of a step; None if the prices of GPU-hours are not known.
    """

    nodes: Mapping[str, int]
    estimate: Estimate
    gpu_hours: float
    price: float | None

    @property
    def cost(self) -> float:
        """The price, or the GPU-hours."""
        return self.gpu_hours if self.price is None else self.price


def subsets(nodes: Sequence[NodeKind]) -> list[tuple[NodeKind, ...]]:
    """Return subsets of nodes: none, a power of two, or all of each kind."""
    count = collections.Counter(nodes)
    choices = [
        [0, *(2**power for power in range(most.bit_length()) if 2**power < most), most]
        for most in count.values()
    ]
    return [
        tuple(itertools.chain(*([kind] * number for kind, number in zip(count, chosen, strict=True))))
        for chosen in itertools.product(*choices)
        if any(chosen)
    ]


def pareto_front(
    sets: Iterable[Sequence[NodeKind]],
    fastest: Callable[[Sequence[NodeKind]], Estimate | None],
    prices: Mapping[str, float],
) -> list[Point]:
    """Return the subsets that no other subset beats in both time and cost, the fastest first.

    Args:
        sets: Subsets of the nodes.
        fastest: Returns the fastest layout on some nodes; None if none fits.
        prices: Prices of a GPU-hour, by the GPU's name; without a price for each GPU, GPU-hours are the cost.
    """
    points = []
    for nodes in sets:
        estimate = fastest(nodes)
        if estimate is None:
            continue
        hours = [node.gpus * estimate.seconds / 3600 for node in nodes]
        is_priced = all(node.gpu in prices for node in nodes)
        price = (
            sum(prices[node.gpu] * one for node, one in zip(nodes, hours, strict=True)) if is_priced else None
        )
        points.append(Point(collections.Counter(node.gpu for node in nodes), estimate, sum(hours), price))
    if any(point.price is None for point in points):
        points = [Point(point.nodes, point.estimate, point.gpu_hours, None) for point in points]
    front: list[Point] = []
    for point in sorted(points, key=lambda one: (one.estimate.seconds, one.cost)):
        if not front or point.cost < front[-1].cost:
            front.append(point)
    return front
