# SPDX-License-Identifier: GPL-3.0-or-later
"""FASOP's cost model of one model on nodes in one order."""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from rdm_planner.fasop.minmax import minmax
from rdm_planner.fasop.shapes import Shape, layer_seconds
from rdm_planner.layouts import Estimate, Layout
from rdm_planner.nodes import NodeKind, ring_nodes
from rdm_planner.partition import Problem
from rdm_planner.schedules import OneForwardOneBackward
from rdm_planner.search import ideal_sums

_BITS = 16
_GIB = 1024**3
# FASOP's safety factor on estimated memory.
_MARGIN = 1.10
# Relative tolerance: splits of a T5's stages this close are equally fast.
_SAME = 1e-12


def rotations(nodes: Sequence[NodeKind]) -> list[tuple[NodeKind, ...]]:
    """Return the orders of nodes that FASOP tries: a single one for equal nodes, else all cyclic rotations.

    Args:
        nodes: The nodes in order, those of a kind together.
    """
    given = tuple(nodes)
    if len(set(given)) == 1:
        return [given]
    return [given[first:] + given[:first] for first in range(len(given))]


@dataclass(frozen=True)
class FasopModel:
    """The cost of layouts according to FASOP.

    Args:
        shape: The model.
        nodes: The nodes in order, all with the same number of GPUs.
        with_slips: Reproduce the bugs of FASOP's program in its heuristic.
        within_memory: Choose only cuts whose stages fit their GPUs; FASOP itself only flags other cuts.
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

    def placement(self, layout: Layout) -> Hashable:
        """Return a key that is equal for all orders of nodes on which a layout costs the same."""
        stages = self._stage_gpus(layout.pipeline)
        schedule = self._schedule(layout)
        rates = tuple(self._reduce_rate(layout, gpu) for gpu in dict.fromkeys(stages))
        limits = tuple(self._memory_limits(layout.pipeline)) if self.within_memory else ()
        return tuple(stages), schedule, rates, self._embedding_reduce(layout), limits

    def ideal(self, layout: Layout) -> Problem:
        """Return a problem that is never slower than the layout's, for any order of the nodes."""
        stages, count = layout.pipeline, len(self.nodes)
        by_gpu = collections.Counter(node.gpu for node in self.nodes)

        def room(kinds: Sequence[str]) -> int:
            # One A10 slows its whole stage down.
            if "A10" in kinds:
                return stages
            nodes = sum(by_gpu[gpu] for gpu in kinds)
            return nodes // (count // stages) if stages < count else nodes * -(-stages // count)

        running = {gpu: self._sums(gpu, layout) for gpu in by_gpu}
        schedule = OneForwardOneBackward(stages, layout.accumulation(self.shape.batch))
        return Problem(ideal_sums(running, stages, room), schedule, lambda _cut, ends: max(ends))

    def problem(self, layout: Layout) -> Problem:
        """Return the input of :func:`rdm_planner.partition.best_cut` for a layout."""
        sums = {node.gpu: self._sums(node.gpu, layout) for node in self.nodes}
        stages = self._stage_gpus(layout.pipeline)
        rate, embedding = self._reduce_rate(layout, stages[0]), self._embedding_reduce(layout)
        held = _first_stage_parameters(self.shape, layout.tensor)
        return Problem(
            [sums[gpu] for gpu in stages],
            self._schedule(layout),
            self._total(layout),
            lambda first: held[first] * rate + embedding,
            self._fits(layout),
        )

    def _total(self, layout: Layout) -> Callable[[Sequence[int], Sequence[float]], float]:
        """Return a function of a cut and each stage's end that computes the step time."""
        stages = self._stage_gpus(layout.pipeline)
        by_gpu = {gpu: self._reduce_rate(layout, gpu) for gpu in set(stages)}
        embedding = self._embedding_reduce(layout)
        held = _first_stage_parameters(self.shape, layout.tensor)

        def total(cut: Sequence[int], ends: Sequence[float]) -> float:
            reduce = {gpu: held[cut[0]] * rate for gpu, rate in by_gpu.items()}
            if len(reduce) == 1:
                return max(ends) + reduce[stages[0]] + embedding
            return max(end + reduce[gpu] for end, gpu in zip(ends, stages, strict=True)) + embedding

        return total

    def _fits(self, layout: Layout) -> Callable[[int, int, int], bool]:
        """Return a test whether a stage can hold some layers; a T5's stage never spans both halves."""
        half = (self.shape.layers + 2) // 2 if self.shape.name == "T5" and layout.pipeline > 1 else 0
        if not self.within_memory:
            return lambda _stage, begin, end: not begin < half < end
        used = self._memory_sums(layout)
        limits = self._memory_limits(layout.pipeline)

        def fits(stage: int, begin: int, end: int) -> bool:
            return not begin < half < end and used[end] - used[begin] <= limits[stage]

        return fits

    def tries(self, layout: Layout) -> list[tuple[int, ...]]:
        """Return FASOP's own cut, which needs no search."""
        return [self.heuristic(layout)[0]]

    def heuristic(self, layout: Layout) -> tuple[tuple[int, ...], list[float]]:
        """Return FASOP's own cut, and when each stage ends given the times that FASOP continues with."""
        stages = self._stage_gpus(layout.pipeline)
        schedule = self._schedule(layout)
        by_gpu = {
            gpu: layer_seconds(self.shape, gpu, layout.tensor, layout.micro_batch) for gpu in set(stages)
        }
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
        """Cut each half separately for every split of the stages, with the encoder's costs as FASOP does."""
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

    def estimate(self, layout: Layout, cut: Sequence[int] | None = None) -> Estimate:
        """Return the cost of a layout.

        Args:
            layout: The layout.
            cut: Layers of each stage; FASOP's own if None.
        """
        if cut is None:
            cut, ends = self.heuristic(layout)
        else:
            problem = self.problem(layout)
            ends = problem.schedule.ends(problem.times(cut))
        rate = self._reduce_rate(layout, self._stage_gpus(layout.pipeline)[0])
        reduce = _first_stage_parameters(self.shape, layout.tensor)[cut[0]] * rate
        embedding = self._embedding_reduce(layout)
        memory, fits = self._memory(layout, cut)
        return Estimate(
            layout=layout,
            nodes=tuple(node.gpu for node in self.nodes),
            cut=tuple(cut),
            seconds=self._total(layout)(cut, ends),
            parts={"pipeline": ends[0], "data reduction": reduce, "embedding reduction": embedding},
            memory_gib=memory,
            fits=fits,
        )

    def _sums(self, gpu: str, layout: Layout) -> list[float]:
        return _sums(self.shape, gpu, layout.tensor, layout.micro_batch)

    def _schedule(self, layout: Layout) -> OneForwardOneBackward:
        boundaries = self._boundaries(layout) or (0.0,)
        return OneForwardOneBackward(
            layout.pipeline, layout.accumulation(self.shape.batch), boundaries[0], boundaries[-1]
        )

    def _boundaries(self, layout: Layout) -> tuple[float, ...]:
        """Return the time to send from each stage to the next, for the slowest replica."""
        volume = layout.micro_batch * self.shape.seq * self.shape.hidden * _BITS
        return tuple(volume / bandwidth for bandwidth in self._slowest_links(layout))

    def _slowest_links(self, layout: Layout) -> list[float]:
        tensor, data = layout.tensor, layout.data
        replicas = [
            [ring_nodes(stage, rank, tensor, data, self.gpus) for rank in range(tensor)]
            for stage in range(layout.pipeline)
        ]
        return [
            min(
                self.nodes[here].intra / 3.5
                if here == there
                else self.nodes[here].link(self.nodes[there]) / (data * tensor * 1.05)
                for rank in range(tensor)
                for here, there in set(zip(replicas[stage][rank], replicas[stage + 1][rank], strict=True))
            )
            for stage in range(layout.pipeline - 1)
        ]

    def _group(self, stage: int, stages: int) -> range:
        """Return the nodes of a stage."""
        count = len(self.nodes)
        if stages < count:
            return range(stage * count // stages, (stage + 1) * count // stages)
        node = stage * count // stages
        return range(node, node + 1)

    def _stage_gpus(self, stages: int) -> list[str]:
        """Return the GPU of each stage; it is A10 if any of its nodes has A10s."""
        kinds = [{self.nodes[node].gpu for node in self._group(stage, stages)} for stage in range(stages)]
        return ["A10" if "A10" in names else names.pop() for names in kinds]

    def _reduce_rate(self, layout: Layout, gpu: str) -> float:
        """Return the seconds to reduce one parameter over the replicas, for a stage with these GPUs."""
        tensor, data = layout.tensor, layout.data
        if data == 1:
            return 0.0
        ring = ring_nodes(0, tensor - 1, tensor, data, self.gpus)
        bandwidth = min(map(self._link, ring, ring[1:] + ring[:1]))
        if tensor * data >= self.gpus:
            bandwidth /= tensor
        elif tensor > 1 and gpu == "A10":
            bandwidth /= self.gpus / data
        return 2 * (data - 1) * _BITS / (data * bandwidth)

    def _embedding_reduce(self, layout: Layout) -> float:
        """Return the time to sum the tied embedding's gradients between the first and the last stage."""
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

        FASOP ignores the last of several nodes of a stage.
        """
        used, limits = self._memory_sums(layout), self._memory_limits(layout.pipeline)
        fullest, fits, begin = 0.0, True, 0
        for limit, count in zip(limits, cut, strict=True):
            held = used[begin + count] - used[begin]
            begin += count
            fullest = max(fullest, held)
            fits = fits and held <= limit
        return fullest, fits

    def _memory_limits(self, stages: int) -> list[float]:
        """Return the memory of each stage's GPUs, GiB."""
        groups = [self._group(stage, stages) for stage in range(stages)]
        if stages < len(self.nodes):
            groups = [group[:-1] for group in groups]
        return [min((self.nodes[node].memory_gib for node in group), default=math.inf) for group in groups]

    def _memory_sums(self, layout: Layout) -> list[float]:
        """Return the running sums of the layers' memory, GiB."""
        in_flight = min(layout.pipeline, layout.accumulation(self.shape.batch))
        return _memory_sums(self.shape, layout.tensor, layout.pipeline, layout.micro_batch, in_flight)


@functools.lru_cache(maxsize=1024)
def _memory_sums(shape: Shape, tensor: int, stages: int, size: int, in_flight: int) -> list[float]:
    hidden, seq = shape.hidden, shape.seq
    words = 18 * hidden * shape.vocab / tensor
    attention = 10 + 24 / tensor + 5 * shape.heads * seq / (hidden * tensor)
    block = 18 * 12 * hidden**2 / tensor + seq * size * in_flight * hidden * attention
    by_kind = {
        "embedding": words + seq * size * hidden * stages * in_flight / tensor,
        "post": words + 4 * seq * size * (hidden + shape.vocab) / tensor,
    }
    held = [by_kind.get(kind, block) / _GIB * _MARGIN for kind in shape.kinds]
    return [0.0, *itertools.accumulate(held)]


@functools.lru_cache(maxsize=64)
def _first_stage_parameters(shape: Shape, tensor: int) -> list[float]:
    """Return a first stage's parameters by its number of layers; FASOP reduces these on every stage."""
    found = [0.0]
    blocks = 0
    for count, kind in enumerate(shape.kinds, start=1):
        blocks += kind not in ("embedding", "post")
        parameters = blocks * (12 * shape.hidden**2 + 20800) / tensor
        found.append(parameters + (shape.hidden * shape.vocab if blocks < count else 0))
    return found


@functools.lru_cache(maxsize=1024)
def _sums(shape: Shape, gpu: str, tensor: int, micro_batch: int) -> list[float]:
    return [0.0, *itertools.accumulate(layer_seconds(shape, gpu, tensor, micro_batch))]
