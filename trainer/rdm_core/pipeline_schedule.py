# SPDX-License-Identifier: GPL-3.0-or-later
"""Which pass a stage of a pipeline does when: 1F1B and interleaved 1F1B. Pure.

After a few forward passes (the warm-up) each stage does one forward and one backward pass in turns. With
virtual stages a stage has several chunks of layers: chunk ``c`` of stage ``s`` comes after ``c * stages + s``
others in the model. It takes ``stages`` micro-batches through one chunk, then the same through the next, so
that a pass is shorter, and so is the time in which stages wait for the first and the last one.

Source: Narayanan et al., "PipeDream-2BW" (2021) and "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM" (2021), section 2.2; the warm-up is Megatron-LM's.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

__all__ = ["Pass", "bubble", "forwards", "most_held", "passes"]


class Pass(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage's layers.

    Args:
        is_forward: It is no backward pass.
        chunk: Which of the stage's chunks, from 0 in the model's order.
        micro_batch: Which of the step, from 0.
    """

    is_forward: bool
    chunk: int
    micro_batch: int


def forwards(stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """Return a stage's forward passes in their order, which is the same on all stages.

    Args:
        stages: Of the pipeline.
        chunks: Of each stage.
        micro_batches: Of a step; with several chunks a multiple of the stages.
    """
    return [
        Pass(True, chunk, micro_batch)
        for first in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for micro_batch in range(first, min(first + stages, micro_batches))
    ]


@functools.cache
def passes(stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Pass, ...]:
    """Return a stage's passes of a step in their order.

    Args:
        stage: Which, from 0.
        stages: Of the pipeline.
        chunks: Of each stage.
        micro_batches: Of a step; with several chunks a multiple of the stages.
    """
    ahead = forwards(stages, chunks, micro_batches)
    back = [Pass(False, chunks - 1 - one.chunk, one.micro_batch) for one in ahead]
    warm_up = most_held(stage, stages, chunks, micro_batches) - 1
    found = ahead[:warm_up]
    for forward, backward in zip(ahead[warm_up:], back, strict=False):
        found += [forward, backward]
    return (*found, *back[len(ahead) - warm_up :])


def most_held(stage: int, stages: int, chunks: int, micro_batches: int) -> int:
    """Return how many forward passes wait for their backward passes at once, at most.

    Args:
        stage: Which, from 0.
        stages: Of the pipeline.
        chunks: Of each stage.
        micro_batches: Of a step.
    """
    after = stages - 1 - stage
    warm_up = after if chunks == 1 else 2 * after + (chunks - 1) * stages
    return min(warm_up + 1, chunks * micro_batches)


def bubble(stages: int, chunks: int, micro_batches: int) -> float:
    """Return the part of a step in which a stage waits for others, where all passes take as long.

    Args:
        stages: Of the pipeline.
        chunks: Of each stage.
        micro_batches: Of a step.
    """
    return (stages - 1) / (chunks * micro_batches + stages - 1)
