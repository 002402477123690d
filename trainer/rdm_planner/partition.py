# SPDX-License-Identifier: GPL-3.0-or-later
"""The best cut of a list of layers into pipeline stages, for one layout on one placement. Exact.

A step's time is no sum over stages, so dynamic programming alone cannot minimise it. It minimises the bounds
of :class:`rdm_planner.schedules.Path`; a depth-first search then simulates only cuts whose bound lies below
the best time found so far. Most good cuts meet their bound, so that few simulations prove the optimum.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rdm_planner.schedules import Schedule

__all__ = ["Cut", "CutSearch", "Problem", "best_cut", "ends_that_fit"]

# Times this close are the same: sums over layers are rounded in another order than a simulation's.
_TOLERANCE = 1e-9

# When so many passes are simulated, or so many parts of cuts looked at for each simulation, the best
# cut so far is returned with its bound.
_WORK = 40_000
_LEAST_SIMULATIONS = 20
_STEPS = 20

# Halvings of the time in which all stages are to end.
_HALVINGS = 30


def _anything_fits(_stage: int, _begin: int, _end: int) -> bool:
    return True


def _is_over(fits: Callable[[int, int, int], bool], stage: int, begin: int, end: int) -> bool:
    return not fits(stage, begin, end)


def _is_within(fits: Callable[[int, int, int], bool], stage: int, end: int, begin: int) -> bool:
    return fits(stage, begin, end)


def _nothing(_first: int) -> float:
    return 0.0


@dataclass(frozen=True)
class Problem:
    """What a cut is chosen for.

    Args:
        sums: For each stage the running sums of the layers' times on it, seconds, from 0 to all layers;
            stages on devices of one kind share one list.
        schedule: The pipeline.
        total: A cut's step time in seconds, from the layers of each stage and :meth:`Schedule.ends`.
        rest: What ``total`` adds at least to the end of the first stage, given that stage's layers; no less
            with more of them.
        fits: Whether a stage can hold the layers from ``begin`` to ``end - 1``; with more it never can again.
    """

    sums: Sequence[Sequence[float]]
    schedule: Schedule
    total: Callable[[Sequence[int], Sequence[float]], float]
    rest: Callable[[int], float] = _nothing
    fits: Callable[[int, int, int], bool] = _anything_fits

    @property
    def layers(self) -> int:
        """Layers that are cut."""
        return len(self.sums[0]) - 1

    def times(self, cut: Sequence[int]) -> list[float]:
        """Return each stage's time, in seconds.

        Args:
            cut: Layers of each stage.
        """
        times, begin = [], 0
        for running, count in zip(self.sums, cut, strict=True):
            times.append(running[begin + count] - running[begin])
            begin += count
        return times

    def seconds(self, cut: Sequence[int]) -> float:
        """Return the step time of a cut, in seconds.

        Args:
            cut: Layers of each stage.
        """
        return self.total(cut, self.schedule.ends(self.times(cut)))

    def holds(self, cut: Sequence[int]) -> bool:
        """Tell whether every stage can hold its layers.

        Args:
            cut: Layers of each stage.
        """
        begin = 0
        for stage, count in enumerate(cut):
            if not self.fits(stage, begin, begin + count):
                return False
            begin += count
        return True


@dataclass(frozen=True)
class Cut:
    """A cut of the layers.

    Args:
        layers: Layers of each stage.
        seconds: Its step time.
        bound: What any cut takes at least, seconds; ``seconds`` itself when the cut is proved to be the best.
    """

    layers: tuple[int, ...]
    seconds: float
    bound: float

    @property
    def is_proved(self) -> bool:
        """No cut is faster."""
        return self.bound >= self.seconds * (1 - _TOLERANCE)


def best_cut(problem: Problem, *, below: float = math.inf, tries: Iterable[Sequence[int]] = ()) -> Cut | None:
    """Return the fastest cut, None when none is faster than a time that is known already.

    Args:
        problem: What is cut.
        below: Only faster cuts are of interest, seconds.
        tries: Cuts that are known to be good; the result is never slower than the best of them that fits.
    """
    search = CutSearch(problem)
    search.begin(below, tries)
    search.finish(below)
    return search.result()


def ends_that_fit(problem: Problem) -> list[tuple[int, int]]:
    """Return between which places each stage ends in any cut that fits; none when no cut can.

    Args:
        problem: What is cut.
    """
    fits, layers, stages = problem.fits, problem.layers, len(problem.sums)
    latest, begin = [], 0
    for stage in range(stages):
        # From the latest begin a stage reaches the furthest.
        ends = range(begin + 1, layers - (stages - 1 - stage) + 1)
        reached = bisect.bisect_left(ends, True, key=functools.partial(_is_over, fits, stage, begin))
        # A layer that this stage cannot hold is an earlier one's, or a later one's.
        begin = ends[reached - 1] if reached else begin
        latest.append(begin)
    if begin < layers:
        return []
    earliest, end = [layers], layers
    for stage in range(stages - 1, 0, -1):
        begins = range(stage, end)
        place = bisect.bisect_left(begins, True, key=functools.partial(_is_within, fits, stage, end))
        end = begins[place] if place < len(begins) else end
        earliest.append(end)
    return list(zip(reversed(earliest), latest, strict=True))


class CutSearch:
    """The search for the best cut, which can be put off when its bound is known.

    Args:
        problem: What is cut.

    Attributes:
        bound: What any cut takes at least, seconds, or that no cut is faster than a time that is known.
        best: The fastest cut so far; None without one that is faster than that time.
        upper: Its time, or that time.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.stages = len(problem.sums)
        self.upper = math.inf
        self.bound = 0.0
        self.best: tuple[int, ...] | None = None
        self.simulations = self.steps = 0
        self.most = max(_LEAST_SIMULATIONS, _WORK // problem.schedule.work)
        self.rest = problem.rest(1)
        # For each number of stages, what cuts take at least whose so many first stages end at a place.
        self.prefix: list[list[float]] = []

    def begin(self, below: float, tries: Iterable[Sequence[int]] = ()) -> None:
        """Find the least bound of all cuts, and a cut that has it.

        Args:
            below: Only faster cuts are of interest, seconds.
            tries: Cuts that are known to be good.
        """
        self.upper = below
        self.ends = ends_that_fit(self.problem)
        if not self.ends:
            self.bound = math.inf
            return
        self.paths = [self.problem.schedule.paths(stage) for stage in range(self.stages)]
        self.before, self.after = self._least_sums()
        for known in (*tries, *self._balanced()):
            if self.problem.holds(known):
                self._try(tuple(known))
        self.bound, cut = self._by_bound()
        if cut is not None:
            self._try(cut)
        self.bound = min(self.bound, self.upper)

    def finish(self, below: float) -> None:
        """Find the fastest cut, after :meth:`begin`.

        Args:
            below: Only faster cuts are of interest, seconds.
        """
        if below < self.upper:
            self.upper, self.best = below, None
        self._improve()
        if not self.ends or self.bound >= self._aim() or self._extend(self.problem.layers, [], [], 0.0):
            self.bound = self.upper

    def result(self) -> Cut | None:
        """Return the fastest cut that is known; None when none is faster than what was known before."""
        return None if self.best is None else Cut(self.best, self.upper, self.bound)

    def _aim(self) -> float:
        return self.upper * (1 - _TOLERANCE)

    def _try(self, cut: tuple[int, ...]) -> None:
        self.simulations += 1
        seconds = self.problem.seconds(cut)
        if seconds < self.upper:
            self.upper, self.best = seconds, cut

    def _least_sums(self) -> tuple[list[Sequence[float]], list[Sequence[float]]]:
        """Return what the stages before each stage take at least for the layers before a place, and after."""
        sums, layers, stages = self.problem.sums, self.problem.layers, self.stages
        if all(running is sums[0] for running in sums):
            left = [sums[0][-1] - done for done in sums[0]]
            return [sums[0]] * (stages + 1), [left] * (stages + 1)
        before: list[Sequence[float]] = [[0.0] + [math.inf] * layers]
        for running in sums:
            row = [math.inf] * (layers + 1)
            previous = before[-1]
            for end in range(1, layers + 1):
                row[end] = min(row[end - 1], previous[end - 1]) + running[end] - running[end - 1]
            before.append(row)
        after: list[Sequence[float]] = [[math.inf] * layers + [0.0]]
        for running in reversed(sums):
            row = [math.inf] * (layers + 1)
            following = after[-1]
            for begin in range(layers - 1, -1, -1):
                row[begin] = min(row[begin + 1], following[begin + 1]) + running[begin + 1] - running[begin]
            after.append(row)
        after.reverse()
        return before, after

    def _balanced(self) -> list[tuple[int, ...]]:
        """Return cuts whose slowest stage is as fast as it can be within memory: full early, or full late."""
        high = sum(running[-1] for running in self.problem.sums)
        low, found = 0.0, self._filled(high)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if cut := self._filled(middle):
                found, high = cut, middle
            else:
                low = middle
        return [cut for cut in (found, self._filled_from_the_end(high)) if cut]

    def _filled(self, most: float) -> tuple[int, ...]:
        """Return the cut whose stages are filled in turn up to a time; none if layers are left."""
        cut, begin = [], 0
        for stage, (running, (earliest, latest)) in enumerate(zip(self.problem.sums, self.ends, strict=True)):
            end = min(bisect.bisect_right(running, running[begin] + most) - 1, latest)
            while end > begin and not self.problem.fits(stage, begin, end):
                end -= 1
            if end <= begin or end < earliest:
                return ()
            cut.append(end - begin)
            begin = end
        return tuple(cut) if begin == self.problem.layers else ()

    def _filled_from_the_end(self, most: float) -> tuple[int, ...]:
        """Return the same, filled from the last stage on."""
        cut, end = [], self.problem.layers
        for stage in range(self.stages - 1, -1, -1):
            running = self.problem.sums[stage]
            first = self.ends[stage - 1][0] if stage else 0
            begin = max(bisect.bisect_left(running, running[end] - most * (1 + _TOLERANCE)), first)
            while begin < end and not self.problem.fits(stage, begin, end):
                begin += 1
            if begin >= end or (stage and begin > self.ends[stage - 1][1]):
                return ()
            cut.append(end - begin)
            end = begin
        return tuple(reversed(cut)) if end == 0 else ()

    def _improve(self) -> None:
        """Move single layers between neighbours as long as that is faster."""
        before = None
        while self.best is not None and self.best != before:
            before = self.best
            for stage, step in itertools.product(range(self.stages - 1), (1, -1)):
                moved = list(before)
                moved[stage] += step
                moved[stage + 1] -= step
                if min(moved) > 0 and self.problem.holds(moved):
                    self._try(tuple(moved))
                if self.best != before or self.simulations > self.most:
                    break
            if self.simulations > self.most:
                return

    def _lows(self, stage: int) -> list[int]:
        """Return where a stage that ends at each place begins at the earliest."""
        fits = self.problem.fits
        earliest, latest = self.ends[stage]
        lows = [0] * (latest + 1)
        low = self.ends[stage - 1][0] if stage else 0
        for end in range(earliest, latest + 1):
            while low < end and not fits(stage, low, end):
                low += 1
            lows[end] = low
        return lows

    def _by_bound(self) -> tuple[float, tuple[int, ...] | None]:
        """Return the least bound of all cuts, and a cut that has it; dynamic programming over stages."""
        layers = self.problem.layers
        self.prefix = [[-math.inf] + [math.inf] * layers]
        self.lows: list[list[int]] = []
        chosen: list[list[int]] = []
        for stage in range(self.stages):
            bounds, begins = [math.inf] * (layers + 1), [0] * (layers + 1)
            earliest, latest = self.ends[stage]
            self.lows.append(self._lows(stage))
            for end in range(earliest, latest + 1):
                for begin, value in self._begins(stage, end, self.after[stage + 1][end]):
                    if value < bounds[end]:
                        bounds[end], begins[end] = value, begin
            chosen.append(begins)
            self.prefix.append(bounds)
        bound = self.prefix[-1][layers]
        if bound >= self._aim():
            return bound, None
        cut, end = [], layers
        for begins in reversed(chosen):
            cut.append(end - begins[end])
            end = begins[end]
        return bound, tuple(reversed(cut))

    def _begins(self, stage: int, end: int, after: float) -> Iterable[tuple[int, float]]:
        """Yield where a stage that ends there can begin, with the bound of it and all stages before it."""
        running, before, paths = self.problem.sums[stage], self.before[stage], self.paths[stage]
        previous, rest = self.prefix[stage], self.rest
        aim = self._aim()
        steepest = max(path.own for path in paths)
        done = running[end]
        last = self.ends[stage - 1][1] if stage else 0
        for begin in range(min(end - 1, last), self.lows[stage][end] - 1, -1):
            own = done - running[begin]
            if steepest * own + rest >= aim:
                return
            value = previous[begin]
            if value >= aim:
                continue
            earlier = before[begin]
            bound = 0.0
            for path in paths:
                seconds = earlier + path.own * own + path.after * after + path.seconds
                if seconds > bound:
                    bound = seconds
            bound += rest if stage else self.problem.rest(end)
            if bound > value:
                value = bound
            if value < aim:
                yield begin, value

    def _extend(self, end: int, cut: list[int], times: list[float], after: float) -> bool:
        """Search all cuts whose last stages are these; False when too many are left.

        Args:
            end: Where the stage before them ends.
            cut: Their layers, from the first of them.
            times: Their times.
            after: The sum of those.
        """
        stage = self.stages - 1 - len(cut)
        if stage < 0:
            self._try(tuple(cut))
            return self.simulations < self.most
        self.steps += 1
        if self.steps > _STEPS * self.most:
            return False
        running, before, schedule = self.problem.sums[stage], self.before[stage], self.problem.schedule
        for begin, value in sorted(self._begins(stage, end, after), key=lambda found: (found[1], -found[0])):
            if value >= self._aim():
                return True
            own = running[end] - running[begin]
            longer = [own, *times]
            if schedule.bound(before[begin], longer) + self.rest >= self._aim():
                continue
            if not self._extend(begin, [end - begin, *cut], longer, after + own):
                return False
        return True
