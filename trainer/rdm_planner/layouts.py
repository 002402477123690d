# SPDX-License-Identifier: GPL-3.0-or-later
"""A parallel layout, the job that has it, and its estimated cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rdm_core.config.schema import Config


@dataclass(frozen=True, order=True)
class Layout:
    """How a model is spread over GPUs.

    Args:
        tensor: GPUs that share each layer.
        data: Replicas, each with samples of its own.
        pipeline: Stages.
        micro_batch: Samples that a replica computes at a time.
        checkpointing: The backward pass recomputes the blocks' activations instead of keeping them.
        zero_stage: What replicas shard: optimiser states (1), also gradients (2), also weights (3).
        expert: Replicas that share the experts of each layer.
        virtual_pipeline: Chunks of layers on each stage.
        context: GPUs that share each sample's tokens.
        eager_forwards: Additional forward passes of the warm-up, for each later stage.
    """

    tensor: int
    data: int
    pipeline: int
    micro_batch: int
    checkpointing: bool = False
    zero_stage: int = 0
    expert: int = 1
    virtual_pipeline: int = 1
    context: int = 1
    eager_forwards: int = 0

    @property
    def replicas(self) -> int:
        """GPUs with the same weights and different tokens."""
        return self.data * self.context

    @property
    def ranks(self) -> int:
        """GPUs of a stage."""
        return self.tensor * self.replicas

    def accumulation(self, batch: int) -> int:
        """Return the micro-batches of a step."""
        return batch // (self.data * self.micro_batch)


def with_layout(config: Config, layout: Layout, cut: Sequence[int] | None = None) -> Config:
    """Return a job with another layout.

    Args:
        config: The job.
        layout: The layout.
        cut: Units of each stage, or of each chunk of the stages, as the cost model counts them;
            without a cut the partition stays.
    """
    partition = config.parallel.partition if layout.pipeline > 1 else "even"
    if cut is not None and layout.pipeline > 1:
        partition = "-".join(map(str, blocks_of(cut)))
    data = layout.data if config.parallel.data is not None else None
    return dataclasses.replace(
        config,
        parallel=dataclasses.replace(
            config.parallel,
            tensor=layout.tensor,
            sequence_parallel=config.parallel.sequence_parallel and layout.tensor > 1,
            pipeline=layout.pipeline,
            virtual_pipeline=layout.virtual_pipeline,
            eager_forwards=layout.eager_forwards,
            data=data,
            expert=layout.expert,
            context=layout.context,
            partition=partition,
            zero_stage=layout.zero_stage,
            activation_checkpointing="full" if layout.checkpointing else "none",
            activation_checkpointing_blocks=config.parallel.activation_checkpointing_blocks
            if layout.checkpointing
            else None,
            activation_memory_budget=1.0
            if layout.checkpointing
            else config.parallel.activation_memory_budget,
        ),
        optimisation=dataclasses.replace(config.optimisation, micro_batch_size=layout.micro_batch),
    )


def blocks_of(cut: Sequence[int]) -> list[int]:
    """Return the transformer blocks in a cut: the first unit is the embedding, the last the head."""
    blocks = list(cut)
    blocks[0] -= 1
    blocks[-1] -= 1
    return blocks


@dataclass(frozen=True)
class Estimate:
    """The cost of a layout with one cut on one placement.

    Args:
        layout: The layout.
        nodes: The GPU of each node, in the order of ranks.
        cut: Layers of each stage, or of each chunk of the stages, as the cost model counts them.
        seconds: Step time.
        parts: Breakdown of the step time, seconds by name.
        memory_gib: Memory used on the fullest GPU, GiB.
        stage_memory_gib: Memory used on a GPU of each stage, GiB; empty if not computed.
        stage_seconds: Time of each stage for a micro-batch, forward and backward, with its sends; empty if
            not computed.
        forward_share: The share of the forward pass in ``stage_seconds``.
        fits: Every stage fits its GPUs.
        bound: Lower bound on the step time of any cut of this layout on this placement; None if not computed.
    """

    layout: Layout
    nodes: tuple[str, ...]
    cut: tuple[int, ...]
    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)
    memory_gib: float = 0.0
    stage_memory_gib: tuple[float, ...] = ()
    stage_seconds: tuple[float, ...] = ()
    forward_share: float = 1 / 3
    fits: bool = True
    bound: float | None = None
