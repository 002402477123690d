# SPDX-License-Identifier: GPL-3.0-or-later
"""What a stage of a trainer's job computes and holds in each layout.

The engine describes its step (:class:`rdm_planner.engine_step.EngineStep`), times come from
:class:`rdm_planner.times.Times`, and memory from :mod:`rdm_core.cost.dry_run`.

Sources: FLOPs as in PaLM, appendix B (Chowdhery et al. 2022); tensor-parallel all-reduces as in Megatron-LM
(Shoeybi et al. 2019), two of a block's activations forward and two backward; rings as in Patarasuk and Yuan
2009; ZeRO's traffic as in Rajbhandari et al. 2020, section 7; the exchange of tokens as in GShard (Lepikhin
et al. 2020), evenly between all ranks that share the experts; context parallelism as in Dubey et al. 2024,
section 3.3.2, where all ranks of a sample have equal work.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rdm_core.config.schema import Config
from rdm_core.cost import flops
from rdm_core.cost.dry_run import stage_memory
from rdm_core.cost.flops import LayerSize
from rdm_core.pipeline_schedule import held, most_held
from rdm_planner.engine_step import EngineStep
from rdm_planner.interleaved import Interleaved, chunk_blocks
from rdm_planner.layouts import Layout, with_layout
from rdm_planner.nodes import NodeKind
from rdm_planner.schedules import EagerOneForwardOneBackward, OneForwardOneBackward
from rdm_planner.search import slowdowns
from rdm_planner.search_space import SearchSpace
from rdm_planner.times import LayerWork, Link, PublishedPeaks, Times

BITS = 8
_ROUNDED = 8


def published_peaks(
    config: Config, nodes: Iterable[NodeKind], peaks: Mapping[str, float], efficiency: float
) -> PublishedPeaks:
    """Return the times of a job's layers, derived from published figures.

    Args:
        config: The job; its layout is ignored.
        nodes: The nodes.
        peaks: Dense peak of each GPU by its name, TFLOP/s.
        efficiency: The share of the peak that layers reach, from 0 to 1.
    """
    work = {
        layer.name: LayerWork(
            flops.forward_flops(config.spec, layer),
            _summed_bits(config, layer),
            _head_bits(config, layer),
            config.spec.key_value_heads,
        )
        for layer in flops.layer_sizes(config.spec)
    }
    return PublishedPeaks(work, {node.gpu: node for node in nodes}, peaks, efficiency)


def _width(config: Config) -> int:
    return 4 if config.optimisation.precision == "fp32" else 2


def _summed_bits(config: Config, layer: LayerSize) -> float:
    """Return the bits that tensor ranks sum in a sample's forward pass: the outputs of attention and MLP."""
    if not _is_block(layer):
        return 0.0
    is_decoder = layer.name == "DecoderBlock"
    spec = config.spec
    tokens = spec.decoder_length if is_decoder else spec.seq_length
    return (3 if is_decoder else 2) * tokens * spec.hidden_size * _width(config) * BITS


def _head_bits(config: Config, layer: LayerSize) -> float:
    """Return the bits of a sample's queries, key and value of one key-value head."""
    if not _is_block(layer):
        return 0.0
    spec = config.spec
    features = spec.attention_size // spec.key_value_heads + 2 * spec.head_size
    return spec.seq_length * features * _width(config) * BITS


def _key_value_bits(config: Config, layer: LayerSize, tensor: int) -> float:
    """Return the bits of a sample's keys and values in a block, on one of several tensor ranks."""
    spec = config.spec
    tokens = spec.seq_length + (spec.decoder_length if layer.name == "DecoderBlock" else 0)
    features = 2 * spec.key_value_size * spec.ranks_of_key_value_head(tensor) / tensor
    return tokens * features * _width(config) * BITS


def _is_block(layer: LayerSize) -> bool:
    return layer.name.endswith("Block")


class Exchanges(NamedTuple):
    """What the ranks of a stage exchange in each pass.

    Args:
        experts: Seconds of a block with experts: sending tokens to the experts and back.
        mean: Seconds of each non-expert parameter in a backward pass: averaging its gradient.
        context: The link over which a block's keys and values are gathered; None if ranks have whole samples.
    """

    experts: float = 0.0
    mean: float = 0.0
    context: Link | None = None


NO_EXCHANGES = Exchanges()


@dataclass(eq=False)
class Job:
    """What all :class:`TrainerModel` of a job share, independent of the layout and the nodes' order.

    Args:
        space: The job and its layouts; the keys that are searched are ignored.
        times: The times of its layers and of the links.
        statement: Describes the engine's step for a job with a layout.
    """

    space: SearchSpace
    times: Times
    statement: Callable[[Config], EngineStep]

    def __post_init__(self) -> None:
        self.config, self.batch = self.space.config, self.space.batch
        self._shaped: dict[Layout, JobInLayout] = {}
        self._memory: dict[Layout, tuple[_Bytes, _Lines]] = {}
        self._sums: dict[tuple[object, ...], tuple[list[float], list[float]]] = {}
        self._schedules: dict[tuple[Layout, str, Exchanges], OneForwardOneBackward | Interleaved] = {}
        self._slowdowns: dict[tuple[object, ...], dict[str, tuple[float, float]]] = {}
        self._held: dict[tuple[int, int], _Held] = {}
        self._units: dict[int, list[tuple[LayerSize, ...]]] = {}

    def shaped(self, layout: Layout) -> JobInLayout:
        """Return what a layout implies on any nodes."""
        if layout not in self._shaped:
            self._shaped[layout] = JobInLayout(self, layout)
        return self._shaped[layout]

    def memory(self, layout: Layout) -> tuple[_Bytes, _Lines]:
        """Return the known memory of a layout, which its eager forward passes share."""
        return self._memory.setdefault(dataclasses.replace(layout, eager_forwards=0), ({}, {}))

    def units(self, config: Config) -> list[tuple[LayerSize, ...]]:
        """Return the units that a cut counts, for a tensor degree."""
        tensor = config.parallel.tensor
        if tensor not in self._units:
            self._units[tensor] = _units(flops.layer_sizes(config.spec))
        return self._units[tensor]

    def held(self, config: Config) -> _Held:
        """Return running sums over the units, for a tensor and an expert degree."""
        axes = tensor, _ = config.parallel.tensor, config.parallel.expert
        if axes not in self._held:
            units = self.units(config)
            own = [sum(one.own(*axes) for one in unit) for unit in units]
            experts = [sum(one.own_experts(*axes) for one in unit) for unit in units]
            tied = [sum(one.tied // tensor for one in unit) for unit in units]
            names = sorted({unit[0].name for unit in units})
            counts = [(0,) * len(names)]
            for unit in units:
                last = zip(counts[-1], names, strict=True)
                counts.append(tuple(count + (unit[0].name == name) for count, name in last))
            of_own, of_experts, of_tied = (
                [0, *itertools.accumulate(numbers)] for numbers in (own, experts, tied)
            )
            self._held[axes] = _Held(of_own, of_experts, of_tied, counts)
        return self._held[axes]

    def sums(
        self, layout: Layout, gpu: str, exchanges: Exchanges = NO_EXCHANGES
    ) -> tuple[list[float], list[float]]:
        """Return running sums of the units' seconds for a micro-batch: both passes, and the backward pass."""
        key = (gpu, *self._key(layout), exchanges)
        if key not in self._sums:
            known: dict[str, tuple[float, float]] = {}
            both, backward = [0.0], [0.0]
            for unit in self.shaped(layout).units:
                for layer in unit:
                    if layer.name not in known:
                        known[layer.name] = self._seconds(layout, gpu, layer, exchanges)
                ahead, back = (sum(column) for column in zip(*(known[one.name] for one in unit), strict=True))
                both.append(both[-1] + ahead + back)
                backward.append(backward[-1] + back)
            self._sums[key] = both, backward
        return self._sums[key]

    def schedule(self, layout: Layout, gpu: str, exchanges: Exchanges) -> OneForwardOneBackward | Interleaved:
        """Return a layout's schedule, with the forward pass's share of the time on these GPUs."""
        key = layout, gpu, exchanges
        if key not in self._schedules:
            both, backward = self.sums(layout, gpu, exchanges)
            micro_batches, forward = layout.accumulation(self.batch), 1 - backward[-1] / both[-1]
            stages, chunks = layout.pipeline, layout.virtual_pipeline
            if chunks > 1:
                self._schedules[key] = Interleaved(stages, chunks, micro_batches, forward)
            elif self.config.engine == "native":
                self._schedules[key] = EagerOneForwardOneBackward(
                    stages, micro_batches, forward=forward, eager=layout.eager_forwards
                )
            else:
                self._schedules[key] = OneForwardOneBackward(stages, micro_batches, forward=forward)
        return self._schedules[key]

    def slowdowns(self, layout: Layout, exchanges: Mapping[str, Exchanges]) -> dict[str, tuple[float, float]]:
        """Return for each GPU its least slowdown over the layers, and the seconds of all layers together."""
        key = (frozenset(exchanges.items()), *self._key(layout))
        if key not in self._slowdowns:
            running = {gpu: self.sums(layout, gpu, one)[0] for gpu, one in exchanges.items()}
            self._slowdowns[key] = {
                gpu: (slowdown, running[gpu][-1]) for gpu, slowdown in slowdowns(running).items()
            }
        return self._slowdowns[key]

    def _key(self, layout: Layout) -> tuple[object, ...]:
        """Return what the layers' times depend on."""
        return layout.tensor, layout.micro_batch, layout.context, self._recomputed(layout)

    def _seconds(
        self, layout: Layout, gpu: str, layer: LayerSize, exchanges: Exchanges
    ) -> tuple[float, float]:
        # Context ranks have equal shares of each sample, and of its attention.
        size, tensor = layout.micro_batch / layout.context, layout.tensor
        again = self._recomputed(layout) if _is_block(layer) else 0.0
        exchange = exchanges.experts if layer.experts else 0.0
        if exchanges.context is not None and _is_block(layer):
            bits = _key_value_bits(self.config, layer, tensor) * layout.micro_batch
            share = (layout.context - 1) / layout.context
            # A T5's decoder gathers in both its attentions.
            gathers = 2 if layer.name == "DecoderBlock" else 1
            exchange += gathers * exchanges.context.seconds(share * bits / gathers)
        # A tied weight's gradient is averaged with the layer that it is tied to.
        averaged = layer.own(tensor) - layer.own_experts(tensor) - layer.tied // tensor
        backward = self.times.backward(gpu, layer.name, size, tensor, checkpointed=again == 1)
        if 0 < again < 1:
            both = self.times.backward(gpu, layer.name, size, tensor, checkpointed=True)
            backward += again * (both - backward)
        return (
            self.times.forward(gpu, layer.name, size, tensor) + exchange,
            backward + exchange * (1 + again) + exchanges.mean * averaged,
        )

    def _recomputed(self, layout: Layout) -> float:
        """Return the share of the blocks that recompute their activations, assuming an even cut."""
        if not layout.checkpointing:
            return 0.0
        most, blocks = self.config.parallel.activation_checkpointing_blocks, self.config.spec.blocks
        return 1.0 if most is None else min(1.0, most * layout.pipeline / blocks)


class _Held(NamedTuple):
    """Running sums over the units: a rank's parameters; those of experts; tied ones; units of each kind."""

    own: list[int]
    experts: list[int]
    tied: list[int]
    counts: list[tuple[int, ...]]


# A stage's bytes by its units: constant, and per micro-batch in flight.
_Bytes = dict[tuple[object, ...], tuple[int, int]]
# The same by the ends of the model that it has: constant and per micro-batch; per block; per both.
_Lines = dict[tuple[bool, bool], tuple[tuple[float, float], float, float]]


class JobInLayout:
    """A job with a layout, on any nodes."""

    def __init__(self, job: Job, layout: Layout) -> None:
        self.job = with_layout(job.config, layout)
        self.layout = layout
        self.units = job.units(self.job)
        self.step = job.statement(self.job)
        self.micro_batches = layout.accumulation(job.batch)
        self._held = job.held(self.job)
        self._counts = self._held.counts
        # With rotary positions, the trainer rejects a stage that has only the embedding. Each chunk needs a
        # block.
        self.chunks = layout.virtual_pipeline
        self.first = self.chunks + 1 if self.job.spec.is_rotary or self.chunks > 1 else 1
        # All blocks of a GPT are alike, so only their number matters.
        self._is_uniform = len(self._counts[0]) <= 3
        # Memory is not linear with checkpointing intervals, or when only some blocks recompute.
        parallel = self.job.parallel
        self._is_linear = (
            self._is_uniform
            and parallel.activation_checkpointing_interval == 1
            and parallel.activation_checkpointing_blocks is None
            and self.chunks == 1
        )
        self._memory, self._lines = job.memory(layout)
        self._memory_of_chunks: dict[tuple[int, tuple[int, ...]], int] = {}

    def own(self, begin: int, end: int) -> tuple[int, int]:
        """Return the parameters of a rank of a stage: non-expert ones, and those of experts.

        A parameter tied to its first layer counts once.
        """
        held = self._held
        tied = held.tied[end] if begin == 0 else 0
        experts = held.experts[end] - held.experts[begin]
        return held.own[end] - held.own[begin] - tied - experts, experts

    def activation_bits(self) -> float:
        """Return the bits that a rank of a stage sends to the next stage for a micro-batch."""
        model = self.job.model
        tokens = self.job.spec.tokens_per_sample / self.job.parallel.token_shards / self.layout.context
        return self.layout.micro_batch * tokens * model.hidden_size * _width(self.job) * BITS

    def _in_flight(self, stage: int) -> int:
        return most_held(stage, self.layout.pipeline, 1, self.micro_batches, self.layout.eager_forwards)

    def memory_of_stages(self, cut: Sequence[int]) -> list[int]:
        """Return the bytes that a rank of each stage holds, given the units of each chunk."""
        stages = range(self.layout.pipeline)
        if self.chunks > 1:
            return [self.memory_of_chunks(stage, cut[stage :: len(stages)]) for stage in stages]
        bounds = [0, *itertools.accumulate(cut)]
        return [self.memory(stage, bounds[stage], bounds[stage + 1]) for stage in stages]

    def memory_of_chunks(self, stage: int, units: Sequence[int]) -> int:
        """Return the bytes that a rank of a stage holds, given the units of each of its chunks."""
        key = stage, tuple(units)
        if key not in self._memory_of_chunks:
            stages = self.layout.pipeline
            is_last = stage == stages - 1
            chunks = [self.units[1] * count for count in units]
            if stage == 0:
                chunks[0] = self.units[0] + self.units[1] * (units[0] - 1)
            if is_last:
                chunks[-1] = self.units[1] * (units[-1] - 1) + self.units[-1]
            passes = held(stage, stages, self.chunks, self.micro_batches)
            self._memory_of_chunks[key] = stage_memory(
                self.job, chunks, self.layout.data, passes, last=is_last
            ).total
        return self._memory_of_chunks[key]

    def memory(self, stage: int, begin: int, end: int) -> int:
        """Return the bytes that a rank of a stage with these units holds; with several chunks, the least."""
        is_last = stage == self.layout.pipeline - 1
        ends = (begin == 0, end == len(self.units))
        if self.chunks > 1:
            return min(
                self.memory_of_chunks(stage, (ends[0] + own[0], *own[1:-1], own[-1] + ends[1]))
                for own in self._spreads(end - begin - sum(ends), has_head=is_last)
            )
        key: tuple[object, ...] = (is_last, *ends, end - begin)
        if not self._is_uniform:
            key = (is_last, self._counts[begin], self._counts[end])
        if key not in self._memory:
            layers = list(itertools.chain(*self.units[begin:end]))
            once, twice = (
                stage_memory(self.job, [layers], self.layout.data, [(0, [count])], last=is_last).total
                for count in (1, 2)
            )
            self._memory[key] = 2 * once - twice, twice - once
        constant, by_micro_batch = self._memory[key]
        return constant + by_micro_batch * self._in_flight(stage)

    def _spreads(self, blocks: int, *, has_head: bool) -> list[list[int]]:
        """Return the spreads of a stage's blocks over its chunks of which one takes the least memory.

        A chunk holds at least as many micro-batches as those after it, so the last one should have most
        blocks. With the head it may be better without any: then it recomputes nothing. Where several blocks
        are recomputed together, more in the others may need less: with two chunks, every spread is tried.
        """
        if blocks < self.chunks:
            return [[int(chunk < blocks) for chunk in range(self.chunks)]]
        first, several = self.chunks - 1, self.job.parallel.activation_checkpointing_interval > 1
        found = [chunk_blocks([blocks], self.chunks)] if several else []
        for size in range(1, (blocks // first if several else 1) + 1):
            *own, last = [size] * first
            rest = blocks - size * first
            if rest:
                found.append([*own, last, rest])
            if has_head:
                found.append([*own, last + rest, 0])
        return found

    def most_memory(self, stage: int, begin: int, end: int) -> float:
        """Return an upper bound on :meth:`memory`, a few bytes above it, in less time.

        Memory grows linearly with like blocks and with micro-batches in flight.
        """
        blocks = min(end, len(self.units) - 1) - max(begin, 1)
        if not self._is_linear or blocks < 1 or self.layout.pipeline == 1:
            return self.memory(stage, begin, end)
        ends = (begin == 0, end == len(self.units))
        if ends not in self._lines:
            self._lines[ends] = self._line(*ends)
        constant, by_block, by_both = self._lines[ends]
        in_flight = self._in_flight(stage)
        base, per_micro_batch = constant
        return base + blocks * by_block + in_flight * (per_micro_batch + blocks * by_both)

    def _line(self, is_first: bool, is_last: bool) -> tuple[tuple[float, float], float, float]:
        """Return a stage's bytes: constant and per micro-batch; per block; per block and micro-batch."""

        def total(blocks: int, in_flight: int) -> int:
            units = self.units[:1] * is_first + self.units[1:2] * blocks + self.units[-1:] * is_last
            layers = list(itertools.chain(*units))
            passes = [(0, [in_flight])]
            return stage_memory(self.job, [layers], self.layout.data, passes, last=is_last).total

        one, two, one_more, two_more = total(1, 1), total(2, 1), total(1, 2), total(2, 2)
        by_both = two_more - one_more - two + one
        by_block = two - one - by_both
        by_micro_batch = one_more - one - by_both
        # The replicas' shares are rounded down, by up to a byte per component and block.
        return (
            (one - by_block - by_micro_batch - by_both, by_micro_batch),
            by_block + _ROUNDED,
            by_both,
        )


def _units(layers: Sequence[LayerSize]) -> list[tuple[LayerSize, ...]]:
    """Return the units of a cut: all before the blocks, each block with what follows it, all after them."""
    blocks = [index for index, layer in enumerate(layers) if _is_block(layer)]
    bounds = [0, *blocks, blocks[-1] + 1, len(layers)]
    return [tuple(layers[begin:end]) for begin, end in itertools.pairwise(bounds)]
