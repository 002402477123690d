# SPDX-License-Identifier: GPL-3.0-or-later
"""A search over every layout on every placement; it never solves those that cannot be among the fastest."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rdm_planner.layouts import Estimate, Layout
from rdm_planner.partition import CutSearch, Problem, ends_that_fit


class CostModel(Protocol):
    """The cost of one model's layouts on nodes in one order."""

    def layouts(self) -> Iterator[Layout]:
        """Yield the possible layouts."""
        ...

    def placement(self, layout: Layout) -> Hashable:
        """Return a key that is equal for all orders of nodes on which a layout costs the same."""
        ...

    def ideal(self, layout: Layout) -> Problem:
        """Return a problem that is never slower than the layout's, for any order of the nodes."""
        ...

    def problem(self, layout: Layout) -> Problem:
        """Return the problem that a cut must solve."""
        ...

    def tries(self, layout: Layout) -> Iterable[Sequence[int]]:
        """Return good cuts that need no search."""
        ...

    def estimate(self, layout: Layout, cut: Sequence[int]) -> Estimate:
        """Return the cost of a layout with a cut."""
        ...


@dataclass(frozen=True)
class Found:
    """The result of a search.

    Args:
        best: The fastest estimates, one per layout, the fastest first.
        layouts: Number of layouts.
        solved: Number of searches for a cut: one per layout and distinct placement.
        unfit: Number of tried layouts that have no fitting cut.
        bound: Lower bound on the step time of any layout on the tried orders of nodes, seconds; the fastest's
            time if it is proved the fastest.
    """

    best: tuple[Estimate, ...]
    layouts: int
    solved: int
    unfit: int
    bound: float


def slowdowns(running: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Return each kind's slowdown: at every layer, it is at least this much slower than the fastest kind.

    Args:
        running: For each kind of device, running sums of the layers' times, seconds.
    """
    if len(running) == 1:
        return dict.fromkeys(running, 1.0)
    times = {kind: [b - a for a, b in itertools.pairwise(sums)] for kind, sums in running.items()}
    least = [min(column) for column in zip(*times.values(), strict=True)]
    return {
        kind: min((time / base for time, base in zip(own, least, strict=True) if base), default=1.0)
        for kind, own in times.items()
    }


def ideal_sums(
    running: Mapping[str, Sequence[float]], stages: int, room: Callable[[Sequence[str]], int]
) -> list[Sequence[float]]:
    """Return running sums that are never slower than a pipeline's, for any order of its nodes.

    Args:
        running: For each kind of device, running sums of the layers' times, seconds.
        stages: Number of stages.
        room: Returns the maximum number of stages on devices of only these kinds.
    """
    if len(running) == 1:
        return list(running.values()) * stages
    slowdown = slowdowns(running)
    least = [0.0]
    for column in zip(*(itertools.pairwise(sums) for sums in running.values()), strict=True):
        least.append(least[-1] + min(b - a for a, b in column))
    kinds = sorted(running, key=lambda kind: slowdown[kind])
    found: list[Sequence[float]] = []
    for count, kind in enumerate(kinds, start=1):
        most = stages if count == len(kinds) else min(stages, room(kinds[:count]))
        if most > len(found):
            found += [[seconds * slowdown[kind] for seconds in least]] * (most - len(found))
    return found


@dataclass(frozen=True)
class _Spread:
    """The best possible spread of layers over stages with these running sums."""

    lists: tuple[Sequence[float], ...]
    total: float
    rates: dict[int, float]

    @classmethod
    def of(cls, lists: Sequence[Sequence[float]]) -> _Spread:
        running = {str(number): sums for number, sums in enumerate(lists)}
        total = ideal_sums(running, 1, lambda _kinds: 1)[0][-1] if len(lists) > 1 else lists[0][-1]
        return cls(
            tuple(lists),
            total,
            {id(lists[int(key)]): 1 / slowdown for key, slowdown in slowdowns(running).items()},
        )


def floor(problem: Problem, known: dict[tuple[int, ...], _Spread] | None = None) -> float:
    """Return a lower bound on the time of any cut of a problem, in seconds, without choosing a cut.

    It takes each layer's time on its fastest stage, and spreads the total as if layers could be split.

    Args:
        problem: The problem.
        known: Cached spreads of problems with the same lists.
    """
    lists = {id(running): running for running in problem.sums}
    spread = known.get(tuple(lists)) if known is not None else None
    if spread is None:
        spread = _Spread.of(list(lists.values()))
        if known is not None:
            known[tuple(lists)] = spread
    total = spread.total
    first = list(problem.schedule.paths(0))
    if len(first) == 1 and not first[0].after:
        return total / _reached(problem, spread) + problem.least_rest
    # The slowest stage takes at least this long.
    share = total / sum(spread.rates[id(running)] for running in problem.sums)
    lowest = math.inf
    for stage in range(len(problem.sums)):
        highest = 0.0
        for path in problem.schedule.paths(stage):
            seconds = path.own * share + path.seconds
            if path.after >= 1.0:
                seconds = max(seconds, total + (path.own - 1.0) * share + path.seconds)
            if seconds > highest:
                highest = seconds
                if highest >= lowest:
                    break
        lowest = min(lowest, highest)
    return lowest + problem.least_rest


def _reached(problem: Problem, spread: _Spread) -> float:
    """Return the maximum work of all stages per second of a step, in seconds of the fastest stage.

    Each stage has one path, without the stages after it. The more the stages before it do, the less time it
    has left.
    """
    done = 0.0
    for stage, running in enumerate(problem.sums):
        (path,) = problem.schedule.paths(stage)
        done += (1.0 - path.before * done) * spread.rates[id(running)] / path.own
    return done


def search(
    models: Sequence[CostModel],
    *,
    keep: int = 10,
    alike: Callable[[Layout], Hashable] = lambda layout: layout,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Found:
    """Return the fastest layouts.

    Args:
        models: One for each order of the nodes to try.
        keep: How many layouts to return.
        alike: Returns a key; of layouts with equal keys, only the fastest is returned.
        progress: Called after each layout with the number done and the total.

    Returns:
        The ``keep`` fastest layouts, each on its fastest placement and with its fastest cut.
    """
    first = models[0]
    # A layout waits with a bound over all orders of nodes. Then each distinct order waits with its own bound,
    # and finally with the bound of its cuts. A search for a cut is finished only if its bound can still win.
    waiting: list[tuple[float, int, Layout, CostModel | None, Problem, CutSearch | None]] = []
    spreads: dict[tuple[int, ...], _Spread] = {}
    for layout in first.layouts():
        problem = first.ideal(layout)
        if problem.layers >= layout.pipeline:
            waiting.append((floor(problem, spreads), len(waiting), layout, None, problem, None))
    heapq.heapify(waiting)
    layouts = order = len(waiting)
    opened = solved = unfit = 0
    best: dict[Hashable, Estimate] = {}
    limit = bound = math.inf
    while waiting:
        least, _, layout, model, problem, cuts = heapq.heappop(waiting)
        if least >= limit:
            break
        known = best.get(alike(layout))
        below = min(limit, known.seconds) if known else limit
        if model is None:
            opened += 1
            progress(opened, layouts)
            if least < below and not ends_that_fit(problem):
                unfit += 1
            elif least < below:
                distinct: dict[Hashable, CostModel] = {}
                for one in models:
                    distinct.setdefault(one.placement(layout), one)
                # Of orders that cost the same, try the first: the given one if it is among them.
                for one in distinct.values():
                    order += 1
                    problem = one.problem(layout)
                    heapq.heappush(
                        waiting, (max(least, floor(problem, spreads)), order, layout, one, problem, None)
                    )
            continue
        if least >= below:
            continue
        if cuts is None:
            solved += 1
            cuts = problem.search()
            cuts.begin(below, functools.partial(model.tries, layout))
            if cuts.bound < cuts.upper:
                order += 1
                heapq.heappush(waiting, (max(least, cuts.bound), order, layout, model, problem, cuts))
        else:
            cuts.finish(below)
            if not cuts.is_proved:
                bound = min(bound, cuts.bound)
        cut = cuts.result()
        if cut is None:
            continue
        best[alike(layout)] = dataclasses.replace(model.estimate(layout, cut.layers), bound=cut.bound)
        fastest = heapq.nsmallest(keep, (estimate.seconds for estimate in best.values()))
        if len(fastest) == keep:
            limit = fastest[-1]
    ranked = sorted(best.values(), key=lambda estimate: (estimate.seconds, estimate.layout))
    bound = min(bound, ranked[0].seconds) if ranked else bound
    return Found(tuple(ranked[:keep]), layouts, solved, unfit, bound)
