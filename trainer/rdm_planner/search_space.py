# SPDX-License-Identifier: GPL-3.0-or-later
"""The layouts of a job that are searched."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rdm_core import float8
from rdm_core.config.checks import check
from rdm_core.config.schema import Config
from rdm_core.pipeline_schedule import most_held
from rdm_planner.interleaved import degrees
from rdm_planner.layouts import Layout, with_layout

_MOST_MICRO_BATCH = 64
_MOST_EAGER = 2
_LEAST_TOKENS = 8192
"""Least tokens of a sample on a context rank, unless the degree is fixed: a step was measured with 16,384."""


@dataclass(frozen=True)
class SearchSpace:
    """The layouts of a job, on any nodes.

    Args:
        config: The job; the keys that are searched are ignored.
        checkpointing: The values of ``parallel.activation_checkpointing`` to try.
        zero_stages: The values of ``parallel.zero_stage`` to try.
        expert_degrees: The values of ``parallel.expert`` to try; None tries all that the model and the
            replicas allow.
        virtual_degrees: The values of ``parallel.virtual_pipeline`` to try; None tries those of
            :func:`rdm_planner.interleaved.degrees`.
        context_degrees: The values of ``parallel.context`` to try; None tries those that leave a rank enough
            tokens.
        eager_forwards: The value of ``parallel.eager_forwards``; None tries up to 2 with the native engine.
    """

    config: Config
    checkpointing: Sequence[str] = ("none", "full")
    zero_stages: Sequence[int] = (0, 1, 2, 3)
    expert_degrees: Sequence[int] | None = None
    virtual_degrees: Sequence[int] | None = None
    context_degrees: Sequence[int] | None = None
    eager_forwards: int | None = None

    @property
    def batch(self) -> int:
        """Samples per step."""
        return self.config.optimisation.global_batch_size

    def layouts(self, world_size: int, gpus: int) -> Iterator[Layout]:
        """Yield every layout that the trainer accepts, on nodes of ``gpus`` GPUs."""
        for choice in self._degrees(world_size, gpus):
            if self._rejection(choice, self.batch) is None:
                for zero in self._zero_stages(choice):
                    yield from self._sizes(choice, zero)

    def rejections(self, world_size: int, gpus: int) -> Iterator[str]:
        """Yield a reason for each combination of degrees that is not a layout."""
        for choice in self._degrees(world_size, gpus):
            if reason := self._rejection(choice, self.batch):
                yield reason

    def batch_steps(self, world_size: int, gpus: int) -> set[int]:
        """Return the smallest global batches of layouts; each layout takes the multiples of its own."""
        found = set()
        for choice in self._degrees(world_size, gpus):
            # Chunks take micro-batches in groups, as many as there are stages.
            groups = choice.pipeline if choice.virtual_pipeline > 1 else 1
            smallest = choice.data * choice.micro_batch * groups
            if self._rejection(choice, smallest) is None:
                found.add(smallest)
        return found

    def _degrees(self, world_size: int, gpus: int) -> Iterator[Layout]:
        """Yield a layout with each combination of degrees of a world, with its smallest micro-batch.

        Tensor ranks never span nodes.
        """
        for tensor in range(1, gpus + 1):
            if gpus % tensor:
                continue
            replicas = world_size // tensor
            for data in range(1, replicas + 1):
                if replicas % data:
                    continue
                for context in self._context_degrees(replicas // data):
                    stages = replicas // data // context
                    least = self.least_micro_batch(tensor, context)
                    for expert in self._expert_degrees(tensor, data * context):
                        for chunks in self._virtual_degrees(stages):
                            yield Layout(
                                tensor,
                                data,
                                stages,
                                least,
                                zero_stage=self._least_zero,
                                expert=expert,
                                virtual_pipeline=chunks,
                                context=context,
                                eager_forwards=self.eager_forwards or 0,
                            )

    def least_micro_batch(self, tensor: int, context: int) -> int:
        """Return the smallest micro-batch with these degrees; all others are its multiples."""
        parallel = dataclasses.replace(self.config.parallel, tensor=tensor, context=context)
        return float8.least_micro_batch(dataclasses.replace(self.config, parallel=parallel))

    def _context_degrees(self, ranks: int) -> list[int]:
        """Return the degrees to try that divide some ranks: the fixed ones, or else by the tokens left."""
        tried: Iterable[int] = [1]
        if self.context_degrees is not None:
            tried = self.context_degrees
        elif self.config.engine == "native":
            tokens = min(self.config.model.seq_length, self.config.model.decoder_length)
            tried = range(1, max(1, tokens // _LEAST_TOKENS) + 1)
        return [degree for degree in tried if ranks % degree == 0]

    def _expert_degrees(self, tensor: int, ranks: int) -> Sequence[int]:
        """Return the fixed degrees, or else those that divide the ranks and a tensor rank's experts."""
        if self.expert_degrees is not None:
            return self.expert_degrees
        experts = self.config.spec.experts
        most = math.gcd(ranks, experts // tensor) if experts and experts % tensor == 0 else 1
        return [degree for degree in range(1, most + 1) if most % degree == 0]

    def _virtual_degrees(self, stages: int) -> Sequence[int]:
        """Return the fixed numbers of chunks per stage, or else those to try; 1 if blocks differ."""
        if self.virtual_degrees is not None:
            return self.virtual_degrees
        spec = self.config.spec
        is_searched = self.config.engine == "native" and spec.kind != "t5"
        return [1, *(degrees(spec.blocks, stages) if is_searched else ())]

    def _rejection(self, layout: Layout, batch: int) -> str | None:
        """Return why degrees are not a layout for a global batch; None if they are."""
        if layout.pipeline > self.config.spec.blocks:
            return f"There are more stages than the model's {self.config.spec.blocks} blocks."
        if batch % layout.data:
            return f"The replicas do not divide the global batch of {batch} samples."
        tried = with_layout(self.config, layout)
        tried = dataclasses.replace(
            tried,
            parallel=dataclasses.replace(tried.parallel, partition="even"),
            optimisation=dataclasses.replace(tried.optimisation, global_batch_size=batch),
            # The search does not depend on how many nodes the job requests.
            launcher=dataclasses.replace(tried.launcher, nodes=None, devices_per_node=None),
        )
        problems = check(tried, layout.ranks * layout.pipeline)
        return problems[0] if problems else None

    @property
    def _least_zero(self) -> int:
        is_native = self.config.engine == "native"
        return 0 if self.config.optimisation.precision == "fp32" and not is_native else 1

    def _zero_stages(self, layout: Layout) -> list[int]:
        """Return the distinct ZeRO stages: 16-bit weights need at least 1, a pipeline allows at most 1.

        The native engine has stage 1 only.
        """
        least = self._least_zero
        most = 1 if layout.pipeline > 1 or self.config.engine == "native" else 3
        found = sorted(zero for zero in {max(least, zero) for zero in self.zero_stages} if zero <= most)
        return found[:1] if layout.replicas == 1 else found

    def _sizes(self, layout: Layout, zero: int) -> Iterator[Layout]:
        # A batch that ramps up must divide at each of its sizes, and chunks take micro-batches in groups.
        group = layout.pipeline if layout.virtual_pipeline > 1 else 1
        ramp = self.config.optimisation.rampup_batch_size
        share = math.gcd(self.batch, *((ramp.start, ramp.increment) if ramp else ())) // layout.data
        for size in range(min(share, _MOST_MICRO_BATCH), 0, -1):
            if share % (size * group) == 0 and size % layout.micro_batch == 0:
                sized = dataclasses.replace(layout, micro_batch=size, zero_stage=zero)
                for saved, eager in itertools.product(self.checkpointing, self._eager_forwards(sized)):
                    yield dataclasses.replace(sized, checkpointing=saved == "full", eager_forwards=eager)

    def _eager_forwards(self, layout: Layout) -> list[int]:
        """Return the fixed number of eager forward passes, or else those that let the first stage hold more.

        With several chunks on a stage, stages that run further ahead wait for each other.
        """
        stages, micro_batches = layout.pipeline, layout.accumulation(self.batch)
        if (fixed := self.eager_forwards) is not None:
            return [fixed] if fixed <= max(1, micro_batches) else []
        most = _MOST_EAGER if self.config.engine == "native" and layout.virtual_pipeline == 1 else 0
        held = {most_held(0, stages, 1, micro_batches, eager): eager for eager in range(most, -1, -1)}
        return sorted(held.values())
