# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of a job's layouts on nodes: what its stages compute, exchange and send there.

Sources: see :mod:`rdm_planner.job`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from rdm_core.cost.dry_run import GIB, zero_replicas
from rdm_planner.after_passes import AfterPasses, Work, rated, scaled, step_seconds
from rdm_planner.interleaved import Interleaved, InterleavedProblem, of_stages
from rdm_planner.job import BITS, NO_EXCHANGES, Exchanges, Job, JobInLayout
from rdm_planner.layouts import Estimate, Layout
from rdm_planner.nodes import NodeKind
from rdm_planner.partition import Problem
from rdm_planner.schedules import BlockingSends, OneForwardOneBackward
from rdm_planner.search import ideal_sums
from rdm_planner.times import Link


@dataclass(frozen=True)
class TrainerModel:
    """The cost of a job's layouts on nodes in one order.

    Args:
        job: The job.
        nodes: The nodes in order, all with the same number of GPUs.
    """

    job: Job
    nodes: tuple[NodeKind, ...]

    @property
    def gpus(self) -> int:
        """GPUs of a node."""
        return self.nodes[0].gpus

    @property
    def world_size(self) -> int:
        """GPUs of all nodes."""
        return self.gpus * len(self.nodes)

    def layouts(self) -> Iterator[Layout]:
        """Yield every layout that the trainer accepts and for whose tensor degree the times are known."""
        kinds = {node.gpu for node in self.nodes}
        known = [tensors for gpu in kinds if (tensors := self.job.times.tensors(gpu)) is not None]
        for layout in self.job.space.layouts(self.world_size, self.gpus):
            if all(layout.tensor in tensors for tensors in known):
                yield layout

    def tries(self, layout: Layout) -> list[tuple[int, ...]]:
        """Return the trainer's own cut, which is even."""
        blocks, stages = self.job.config.spec.blocks, layout.pipeline * layout.virtual_pipeline
        cut = [blocks // stages + (stage < blocks % stages) for stage in range(stages)]
        cut[0] += 1
        cut[-1] += 1
        return [tuple(cut)]

    def placement(self, layout: Layout) -> Hashable:
        """Return a key that is equal for all orders of nodes on which a layout costs the same."""
        return tuple(tuple(node.gpu for node in nodes) for nodes in self._stages(layout))

    def ideal(self, layout: Layout) -> Problem:
        """Return a problem that no order of the nodes beats: it has no sends and no mixed stages."""
        count = self._count
        exchanges = self._least_exchanges(layout)
        running = {gpu: self.job.sums(layout, gpu, exchanges[gpu])[0] for gpu in count}
        sums = ideal_sums(
            running,
            layout.pipeline,
            lambda kinds: sum(count[gpu] for gpu in kinds) * self.gpus // layout.ranks,
        )
        shaped = self.job.shaped(layout)
        most = max(self.job.times.memory_gib(gpu) for gpu in count) * GIB

        def fits(stage: int, begin: int, end: int) -> bool:
            return shaped.most_memory(stage, begin, end) <= most

        return Problem(
            sums, self._schedule(layout), lambda _cut, ends: max(ends), fits=fits, first=shaped.first
        )

    @cached_property
    def _count(self) -> collections.Counter[str]:
        return collections.Counter(node.gpu for node in self.nodes)

    def problem(self, layout: Layout) -> Problem:
        """Return the input of :func:`rdm_planner.partition.best_cut` for a layout."""
        shaped = self.job.shaped(layout)
        stages = self._stages(layout)
        inner, sends = self._schedule(layout), self._sends(shaped, stages)
        schedule = BlockingSends(inner, sends)
        costs = self._afters(shaped, stages)
        added = self._tied_seconds(shaped, stages)
        room = {node.gpu: self.job.times.memory_gib(node.gpu) * GIB for node in self._kinds[0]}
        limits = [min(room[node.gpu] for node in nodes) for nodes in stages]

        running = self._running(layout, stages)

        def total(cut: Sequence[int], ends: Sequence[float]) -> float:
            works = _works(shaped, running, of_stages(cut, layout.pipeline))
            return step_seconds(costs, added, works, ends)

        def rest(first: int) -> float:
            work = _work(shaped, running[0], 0, first)
            return added + costs[0].reduction(work) + costs[0].update(work)

        def fits(stage: int, begin: int, end: int) -> bool:
            return shaped.most_memory(stage, begin, end) <= limits[stage]

        sums = [both for both, _ in running]
        if isinstance(inner, Interleaved):
            backward = [back for _, back in running]

            def holds(stage: int, units: Sequence[int]) -> bool:
                return shaped.memory_of_chunks(stage, units) <= limits[stage]

            return InterleavedProblem(
                sums, schedule, total, rest, fits, shaped.first, inner, sends, backward, holds
            )
        return Problem(sums, schedule, total, rest, fits, shaped.first)

    def estimate(self, layout: Layout, cut: Sequence[int]) -> Estimate:
        """Return the cost of a layout with a cut, which has the units of each chunk in the model's order."""
        problem = self.problem(layout)
        units = of_stages(cut, layout.pipeline)
        times = problem.times(cut)
        ends = problem.ends(cut)
        shaped = self.job.shaped(layout)
        stages = self._stages(layout)
        costs = self._afters(shaped, stages)
        tied = self._tied_seconds(shaped, stages)
        seconds = problem.total(cut, ends)
        works = _works(shaped, self._running(layout, stages), units)
        alone = _works(shaped, self._running(layout, stages, lambda _all: NO_EXCHANGES), units)
        gathering = self._running(layout, stages, lambda one: Exchanges(context=one.context))
        optimiser = max(rated(cost.optimiser, work.own) for cost, work in zip(costs, works, strict=True))
        sends = self._sends(shaped, stages)
        busiest = max(range(layout.pipeline), key=lambda stage: times[stage] + sends[stage])
        compute = alone[busiest].both * shaped.micro_batches
        gathered = _works(shaped, gathering, units)[busiest].both * shaped.micro_batches - compute
        exchange = times[busiest] * shaped.micro_batches - compute - gathered
        sending = sends[busiest] * shaped.micro_batches
        memory = tuple(size / GIB for size in shaped.memory_of_stages(cut))
        return Estimate(
            layout=layout,
            nodes=tuple(node.gpu for node in self.nodes),
            cut=tuple(cut),
            seconds=seconds,
            parts={
                "compute": compute,
                "context exchange": gathered,
                "expert exchange": exchange,
                "bubble": ends[0] - compute - gathered - exchange - sending,
                "pipeline sends": sending,
                "data reduction": seconds - ends[0] - tied - optimiser,
                "embedding reduction": tied,
                "optimiser": optimiser,
            },
            memory_gib=max(memory),
            stage_memory_gib=memory,
            stage_seconds=tuple(own + sent for own, sent in zip(times, sends, strict=True)),
            forward_share=self._schedule(layout).forward,
            fits=problem.holds(cut),
        )

    def _schedule(self, layout: Layout) -> OneForwardOneBackward | Interleaved:
        gpu = self.nodes[0].gpu
        return self.job.schedule(layout, gpu, self._least_exchanges(layout)[gpu])

    def _running(
        self,
        layout: Layout,
        stages: Sequence[Sequence[NodeKind]],
        counted: Callable[[Exchanges], Exchanges] = lambda every: every,
    ) -> list[tuple[list[float], list[float]]]:
        """Return each stage's :meth:`Job.sums` on its slowest node and its slowest links.

        ``counted`` returns the exchanges that count.
        """
        known = {}
        for nodes in stages:
            if id(nodes) not in known:
                exchanges = counted(self._exchanges(layout, {node.gpu for node in nodes}))
                known[id(nodes)] = self.job.sums(layout, self._slowest(layout, nodes).gpu, exchanges)
        return [known[id(nodes)] for nodes in stages]

    def _least_exchanges(self, layout: Layout) -> dict[str, Exchanges]:
        """Return a lower bound on the exchanges by GPU: those of a stage with only this GPU."""
        return {gpu: self._exchanges(layout, {gpu}) for gpu in self._count}

    def _exchanges(self, layout: Layout, gpus: Collection[str]) -> Exchanges:
        """Return what ranks exchange on a stage with these kinds of GPU."""
        context = self._axis_link(layout, layout.context, gpus) if layout.context > 1 else None
        spec = self.job.config.spec
        if not spec.experts:
            return Exchanges(context=context)
        step, times = self.job.shaped(layout).step, self.job.times
        # Each tensor rank sends its part of the tokens.
        rows = layout.micro_batch * spec.seq_length * spec.router_top_k / (layout.tensor * layout.context)
        bits = rows * spec.hidden_size * step.exchange_bytes * BITS
        seconds = self._all_to_all(gpus, layout.tensor * layout.expert, bits)
        if times.is_measured:
            # Measured layer times already include the exchange among tensor ranks.
            seconds = max(0.0, seconds - self._all_to_all(gpus, layout.tensor, bits))
        bandwidth = self._axis_link(layout, layout.expert, gpus).bandwidth
        share = 2 * (layout.expert - 1) / layout.expert
        return Exchanges(
            # To the experts and back.
            experts=2 * seconds,
            mean=share * step.mean_bytes * BITS / bandwidth,
            context=context,
        )

    def _axis_link(self, layout: Layout, degree: int, gpus: Collection[str]) -> Link:
        """Return the link of a ring over an axis whose ranks are adjacent but for the tensor ranks."""
        ranks = layout.tensor * degree
        across = ranks > self.gpus or self.gpus % ranks > 0
        link = self.job.times.all_reduce(gpus, across=across)
        # One ring per tensor rank leaves the node.
        return dataclasses.replace(link, bandwidth=link.bandwidth / (layout.tensor if across else 1))

    def _all_to_all(self, gpus: Collection[str], ranks: int, bits: float) -> float:
        """Return the time of an even all-to-all between adjacent ranks."""
        if ranks == 1:
            return 0.0
        within, leaving = _parts_sent(ranks, self.gpus)
        return max(
            self.job.times.point_to_point(here, there, across=across).seconds(bits * part)
            for here, there in itertools.product(gpus, gpus)
            for part, across in ((within, False), (leaving, True))
            if part
        )

    def _slowest(self, layout: Layout, nodes: Sequence[NodeKind]) -> NodeKind:
        if len(nodes) == 1:
            return nodes[0]
        slowdown = self.job.slowdowns(layout, self._least_exchanges(layout))
        return max(nodes, key=lambda node: slowdown[node.gpu])

    def _stages(self, layout: Layout) -> list[tuple[NodeKind, ...]]:
        """Return the distinct kinds of each stage's nodes, in order; a stage has adjacent ranks."""
        ranks = layout.ranks
        if ranks not in self._by_ranks:
            kinds, numbers = self._kinds
            groups: dict[tuple[int, ...], tuple[NodeKind, ...]] = {}
            found = []
            for stage in range(layout.pipeline):
                first, last = stage * ranks // self.gpus, ((stage + 1) * ranks - 1) // self.gpus + 1
                group = tuple(dict.fromkeys(numbers[first:last]))
                # Order does not matter in a stage of more than two nodes, because it has whole nodes.
                group = tuple(sorted(group)) if last - first > 2 else group
                found.append(groups.setdefault(group, tuple(kinds[number] for number in group)))
            self._by_ranks[ranks] = found
        return self._by_ranks[ranks]

    @cached_property
    def _by_ranks(self) -> dict[int, list[tuple[NodeKind, ...]]]:
        return {}

    @cached_property
    def _kinds(self) -> tuple[list[NodeKind], list[int]]:
        """Return the kinds of nodes, numbered alike in every order of the nodes, and each node's number."""
        kinds = sorted(set(self.nodes), key=lambda node: node.gpu)
        number = {kind: number for number, kind in enumerate(kinds)}
        return kinds, [number[node] for node in self.nodes]

    def _sends(self, shaped: JobInLayout, stages: Sequence[Sequence[NodeKind]]) -> tuple[float, ...]:
        """Return the seconds that sends and receives at a stage's boundaries add to a micro-batch.

        Each chunk sends and receives; with several chunks, the last stage also sends to the first.
        """
        layout, times = shaped.layout, self.job.times
        ranks = layout.ranks
        bits = shaped.activation_bits()
        added = [0.0] * layout.pipeline
        waited = 1 - shaped.step.hidden_sends
        known: dict[tuple[int, int, int], float] = {}
        for stage, here in enumerate(stages):
            following = (stage + 1) % layout.pipeline
            there = stages[following]
            messages = layout.virtual_pipeline - (following == 0)
            if not messages:
                continue
            leaving = _leaving(stage, ranks, self.gpus)
            if following == 0:
                leaving = min(ranks, self.gpus) if len(self.nodes) > 1 else 0
            key = (id(here), id(there), leaving)
            if key not in known:
                pairs = itertools.product(here, there) if ranks >= self.gpus else [(here[-1], there[0])]
                slowest = max(
                    times.point_to_point(one.gpu, other.gpu, across=leaving > 0).seconds(
                        bits * max(1, leaving)
                    )
                    for one, other in pairs
                )
                # Outputs go forward, gradients go back.
                known[key] = 2 * slowest * waited
            for end in (stage, following):
                added[end] += messages * known[key]
        return tuple(added)

    def _afters(self, shaped: JobInLayout, stages: Sequence[tuple[NodeKind, ...]]) -> list[AfterPasses]:
        by_kinds = {id(nodes): nodes for nodes in stages}
        known = {key: self._after(shaped, nodes) for key, nodes in by_kinds.items()}
        return [known[id(nodes)] for nodes in stages]

    def _after(self, shaped: JobInLayout, nodes: Sequence[NodeKind]) -> AfterPasses:
        """Return the costs that follow a stage's last micro-batch."""
        layout, step, times = shaped.layout, shaped.step, self.job.times
        others, experts = zero_replicas(shaped.job, layout.replicas)
        update = max(times.optimiser(node.gpu) for node in nodes)
        optimiser = (update / others, update / experts) if step.shards_optimiser else (update, update)
        if layout.replicas == 1:
            return AfterPasses(optimiser=optimiser)
        ranks = layout.ranks
        across = ranks > self.gpus or self.gpus % ranks > 0
        link = times.all_reduce({node.gpu for node in nodes}, across=across)

        def ring(replicas: int) -> float:
            # Each set of ranks with different parameters has its own ring leaving the node.
            alike = layout.replicas // replicas
            bandwidth = link.bandwidth / (min(layout.tensor * alike, self.gpus) if across else 1)
            return (replicas - 1) / replicas * BITS / bandwidth

        rings = (ring(others), ring(experts))
        passes = 1 if step.shards_optimiser else 2
        repeats = shaped.micro_batches if step.reduces_each_micro_batch else 1
        return AfterPasses(
            optimiser=optimiser,
            latency=link.latency * len({others, experts} - {1}),
            reduce=scaled(rings, passes * step.gradient_bytes),
            hidden_reduction=step.hidden_reduction,
            reductions=repeats,
            gather=scaled(rings, step.weight_bytes if step.shards_optimiser else 0),
            hidden_gathers=step.hidden_gathers,
            gathers=step.gathers_each_micro_batch,
            micro_batches=shaped.micro_batches,
        )

    def _tied_seconds(self, shaped: JobInLayout, stages: Sequence[Sequence[NodeKind]]) -> float:
        """Return the time to sum the tied embedding's gradients between the first and the last stage."""
        layout, spec = shaped.layout, shaped.job.spec
        if layout.pipeline == 1 or not spec.tied_embeddings:
            return 0.0
        words = spec.padded_vocab_size * spec.hidden_size / layout.tensor
        across = len(self.nodes) > 1
        ends = {stages[0][0].gpu, stages[-1][-1].gpu}
        pairs = min(self.gpus, layout.ranks) if across else 1
        # Between two ranks, an all-reduce moves the data once.
        return self.job.times.all_reduce(ends, across=across).seconds(
            words * shaped.step.tied_bytes * BITS * pairs
        )


def _work(shaped: JobInLayout, running: tuple[list[float], list[float]], begin: int, end: int) -> Work:
    both, backward = running
    return Work(shaped.own(begin, end), both[end] - both[begin], backward[end] - backward[begin])


def _works(
    shaped: JobInLayout, running: Sequence[tuple[list[float], list[float]]], cut: Sequence[int]
) -> list[Work]:
    bounds = itertools.pairwise([0, *itertools.accumulate(cut)])
    return [_work(shaped, sums, begin, end) for sums, (begin, end) in zip(running, bounds, strict=True)]


def _leaving(stage: int, ranks: int, gpus: int) -> int:
    """Return the most ranks of any node that send to another node, from a stage to the next."""
    if ranks >= gpus:
        return gpus
    first = stage * ranks % gpus
    # Rank r sends to rank r + ranks. The stage may span two nodes.
    here = min(first + ranks, gpus) - max(first, gpus - ranks)
    there = first + ranks - gpus - (gpus - ranks)
    return max(0, here, there)


@functools.cache
def _parts_sent(ranks: int, gpus: int) -> tuple[float, float]:
    """Return what adjacent ranks send in an all-to-all, as multiples of one rank's data.

    Returns:
        What a rank sends within its node, and what leaves a node; both are maxima.
    """
    within = leaving = 0.0
    for first in range(0, math.lcm(ranks, gpus), gpus):
        counts = collections.Counter(rank // ranks for rank in range(first, first + gpus)).values()
        within = max(within, (max(counts) - 1) / ranks)
        leaving = max(leaving, sum(count * (ranks - count) for count in counts) / ranks)
    return within, leaving
