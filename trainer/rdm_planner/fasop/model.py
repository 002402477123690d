# SPDX-License-Identifier: GPL-3.0-or-later
"""FASOP's cost model of one model on nodes in one order."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rdm_planner.fasop.minmax import minmax
from rdm_planner.fasop.shapes import Shape, layer_seconds
from rdm_planner.layouts import Estimate, Layout
from rdm_planner.nodes import NodeKind, ring_nodes
from rdm_planner.partition import Problem
from rdm_planner.schedules import OneForwardOneBackward

__all__ = ["FasopModel", "rotations"]

_BITS = 16
_GIB = 1024**3
# What FASOP adds to its estimate of memory.
_MARGIN = 1.10
# Shares of a T5's stages are equally fast within this part of their time.
_SAME = 1e-12


def rotations(nodes: Sequence[NodeKind]) -> list[tuple[NodeKind, ...]]:
    """Return the orders of nodes that FASOP tries: one of equal nodes, else the cyclic rotations.

    Args:
        nodes: In their order, those of a kind together.
    """
    given = tuple(nodes)
    if len(set(given)) == 1:
        return [given]
    return [given[place:] + given[:place] for place in range(len(given))]


@dataclass(frozen=True)
class FasopModel:
    """What a layout costs.

    Args:
        shape: The model.
        nodes: In their order; all have as many GPUs.
        with_slips: Reproduce the slips of FASOP's program in its heuristic.
        within_memory: Choose only cuts whose stages fit their GPUs; FASOP itself flags those that do not.
    """

    shape: Shape
    nodes: tuple[NodeKind, ...]
    with_slips: bool = True
    within_memory: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return self.nodes[0].gpus

    @property
    def world_size(self) -> int:
        """GPUs of all nodes."""
        return self.gpus * len(self.nodes)

    def layouts(self) -> Iterator[Layout]:
        """Yield every layout that divides GPUs and batch, and has no more stages than blocks."""
        for tensor in (1, 2, 4):
            if self.gpus % tensor:
                continue
            replicas = self.world_size // tensor
            for data in range(1, replicas + 1):
                if replicas % data or self.shape.batch % data or replicas // data > self.shape.layers:
                    continue
                share = self.shape.batch // data
                for size in range(1, share + 1):
                    if share % size == 0:
                        yield Layout(tensor, data, replicas // data, size)

    def problem(self, layout: Layout) -> Problem:
        """Return what :func:`rdm_planner.partition.best_cut` needs for a layout."""
        by_gpu = {gpu: self._costs(gpu, layout) for gpu in {node.gpu for node in self.nodes}}
        sums = {gpu: [0.0, *itertools.accumulate(costs)] for gpu, costs in by_gpu.items()}
        stages = self._stage_gpus(layout.pipeline)
        reduce = {gpu: self._reduce_rate(layout, gpu) for gpu in set(stages)}
        embedding = self._embedding_reduce(layout)

        def total(cut: Sequence[int], ends: Sequence[float]) -> float:
            held = self._first_stage_parameters(layout, cut[0])
            return max(end + held * reduce[gpu] for end, gpu in zip(ends, stages, strict=True)) + embedding

        def rest(first: int) -> float:
            return self._first_stage_parameters(layout, first) * reduce[stages[0]] + embedding

        return Problem([sums[gpu] for gpu in stages], self._schedule(layout), total, rest, self._fits(layout))

    def _fits(self, layout: Layout) -> Callable[[int, int, int], bool]:
        """Return whether a stage can hold some layers: a T5's stage never has blocks of both halves."""
        half = (self.shape.layers + 2) // 2 if self.shape.name == "T5" and layout.pipeline > 1 else 0
        used = self._memory_sums(layout)
        limits = [self._memory_limit(stage, layout.pipeline) for stage in range(layout.pipeline)]
        if not self.within_memory:
            limits = [math.inf] * layout.pipeline

        def fits(stage: int, begin: int, end: int) -> bool:
            return not begin < half < end and used[end] - used[begin] <= limits[stage]

        return fits

    def tries(self, layout: Layout) -> list[tuple[int, ...]]:
        """Return cuts that are good without a search: FASOP's own."""
        return [self.heuristic(layout)[0]]

    def heuristic(self, layout: Layout) -> tuple[tuple[int, ...], list[float]]:
        """Return FASOP's own cut, and when each stage ends with the times that it goes on with."""
        stages = self._stage_gpus(layout.pipeline)
        schedule = self._schedule(layout)
        by_gpu = {gpu: self._costs(gpu, layout) for gpu in set(stages)}
        costs = [by_gpu[gpu] for gpu in stages]
        layers = self.shape.layers + 2
        if layout.pipeline == 1:
            return (layers,), schedule.ends([sum(costs[0])])
        boundaries = self._boundaries(layout)
        if self.shape.name != "T5":
            cut, times = minmax(layers, costs, boundaries, with_slips=self.with_slips)
            return tuple(cut), schedule.ends(times)
        return self._t5_heuristic(layout, schedule, costs, boundaries)

    def _t5_heuristic(
        self,
        layout: Layout,
        schedule: OneForwardOneBackward,
        costs: Sequence[Sequence[float]],
        boundaries: Sequence[float],
    ) -> tuple[tuple[int, ...], list[float]]:
        """Cut each half alone, for every share of stages; both with the encoder's costs, as FASOP does."""
        half = (self.shape.layers + 2) // 2
        cuts = {
            stages: minmax(half, costs[:stages], boundaries, with_slips=self.with_slips)[0]
            for stages in range(1, min(layout.pipeline, half))
        }
        best: tuple[tuple[int, ...], list[float]] | None = None
        for first in range(1, min(layout.pipeline, half)):
            second = layout.pipeline - first
            if second > self.shape.layers // 2:
                continue
            cut = (*cuts[first], *cuts[second])
            begin, times = 0, []
            for stage, count in enumerate(cut):
                times.append(sum(costs[stage][begin : begin + count]))
                begin += count
            if best is not None and layout.accumulation(self.shape.batch) * max(times) >= best[1][0]:
                continue
            ends = schedule.ends(times)
            if best is None or ends[0] < best[1][0] * (1 - _SAME):
                best = cut, ends
        if best is None:
            raise ValueError(f"{layout.pipeline} stages are more than the blocks of both halves")
        return best

    def estimate(
        self, layout: Layout, cut: Sequence[int] | None = None, ends: Sequence[float] | None = None
    ) -> Estimate:
        """Return what a layout takes.

        Args:
            layout: The layout.
            cut: Layers of each stage; FASOP's own when not given.
            ends: When each stage ends, seconds; simulated when not given.
        """
        if cut is None:
            cut, ends = self.heuristic(layout)
        problem = self.problem(layout)
        if ends is None:
            ends = problem.schedule.ends(problem.times(cut))
        embedding = self._embedding_reduce(layout)
        reduce = self._first_stage_parameters(layout, cut[0]) * self._reduce_rate(
            layout, self._stage_gpus(layout.pipeline)[0]
        )
        memory, fits = self._memory(layout, cut)
        return Estimate(
            layout=layout,
            nodes=tuple(node.gpu for node in self.nodes),
            cut=tuple(cut),
            seconds=problem.total(cut, ends),
            parts={"pipeline": ends[0], "data reduction": reduce, "embedding reduction": embedding},
            memory_gib=memory,
            fits=fits,
        )

    def _costs(self, gpu: str, layout: Layout) -> list[float]:
        return _costs(self.shape, gpu, layout.tensor, layout.micro_batch)

    def _schedule(self, layout: Layout) -> OneForwardOneBackward:
        stages = layout.pipeline
        boundaries = self._boundaries(layout)
        return OneForwardOneBackward(
            stages,
            layout.accumulation(self.shape.batch),
            boundaries[0] if stages > 1 else 0.0,
            boundaries[-1] if stages > 1 else 0.0,
        )

    @functools.cache  # noqa: B019  # as many as there are layouts, and they live as long as the model
    def _boundaries(self, layout: Layout) -> tuple[float, ...]:
        """Return the time of sending between each stage and the next; the slowest replica's."""
        tensor, data = layout.tensor, layout.data
        volume = layout.micro_batch * self.shape.seq * self.shape.hidden * _BITS
        replicas = [
            [ring_nodes(stage, rank, tensor, data, self.gpus) for rank in range(tensor)]
            for stage in range(layout.pipeline)
        ]
        times = []
        for stage in range(layout.pipeline - 1):
            slowest = min(
                self.nodes[here].intra / 3.5
                if here == there
                else self.nodes[here].link(self.nodes[there]) / (data * tensor * 1.05)
                for rank in range(tensor)
                for here, there in set(zip(replicas[stage][rank], replicas[stage + 1][rank], strict=True))
            )
            times.append(volume / slowest)
        return tuple(times)

    def _group(self, stage: int, stages: int) -> range:
        """Return the nodes of a stage."""
        count = len(self.nodes)
        if stages < count:
            return range(stage * count // stages, (stage + 1) * count // stages)
        node = stage * count // stages
        return range(node, node + 1)

    def _stage_gpus(self, stages: int) -> list[str]:
        """Return the GPU of each stage: an A10 if one of its nodes has one."""
        gpus = []
        for stage in range(stages):
            names = {self.nodes[node].gpu for node in self._group(stage, stages)}
            gpus.append("A10" if "A10" in names else names.pop())
        return gpus

    def _first_stage_parameters(self, layout: Layout, first: int) -> float:
        """Return the parameters of the first stage; FASOP reduces those on every stage."""
        kinds = self.shape.kinds[:first]
        blocks = sum(kind not in ("embedding", "post") for kind in kinds)
        parameters = blocks * (12 * self.shape.hidden**2 + 20800) / layout.tensor
        return parameters + (self.shape.hidden * self.shape.vocab if blocks < first else 0)

    def _reduce_rate(self, layout: Layout, gpu: str) -> float:
        """Return the seconds of reducing one parameter over the replicas, for a stage of such GPUs."""
        tensor, data = layout.tensor, layout.data
        if data == 1:
            return 0.0
        ring = ring_nodes(0, tensor - 1, tensor, data, self.gpus)
        bandwidth = min(
            self._link(here, there) for here, there in zip(ring, ring[1:] + ring[:1], strict=True)
        )
        if tensor * data >= self.gpus:
            bandwidth /= tensor
        elif tensor > 1 and gpu == "A10":
            bandwidth /= self.gpus / data
        return 2 * (data - 1) * _BITS / (data * bandwidth)

    def _embedding_reduce(self, layout: Layout) -> float:
        """Return the time of summing the tied embedding's gradients between the first and the last stage."""
        if layout.pipeline == 1 or self.shape.name == "T5":
            return 0.0
        tensor, data = layout.tensor, layout.data
        slowest = min(
            self._link(
                ring_nodes(0, rank, tensor, data, self.gpus)[-1],
                ring_nodes(layout.pipeline - 1, rank, tensor, data, self.gpus)[-1],
            )
            for rank in range(tensor)
        )
        bandwidth = slowest / min(data, self.gpus)
        return self.shape.hidden * self.shape.vocab * _BITS / bandwidth / tensor

    def _link(self, here: int, there: int) -> float:
        if here == there:
            return self.nodes[here].intra
        return self.nodes[here].link(self.nodes[there])

    def _memory(self, layout: Layout, cut: Sequence[int]) -> tuple[float, bool]:
        """Return the memory of the fullest stage in GiB with FASOP's margin, and whether all stages fit.

        FASOP never looks at the last of several nodes of a stage.
        """
        used = self._memory_sums(layout)
        fullest, fits, begin = 0.0, True, 0
        for stage, count in enumerate(cut):
            held = used[begin + count] - used[begin]
            begin += count
            fullest = max(fullest, held)
            fits = fits and held <= self._memory_limit(stage, layout.pipeline)
        return fullest, fits

    def _memory_limit(self, stage: int, stages: int) -> float:
        """Return the GiB of a stage's GPUs."""
        nodes = self._group(stage, stages)
        looked_at = nodes[:-1] if stages < len(self.nodes) else nodes
        return min((self.nodes[node].memory_gib for node in looked_at), default=math.inf)

    def _memory_sums(self, layout: Layout) -> list[float]:
        """Return the running sums of what layers hold, GiB."""
        shape, tensor, stages = self.shape, layout.tensor, layout.pipeline
        hidden, seq, size = shape.hidden, shape.seq, layout.micro_batch
        in_flight = min(stages, layout.accumulation(shape.batch))
        words = 18 * hidden * shape.vocab / tensor
        attention = 10 + 24 / tensor + 5 * shape.heads * seq / (hidden * tensor)
        block = 18 * 12 * hidden**2 / tensor + seq * size * in_flight * hidden * attention
        by_kind = {
            "embedding": words + seq * size * hidden * stages * in_flight / tensor,
            "post": words + 4 * seq * size * (hidden + shape.vocab) / tensor,
        }
        held = (by_kind.get(kind, block) / _GIB * _MARGIN for kind in shape.kinds)
        return [0.0, *itertools.accumulate(held)]


@functools.lru_cache(maxsize=256)
def _costs(shape: Shape, gpu: str, tensor: int, micro_batch: int) -> list[float]:
    return layer_seconds(shape, gpu, tensor, micro_batch)
