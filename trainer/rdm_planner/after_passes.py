# SPDX-License-Identifier: GPL-3.0-or-later
"""What follows the last backward pass of a step: reducing gradients, the optimiser, gathering weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Work(NamedTuple):
    """A stage's work: a rank's parameters; seconds of a micro-batch's two passes; of its backward pass."""

    own: tuple[int, int]
    both: float
    backward: float


def scaled(rates: tuple[float, float], factor: float) -> tuple[float, float]:
    """Return both rates times a factor."""
    return rates[0] * factor, rates[1] * factor


def rated(rates: tuple[float, float], own: tuple[int, int]) -> float:
    """Return the seconds of a rank's parameters: non-expert ones, and those of experts."""
    return rates[0] * own[0] + rates[1] * own[1]


@dataclass(frozen=True)
class AfterPasses:
    """The costs that follow a stage's backward passes; rates are seconds per parameter of a rank.

    A pair has the rate of non-expert parameters first, then that of expert parameters. ``hidden_reduction``
    and ``hidden_gathers`` are shares of the stage's own passes.
    """

    optimiser: tuple[float, float]
    latency: float = 0.0
    reduce: tuple[float, float] = (0.0, 0.0)
    hidden_reduction: float = 0.0
    reductions: int = 0
    gather: tuple[float, float] = (0.0, 0.0)
    hidden_gathers: float = 0.0
    gathers: int = 0
    micro_batches: int = 0

    def reduction(self, work: Work) -> float:
        """Return the exposed time of reducing gradients, and of gathering weights within the step."""
        if not self.reductions:
            return 0.0
        hidden = self.hidden_reduction * work.backward
        seconds = self.reductions * max(0.0, self.latency + rated(self.reduce, work.own) - hidden)
        if self.gathers:
            gathered = self.gathers * (self.latency + rated(self.gather, work.own))
            seconds += self.micro_batches * max(0.0, gathered - self.hidden_gathers * work.both)
        return seconds

    def update(self, work: Work) -> float:
        """Return the time of the optimiser, plus the exposed time of gathering its results."""
        seconds = rated(self.optimiser, work.own)
        if any(self.gather) and not self.gathers:
            hidden = self.hidden_gathers * (work.both - work.backward)
            seconds += max(0.0, self.latency + rated(self.gather, work.own) - hidden)
        return seconds


def step_seconds(
    costs: Sequence[AfterPasses], added: float, works: Sequence[Work], ends: Sequence[float]
) -> float:
    """Return a step's time. Optimisers wait for the norm of all gradients, known after the last reduction.

    ``added`` is the time that does not depend on the cut.
    """
    reduced = max(end + cost.reduction(work) for end, cost, work in zip(ends, costs, works, strict=True))
    return added + reduced + max(cost.update(work) for cost, work in zip(costs, works, strict=True))
