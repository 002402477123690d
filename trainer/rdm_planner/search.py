# SPDX-License-Identifier: GPL-3.0-or-later
"""Every layout on every placement of nodes; those that cannot be among the fastest are never solved."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from rdm_planner.layouts import Estimate, Layout
from rdm_planner.partition import Problem, best_cut

__all__ = ["CostModel", "Found", "floor", "search"]


class CostModel(Protocol):
    """What layouts of one model cost on nodes in one order."""

    def layouts(self) -> Iterator[Layout]:
        """Yield the layouts that are possible."""
        ...

    def problem(self, layout: Layout) -> Problem:
        """Return what a cut is chosen for."""
        ...

    def tries(self, layout: Layout) -> Iterable[Sequence[int]]:
        """Return cuts that are good without a search."""
        ...

    def estimate(self, layout: Layout, cut: Sequence[int]) -> Estimate:
        """Return what a layout with a cut takes."""
        ...


@dataclass(frozen=True)
class Found:
    """What a search found.

    Args:
        best: The fastest, one for each layout, the fastest first.
        layouts: Layouts on placements that were looked at.
        solved: Those whose cut was searched.
        unfit: Those of which no cut fits, of the ones that were solved.
    """

    best: tuple[Estimate, ...]
    layouts: int
    solved: int
    unfit: int


def floor(problem: Problem) -> float:
    """Return what any cut of a problem takes at least, in seconds, without choosing one.

    The layers' times are taken from the fastest stage for each, and spread as if they could be divided.
    """
    lists = {id(running): running for running in problem.sums}
    times = {
        key: [later - earlier for earlier, later in itertools.pairwise(running)]
        for key, running in lists.items()
    }
    least = [min(column) for column in zip(*times.values(), strict=True)]
    total = sum(least)
    slower = {
        key: min((time / base for time, base in zip(own, least, strict=True) if base), default=1.0)
        for key, own in times.items()
    }
    # The slowest stage takes this at least.
    share = total / sum(1.0 / slower[id(running)] for running in problem.sums)
    stages = len(problem.sums)
    rest = min(problem.rest(first) for first in range(1, problem.layers - stages + 2))
    lowest = math.inf
    for stage in range(stages):
        highest = 0.0
        for path in problem.schedule.paths(stage):
            seconds = path.own * share + path.seconds
            if path.after >= 1.0:
                seconds = max(seconds, total + (path.own - 1.0) * share + path.seconds)
            highest = max(highest, seconds)
        lowest = min(lowest, highest)
    return lowest + rest


def search(
    models: Iterable[CostModel],
    *,
    keep: int = 10,
    alike: Callable[[Layout], Hashable] = lambda layout: layout,
) -> Found:
    """Return the fastest layouts.

    Args:
        models: One for each placement that is to be tried.
        keep: How many to return.
        alike: What layouts have in common of which only the fastest is returned.

    Returns:
        The ``keep`` fastest layouts, each on its fastest placement and with its fastest cut.
    """
    waiting: list[tuple[float, int, CostModel, Layout, Problem]] = []
    for model in models:
        for layout in model.layouts():
            problem = model.problem(layout)
            if problem.layers >= len(problem.sums):
                waiting.append((floor(problem), len(waiting), model, layout, problem))
    heapq.heapify(waiting)
    layouts = len(waiting)
    solved = unfit = 0
    best: dict[Hashable, Estimate] = {}
    limit = math.inf
    while waiting:
        least, _, model, layout, problem = heapq.heappop(waiting)
        known = best.get(alike(layout))
        below = min(limit, known.seconds) if known else limit
        if least >= limit:
            break
        if least >= below:
            continue
        solved += 1
        cut = best_cut(problem, below=below, tries=model.tries(layout))
        if cut is None:
            unfit += math.isinf(below)
            continue
        best[alike(layout)] = dataclasses.replace(model.estimate(layout, cut.layers), bound=cut.bound)
        fastest = heapq.nsmallest(keep, (estimate.seconds for estimate in best.values()))
        if len(fastest) == keep:
            limit = fastest[-1]
    ranked = sorted(best.values(), key=lambda estimate: (estimate.seconds, estimate.layout))
    return Found(tuple(ranked[:keep]), layouts, solved, unfit)
