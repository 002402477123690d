# SPDX-License-Identifier: GPL-3.0-or-later
"""What a pipeline of unequal stages takes for one step.

A schedule answers three questions: when does each stage end, given all stages' times; what does a step take
at least, as far as one stage decides it; and as far as the first stages do. The latter are paths through the
schedule; they let :mod:`rdm_planner.partition` choose one stage after the other. All grow with every stage's
time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

__all__ = ["BlockingSends", "Chosen", "OneForwardOneBackward", "Path", "Schedule"]

# The share of a forward in a stage's time where a backward takes twice as long.
_FORWARD = 1 / 3

# Two steps of a pipeline differ by the same time on all stages when they do so within this part of it.
_SAME = 1e-12


class Path(NamedTuple):
    """A step takes at least ``before * B + own * O + after * A + seconds``.

    B, O and A are the times of all stages before this one, of this one and of all after it.
    """

    own: float
    after: float
    seconds: float
    before: float = 1.0


class Chosen(NamedTuple):
    """The first stages of a pipeline, whose times are known.

    Args:
        stages: What a schedule remembers of each.
        total: Their times together, seconds.
        bound: What a step takes at least, seconds.
    """

    stages: tuple[tuple[float, ...], ...] = ()
    total: float = 0.0
    bound: float = 0.0


class Schedule(Protocol):
    """One layout's pipeline."""

    @property
    def work(self) -> int:
        """Passes that :meth:`ends` simulates: forwards and backwards of all stages."""
        ...

    def ends(self, times: Sequence[float]) -> list[float]:
        """Return when each stage ends its last backward, in seconds; the first stage ends last.

        Args:
            times: Forward and backward of one micro-batch on each stage, seconds.
        """
        ...

    def paths(self, stage: int) -> Iterable[Path]:
        """Return what bounds a step from below, as far as one stage decides it.

        Args:
            stage: The stage.
        """
        ...

    def extend(self, chosen: Chosen, time: float, after: float) -> Chosen:
        """Return what is known when one more stage is chosen.

        Args:
            chosen: The stages before it.
            time: Its time, seconds.
            after: What all stages after it take at least together, seconds.
        """
        ...


@dataclass(frozen=True)
class OneForwardOneBackward:
    """1F1B as FASOP simulates it: a send ends when the receiver is ready, and the sender waits for that.

    Only the first stage's outputs and the last stage's gradients take time to send. A forward is the same
    share of every stage's time, a third in FASOP. Of the program, it keeps that a forward send does not wait
    in the steady phase.

    Source: Hwang et al., "FASOP", HPDC 2024, and its program; the schedule is PipeDream's (Narayanan et al.
    2021, figure 4).

    Args:
        stages: Pipeline stages p.
        micro_batches: Micro-batches m of a step.
        first_send: Of the first stage's output, seconds.
        last_send: Of the last stage's gradient, seconds.
        forward: The share of a forward in a stage's time.
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
        """See :class:`Schedule`; work grows with stages times micro-batches until the pipeline is regular."""
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
        gradient = [0.0] * p  # when a stage's gradient is sent; nobody waits for the first stage's
        self._backward(first, g, forward, backward, gradient)
        j = 1
        seen: tuple[float, list[float]] | None = None
        while j < m:
            # Stages before this one have no forward left.
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
                # Once all stages move on by the same time, they do so until the first runs out of forwards.
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
        """Return the ends of each stage's last warm-up forward, and of its sending."""
        p, m = self.stages, self.micro_batches
        ends, sent = [0.0] * p, [0.0] * p
        for j in range(min(p - 1, m)):
            arrived = 0.0
            for i in range(p - 1):
                if j >= min(p - 1 - i, m):
                    break
                end = max(sent[i], arrived) + f[i]
                ends[i] = end
                # The receiver takes its warm-up inputs one after the other.
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
        """Do one backward of each stage; those from ``first`` on have done a forward before it."""
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

    def paths(self, stage: int) -> list[Path]:
        """See :class:`Schedule`."""
        return self._paths[stage]

    @functools.cached_property
    def _paths(self) -> list[list[Path]]:
        return [self._paths_of(stage) for stage in range(self.stages)]

    def _paths_of(self, stage: int) -> list[Path]:
        """Return the paths that one stage decides.

        A path begins either with the stage's own warm-up or with the first micro-batch's way down and back,
        and ends either with the stage's own last backwards or with the last micro-batch's way down and back.
        """
        p, m = self.stages, self.micro_batches
        f, g = self.forward, 1 - self.forward
        if p == 1:
            return [Path(float(m), 0.0, 0.0)]
        is_last = stage == p - 1
        warm = p - 1 - stage
        # Between the stage's forward and backward, backward and forward, and two of a kind.
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
        """What a way down to the last stage takes longer for all micro-batches but the first, seconds.

        The last stage begins one when it has sent the gradient of the one before; that takes until the stage
        before it has done this one's forward, and the send itself.
        """
        # Of two stages the first sends its output meanwhile.
        return self.last_send if self.stages > 2 else max(0.0, self.last_send - self.first_send)

    def extend(self, chosen: Chosen, time: float, after: float) -> Chosen:
        """See :class:`Schedule`.

        As :meth:`paths`, but the way down may turn at any stage. From stage r on there are r - i fewer
        micro-batches to wait for, and what lies between is waited for instead.
        """
        p, m = self.stages, self.micro_batches
        if p == 1:
            return Chosen(bound=m * time)
        stage = len(chosen.stages)
        left = p - stage
        f, g = time * self.forward, time * (1 - self.forward)
        total = chosen.total + time
        # Micro-batches that go down before the first comes back from here, and come back after the last.
        turns = min(left, m)
        # The last two stages wait for the last stage's gradients.
        wait = self._wait if m > 1 else 0.0
        send_down = self.last_send if left == 1 or (left == 2 and m > 1) else 0.0
        send_back = (0.0, self.last_send + wait, self.last_send)[left] if left <= 2 else 0.0
        # The way to the last stage and back, through stages that are not chosen yet.
        down = total + after + self.last_send
        back = down + wait
        base = chosen.total + (self.first_send if stage else 0.0)
        if m > left:
            # Sends of a regular step; the paths above have those of its ends.
            base += (m - left) * time + ((m - left - 1) * self.last_send if left <= 2 else 0.0)
        # For each stage: what lies between the ways at the begin and at the end; its forward, its backward;
        # the stages up to it; what the ways take at least.
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
            if index > p - m:
                seconds = between + start + finish
            else:
                seconds = between + max(start + m * backward, m * forward + finish)
            if seconds > bound:
                bound = seconds
        return Chosen(tuple(stages), total, bound)


@dataclass(frozen=True)
class BlockingSends:
    """A schedule whose stages do nothing else while they send and receive.

    Args:
        inner: The schedule without.
        seconds: What that adds to each stage's time for one micro-batch.
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
        # Stages' times are without the sends here, and with them to the schedule inside.
        inside = chosen._replace(total=chosen.total + self._before[stage])
        found = self.inner.extend(inside, time + self.seconds[stage], after + sends)
        return found._replace(total=found.total - self._before[stage + 1])


def _regular(now: list[float], before: list[float], step: float) -> bool:
    return all(abs(a - b - step) <= _SAME * a for a, b in zip(now, before, strict=True))
