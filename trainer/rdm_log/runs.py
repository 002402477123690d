# SPDX-License-Identifier: GPL-3.0-or-later
"""Records of a log → its runs: from a start to the end or to the next start.

A restarted job continues to write to the same file. A run ends where Megatron logs a new start, or where the
step number goes back without one: the rank that logs steps may be on another node than the rank that logs
starts.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from rdm_log import rank_timers
from rdm_log.figures import Curve, Largest, Marks, Sample, Series
from rdm_log.grammars import GRAD_NORM, MILLISECONDS
from rdm_log.lines import loss_name
from rdm_log.records import (
    NAN,
    SKIPPED,
    Argument,
    Checkpoint,
    EngineStep,
    Evaluation,
    Memory,
    Milestone,
    RankTimes,
    Record,
    Step,
    Throughput,
    Timer,
)

_OUTLIERS = 20
"""The number of slowest steps that are kept."""
_RECENT_TIMES = 10
"""The number of last step times that are kept, in order."""
_RECENT = 8
"""Another rank's copy of a line comes at most this many lines later."""
_SAME_TIME = 0.01
"""The relative difference between two ranks' times of the same step."""
_EVALUATIONS = 1000
_SECONDS = len("2026-11-22 10:11:12")
_EPOCH = "epoch"
_START = "after megatron is initialized"
_SUMS = (SKIPPED, NAN)
_NOT_FROM_STEPS = (
    *("file", "first_time", "last_time", "memory", "milestones", "evaluations", "timers", "arguments"),
    *("loaded", "saved", "checkpoints"),
)
"""The fields of a run that do not come from its steps."""


@dataclass
class Loss:
    """The first, last and lowest loss, the number of losses that are not finite, and the first such step."""

    name: str = ""
    first: float | None = None
    last: float | None = None
    lowest: float | None = None
    lowest_at: int = 0
    not_finite: int = 0
    not_finite_at: int = 0
    curve: Curve = field(default_factory=Curve)

    def add(self, iteration: int, name: str, value: float) -> None:
        """Add a step's loss."""
        self.name = self.name or name
        if not math.isfinite(value):
            self.not_finite_at = self.not_finite_at or iteration
            self.not_finite += 1
            return
        if self.first is None:
            self.first = value
        self.last = value
        if self.lowest is None or value < self.lowest:
            self.lowest, self.lowest_at = value, iteration
        self.curve.add(iteration, value)


@dataclass
class TimerFigures:
    """Statistics of a timer over a run, in milliseconds.

    Attributes:
        ranks: (sum, count) by rank, if the log has times by rank.
    """

    count: int = 0
    total: float = 0.0
    longest: float = 0.0
    ranks: dict[int, tuple[float, int]] = field(default_factory=dict)

    def add(self, timer: Timer) -> None:
        """Add a time."""
        self.count += 1
        self.total += timer.milliseconds
        self.longest = max(self.longest, timer.milliseconds)

    def extend(self, times: RankTimes) -> None:
        """Add the times of many ranks."""
        self.count += len(times.milliseconds)
        self.longest = max(self.longest, max(times.milliseconds))
        for rank, milliseconds in zip(times.ranks, times.milliseconds, strict=True):
            summed, count = self.ranks.get(rank, (0.0, 0))
            self.ranks[rank] = summed + milliseconds, count + 1
            self.total += milliseconds

    @property
    def mean(self) -> float:
        """The average of all times."""
        return self.total / self.count

    @property
    def slowest_rank(self) -> tuple[int, float] | None:
        """The rank with the longest average, and this average; None without times by rank."""
        averages = ((summed / count, rank) for rank, (summed, count) in self.ranks.items())
        worst = max(averages, default=None)
        return (worst[1], worst[0]) if worst else None


class _Clock:
    """Computes step times from the times before lines, for programs that do not log step times."""

    def __init__(self) -> None:
        self._last: tuple[int, datetime.datetime] | None = None

    def timed(self, iteration: int, values: dict[str, float], time: str) -> dict[str, float]:
        """Return a line's values with the time per step since the line before."""
        try:
            moment = datetime.datetime.fromisoformat(time)
        except ValueError:
            # The digits are not a date.
            return values
        before, self._last = self._last, (iteration, moment)
        if before is None or iteration <= before[0]:
            return values
        passed = moment - before[1]
        if passed <= datetime.timedelta():
            return values
        return {**values, MILLISECONDS: passed.total_seconds() * 1000.0 / (iteration - before[0])}


@dataclass
class Run:
    """One run, from its lines. Fields that are not listed here are as in the records.

    Attributes:
        series: Every field of the training lines over the steps; None if not requested.
        checkpoints: The steps of the last checkpoints that were saved.
        marks: Step times and losses, to recognise the same steps in another log.
    """

    file: str = ""
    lines: int = 0
    first_iteration: int = 0
    last_iteration: int = 0
    train_iterations: int = 0
    first_values: dict[str, float] = field(default_factory=dict)
    last_values: dict[str, float] = field(default_factory=dict)
    first_time: str = ""
    last_time: str = ""
    loss: Loss = field(default_factory=Loss)
    first_milliseconds: float | None = None
    times: Sample = field(default_factory=Sample)
    recent_times: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_TIMES))
    slowest: Largest = field(default_factory=lambda: Largest(_OUTLIERS))
    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_SUMS, 0.0))
    highest_grad_norm: float | None = None
    memory: dict[int, dict[str, float]] = field(default_factory=dict)
    milestones: dict[str, str] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    timers: defaultdict[str, TimerFigures] = field(default_factory=lambda: defaultdict(TimerFigures))
    arguments: dict[str, str] = field(default_factory=dict)
    loaded: int | None = None
    saved: int | None = None
    series: dict[str, Series] | None = None
    checkpoints: deque[int] = field(default_factory=lambda: deque(maxlen=_EVALUATIONS))
    engine: Run | None = None
    _clock: _Clock = field(default_factory=_Clock)
    _engine_clock: _Clock = field(default_factory=_Clock)
    _engine_logs_times: bool = False
    marks: Marks = field(default_factory=Marks)
    _recent: dict[int, Step] = field(default_factory=dict)
    _line_counts: dict[int, int] = field(default_factory=dict)
    _ranks: int = 1

    @property
    def compute_ms(self) -> dict[int, float]:
        """The average compute time per step by rank, if the timers of all ranks are logged."""
        timers = [self.timers[name].ranks for name in rank_timers.TIMERS if name in self.timers]
        found: dict[int, float] = {}
        for of_ranks in timers:
            for rank, (milliseconds, count) in of_ranks.items():
                found[rank] = found.get(rank, 0.0) + milliseconds / count
        return found

    @property
    def newest_values(self) -> dict[str, float]:
        """The fields of the last line; if it was cut, completed from the line before."""
        last = list(self._recent.values())[-2:]
        if len(last) < 2 or not last[-1].is_cut:
            return self.last_values
        return {**last[0].values, **self.last_values}

    @property
    def is_torn(self) -> bool:
        """The log breaks off within its last line, so that this lacks fields of the line before."""
        above, last = ([None, None, *self._recent.values()])[-2:]
        if last is None or not last.is_torn:
            return False
        return above is None or not above.values.keys() <= last.values.keys()

    @property
    def is_empty(self) -> bool:
        """The log has no record of it."""
        return not (self.lines or self.milestones or self.memory or self.timers or self.engine)

    def repeats(self, step: Step) -> bool:
        """Whether a training line repeats one of another rank or of another copy of the output."""
        known = self._recent.get(step.iteration)
        if known is None:
            return False
        if known.tag != step.tag or known is step:
            return True
        if not step.is_numbered:
            # The epoch went back: a new run.
            return False
        name = loss_name(known.values)
        same = ("consumed samples", GRAD_NORM, name)
        if any(known.values.get(key) != step.values.get(key) for key in same):
            return False
        before, now = known.values.get(MILLISECONDS, 0.0), step.values.get(MILLISECONDS, 0.0)
        if abs(before - now) <= _SAME_TIME * max(before, now):
            return True
        # If several ranks log the first step, they log all others, too, each with its own time.
        return self.lines == 1 or self._line_counts.get(step.iteration, 1) < self._ranks

    def add_repeated(self, step: Step) -> None:
        """Count a training line that ``repeats`` another one."""
        self._line_counts[step.iteration] = self._line_counts.get(step.iteration, 1) + 1
        if self.lines == 1:
            self._ranks = self._line_counts[step.iteration]

    def numbered(self, step: Step) -> Step:
        """Return a step with a number, for lines without one: the progress bar's, or else the next number.

        If the epoch goes back, a new run begins. If the line is a copy of the last one, return that step.
        """
        last, epoch = self.last_values, step.values.get(_EPOCH, math.inf)
        if not self.lines or epoch < last.get(_EPOCH, epoch):
            return step._replace(iteration=step.iteration or 1)
        if all(last.get(key) == step.values.get(key) for key in (_EPOCH, loss_name(last))):
            return self._recent[self.last_iteration]
        if step.iteration > self.last_iteration:
            return step
        interval = (self.last_iteration - self.first_iteration) // max(1, self.lines - 1)
        return step._replace(iteration=self.last_iteration + max(1, interval))

    def add_step(self, step: Step) -> None:
        """Add a training line."""
        iteration, values = step.iteration, step.values
        if self.lines == 0:
            self.first_iteration, self.first_values = iteration, values
        self.lines += 1
        self.last_iteration, self.last_values = iteration, values
        self.train_iterations = step.train_iterations or self.train_iterations
        if step.time:
            self.add_time(step.time[:_SECONDS])
            if MILLISECONDS not in values and len(step.time) > _SECONDS:
                values = self._clock.timed(iteration, values, step.time)
        self._recent[iteration] = step
        if len(self._recent) > _RECENT:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            if self._line_counts.pop(oldest, 1) < self._ranks:
                # The first step was logged twice because it ran twice, not because several ranks log steps.
                self._ranks = 1
        self._note(iteration, values, is_cut=step.is_cut)

    def _note(self, iteration: int, values: dict[str, float], *, is_cut: bool) -> None:
        """Add the values that are summed up over all steps, and a mark unless some values may be missing."""
        if self.series is not None:
            for key, value in values.items():
                self.series.setdefault(key, Series()).add(iteration, value)
        name = loss_name(values)
        if name:
            self.loss.add(iteration, name, values[name])
        milliseconds = values.get(MILLISECONDS)
        if milliseconds is not None:
            if self.first_milliseconds is None:
                self.first_milliseconds = milliseconds
            else:
                self.times.add(milliseconds)
                self.recent_times.append(milliseconds)
                self.slowest.add(milliseconds, iteration)
            if not is_cut:
                self.marks.add(iteration, milliseconds, values.get(name))
        for key in _SUMS:
            if number := values.get(key):
                self.sums[key] += number
        norm = values.get(GRAD_NORM)
        if norm is not None and (self.highest_grad_norm is None or norm > self.highest_grad_norm):
            self.highest_grad_norm = norm

    def add(self, record: Record) -> None:
        """Add any other record."""
        match record:
            case Timer(name=name):
                self.timers[name].add(record)
            case RankTimes(name=name):
                self.timers[name].extend(record)
            case Memory(rank=rank, mebibytes=sizes):
                self._add_memory(rank, sizes)
            case Milestone(name=name, time=time):
                self.milestones[name] = time
                self.add_time(time)
            case Evaluation():
                self.evaluations.append(record)
                if len(self.evaluations) > _EVALUATIONS:
                    del self.evaluations[1]
            case Checkpoint(kind="loaded", iteration=iteration):
                self.loaded = iteration
            case Checkpoint(kind="saved", iteration=iteration):
                self.saved = iteration
                if iteration not in self.checkpoints:
                    self.checkpoints.append(iteration)
            case Argument(name=name, value=value):
                self.arguments[name] = value
            case EngineStep(iteration=iteration, values=values, time=time):
                self.add_time(time[:_SECONDS])
                self._add_engine(iteration, self._timed(iteration, values, time))
            case Throughput(values=values, mebibytes=sizes):
                if sizes:
                    self._add_memory(0, sizes)
                # Its step number counts from the start of the process, so take the engine's last step.
                if self.engine is not None:
                    self._add_engine(self.engine.last_iteration, values)
            case Step():
                self.add_step(record)

    def add_time(self, time: str) -> None:
        """Add the time of a line, if it has one."""
        if time:
            self.first_time = min(self.first_time or time, time)
            self.last_time = max(self.last_time, time)

    def _add_memory(self, rank: int, mebibytes: dict[str, float]) -> None:
        known = self.memory.setdefault(rank, {})
        for key, size in mebibytes.items():
            known[key] = max(size, known.get(key, 0.0))

    def _timed(self, iteration: int, values: dict[str, float], time: str) -> dict[str, float]:
        """Return the engine's values for a step, with a step time from the clock if it never logs one.

        An engine without a pipeline logs only every few steps, with a time before the line.
        """
        self._engine_logs_times |= MILLISECONDS in values
        if not time or self._engine_logs_times:
            return values
        return self._engine_clock.timed(iteration, values, time)

    def _add_engine(self, iteration: int, values: dict[str, float]) -> None:
        """Add the engine's values for a step. They are used for runs without training lines."""
        if self.engine is None:
            self.engine = Run(series=None if self.series is None else {})
        engine = self.engine
        known = engine._recent.get(iteration)
        if known is not None:
            # The engine logs two lines for a step, each with some of the values.
            known.values.update(values)
            engine._note(iteration, values, is_cut=True)
        else:
            # The next lines may add values.
            engine.add_step(Step(iteration, 0, values, is_cut=True))


def _begins_run(run: Run, record: Record) -> bool:
    """Whether a record other than a training line belongs to a new run."""
    match record:
        case EngineStep(iteration=iteration):
            return not run.lines and run.engine is not None and iteration < run.engine.last_iteration
        case Milestone(name=name):
            return name == _START and (run.lines > 0 or name in run.milestones)
        case Argument():
            return run.lines > 0 or _START in run.milestones
    return False


def runs(records: Iterable[Record], file: str = "", *, series: bool = False) -> list[Run]:
    """Return the runs in one log, in order.

    Args:
        records: The log's records.
        file: The log's name, which is kept in the runs.
        series: Keep every field over the steps, for plots.
    """
    run = Run(file, series={} if series else None)
    found = [run]
    for record in records:
        run = add_record(run, record)
        if run is not found[-1]:
            found.append(run)
    return [with_engine(run) for run in found if not run.is_empty]


def add_record(run: Run, record: Record) -> Run:
    """Add the next record of a log; return the run that it belongs to, this one or a new one."""
    if not isinstance(record, Step):
        run = _next(run) if _begins_run(run, record) else run
        run.add(record)
        return run
    step = record if record.is_numbered else run.numbered(record)
    if run.lines and step.iteration <= run.last_iteration:
        if run.repeats(step):
            run.add_repeated(step)
            return run
        run = _next(run)
    run.add_step(step)
    return run


def _next(run: Run) -> Run:
    """Return an empty run that comes after a run of the same log."""
    return Run(run.file, times=Sample(run.times.most), series=None if run.series is None else {})


def with_engine(run: Run) -> Run:
    """Return a run with the steps of its engine, if it has no training lines."""
    engine = run.engine
    if engine is None or run.lines:
        return run
    others = {name: getattr(run, name) for name in _NOT_FROM_STEPS}
    return dataclasses.replace(engine, **others)
