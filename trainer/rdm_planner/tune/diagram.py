# SPDX-License-Identifier: GPL-3.0-or-later
"""When each stage of a pipeline computes which micro-batch, for a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Pass", "one_forward_one_backward"]


class Pass(NamedTuple):
    """One stage's work on one micro-batch.

    Attributes:
        stage: From 0.
        micro_batch: From 0.
        is_forward: It is the forward pass, and not the backward pass.
        begin: Seconds from the step's begin.
        end: Seconds.
    """

    stage: int
    micro_batch: int
    is_forward: bool
    begin: float
    end: float


def one_forward_one_backward(seconds: Sequence[float], forward: float, micro_batches: int) -> list[Pass]:
    """Return the passes of 1F1B, in the order in which they begin.

    Stage i of p begins with p - i forward passes; then each backward pass is followed by a forward pass, as
    long as there are any. A forward pass waits for the stage before, a backward pass for the stage behind.

    Source: Narayanan et al. 2021, figure 4.

    Args:
        seconds: What each stage takes for a micro-batch, forward and backward, sends included.
        forward: The share of the forward pass, from 0 to 1.
        micro_batches: How many.
    """
    stages = len(seconds)
    waiting = []
    for stage in range(stages):
        ahead = min(stages - stage, micro_batches)
        order = [(True, number) for number in range(ahead)]
        for number in range(micro_batches):
            order.append((False, number))
            if ahead + number < micro_batches:
                order.append((True, ahead + number))
        waiting.append(order[::-1])
    ends: dict[tuple[int, bool, int], float] = {}
    free = [0.0] * stages
    found = []
    while any(waiting):
        for stage, order in enumerate(waiting):
            while order:
                is_forward, number = order[-1]
                before = stage - 1 if is_forward else stage + 1
                # The last stage's backward pass follows its own forward pass.
                needs = (before, is_forward, number) if 0 <= before < stages else (stage, True, number)
                if needs not in ends and not (is_forward and stage == 0):
                    break
                order.pop()
                begin = max(free[stage], ends.get(needs, 0.0))
                free[stage] = begin + seconds[stage] * (forward if is_forward else 1 - forward)
                ends[stage, is_forward, number] = free[stage]
                found.append(Pass(stage, number, is_forward, begin, free[stage]))
    return sorted(found, key=lambda one: one.begin)
