# SPDX-License-Identifier: GPL-3.0-or-later
"""The step time of a pipeline of unequal stages.

A schedule computes when each stage ends, given all stages' times, and two lower bounds on a step's time: one
from a single stage, one from the first stages. The bounds are paths through the schedule. They let
:mod:`rdm_planner.partition` choose one stage after the other. All three grow with every stage's time.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

# The share of the forward pass in a stage's time if the backward pass takes twice as long.
_FORWARD = 1 / 3

# Relative tolerance for a pipeline to count as regular: two steps differ by the same time on all stages.
_SAME = 1e-12


class Path(NamedTuple):
    """A step takes at least ``before * B + own * O + after * A + seconds``.

    B is the total time of all stages before this one, O that of this one, and A that of all after it.
    """

    own: float
    after: float
    seconds: float
    before: float = 1.0


class Chosen(NamedTuple):
    """The first stages of a pipeline, whose times are known.

    Args:
        stages: The schedule's own record of each.
        total: Their total time, seconds.
        bound: Lower bound on a step's time, seconds.
    """

    stages: tuple[tuple[float, ...], ...] = ()
    total: float = 0.0
    bound: float = 0.0


class Schedule(Protocol):
    """One layout's pipeline."""

    @property
    def work(self) -> int:
        """Number of passes that :meth:`ends` simulates, forward and backward, over all stages."""
        ...

    def ends(self, times: Sequence[float]) -> list[float]:
        """Return when each stage ends its last backward pass, in seconds; the first stage ends last.

        Args:
            times: Forward plus backward time of one micro-batch on each stage, seconds.
        """
        ...

    def paths(self, stage: int) -> Iterable[Path]:
        """Return the lower bounds on a step's time that follow from one stage."""
        ...

    def extend(self, chosen: Chosen, time: float, after: float) -> Chosen:
        """Return the chosen stages with one more.

        Args:
            chosen: The stages before it.
            time: Its time, seconds.
            after: Lower bound on the total time of all stages after it, seconds.
        """
        ...


@dataclass(frozen=True)
class OneForwardOneBackward:
    """1F1B as FASOP simulates it: a send ends when the receiver is ready, and the sender waits for that.

    Only the first stage's outputs and the last stage's gradients take time to send. A forward pass is the
    same share of every stage's time, a third in FASOP. As in FASOP's program, a forward send does not wait in
    the steady phase.

    Source: Hwang et al., "FASOP", HPDC 2024, and its program; the schedule is PipeDream's (Narayanan et al.
    2021, figure 4).

    Args:
        stages: Pipeline stages p.
        micro_batches: Micro-batches m of a step.
        first_send: Time to send the first stage's output, seconds.
        last_send: Time to send the last stage's gradient, seconds.
        forward: The share of the forward pass in a stage's time.
    """

    stages: int
    micro_batches: int
    first_send: float = 0.0
    last_send: float = 0.0
    forward: float = _FORWARD

    @property
    def work(self) -> int:
        """See :class:`Schedule`."""
        return 2 * self.stages * self.micro_batches

    def ends(self, times: Sequence[float]) -> list[float]:
        """See :class:`Schedule`; it simulates micro-batches only until the pipeline is regular."""
        p, m = self.stages, self.micro_batches
        if p == 1:
            return [m * times[0]]
        f = [time * self.forward for time in times]
        g = [time * (1 - self.forward) for time in times]
        forward, sent = self._warm_up(f)
        first = max(0, p - m)
        for i in range(p - 1, first - 1, -1):
            forward[i] = max(sent[i], sent[i - 1] if i else 0.0) + f[i]
        backward = [0.0] * p
        gradient = [0.0] * p  # when a stage's gradient is sent; the first stage sends none
        self._backward(first, g, forward, backward, gradient)
        j = 1
        seen: tuple[float, list[float]] | None = None
        while j < m:
            # Stages before this one have no forward passes left.
            first = max(0, p - m + j)
            for i in range(p - 1, max(first, 1) - 1, -1):
                arrived = forward[i - 1] + self.first_send if i == 1 else forward[i - 1]
                free = gradient[i]
                forward[i] = (free if free > arrived else arrived) + f[i]
            if not first:
                forward[0] = backward[0] + f[0]
            self._backward(first, g, forward, backward, gradient)
            j += 1
            if j < m - p:
                # Once regular, the pipeline stays so until the first stage runs out of forward passes.
                state = forward + gradient[1:] + backward
                if seen is not None:
                    step = state[0] - seen[1][0]
                    if abs(step - seen[0]) <= _SAME * step and _regular(state, seen[1], step):
                        more = m - p - j
                        forward = [time + more * step for time in forward]
                        backward = [time + more * step for time in backward]
                        gradient = [time + more * step for time in gradient]
                        j += more
                        seen = None
                        continue
                    seen = (step, state)
                else:
                    seen = (0.0, state)
        return backward

    def _warm_up(self, f: list[float]) -> tuple[list[float], list[float]]:
        """Return when each stage ends its last warm-up forward pass, and when it has sent the output."""
        p, m = self.stages, self.micro_batches
        ends, sent = [0.0] * p, [0.0] * p
        for j in range(min(p - 1, m)):
            arrived = 0.0
            for i in range(p - 1):
                if j >= min(p - 1 - i, m):
                    break
                end = max(sent[i], arrived) + f[i]
                ends[i] = end
                # The receiver takes its warm-up inputs one at a time.
                if 0 < j < min(p - 2 - i, m) and ends[i + 1] > end:
                    end = ends[i + 1]
                arrived = sent[i] = end if i else end + self.first_send
        return ends, sent

    def _backward(
        self,
        first: int,
        g: list[float],
        forward: list[float],
        backward: list[float],
        gradient: list[float],
    ) -> None:
        """Simulate one backward pass of each stage; stages from ``first`` on did a forward pass before it."""
        last = self.stages - 1
        arrived = 0.0
        for i in range(last, -1, -1):
            start = forward[i] if i >= first else max(backward[i], gradient[i])
            end = (arrived if arrived > start else start) + g[i]
            if i:
                ready = forward[i - 1] if i > first else backward[i - 1]
                arrived = end if end > ready else ready
                if i == last:
                    arrived += self.last_send
                gradient[i] = arrived
            backward[i] = end

    def _ahead(self, stage: int) -> int:
        """Return a stage's forward passes in the warm-up of a step with enough micro-batches."""
        return self.stages - 1 - stage

    def paths(self, stage: int) -> list[Path]:
        """See :class:`Schedule`."""
        return self._paths[stage]

    @functools.cached_property
    def _paths(self) -> list[list[Path]]:
        return [self._paths_of(stage) for stage in range(self.stages)]

    def _paths_of(self, stage: int) -> list[Path]:
        """Return the paths through one stage.

        A path begins either with the stage's own warm-up or with the first micro-batch's trip to the last
        stage and back. It ends either with the stage's own last backward passes or with the last
        micro-batch's trip.
        """
        p, m = self.stages, self.micro_batches
        f, g = self.forward, 1 - self.forward
        if p == 1:
            return [Path(float(m), 0.0, 0.0)]
        is_last = stage == p - 1
        warm = self._ahead(stage)
        # Delays from a stage's forward to its backward pass, the reverse, and between two forward passes.
        to_backward = self.last_send if stage == p - 2 else 0.0
        to_forward = self.last_send if is_last else 0.0
        between_forwards = self.first_send if stage <= 1 else 0.0
        begin = self.first_send if stage else 0.0
        end = self.last_send if is_last else 0.0
        way = (0.0 if stage else self.first_send) + (0.0 if is_last else self.last_send)
        later_way = way + (0.0 if is_last or m == 1 else self._wait)
        if warm >= m:
            return [
                Path(f + m * g, 1.0, begin + way + (m - 1) * to_backward),
                Path(m * f + g, 1.0, begin + later_way + (m - 1) * between_forwards),
            ]
        steady = m - warm
        own_sends = max(0, warm - 1) * between_forwards + (self.first_send if warm and not stage else 0.0)
        starts = [
            ((warm + 1) * f, 0.0, begin + own_sends + to_backward),
            (f, 1.0, begin + way),
        ]
        around = to_backward + to_forward
        finishes = [
            (
                steady - 1 + (warm + 1) * g,
                0.0,
                (steady - 1) * around + warm * to_backward,
            )
        ]
        if steady > 1:
            finishes.append((steady - 1 + g, 1.0, (steady - 2) * around + to_forward + later_way))
        paths = [
            Path(start[0] + finish[0], start[1] + finish[1], start[2] + finish[2] + end)
            for start in starts
            for finish in finishes
        ]
        if steady == 1:
            paths.append(Path((warm + 1) * f + g, 1.0, begin + own_sends + later_way + end))
        return paths

    @property
    def _wait(self) -> float:
        """Extra seconds of the trip to the last stage for all micro-batches but the first.

        The last stage begins a micro-batch after sending the previous one's gradient. That send starts when
        the stage before it has done this micro-batch's forward pass.
        """
        # With two stages, the first one sends its output at the same time.
        return self.last_send if self.stages > 2 else max(0.0, self.last_send - self.first_send)

    def extend(self, chosen: Chosen, time: float, after: float) -> Chosen:
        """See :class:`Schedule`.

        These are the paths of :meth:`paths`, but a trip may turn back at any stage. A trip of stage i that
        turns at stage r waits for fewer micro-batches, as many as r computes before its first backward pass,
        and for the stages between instead.
        """
        p, m = self.stages, self.micro_batches
        if p == 1:
            return Chosen(bound=m * time)
        stage = len(chosen.stages)
        left = p - stage
        f, g = time * self.forward, time * (1 - self.forward)
        total = chosen.total + time
        # Micro-batches that pass this stage before the first returns to it, and return after the last passed.
        turns = min(self._ahead(stage) + 1, m)
        # The last two stages wait for the last stage's gradients.
        wait = self._wait if m > 1 else 0.0
        send_down = self.last_send if left == 1 or (left == 2 and m > 1) else 0.0
        send_back = (0.0, self.last_send + wait, self.last_send)[left] if left <= 2 else 0.0
        # The trip to the last stage and back, through stages that are not chosen yet.
        down = total + after + self.last_send
        back = down + wait
        base = chosen.total + (self.first_send if stage else 0.0)
        if m > turns:
            # Sends in the steady phase; those at its ends belong to the trips.
            base += (m - turns) * time + ((m - turns - 1) * self.last_send if left <= 2 else 0.0)
        # For each stage: the time between the trips at the start and at the end; its forward and backward
        # times; the total of the stages up to it; lower bounds on both trips.
        own = (base, f, g, total - (0.0 if stage else self.first_send), turns * f, turns * g)
        stages, bound = [], chosen.bound
        for between, forward, backward, until, start, finish in chosen.stages:
            way = total - until
            if (seconds := turns * forward + way + send_down) > start:
                start = seconds
            if (seconds := turns * backward + way + send_back) > finish:
                finish = seconds
            stages.append((between, forward, backward, until, start, finish))
        stages.append(own)
        for index, (between, forward, backward, until, start, finish) in enumerate(stages):
            if index < p - 1:
                if (seconds := forward + down - until) > start:
                    start = seconds
                if (seconds := backward + back - until) > finish:
                    finish = seconds
            if m > self._ahead(index) + 1:
                seconds = between + start + finish
            else:
                seconds = between + max(start + m * backward, m * forward + finish)
            if seconds > bound:
                bound = seconds
        return Chosen(tuple(stages), total, bound)


@dataclass(frozen=True)
class EagerOneForwardOneBackward(OneForwardOneBackward):
    """1F1B whose stages run further ahead, as the native engine does; sends take no time.

    Stage s of p computes w = (1 + e) (p - 1 - s) forward passes, and then a forward and a backward pass in
    turn (:mod:`rdm_core.pipeline_schedule`). The inherited bounds hold for any such w that no later stage
    exceeds and that is 0 for the last stage. They are paths through these passes, each of which waits for the
    one before it:

    - The first micro-batch's trip: forward through the stages from s to the last one, which turns at once
      (w = 0), and back to the first backward pass of s.
    - A trip that turns at a stage r behind s: forward passes 0 to w_r on s, of micro-batch w_r on the stages
      to r, where backward pass 0 follows, and back to s. These are passes of s before its first backward
      pass, because w_r is at most w_s.
    - In between, stage s alternates m - 1 - w_s times, from its first backward to its last forward pass.
    - The trips at the end, in the same way: from the last forward pass of s to r, whose last forward pass is
      followed by backward pass m - 1 - w_r, back to s, and backward passes m - 1 - w_r to m - 1 there.

    Source: Zhuang et al., "On Optimizing the Communication of Model Parallelism" (MLSys 2023), section 4.

    Args:
        eager: Additional forward passes e of the warm-up, for each later stage.
    """

    eager: int = 0

    def _ahead(self, stage: int) -> int:
        return (1 + self.eager) * super()._ahead(stage)

    def ends(self, times: Sequence[float]) -> list[float]:
        """See :class:`Schedule`; it simulates micro-batches only until the pipeline is regular.

        In round j a stage computes forward pass j + w, and backward pass j once its warm-up is over. So its
        input was sent 1 + e rounds before, and its gradient in the same round.
        """
        p, m, behind = self.stages, self.micro_batches, 1 + self.eager
        work = [
            (time * self.forward, time * (1 - self.forward), self._ahead(i)) for i, time in enumerate(times)
        ]
        free = [0.0] * p
        # When the stages' forward passes of the last rounds ended.
        sent = collections.deque([[0.0] * p] * behind, behind)
        j, seen = -self._ahead(0), [0.0] * p * (1 + behind)
        while j < m:
            inputs, outputs, gradient = sent[0], [0.0] * p, 0.0
            for i in range(p - 1, -1, -1):
                f, g, ahead = work[i]
                if 0 <= j + ahead < m:
                    arrived = inputs[i - 1] if i else 0.0
                    free[i] = outputs[i] = max(free[i], arrived) + f
                if j >= 0:
                    free[i] = gradient = max(free[i], gradient) + g
            sent.append(outputs)
            j += 1
            more = m - self._ahead(0) - j
            if j > 0 and more > 0:
                # Once regular, the pipeline stays so until the first stage runs out of forward passes.
                state = [*free, *itertools.chain(*sent)]
                step = state[0] - seen[0]
                if _regular(state, seen, step):
                    free = [time + more * step for time in free]
                    sent = collections.deque([[time + more * step for time in one] for one in sent], behind)
                    j += more
                seen = state
        return free


@dataclass(frozen=True)
class BlockingSends:
    """A schedule whose stages do nothing else while they send and receive.

    Args:
        inner: The schedule without sends.
        seconds: Seconds that sends add to each stage's time for one micro-batch.
    """

    inner: Schedule
    seconds: tuple[float, ...]

    @functools.cached_property
    def _before(self) -> list[float]:
        return [0.0, *itertools.accumulate(self.seconds)]

    @property
    def work(self) -> int:
        """See :class:`Schedule`."""
        return self.inner.work

    def ends(self, times: Sequence[float]) -> list[float]:
        """See :class:`Schedule`."""
        return self.inner.ends([time + added for time, added in zip(times, self.seconds, strict=True)])

    def paths(self, stage: int) -> Iterator[Path]:
        """See :class:`Schedule`."""
        before, own = self._before[stage], self.seconds[stage]
        after = self._before[-1] - self._before[stage + 1]
        for path in self.inner.paths(stage):
            seconds = path.seconds + path.before * before + path.own * own + path.after * after
            yield path._replace(seconds=seconds)

    def extend(self, chosen: Chosen, time: float, after: float) -> Chosen:
        """See :class:`Schedule`."""
        stage = len(chosen.stages)
        sends = self._before[-1] - self._before[stage + 1]
        # Times exclude the sends here and include them in the inner schedule.
        inside = chosen._replace(total=chosen.total + self._before[stage])
        found = self.inner.extend(inside, time + self.seconds[stage], after + sends)
        return found._replace(total=found.total - self._before[stage + 1])


def _regular(now: list[float], before: list[float], step: float) -> bool:
    return all(abs(a - b - step) <= _SAME * a for a, b in zip(now, before, strict=True))
