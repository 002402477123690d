# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of passes on each pipeline stage: 1F1B and interleaved 1F1B. Pure functions.

After a few forward passes (the warm-up) each stage alternates between one forward and one backward pass. With
virtual stages a stage has several chunks of layers: chunk ``c`` of stage ``s`` comes after ``c * stages + s``
others in the model. It takes ``stages`` micro-batches through one chunk, then the same through the next. So
passes are shorter, and stages wait less at the beginning and the end of a step.

Without virtual stages, each eager forward pass makes a stage's warm-up longer by one pass for each later
stage. A first stage that takes somewhat longer than the others then does not wait for them: they catch up.

Source: Narayanan et al., "PipeDream-2BW" (2021) and "Efficient Large-Scale Language Model Training on GPU
Clusters Using Megatron-LM" (2021), section 2.2; the warm-up is Megatron-LM's. For eager forward passes,
Zhuang et al., "On Optimizing the Communication of Model Parallelism" (2023).
"""

from __future__ import annotations

import functools
from typing import NamedTuple


class Pass(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage's layers.

    Args:
        is_forward: It is a forward pass, not a backward pass.
        chunk: The stage's chunk, from 0 in the model's order.
        micro_batch: The micro-batch of the step, from 0.
    """

    is_forward: bool
    chunk: int
    micro_batch: int


def forwards(stages: int, chunks: int, micro_batches: int) -> list[Pass]:
    """Return a stage's forward passes in order, which is the same on all stages.

    Args:
        stages: Stages of the pipeline.
        chunks: Chunks of each stage.
        micro_batches: Micro-batches of a step; with several chunks, a multiple of ``stages``.
    """
    return [
        Pass(True, chunk, micro_batch)
        for first in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for micro_batch in range(first, min(first + stages, micro_batches))
    ]


@functools.cache
def passes(stage: int, stages: int, chunks: int, micro_batches: int, eager: int = 0) -> tuple[Pass, ...]:
    """Return a stage's passes of a step in order.

    Args:
        stage: The stage, from 0.
        stages: Stages of the pipeline.
        chunks: Chunks of each stage.
        micro_batches: Micro-batches of a step; with several chunks, a multiple of ``stages``.
        eager: Additional forward passes of the warm-up, for each later stage; 0 with several chunks.
    """
    ahead = forwards(stages, chunks, micro_batches)
    back = [Pass(False, chunks - 1 - one.chunk, one.micro_batch) for one in ahead]
    warm_up = most_held(stage, stages, chunks, micro_batches, eager) - 1
    found = ahead[:warm_up]
    for forward, backward in zip(ahead[warm_up:], back, strict=False):
        found += [forward, backward]
    return (*found, *back[len(ahead) - warm_up :])


@functools.cache
def received_before(
    stage: int, is_forward: bool, stages: int, chunks: int, micro_batches: int, eager: int = 0
) -> tuple[int, ...]:
    """Return how many messages a stage has received when it begins the pass that sends each of its own.

    These are the messages to and from one neighbour: the stage sends activations to the next stage, which
    sends gradients back, or gradients to the stage before.

    Args:
        stage: The stage, from 0.
        is_forward: It sends activations, not gradients.
        stages: Stages of the pipeline.
        chunks: Chunks of each stage.
        micro_batches: Micro-batches of a step; with several chunks, a multiple of ``stages``.
        eager: Additional forward passes of the warm-up, for each later stage; 0 with several chunks.
    """
    found, received = [], 0
    end = (stages - 1, chunks - 1) if is_forward else (0, 0)
    for one in passes(stage, stages, chunks, micro_batches, eager):
        if (stage, one.chunk) == end:
            continue
        if one.is_forward == is_forward:
            found.append(received)
        else:
            received += 1
    return tuple(found)


def most_held(stage: int, stages: int, chunks: int, micro_batches: int, eager: int = 0) -> int:
    """Return the most forward passes of a stage that wait for their backward passes at the same time.

    Args:
        stage: The stage, from 0.
        stages: Stages of the pipeline.
        chunks: Chunks of each stage.
        micro_batches: Micro-batches of a step.
        eager: Additional forward passes of the warm-up, for each later stage; 0 with several chunks.
    """
    after = stages - 1 - stage
    warm_up = (1 + eager) * after if chunks == 1 else 2 * after + (chunks - 1) * stages
    return min(warm_up + 1, chunks * micro_batches)


@functools.cache
def held(
    stage: int, stages: int, chunks: int, micro_batches: int, eager: int = 0
) -> frozenset[tuple[int, tuple[int, ...]]]:
    """Return what a stage may hold when a backward pass begins: its chunk, and forward passes by chunk.

    Args: as those of :func:`passes`.
    """
    found, counts = set(), [0] * chunks
    # The passes of further micro-batches repeat those of the steady phase.
    for one in passes(stage, stages, chunks, min(micro_batches, (4 + eager) * stages), eager):
        if not one.is_forward:
            found.add((one.chunk, tuple(counts)))
        counts[one.chunk] += 1 if one.is_forward else -1
    return frozenset(found)


def bubble(stages: int, chunks: int, micro_batches: int) -> float:
    """Return the share of a step in which a stage waits for others, if all passes take equally long."""
    return (stages - 1) / (chunks * micro_batches + stages - 1)
