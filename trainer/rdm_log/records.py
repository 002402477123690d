# SPDX-License-Identifier: GPL-3.0-or-later
"""What lines of a log say: one record for each thing."""

from __future__ import annotations

from array import array
from typing import NamedTuple

DONE = "after training is done"
"""The milestone of a training that ended normally."""
SKIPPED = "number of skipped iterations"
NAN = "number of nan iterations"


class Step(NamedTuple):
    """A training line: figures of a step, and averages since the line before.

    Attributes:
        iteration: The step, counted from 1.
        train_iterations: Steps of the whole training; 0 when the line says ``infinity``.
        values: Every numeric field, by its name in the line. The time of a step is always in milliseconds, as
            ``MILLISECONDS``.
        tag: A launcher's name of the rank or node before the line; usually empty.
        time: ``YYYY-MM-DD HH:MM:SS`` if the line has it, as in newer Megatron-LM; with ``.mmm`` for programs
            that do not log the time of a step.
        is_cut: Fields may be missing at its end.
        is_numbered: The line has the number of its step. Otherwise ``iteration`` comes from the progress bar
            before it, or is 0.
        is_torn: The log breaks off within the line.
    """

    iteration: int
    train_iterations: int
    values: dict[str, float]
    tag: str = ""
    time: str = ""
    is_cut: bool = False
    is_numbered: bool = True
    is_torn: bool = False


class EngineStep(NamedTuple):
    """What DeepSpeed's engine logs about a step, in addition to a training line or instead of it.

    Attributes:
        iteration: The step.
        values: By the names of training lines: ``lm loss``, ``learning rate``, ``samples per second``,
            ``MILLISECONDS``; and ``skipped``, the number of skipped steps since the start.
        time: ``YYYY-MM-DD HH:MM:SS.mmm``, if its logger writes it.
    """

    iteration: int
    values: dict[str, float]
    time: str = ""


class Throughput(NamedTuple):
    """The speed that DeepSpeed's engine logs on the first rank, below its other line for the same step.

    Attributes:
        values: ``samples per second`` of this step alone, by the name of training lines.
        mebibytes: The rank's memory, as in ``Memory``.
    """

    values: dict[str, float]
    mebibytes: dict[str, float]


class Evaluation(NamedTuple):
    """The middle line of an evaluation.

    Attributes:
        where: ``iteration 100``, ``the end of training for test data``…
        values: Losses and perplexities, by their names in the line.
    """

    where: str
    values: dict[str, float]


class Memory(NamedTuple):
    """A rank's memory, in MiB by name: ``allocated``, ``max allocated``, ``reserved``, ``max reserved``."""

    rank: int
    iterations: int
    mebibytes: dict[str, float]


class Milestone(NamedTuple):
    """A line ``[NAME] datetime: TIME``, or ``done with setup ...``, which has no time."""

    name: str
    time: str


class Checkpoint(NamedTuple):
    """A checkpoint that was written or read.

    Attributes:
        kind: ``saving``, ``saved`` or ``loaded``.
    """

    kind: str
    iteration: int


class Timer(NamedTuple):
    """One of Megatron's or DeepSpeed's timers.

    Attributes:
        name: The timer.
        milliseconds: Its time; the longest of all ranks if the line is about all.
        least: The shortest time of all ranks, with ``minmax``.
    """

    name: str
    milliseconds: float
    least: float | None = None


class RankTimes(NamedTuple):
    """One of Megatron's timers on many ranks, with ``--timing-log-option all``.

    Attributes:
        name: The timer.
        ranks: The ranks.
        milliseconds: The time of each rank.
    """

    name: str
    ranks: array[int]
    milliseconds: array[float]


class Argument(NamedTuple):
    """An argument of the training, from the list that Megatron prints at its start."""

    name: str
    value: str


Record = (
    Step
    | EngineStep
    | Throughput
    | Evaluation
    | Memory
    | Milestone
    | Checkpoint
    | Timer
    | RankTimes
    | Argument
)
