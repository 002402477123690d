# SPDX-License-Identifier: GPL-3.0-or-later
"""Megatron's log lines, to the character; ``rdm_log`` reads them.

Programs that draw loss curves from Megatron's logs look for these lines, so nothing in them is ours to
change; what we add (throughput, MFU) stands at the end, where Megatron-DeepSpeed puts its own additions.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

LM_LOSS = "lm loss"
LOAD_BALANCING_LOSS = "load balancing loss"


@dataclass(frozen=True)
class Step:
    """What one log line says: the last step, and averages over the steps since the line before.

    Args:
        iteration: The step, counted from 1.
        train_iterations: Steps of the whole training.
        consumed_samples: Samples taken until now, skipped steps included.
        milliseconds: Average time of a step.
        learning_rate: The rate after the step.
        global_batch_size: Samples of a step.
        losses: Averages over the steps that were not skipped, by name.
        loss_scale: fp16's; 1 otherwise.
        grad_norm: Before clipping; None where the optimiser does not report it.
        skipped: Steps since the last line whose gradients overflowed.
        nan: Steps since the last line whose loss was not a number.
        throughput: Our additions, by name, in their order: see ``Tracker.throughput``.
    """

    iteration: int
    train_iterations: int
    consumed_samples: int
    milliseconds: float
    learning_rate: float
    global_batch_size: int
    losses: Mapping[str, float]
    loss_scale: float = 1.0
    grad_norm: float | None = None
    skipped: int = 0
    nan: int = 0
    throughput: Mapping[str, str] = field(default_factory=dict)


def training_line(step: Step) -> str:
    """Return the line that Megatron's last rank writes at each log interval.

    Source: Megatron-LM's published log format. A loss is left out unless its average is above 0, and the
    gradient norm where there is none.
    """
    fields = [
        f" iteration {step.iteration:8d}/{step.train_iterations:8d}",
        f"consumed samples: {step.consumed_samples:12d}",
        f"elapsed time per iteration (ms): {step.milliseconds:.1f}",
        f"learning rate: {step.learning_rate:.3E}",
        f"global batch size: {step.global_batch_size:5d}",
        *(f"{name}: {value:.6E}" for name, value in step.losses.items() if value > 0),
        f"loss scale: {step.loss_scale:.1f}",
        *([] if step.grad_norm is None else [f"grad norm: {step.grad_norm:.3f}"]),
        f"number of skipped iterations: {step.skipped:3d}",
        f"number of nan iterations: {step.nan:3d}",
        *(f"{name}: {value}" for name, value in step.throughput.items()),
    ]
    return " | ".join(fields) + " |"


def memory_line(
    rank: int, iterations: int, *, allocated: int, most: int, reserved: int, most_reserved: int
) -> str:
    """Return the line about a device's memory, written once by data-parallel rank 0 of each model part.

    Args:
        rank: The writer.
        iterations: Steps done.
        allocated: Bytes in tensors.
        most: The highest value of ``allocated``.
        reserved: Bytes held by the allocator.
        most_reserved: The highest value of ``reserved``.
    """
    mebibyte = 1024.0 * 1024.0
    return (
        f"[Rank {rank}] (after {iterations} iterations) memory (MB)"
        f" | allocated: {allocated / mebibyte}"
        f" | max allocated: {most / mebibyte}"
        f" | reserved: {reserved / mebibyte}"
        f" | max reserved: {most_reserved / mebibyte}"
    )


def start_line(stages: Mapping[str, float]) -> str:
    """Return our own line about the start: the seconds until the first step is done, by stage."""
    each = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in stages.items())
    return f"started in {sum(stages.values()):.1f} s: {each}"


def datetime_line(milestone: str, now: datetime.datetime) -> str:
    """Return a milestone's line. The blank at the end is Megatron's."""
    return f"[{milestone}] datetime: {now:%Y-%m-%d %H:%M:%S} "


def validation_lines(where: str, losses: Mapping[str, float]) -> list[str]:
    """Return the three lines of an evaluation: a rule, the losses with their perplexities, a rule.

    Args:
        where: ``iteration 100``, or ``the end of training for test data``.
        losses: Averages by name.
    """
    line = f" validation loss at {where} | "
    for name, value in losses.items():
        # Above 20, Megatron writes the perplexity of 20, which stays finite.
        line += f"{name} value: {value:.6E} | {name} PPL: {math.exp(min(20.0, value)):.6E} | "
    rule = "-" * (len(line) + 1)
    return [rule, line, rule]
