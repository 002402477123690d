# SPDX-License-Identifier: GPL-3.0-or-later
"""The step time of an interleaved pipeline as the native engine runs it.

Passes run in the order of :mod:`rdm_core.pipeline_schedule`. A pass begins when its stage is free and its
input has arrived. Chunk ``c`` of stage ``s`` is virtual stage ``c * stages + s``.

Source: Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM"
(2021), section 2.2.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rdm_core.pipeline_schedule import most_held, passes
from rdm_planner.partition import CutSearch, Problem, ends_that_fit
from rdm_planner.schedules import Chosen, Path

_MOST_CHUNKS = 4

# The fewest groups of one micro-batch per stage that show whether each further group adds the same time.
_FEW_GROUPS = 4

# Relative tolerance for groups to add the same time.
_SAME = 1e-9

# After simulating this many passes, the search for a cut stops.
_WORK = 200_000

# The most that moving single blocks is expected to gain, as a share of the step.
_MOST_GAIN = 0.03

# The most chunks of a pipeline of which two blocks are moved at a time, if moving one no longer helps.
_FEW_CHUNKS = 8


def degrees(blocks: int, stages: int) -> list[int]:
    """Return the numbers of chunks to try: 2, and those up to 4 that divide the blocks of an even stage.

    More chunks hardly shrink the bubble, but send more.
    """
    most = blocks // stages if stages > 1 else 0
    return [chunks for chunks in range(2, min(most, _MOST_CHUNKS) + 1) if chunks == 2 or most % chunks == 0]


def chunk_blocks(blocks: Sequence[int], chunks: int) -> list[int]:
    """Return the blocks of each chunk in the model's order; a stage's first chunks take the remainder."""
    return [count // chunks + (chunk < count % chunks) for chunk in range(chunks) for count in blocks]


def of_stages(cut: Sequence[int], stages: int) -> list[int]:
    """Return what each stage has of a cut that counts for each chunk in the model's order.

    Args:
        cut: Layers of each chunk; with one chunk a stage, those of each stage.
        stages: Stages of the pipeline.
    """
    return [sum(cut[stage::stages]) for stage in range(stages)]


class Timed(NamedTuple):
    """A pass of a step with its times.

    Args:
        stage: The stage, from 0.
        chunk: The chunk of the stage.
        micro_batch: The micro-batch of the step.
        is_forward: It is a forward pass.
        begin: Seconds after the step begins.
        end: Seconds after the step begins.
    """

    stage: int
    chunk: int
    micro_batch: int
    is_forward: bool
    begin: float
    end: float


# A pass: its stage; its work (twice its virtual stage, plus one for a backward pass); the number of the pass
# it waits for, from 1, or 0 for none; its micro-batch.
_Pass = tuple[int, int, int, int]


@functools.lru_cache(maxsize=64)
def _order(stages: int, chunks: int, micro_batches: int, eager: int = 0) -> tuple[_Pass, ...]:
    """Return the passes of all stages, each after the pass it waits for."""
    last = stages * chunks - 1
    numbers = [[0] * micro_batches for _ in range(2 * last + 2)]
    waiting = [iter(passes(stage, stages, chunks, micro_batches, eager)) for stage in range(stages)]
    first = [next(order, None) for order in waiting]
    found: list[_Pass] = []
    ready = list(range(stages))
    while ready:
        stage = ready.pop()
        while (one := first[stage]) is not None:
            is_forward, chunk, micro_batch = one
            virtual = chunk * stages + stage
            work = 2 * virtual + (not is_forward)
            needed = work - 2 if is_forward else work + 2 if virtual < last else work - 1
            needs = numbers[needed][micro_batch] if needed >= 0 else 0
            if not needs and needed >= 0:
                break
            found.append((stage, work, needs, micro_batch))
            numbers[work][micro_batch] = len(found)
            first[stage] = next(waiting[stage], None)
            following = virtual + 1 if is_forward else virtual - 1
            if 0 <= following <= last:
                ready.append(following % stages)
    return tuple(found)


def _simulated(stages: int, order: Sequence[_Pass], work: Sequence[float]) -> list[float]:
    """Return when each pass ends."""
    free, ends = [0.0] * stages, [0.0]
    for stage, which, needs, _ in order:
        begin = max(free[stage], ends[needs])
        free[stage] = begin + work[which]
        ends.append(free[stage])
    return ends[1:]


def timeline(
    work: Sequence[tuple[float, float]], stages: int, micro_batches: int, eager: int = 0
) -> list[Timed]:
    """Return the passes of a step, ordered by when they begin.

    Args:
        work: Seconds of the forward and the backward pass of each virtual stage.
        stages: Stages of the pipeline.
        micro_batches: Micro-batches of the step; with several chunks, a multiple of the stages.
        eager: Additional forward passes of the warm-up, for each later stage.
    """
    flat = list(itertools.chain(*work))
    order = _order(stages, len(work) // stages, micro_batches, eager)
    ends = _simulated(stages, order, flat)
    found = [
        Timed(stage, which // 2 // stages, micro_batch, which % 2 == 0, end - flat[which], end)
        for (stage, which, _, micro_batch), end in zip(order, ends, strict=True)
    ]
    return sorted(found, key=lambda one: one.begin)


class _Step(NamedTuple):
    """The passes of a step and the positions among them that its time depends on.

    Args:
        order: The passes.
        last: Each stage's last one.
        before: The passes of a group in the steady phase, of all stages.
        after: The same passes of the next group.
    """

    order: tuple[_Pass, ...]
    last: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]


@functools.lru_cache(maxsize=64)
def _step(stages: int, chunks: int, groups: int) -> _Step:
    order = _order(stages, chunks, groups * stages)
    own: list[list[int]] = [[] for _ in range(stages)]
    for position, one in enumerate(order):
        own[one[0]].append(position)
    # Between its warm-up and its last backward passes, a stage has at least two fewer groups than the step.
    size, before, after = 2 * stages * chunks, list[int](), list[int]()
    for stage, positions in enumerate(own):
        warm_up = most_held(stage, stages, chunks, groups * stages) - 1
        begin = warm_up + max(0, groups - _FEW_GROUPS) * size
        before += positions[begin : begin + size]
        after += positions[begin + size : begin + 2 * size]
    return _Step(order, tuple(positions[-1] for positions in own), tuple(before), tuple(after))


@dataclass(frozen=True)
class Interleaved:
    """Interleaved 1F1B; see :class:`rdm_planner.schedules.Schedule`.

    Args:
        stages: Pipeline stages p.
        chunks: Chunks v of each stage.
        micro_batches: Micro-batches m of a step, a multiple of the stages.
        forward: The share of the forward pass in a stage's time, if only that time is known.
    """

    stages: int
    chunks: int
    micro_batches: int
    forward: float = 1 / 3

    @property
    def work(self) -> int:
        """See :class:`rdm_planner.schedules.Schedule`."""
        return 2 * self.stages * self.chunks * min(self.micro_batches, 2 * _FEW_GROUPS * self.stages)

    def ends(self, times: Sequence[float]) -> list[float]:
        """See :class:`rdm_planner.schedules.Schedule`; it assumes chunks of equal size."""
        forward, backward = self.forward / self.chunks, (1 - self.forward) / self.chunks
        return self.ends_of_chunks([(time * forward, time * backward) for time in times] * self.chunks)

    def ends_of_chunks(self, work: Sequence[tuple[float, float]]) -> list[float]:
        """Return when each stage ends its last backward pass, in seconds.

        It simulates few groups of one micro-batch per stage, and twice as many until each further group adds
        the same time. That a stage takes longer than the others may show only after many groups.

        Args:
            work: Seconds of the forward and the backward pass of each virtual stage.
        """
        flat = list(itertools.chain(*work))
        groups = self.micro_batches // self.stages
        simulated = min(groups, _FEW_GROUPS)
        while True:
            step = _step(self.stages, self.chunks, simulated)
            ends = _simulated(self.stages, step.order, flat)
            added = 0.0
            if simulated < groups:
                # A pass waits for none that ended more than a group before it.
                more = [ends[late] - ends[early] for early, late in zip(step.before, step.after, strict=True)]
                if max(more) - min(more) > _SAME * max(more):
                    simulated = min(groups, 2 * simulated)
                    continue
                added = (groups - simulated) * max(more)
            return [ends[last] + added for last in step.last]

    def paths(self, _stage: int) -> list[Path]:
        """See :class:`rdm_planner.schedules.Schedule`.

        A stage computes all its passes. How long it waits for others depends on their chunks.
        """
        return [Path(float(self.micro_batches), 0.0, 0.0, 0.0)]

    def extend(self, chosen: Chosen, time: float, _after: float) -> Chosen:
        """See :class:`rdm_planner.schedules.Schedule`."""
        return Chosen((*chosen.stages, ()), chosen.total + time)


@dataclass(frozen=True)
class InterleavedProblem(Problem):
    """A problem for an interleaved pipeline of a model whose blocks are alike.

    A cut counts the units of each chunk in the model's order.

    Args:
        interleaved: The schedule, without sends.
        sends: Seconds that sends add to each stage's time for one micro-batch.
        backward: For each stage, running sums of the layers' backward passes, seconds.
        holds_chunks: Whether a stage can hold so many units in each of its chunks.
    """

    interleaved: Interleaved = Interleaved(1, 1, 1)
    sends: tuple[float, ...] = ()
    backward: Sequence[Sequence[float]] = ()
    holds_chunks: Callable[[int, Sequence[int]], bool] = lambda _stage, _units: True

    def search(self) -> ChunkSearch:
        """See :class:`rdm_planner.partition.Problem`."""
        return ChunkSearch(self)

    def times(self, cut: Sequence[int]) -> list[float]:
        """See :class:`rdm_planner.partition.Problem`."""
        return super().times(of_stages(cut, self.interleaved.stages))

    def work(self, cut: Sequence[int]) -> list[tuple[float, float]]:
        """Return the seconds of each chunk's forward and backward pass, in the model's order."""
        stages, last = self.interleaved.stages, len(cut) - 1
        found = []
        for virtual, count in enumerate(cut):
            stage = virtual % stages
            blocks = count - (virtual == 0) - (virtual == last)
            # Outputs go forward, gradients go back.
            send = self.sends[stage] / self.interleaved.chunks / 2
            both, backward = (
                blocks * (running[2] - running[1])
                + (running[1] if virtual == 0 else 0.0)
                + (running[-1] - running[-2] if virtual == last else 0.0)
                for running in (self.sums[stage], self.backward[stage])
            )
            found.append((both - backward + send, backward + send))
        return found

    def ends(self, cut: Sequence[int]) -> list[float]:
        """See :class:`rdm_planner.partition.Problem`."""
        return self.interleaved.ends_of_chunks(self.work(cut))

    def seconds(self, cut: Sequence[int]) -> float:
        """See :class:`rdm_planner.partition.Problem`; infinite where a chunk would be empty."""
        return super().seconds(cut) if _fills(cut) else math.inf

    def holds(self, cut: Sequence[int]) -> bool:
        """See :class:`rdm_planner.partition.Problem`."""
        stages = self.interleaved.stages
        return _fills(cut) and all(self.holds_chunks(stage, cut[stage::stages]) for stage in range(stages))

    def spread(self, units: Sequence[int]) -> tuple[int, ...]:
        """Return the cut that spreads each stage's blocks over its chunks.

        A stage with too few blocks for its chunks takes some from the stages with the most.
        """
        chunks, filled = self.interleaved.chunks, list(units)
        for stage, count in enumerate(units):
            for _ in range(chunks + (stage == 0) - count):
                filled[filled.index(max(filled))] -= 1
                filled[stage] += 1
        blocks = [count - (stage == 0) - (stage == len(units) - 1) for stage, count in enumerate(filled)]
        cut = chunk_blocks(blocks, chunks)
        cut[0] += 1
        cut[-1] += 1
        return tuple(cut)

    def fitted(self, units: Sequence[int]) -> tuple[int, ...]:
        """Return what :meth:`spread` returns, but more in the last chunk of a stage that does not fit.

        A chunk holds at least as many micro-batches as those after it.
        """
        cut, stages = list(self.spread(units)), self.interleaved.stages
        for stage in range(stages):
            own = cut[stage::stages]
            while not self.holds_chunks(stage, own):
                blocks = [count - (stage == chunk == 0) for chunk, count in enumerate(own[:-1])]
                if max(blocks) <= 1:
                    break
                own[blocks.index(max(blocks))] -= 1
                own[-1] += 1
            cut[stage::stages] = own
        return tuple(cut)


def _fills(cut: Sequence[int]) -> bool:
    """Tell whether each chunk has a block; the last one may have the head alone."""
    return min(cut) > 0 and cut[0] > 1


class ChunkSearch(CutSearch):
    """The search for the blocks of each chunk: it moves one or two blocks while that helps."""

    problem: InterleavedProblem

    def begin(self, below: float, tries: Callable[[], Iterable[Sequence[int]]] = tuple) -> None:
        """See :class:`rdm_planner.partition.CutSearch`."""
        self.upper = self.bound = below
        self._least_by_units: dict[tuple[int, ...], float] = {}
        if not (ends := ends_that_fit(self.problem)):
            return
        balanced = self._balanced(ends)
        # No cut has a faster slowest stage than the balanced ones.
        slowest = min((max(Problem.times(self.problem, units)) for units in balanced), default=0.0)
        least = self.problem.interleaved.micro_batches * (slowest + min(self.problem.sends))
        self.bound = min(below, least * (1 - _SAME) + self.problem.least_rest)
        for cut in (*map(tuple, tries()), *map(self.problem.fitted, balanced)):
            if self.bound < self.upper and self.problem.holds(cut):
                self._simulate(cut)

    def finish(self, below: float) -> None:
        """See :class:`rdm_planner.partition.CutSearch`."""
        if below < self.upper:
            self.upper, self.best = below, None
        self.most = self.simulations + max(1, _WORK // self.problem.schedule.work)
        for seconds, cut in sorted((seconds, cut) for cut, seconds in self.starts.items()):
            if seconds * (1 - _MOST_GAIN) < self.upper:
                self._descend(cut, seconds, self.most)
        if self.best is not None and len(self.best) <= _FEW_CHUNKS:
            self._descend(self.best, self.upper, self.most, blocks=2)

    def _simulate(self, cut: tuple[int, ...]) -> float:
        """Return a cut's time, and keep the fastest cut."""
        if cut not in self.starts:
            self.simulations += 1
            self.starts[cut] = self.problem.seconds(cut)
            if self.starts[cut] < self.upper:
                self.upper, self.best = self.starts[cut], cut
        return self.starts[cut]

    def _descend(self, cut: tuple[int, ...], upper: float, most: int, blocks: int = 1) -> None:
        """Move up to so many blocks while that helps, first so that the slowest stage is fastest.

        It also goes on from cuts that are as fast: a step may get faster only after several moves.
        """
        equal, tried = [cut], set()
        while equal:
            cut = equal.pop()
            tried.add(cut)
            for least, other in sorted((self._least_of(moved), moved) for moved in _moved(cut, blocks)):
                if least >= upper or self.simulations >= most:
                    break
                if not self.problem.holds(other):
                    continue
                seconds = self._simulate(other)
                if seconds < upper * (1 - _SAME):
                    equal, upper = [other], seconds
                    break
                if seconds <= upper * (1 + _SAME) and other not in tried:
                    equal.append(other)

    def _least_of(self, cut: tuple[int, ...]) -> float:
        """Return a lower bound on a cut's time; infinite if a chunk would be empty."""
        return self._of_units(tuple(of_stages(cut, self.stages))) if _fills(cut) else math.inf

    def _of_units(self, units: tuple[int, ...]) -> float:
        """Return the same for all cuts with so many units on each stage."""
        if units not in self._least_by_units:
            times = zip(Problem.times(self.problem, units), self.problem.sends, strict=True)
            slowest = max(map(sum, times))
            least = self.problem.interleaved.micro_batches * slowest + self.problem.least_rest
            self._least_by_units[units] = least
        return self._least_by_units[units]


def _moved(cut: tuple[int, ...], blocks: int) -> set[tuple[int, ...]]:
    """Return the cuts that differ by up to so many blocks in another chunk."""
    found = {cut}
    for _ in range(blocks):
        for one in list(found):
            for source, target in itertools.permutations(range(len(cut)), 2):
                moved = list(one)
                moved[source] -= 1
                moved[target] += 1
                found.add(tuple(moved))
    return found - {cut}
