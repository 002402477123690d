# SPDX-License-Identifier: GPL-3.0-or-later
"""The exact best cut of a list of layers into pipeline stages, for one layout on one placement.

A step's time is not a sum over stages, so dynamic programming alone cannot minimise it. From the last stage
backwards, it minimises the bounds of :class:`rdm_planner.schedules.Path`. A depth-first search from the first
stage then simulates only cuts whose bound is below the best time found so far. Most good cuts meet their
bound, so a few simulations prove the optimum.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rdm_planner.schedules import Chosen, Path, Schedule

# Seconds by position among the layers.
_Sums = Sequence[float] | Mapping[int, float]

# Times this close are equal: a simulation adds and rounds in another order than sums over layers.
_TOLERANCE = 1e-9

# After simulating this many passes, or trying this many stages of cuts, the search returns the best cut so
# far with its bound.
_WORK = 40_000
_LEAST_SIMULATIONS = 20
_STEPS = 40_000
# The shares of that work done before and after improving cuts by moves of single layers.
_SHARES = (0.1, 1.0)

# The number of cuts to improve by moves of single layers.
_STARTS = 3

# Bisection steps for the time within which all stages end.
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
    """A pipeline to cut; a cut has the layers of each stage.

    Args:
        sums: For each stage, running sums of the layers' times on it, seconds, from 0 to all layers; stages
            on devices of one kind share one list.
        schedule: The pipeline's schedule.
        total: A cut's step time in seconds, from the layers of each stage and :meth:`Schedule.ends`.
        rest: Lower bound on what ``total`` adds to the end of the first stage, given that stage's layers.
        fits: Whether a stage can hold the layers from ``begin`` to ``end - 1``. If a range does not fit, no
            larger range does.
        first: Minimum layers of the first stage if there are several.
    """

    sums: Sequence[Sequence[float]]
    schedule: Schedule
    total: Callable[[Sequence[int], Sequence[float]], float]
    rest: Callable[[int], float] = _nothing
    fits: Callable[[int, int, int], bool] = _anything_fits
    first: int = 1

    @property
    def layers(self) -> int:
        """Number of layers to cut."""
        return len(self.sums[0]) - 1

    @functools.cached_property
    def least_rest(self) -> float:
        """The minimum of :attr:`rest` over the layers of the first stage, seconds."""
        stages = len(self.sums)
        firsts = range(self.first, self.layers - stages + 2) if stages > 1 else (self.layers,)
        return min(map(self.rest, firsts), default=0.0)

    def search(self) -> CutSearch:
        """Return a search for the best cut."""
        return CutSearch(self)

    def times(self, cut: Sequence[int]) -> list[float]:
        """Return each stage's time, in seconds."""
        times, begin = [], 0
        for running, count in zip(self.sums, cut, strict=True):
            times.append(running[begin + count] - running[begin])
            begin += count
        return times

    def seconds(self, cut: Sequence[int]) -> float:
        """Return the step time of a cut, in seconds."""
        return self.total(cut, self.ends(cut))

    def ends(self, cut: Sequence[int]) -> list[float]:
        """Return when each stage ends its last backward pass, in seconds."""
        return self.schedule.ends(self.times(cut))

    def holds(self, cut: Sequence[int]) -> bool:
        """Tell whether every stage can hold its layers and the first stage has enough of them."""
        if cut[0] < self.first:
            return False
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
        bound: Lower bound on the step time of any cut, seconds; ``seconds`` if this cut is proved the best.
    """

    layers: tuple[int, ...]
    seconds: float
    bound: float

    @property
    def is_proved(self) -> bool:
        """No cut is faster."""
        return self.bound >= self.seconds * (1 - _TOLERANCE)


def best_cut(problem: Problem, *, below: float = math.inf, tries: Iterable[Sequence[int]] = ()) -> Cut | None:
    """Return the fastest cut; None if no cut is faster than ``below``.

    Args:
        problem: The problem.
        below: Ignore cuts that are not faster than this, seconds.
        tries: Known good cuts; the result is never slower than the best of them that fits.
    """
    search = problem.search()
    search.begin(below, lambda: tries)
    search.finish(below)
    return search.result()


def ends_that_fit(problem: Problem, most: Sequence[float] | None = None) -> list[tuple[int, int]]:
    """Return the earliest and the latest end of each stage over all cuts that fit; empty if none fits.

    Args:
        problem: The problem.
        most: The maximum time of each stage, seconds; unlimited if None.
    """
    fits, layers, stages = problem.fits, problem.layers, len(problem.sums)
    latest, begin = [], 0
    for stage, running in enumerate(problem.sums):
        # A stage reaches furthest from its latest start.
        end = layers - (stages - 1 - stage)
        if most is not None:
            end = min(end, bisect.bisect_right(running, running[begin] + most[stage]) - 1)
        if end > begin and not fits(stage, begin, end):
            ends = range(begin + 1, end + 1)
            end = begin + bisect.bisect_left(ends, True, key=functools.partial(_is_over, fits, stage, begin))
        # A layer that does not fit this stage belongs to an earlier or a later one.
        begin = max(begin, end)
        latest.append(begin)
    if begin < layers:
        return []
    earliest, end = [layers], layers
    for stage in range(stages - 1, 0, -1):
        begin, running = stage - 1 + problem.first, problem.sums[stage]
        if most is not None:
            begin = max(begin, bisect.bisect_left(running, running[end] - most[stage]))
        if begin < end and not fits(stage, begin, end):
            begins = range(begin, end)
            begin += bisect.bisect_left(begins, True, key=functools.partial(_is_within, fits, stage, end))
        end = min(begin, end)
        earliest.append(end)
    found = list(zip(reversed(earliest), latest, strict=True))
    return found if all(low <= high for low, high in found) else []


class CutSearch:
    """The search for the best cut, in two phases: :meth:`begin` finds a bound, :meth:`finish` may come later.

    Attributes:
        bound: Lower bound on the step time of cuts, seconds; never above ``upper``.
        best: The fastest cut so far; None if no cut is faster than the limit given.
        upper: The time of ``best``, or that limit.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.stages = len(problem.sums)
        self.upper = math.inf
        self.bound = 0.0
        self.best: tuple[int, ...] | None = None
        # Simulated cuts, the starting points for moves of single layers.
        self.starts: dict[tuple[int, ...], float] = {}
        # Simulations and stages tried in one attempt, and their limits.
        self.simulations = self.steps = self.most = self.most_steps = 0
        self.ends: list[tuple[int, int]] = []
        # For each stage, its earliest start by its end.
        self.lows: list[dict[int, int]] = []
        # For each stage, a lower bound without the rest, by where the stage begins.
        self.suffix: list[dict[int, float]] = []

    def begin(self, below: float, tries: Callable[[], Iterable[Sequence[int]]] = tuple) -> None:
        """Find the least bound of all cuts, and a cut with this bound.

        Args:
            below: Ignore cuts that are not faster than this, seconds.
            tries: Returns known good cuts.
        """
        self.upper = below
        self.paths = [list(self.problem.schedule.paths(stage)) for stage in range(self.stages)]
        if below == math.inf:
            self._try_known(tries)
        self.bound, cut = self._by_bound()
        if cut is None:
            self.bound = min(self.bound, self.upper)
            return
        self._try(cut)
        if below < math.inf:
            self._try_known(tries)
        self.bound = min(self.bound, self.upper)

    def finish(self, below: float) -> None:
        """Find the fastest cut, after :meth:`begin`.

        Args:
            below: Ignore cuts that are not faster than this, seconds.
        """
        if below < self.upper:
            self.upper, self.best = below, None
        if self.is_proved:
            self.bound = self.upper
            return
        for share in _SHARES:
            self.simulations, self.steps = 0, 0
            self.most = int(share * max(_LEAST_SIMULATIONS, _WORK // self.problem.schedule.work))
            self.most_steps = int(share * _STEPS)
            if self._extend(Chosen(), [], 0, 0.0):
                self.bound = self.upper
                return
            self._improve()

    @property
    def is_proved(self) -> bool:
        """No cut is faster than the fastest known one."""
        return self.bound >= self._aim()

    def result(self) -> Cut | None:
        """Return the fastest cut found; None if none is faster than the limit."""
        return None if self.best is None else Cut(self.best, self.upper, self.bound)

    def _aim(self) -> float:
        return self.upper * (1 - _TOLERANCE)

    def _try_known(self, tries: Callable[[], Iterable[Sequence[int]]]) -> None:
        if ends := ends_that_fit(self.problem):
            for known in (*tries(), *self._balanced(ends)):
                if self.problem.holds(known):
                    self._try(tuple(known))

    def _try(self, cut: tuple[int, ...]) -> float:
        """Return a cut's time, or its lower bound if that is already too slow; keep the fastest cut."""
        if cut in self.starts:
            return self.starts[cut]
        least = self._least(cut)[0]
        if least >= self._aim():
            return least
        self.simulations += 1
        seconds = self.starts[cut] = self.problem.seconds(cut)
        if seconds < self.upper:
            self.upper, self.best = seconds, cut
        return seconds

    def _least(self, cut: Sequence[int]) -> tuple[float, int]:
        """Return a lower bound on a cut's time, and the stage that determines it."""
        times = self.problem.times(cut)
        total, before, bound, decides = sum(times), 0.0, 0.0, 0
        for stage, (own, paths) in enumerate(zip(times, self.paths, strict=True)):
            seconds = _longest(paths, before, own, total - before - own)
            if seconds > bound:
                bound, decides = seconds, stage
            before += own
        return bound + self.problem.rest(cut[0]), decides

    def _least_sums(self) -> tuple[list[_Sums], list[_Sums]]:
        """Return the least total times of the stages before and after each stage, by position."""
        sums, layers, stages = self.problem.sums, self.problem.layers, self.stages
        if all(running is sums[0] for running in sums):
            left = [sums[0][-1] - done for done in sums[0]]
            return [sums[0]] * (stages + 1), [left] * (stages + 1)
        before: list[dict[int, float]] = [{0: 0.0}]
        for running, lows in zip(sums, self.lows, strict=True):
            previous, row = before[-1], {}
            for end, low in lows.items():
                found = [previous[begin] - running[begin] for begin in range(low, end) if begin in previous]
                if found:
                    row[end] = min(found) + running[end]
            before.append(row)
        after: list[dict[int, float]] = [{layers: 0.0}]
        for running, lows, earlier in zip(reversed(sums), reversed(self.lows), before[-2::-1], strict=True):
            row = {}
            for end, later in after[-1].items():
                total = running[end] + later
                for begin in range(lows.get(end, end), end):
                    if begin in earlier and total - running[begin] < row.get(begin, math.inf):
                        row[begin] = total - running[begin]
            after.append(row)
        after.reverse()
        return [*before], [*after]

    def _balanced(self, ends: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        """Return cuts whose slowest stage is as fast as memory allows: one filled early, one filled late."""
        high = sum(running[-1] for running in self.problem.sums)
        low, found = 0.0, self._filled(ends, high)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            if cut := self._filled(ends, middle):
                found, high = cut, middle
            else:
                low = middle
        return [cut for cut in (found, self._filled_from_the_end(ends, high)) if cut]

    def _filled(self, ends: Sequence[tuple[int, int]], most: float) -> tuple[int, ...]:
        """Return the cut that fills stages in turn up to a time; empty if layers are left."""
        cut, begin = [], 0
        for stage, (running, (earliest, latest)) in enumerate(zip(self.problem.sums, ends, strict=True)):
            end = min(bisect.bisect_right(running, running[begin] + most) - 1, latest)
            while end > begin and not self.problem.fits(stage, begin, end):
                end -= 1
            if end <= begin or end < earliest:
                return ()
            cut.append(end - begin)
            begin = end
        return tuple(cut) if begin == self.problem.layers else ()

    def _filled_from_the_end(self, ends: Sequence[tuple[int, int]], most: float) -> tuple[int, ...]:
        """Return the same, filled from the last stage backwards."""
        cut, end = [], self.problem.layers
        for stage in range(self.stages - 1, -1, -1):
            running = self.problem.sums[stage]
            first = ends[stage - 1][0] if stage else 0
            begin = max(bisect.bisect_left(running, running[end] - most * (1 + _TOLERANCE)), first)
            while begin < end and not self.problem.fits(stage, begin, end):
                begin += 1
            if begin >= end or (stage and begin > ends[stage - 1][1]):
                return ()
            cut.append(end - begin)
            end = begin
        return tuple(reversed(cut)) if end == 0 else ()

    def _improve(self) -> None:
        """Improve good cuts, the best first."""
        most = self.simulations + self.most
        for seconds, cut in sorted((seconds, cut) for cut, seconds in self.starts.items())[:_STARTS]:
            self._descend(cut, seconds, most)

    def _descend(self, cut: tuple[int, ...], upper: float, most: int) -> None:
        """Move single layers while that helps: between neighbours, and away from the limiting stage."""
        near = [pair for stage in range(self.stages - 1) for pair in ((stage, stage + 1), (stage + 1, stage))]
        before: tuple[int, ...] | None = None
        while cut != before:
            before, decides = cut, self._least(cut)[1]
            found = []
            for source, target in {*near, *((decides, other) for other in range(self.stages))}:
                moved = list(before)
                moved[source] -= 1
                moved[target] += 1
                if source != target and moved[source] and self.problem.holds(moved):
                    found.append((self._least(moved)[0], tuple(moved)))
            for least, other in sorted(found):
                if self.simulations >= most:
                    return
                if least >= upper:
                    break
                self.simulations += 1
                seconds = self.problem.seconds(other)
                if seconds < upper:
                    cut, upper = other, seconds
                    break
            if upper < self.upper:
                self.upper, self.best = upper, cut

    def _limits(self) -> list[float]:
        """Return the maximum time of each stage in a cut that is fast enough, seconds."""
        room = self._aim() - self.problem.least_rest
        lists = {id(running): running for running in self.problem.sums}.values()
        total = sum(
            min(after - before for before, after in column)
            for column in zip(*(itertools.pairwise(running) for running in lists), strict=True)
        )
        found = []
        for paths in self.paths:
            limit = math.inf
            for path in paths:
                # The other stages take at least the rest of the total.
                own, left = path.own, room - path.seconds
                if path.after >= 1.0:
                    own, left = own - 1.0, left - total
                if own > 0:
                    limit = min(limit, left / own)
                elif left < 0:
                    limit = -1.0
            found.append(limit)
        return found

    def _earliest(self, stage: int) -> dict[int, int]:
        """Return a stage's earliest start for each position where it can end."""
        fits = self.problem.fits
        running, limit = self.problem.sums[stage], self.limits[stage]
        low = self.ends[stage - 1][0] if stage else 0
        lows = {}
        for end in range(self.ends[stage][0], self.ends[stage][1] + 1):
            done = running[end]
            while low < end and (done - running[low] > limit or not fits(stage, low, end)):
                low += 1
            lows[end] = low
        return lows

    def _by_bound(self) -> tuple[float, tuple[int, ...] | None]:
        """Return the least bound of all cuts and a cut with it, by dynamic programming over stages."""
        layers = self.problem.layers
        self.limits = self._limits()
        self.ends = ends_that_fit(self.problem, self.limits)
        if not self.ends:
            return math.inf, None
        self.lows = [self._earliest(stage) for stage in range(self.stages)]
        self.before, self.after = self._least_sums()
        first, last = self.ends[0]
        aim = self._aim() - min(map(self.problem.rest, range(first, last + 1)))
        self.suffix = [{} for _ in range(self.stages)] + [{layers: 0.0}]
        # Among cuts with equal bounds, the one with the least total time of its stages.
        chosen: list[dict[int, tuple[float, int]]] = [{} for _ in range(self.stages)] + [{layers: (0.0, 0)}]
        is_list = isinstance(self.before[0], Sequence)
        for stage in range(self.stages - 1, -1, -1):
            running, paths = self.problem.sums[stage], self.paths[stage]
            earlier, later = self.before[stage], self.after[stage + 1]
            bounds, taken = self.suffix[stage], chosen[stage]
            first, last = self.ends[stage - 1] if stage else (0, 0)
            begins = [begin for begin in range(first, last + 1) if is_list or begin in earlier]
            for end, value in self.suffix[stage + 1].items():
                done, after, total = running[end], later[end], chosen[stage + 1][end][0]
                rest = 0.0 if stage else self.problem.rest(end)
                low = self.lows[stage].get(end, end)
                for begin in begins:
                    if not low <= begin < end:
                        continue
                    own = done - running[begin]
                    bound = max(value, _longest(paths, earlier[begin], own, after)) + rest
                    if bound >= (aim if stage else self._aim()):
                        continue
                    known = bounds.get(begin, math.inf)
                    if bound < known or (bound == known and total + own < taken[begin][0]):
                        bounds[begin], taken[begin] = bound, (total + own, end)
        if 0 not in self.suffix[0]:
            return math.inf, None
        cut, begin = [], 0
        for stage in range(self.stages):
            end = chosen[stage][begin][1]
            cut.append(end - begin)
            begin = end
        return self.suffix[0][0], tuple(cut)

    def _extend(self, chosen: Chosen, cut: list[int], begin: int, rest: float) -> bool:
        """Search all cuts that begin with the chosen stages; return False if the limits stop the search.

        Args:
            chosen: The chosen stages.
            cut: Their layers.
            begin: Where the next stage begins.
            rest: What the first stage's layers add, seconds.
        """
        stage = len(cut)
        if stage == self.stages:
            self.simulations += 1
            seconds = self.problem.seconds(cut)
            if seconds < self.upper:
                self.upper, self.best = seconds, tuple(cut)
            return self.simulations < self.most
        if self.steps > self.most_steps:
            return False
        running, after, paths = self.problem.sums[stage], self.after[stage + 1], self.paths[stage]
        found = []
        for end, value in self.suffix[stage + 1].items():
            if not self.lows[stage].get(end, end) <= begin < end:
                continue
            added = rest if stage else self.problem.rest(end)
            own = running[end] - running[begin]
            value = max(value, _longest(paths, chosen.total, own, after[end])) + added
            if value >= self._aim():
                continue
            self.steps += stage + 1
            longer = self.problem.schedule.extend(chosen, own, after[end])
            value = max(value, longer.bound + added)
            if value < self._aim():
                found.append((value, longer.total + after[end], end, longer, added))
        for value, _total, end, longer, added in sorted(found, key=operator.itemgetter(0, 1)):
            if value >= self._aim():
                return True
            if not self._extend(longer, [*cut, end - begin], end, added):
                return False
        return True


def _longest(paths: Sequence[Path], before: float, own: float, after: float) -> float:
    """Return the lower bound on a step's time from one stage's paths, given the times of the other stages."""
    longest = 0.0
    for path in paths:
        seconds = path.before * before + path.own * own + path.after * after + path.seconds
        if seconds > longest:
            longest = seconds
    return longest
