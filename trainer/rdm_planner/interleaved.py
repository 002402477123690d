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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from rdm_core.pipeline_schedule import passes
from rdm_planner.partition import Problem
from rdm_planner.schedules import Chosen, Path

_MOST_CHUNKS = 4

# Beyond this many groups of one micro-batch per stage, each further group adds the same time.
_REGULAR = 4


def degrees(blocks: int, stages: int) -> list[int]:
    """Return the numbers of chunks to try: 2, and those up to 4 that divide the blocks of an even stage.

    More chunks hardly shrink the bubble, but send more.
    """
    most = blocks // stages if stages > 1 else 0
    return [chunks for chunks in range(2, min(most, _MOST_CHUNKS) + 1) if chunks == 2 or most % chunks == 0]


def chunk_blocks(blocks: Sequence[int], chunks: int) -> list[int]:
    """Return the blocks of each chunk in the model's order; a stage's first chunks take the remainder."""
    return [count // chunks + (chunk < count % chunks) for chunk in range(chunks) for count in blocks]


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


@dataclass(frozen=True)
class Interleaved:
    """Interleaved 1F1B; see :class:`rdm_planner.schedules.Schedule`.

    Args:
        stages: Pipeline stages p.
        chunks: Chunks v of each stage.
        micro_batches: Micro-batches m of a step, a multiple of the stages.
        forward: The share of the forward pass in a stage's time.
    """

    stages: int
    chunks: int
    micro_batches: int
    forward: float = 1 / 3

    @property
    def work(self) -> int:
        """See :class:`rdm_planner.schedules.Schedule`."""
        return 2 * self.stages * self.chunks * min(self.micro_batches, 2 * _REGULAR * self.stages)

    def ends(self, times: Sequence[float]) -> list[float]:
        """See :class:`rdm_planner.schedules.Schedule`; it assumes chunks of equal size."""
        return self.ends_of_chunks([time / self.chunks for time in times] * self.chunks)

    def ends_of_chunks(self, times: Sequence[float]) -> list[float]:
        """Return when each stage ends its last backward pass, in seconds.

        Args:
            times: Forward plus backward time of one micro-batch on each virtual stage, seconds.
        """
        work = [time * share for time in times for share in (self.forward, 1 - self.forward)]
        groups = self.micro_batches // self.stages
        if groups <= _REGULAR:
            return self._ends(self.micro_batches, work)
        before, after = (self._ends(count * self.stages, work) for count in (_REGULAR - 1, _REGULAR))
        return [end + (groups - _REGULAR) * (end - less) for less, end in zip(before, after, strict=True)]

    def _ends(self, micro_batches: int, work: Sequence[float]) -> list[float]:
        order = _order(self.stages, self.chunks, micro_batches)
        last = [0.0] * self.stages
        for one, end in zip(order, _simulated(self.stages, order, work), strict=True):
            last[one[0]] = end
        return last

    def paths(self, _stage: int) -> list[Path]:
        """See :class:`rdm_planner.schedules.Schedule`.

        A stage computes all its passes. Before its first pass and after its last one, each earlier stage
        computes its first chunk, which is never smaller than its other chunks.
        """
        return [Path(float(self.micro_batches), 0.0, 0.0, 1 / self.chunks)]

    def extend(self, chosen: Chosen, time: float, _after: float) -> Chosen:
        """See :class:`rdm_planner.schedules.Schedule`."""
        return Chosen((*chosen.stages, ()), chosen.total + time)


@dataclass(frozen=True)
class InterleavedProblem(Problem):
    """A problem for an interleaved pipeline of a model whose blocks are alike; a cut counts units per stage.

    Args:
        interleaved: The schedule, without sends.
        sends: Seconds that sends add to each stage's time for one micro-batch.
    """

    # The bounds are too loose to prove a cut.
    effort: ClassVar[float] = 0.05

    interleaved: Interleaved = Interleaved(1, 1, 1)
    sends: tuple[float, ...] = ()

    def ends(self, cut: Sequence[int]) -> list[float]:
        """See :class:`rdm_planner.partition.Problem`; it uses the actual blocks of each chunk."""
        stages, chunks = self.interleaved.stages, self.interleaved.chunks
        blocks = [count - (stage == 0) - (stage == stages - 1) for stage, count in enumerate(cut)]
        times = []
        for virtual, count in enumerate(chunk_blocks(blocks, chunks)):
            stage = virtual % stages
            running = self.sums[stage]
            times.append(count * (running[2] - running[1]) + self.sends[stage] / chunks)
        times[0] += self.sums[0][1]
        times[-1] += self.sums[-1][-1] - self.sums[-1][-2]
        return self.interleaved.ends_of_chunks(times)

    def seconds(self, cut: Sequence[int]) -> float:
        """See :class:`rdm_planner.partition.Problem`; infinite where a chunk would be empty."""
        return super().seconds(cut) if self._fills(cut) else math.inf

    def holds(self, cut: Sequence[int]) -> bool:
        """See :class:`rdm_planner.partition.Problem`."""
        return self._fills(cut) and super().holds(cut)

    def _fills(self, cut: Sequence[int]) -> bool:
        return min(cut) >= self.interleaved.chunks and cut[0] > self.interleaved.chunks
