# SPDX-License-Identifier: GPL-3.0-or-later
"""What layouts of a job cost on GPUs of which only published figures are known. No torch.

The shape of a step is this trainer's: 1F1B, sends that block, ZeRO-1's reduction after the last micro-batch.
Its times are guesses: FLOPs over a share of the published peak, bytes over the published bandwidth. Memory is
that of :mod:`rdm_core.cost.dry_run`.

Sources: FLOPs as in PaLM, appendix B (Chowdhery et al. 2022); sums of tensor parallelism as in Megatron-LM
(Shoeybi et al. 2019), four of a block's activations per micro-batch; rings as in Patarasuk and Yuan 2009.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rdm_core.config.checks import check
from rdm_core.config.schema import Config
from rdm_core.cost import flops
from rdm_core.cost.dry_run import GIB, stage_memory
from rdm_core.cost.flops import LayerSize
from rdm_planner.layouts import Estimate, Layout
from rdm_planner.nodes import NodeKind
from rdm_planner.partition import Problem
from rdm_planner.schedules import BlockingSends, OneForwardOneBackward

__all__ = ["PublishedModel", "with_layout"]

_BITS = 8
_GRADIENT_BYTES = 4
_MOST_MICRO_BATCH = 64


def with_layout(config: Config, layout: Layout, cut: Sequence[int] | None = None) -> Config:
    """Return a job with another layout.

    Args:
        config: The job.
        layout: The layout.
        cut: Units of each stage, as :class:`PublishedModel` counts them; the partition is left as it is
            without.
    """
    partition = config.parallel.partition if layout.pipeline > 1 else "even"
    if cut is not None and layout.pipeline > 1:
        partition = "-".join(map(str, blocks_of(cut)))
    data = layout.data if config.parallel.data is not None else None
    return dataclasses.replace(
        config,
        parallel=dataclasses.replace(
            config.parallel, tensor=layout.tensor, pipeline=layout.pipeline, data=data, partition=partition
        ),
        optimisation=dataclasses.replace(config.optimisation, micro_batch_size=layout.micro_batch),
    )


def blocks_of(cut: Sequence[int]) -> list[int]:
    """Return the transformer blocks of each stage: the first unit is the embedding, the last the head."""
    blocks = list(cut)
    blocks[0] -= 1
    blocks[-1] -= 1
    return blocks


@dataclass(frozen=True)
class PublishedModel:
    """What layouts cost on nodes in one order.

    Args:
        config: The job; its layout is ignored.
        nodes: In their order; all have as many GPUs.
        peaks: Dense peak of each GPU by its name, TFLOP/s.
        efficiency: The share of the peak that layers reach, from 0 to 1.
    """

    config: Config
    nodes: tuple[NodeKind, ...]
    peaks: Mapping[str, float]
    efficiency: float

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return self.nodes[0].gpus

    @property
    def world_size(self) -> int:
        """GPUs of all nodes."""
        return self.gpus * len(self.nodes)

    def layouts(self) -> Iterator[Layout]:
        """Yield every layout that the trainer takes."""
        batch = self.config.optimisation.global_batch_size
        for tensor in range(1, self.gpus + 1):
            if self.gpus % tensor:
                continue
            replicas = self.world_size // tensor
            for data in range(1, replicas + 1):
                stages = replicas // data
                if replicas % data or batch % data or stages > self.config.model.blocks:
                    continue
                if not self._is_possible(Layout(tensor, data, stages, 1)):
                    continue
                share = batch // data
                for size in range(min(share, _MOST_MICRO_BATCH), 0, -1):
                    if share % size == 0:
                        yield Layout(tensor, data, stages, size)

    def _is_possible(self, layout: Layout) -> bool:
        tried = with_layout(self.config, layout)
        parallel = dataclasses.replace(tried.parallel, partition="even")
        # How many nodes the job asks for is not what is looked for.
        launcher = dataclasses.replace(tried.launcher, nodes=None, devices_per_node=None)
        return not check(dataclasses.replace(tried, parallel=parallel, launcher=launcher), self.world_size)

    def tries(self, layout: Layout) -> list[tuple[int, ...]]:
        """Return the trainer's own cut: blocks evenly."""
        blocks, stages = self.config.model.blocks, layout.pipeline
        cut = [blocks // stages + (stage < blocks % stages) for stage in range(stages)]
        cut[0] += 1
        cut[-1] += 1
        return [tuple(cut)]

    def problem(self, layout: Layout) -> Problem:
        """Return what :func:`rdm_planner.partition.best_cut` needs for a layout."""
        job = with_layout(self.config, layout)
        units = _units(flops.layer_sizes(job))
        stages = [self._stage_nodes(stage, layout) for stage in range(layout.pipeline)]
        slowest = [min(nodes, key=lambda node: self.peaks[node.gpu]) for nodes in stages]
        sums = {
            node: [0.0, *itertools.accumulate(self._seconds(job, unit, node) for unit in units)]
            for node in set(slowest)
        }
        sends = self._sends(job, layout, stages)
        schedule = BlockingSends(
            OneForwardOneBackward(layout.pipeline, layout.accumulation(self._batch)), tuple(sends)
        )
        reduce = [self._reduce_rate(layout, nodes) for nodes in stages]
        held = [0, *itertools.accumulate(sum(map(_own(layout.tensor), unit)) for unit in units)]
        tied = self._tied_seconds(job, layout, stages)

        def total(cut: Sequence[int], ends: Sequence[float]) -> float:
            bounds = [0, *itertools.accumulate(cut)]
            return tied + max(
                ends[stage] + (held[end] - held[begin]) * reduce[stage]
                for stage, (begin, end) in enumerate(itertools.pairwise(bounds))
            )

        def rest(first: int) -> float:
            return tied + held[first] * reduce[0]

        return Problem(
            [sums[node] for node in slowest], schedule, total, rest, self._fits(job, layout, units, stages)
        )

    def estimate(self, layout: Layout, cut: Sequence[int]) -> Estimate:
        """Return what a layout with a cut takes."""
        problem = self.problem(layout)
        ends = problem.schedule.ends(problem.times(cut))
        job = with_layout(self.config, layout)
        seconds = problem.total(cut, ends)
        stages = [self._stage_nodes(stage, layout) for stage in range(layout.pipeline)]
        tied = self._tied_seconds(job, layout, stages)
        busiest = max(problem.times(cut)) * layout.accumulation(self._batch)
        bounds = [0, *itertools.accumulate(cut)]
        units = _units(flops.layer_sizes(job))
        memory = max(
            self._memory(job, layout, tuple(itertools.chain(*units[begin:end])), stage)
            for stage, (begin, end) in enumerate(itertools.pairwise(bounds))
        )
        return Estimate(
            layout=layout,
            nodes=tuple(node.gpu for node in self.nodes),
            cut=tuple(cut),
            seconds=seconds,
            parts={
                "compute": busiest,
                "bubble and sends": ends[0] - busiest,
                "data reduction": seconds - ends[0] - tied,
                "embedding reduction": tied,
            },
            memory_gib=memory / GIB,
            fits=problem.holds(cut),
        )

    @property
    def _batch(self) -> int:
        return self.config.optimisation.global_batch_size

    def _stage_nodes(self, stage: int, layout: Layout) -> list[NodeKind]:
        """Return the kinds of a stage's nodes: its ranks are next to each other."""
        ranks = layout.tensor * layout.data
        first, last = stage * ranks // self.gpus, ((stage + 1) * ranks - 1) // self.gpus
        return list(self.nodes[first : last + 1])

    def _seconds(self, job: Config, unit: tuple[LayerSize, ...], node: NodeKind) -> float:
        """Return the time of a unit's layers for one micro-batch, forward and backward, in seconds."""
        size, tensor = job.optimisation.micro_batch_size, job.parallel.tensor
        rate = self.peaks[node.gpu] * 1e12 * self.efficiency * tensor
        seconds = 0.0
        for layer in unit:
            is_block = layer.name.endswith("Block")
            passes = 4 if is_block and job.parallel.activation_checkpointing == "full" else 3
            seconds += size * passes * flops.forward_flops(job, layer) / rate
            if is_block and tensor > 1:
                # Two sums forward and two backward; one more pass forward with checkpointing.
                sums = 2 * (passes - 1) * (2 if layer.name == "DecoderBlock" else 1)
                ring = 2 * (tensor - 1) / tensor * self._activation_bits(job)
                seconds += sums * ring / node.intra
        return seconds

    def _activation_bits(self, job: Config) -> float:
        width = 4 if job.optimisation.precision == "fp32" else 2
        tokens = job.model.tokens_per_sample if job.model.kind == "t5" else job.model.seq_length
        return job.optimisation.micro_batch_size * tokens * job.model.hidden_size * width * _BITS

    def _sends(self, job: Config, layout: Layout, stages: Sequence[Sequence[NodeKind]]) -> list[float]:
        """Return what each stage adds to a micro-batch: it sends and receives at each of its borders."""
        ranks = layout.tensor * layout.data
        added = [0.0] * layout.pipeline
        for stage in range(layout.pipeline - 1):
            here, there = stages[stage][-1], stages[stage + 1][0]
            # Each rank sends to the one that has its place in the next stage.
            senders = range(stage * ranks, (stage + 1) * ranks)
            leaving = collections.Counter(
                rank // self.gpus for rank in senders if rank // self.gpus != (rank + ranks) // self.gpus
            )
            bandwidth = here.link(there) / max(leaving.values()) if leaving else here.intra
            # An output one way, a gradient the other.
            seconds = 2 * self._activation_bits(job) / bandwidth
            added[stage] += seconds
            added[stage + 1] += seconds
        return added

    def _reduce_rate(self, layout: Layout, nodes: Sequence[NodeKind]) -> float:
        """Return the seconds of reducing one parameter of a rank and of gathering it again."""
        data, tensor = layout.data, layout.tensor
        if data == 1:
            return 0.0
        width = 4 if self.config.optimisation.precision == "fp32" else 2
        if len(nodes) == 1:
            bandwidth = nodes[0].intra
        else:
            # As many rings leave a node as there are tensor ranks in it.
            bandwidth = min(node.inter for node in nodes) / min(tensor, self.gpus)
        return (data - 1) / data * (_GRADIENT_BYTES + width) * _BITS / bandwidth

    def _tied_seconds(self, job: Config, layout: Layout, stages: Sequence[Sequence[NodeKind]]) -> float:
        """Return the time of summing the tied embedding's gradients between the first and the last stage."""
        if layout.pipeline == 1 or not job.model.tied_embeddings:
            return 0.0
        words = job.padded_vocab_size * job.model.hidden_size / layout.tensor
        first, last = stages[0][0], stages[-1][-1]
        is_inside = self.world_size == self.gpus
        pairs = min(self.gpus, layout.tensor * layout.data)
        return words * _GRADIENT_BYTES * _BITS / (first.intra if is_inside else first.link(last) / pairs)

    def _fits(
        self,
        job: Config,
        layout: Layout,
        units: Sequence[tuple[LayerSize, ...]],
        stages: Sequence[Sequence[NodeKind]],
    ) -> Callable[[int, int, int], bool]:
        limits = [min(node.memory_gib for node in nodes) * GIB for nodes in stages]

        # Stages of the same layers that keep as many micro-batches need the same.
        names = sorted({unit[0].name for unit in units})
        counts = [(0,) * len(names)]
        for unit in units:
            counts.append(
                tuple(count + (unit[0].name == name) for count, name in zip(counts[-1], names, strict=True))
            )
        known: dict[tuple[object, ...], int] = {}

        def fits(stage: int, begin: int, end: int) -> bool:
            kept = min(layout.accumulation(self._batch), layout.pipeline - stage)
            key: tuple[object, ...]
            if len(names) <= 3:
                # All blocks are alike: it matters how many there are, and not which.
                key = kept, stage == layout.pipeline - 1, begin == 0, end - begin
            else:
                key = kept, stage == layout.pipeline - 1, counts[begin], counts[end]
            if key not in known:
                known[key] = self._memory(job, layout, tuple(itertools.chain(*units[begin:end])), stage)
            return known[key] <= limits[stage]

        return fits

    def _memory(self, job: Config, layout: Layout, layers: tuple[LayerSize, ...], stage: int) -> int:
        """Return the bytes of a rank of a stage."""
        in_flight = min(layout.accumulation(self._batch), layout.pipeline - stage)
        is_last = stage == layout.pipeline - 1
        return stage_memory(job, list(layers), layout.data, in_flight, last=is_last).total


def _own(tensor: int) -> Callable[[LayerSize], int]:
    return lambda layer: layer.split // tensor + layer.whole


def _units(layers: Sequence[LayerSize]) -> list[tuple[LayerSize, ...]]:
    """Return what a cut counts: what is before the blocks, each block with what follows it, what is after."""
    blocks = [index for index, layer in enumerate(layers) if layer.name.endswith("Block")]
    bounds = [0, *blocks, blocks[-1] + 1, len(layers)]
    return [tuple(layers[begin:end]) for begin, end in itertools.pairwise(bounds)]
