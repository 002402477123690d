# SPDX-License-Identifier: GPL-3.0-or-later
"""A job and its nodes → the fastest layouts, what was left out, and what time costs."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdm_core import config as configuration
from rdm_core.config.layout_checks import recomputed_blocks_problems, unsupported
from rdm_core.config.schema import Config
from rdm_core.cost import flops
from rdm_core.errors import FAILED, TrainerError
from rdm_planner import report
from rdm_planner.engine_step import EngineStep
from rdm_planner.job import Job, published_peaks
from rdm_planner.layouts import Estimate, Layout, blocks_of, with_layout
from rdm_planner.nodes import NodeKind, order_count, tried_orders
from rdm_planner.partition import best_cut
from rdm_planner.profile import require_modelled
from rdm_planner.report import Point
from rdm_planner.search import search
from rdm_planner.search_space import SearchSpace
from rdm_planner.trainer_model import TrainerModel
from rdm_planner.tune.fleet import Fleet
from rdm_planner.tune.options import TuneOptions

_SEARCHED = (
    "parallel.tensor",
    "parallel.pipeline",
    "parallel.data",
    "parallel.partition",
    "optimisation.micro_batch_size",
    "launcher.nodelist",
)
_LEAST_GAIN = 1e-3
"""The share of a step that eager forward passes must at least save to be proposed."""
_SAME = 1e-6
"""The share of a step below which two times are the same."""


@dataclass(frozen=True)
class Answer:
    """The result of ``tune``.

    Args:
        job: The job, with the overrides.
        fleet: The nodes.
        is_measured: The times were measured rather than estimated.
        layouts: Number of layouts.
        solved: Number of searches for a cut.
        bound: Lower bound on the step time of any layout on the tried orders of nodes, seconds.
        is_proved: No layout on these orders is faster than the fastest, but for eager forward passes that
            save too little to be proposed.
        orders: How many orders of the nodes were tried, and how many exist.
        rejected: How many combinations of degrees are not layouts, by reason.
        estimates: The best layouts, the fastest first.
        rows: The same as plain data, for people and scripts; ``overrides`` gives the job this layout.
        front: Subsets of the nodes that no other subset beats in time and cost; None if not requested.
    """

    job: Config
    fleet: Fleet
    is_measured: bool
    layouts: int
    solved: int
    bound: float
    is_proved: bool
    orders: tuple[int, int]
    rejected: Mapping[str, int]
    estimates: Sequence[Estimate]
    rows: Sequence[Mapping[str, Any]]
    front: Sequence[tuple[Point, Mapping[str, Any]]] | None = None

    def chosen(self) -> str:
        """Return the fastest layout in a line or two."""
        best = self.rows[0]
        degrees = f"tensor {best['tensor']}, data {best['data']}, pipeline {best['pipeline']}"
        degrees += f", context {best['context']}" if best["context"] > 1 else ""
        degrees += f", virtual {best['virtual_pipeline']}" if best["virtual_pipeline"] > 1 else ""
        degrees += f", eager forwards {best['eager_forwards']}" if best["eager_forwards"] else ""
        degrees += f", expert {best['expert']}" if self.job.spec.experts else ""
        cut = f" ({best['partition']})" if best["pipeline"] > 1 else ""
        more = ", activation checkpointing" if best["checkpointing"] else ""
        nodes = f" on {', '.join(best['placement'])}" if len(set(best["nodes"])) > 1 else ""
        source = "as measured"
        if not self.is_measured:
            source = f"A GUESS, nothing has been measured: {self.fleet.measure}"
        return (
            f"Layout: {degrees}{cut}, micro-batch {best['micro_batch']}, ZeRO {best['zero_stage']}{more}"
            f"{nodes}; predicted {best['seconds']:.3f} s a step ({source})."
        )

    def mfu_note(self) -> str:
        """Return what the MFU refers to, if the job computes in fp8; empty otherwise."""
        if self.job.optimisation.fp8_recipe == "none":
            return ""
        return "MFU refers to the peak in bf16; the peak in fp8 is twice that."

    def doubts(self) -> list[str]:
        """Return why another layout, or fewer nodes, may be faster than the winner; one sentence each."""
        best = self.rows[0]["seconds"]
        found = [self.fleet.unverified] if self.fleet.unverified else []
        for source, profile in self.fleet.profiles.values():
            if lost := profile.lost_in_noise():
                found.append(
                    f"{source} has no time of {lost}, which noise has hidden. On an idle host, measure it "
                    f"again: {self.fleet.measure}"
                )
        if not self.is_proved:
            found.append(
                f"Not proved: the search for cuts was cut short, and one of {self.bound:.3f} s can exist."
            )
        tried, count = self.orders
        if tried < count:
            every = f"{count:,}" if count < 1_000_000 else "over a million"
            found.append(f"Not exhaustive: {tried} of {every} orders of the nodes were tried.")
        if self.front and self.front[0][1]["seconds"] < best * (1 - _SAME):
            point, row = self.front[0]
            nodes = " + ".join(f"{count} x {gpu}" for gpu, count in point.nodes.items())
            found.append(f"Leaving nodes out is faster: {nodes} take {row['seconds']:.3f} s a step.")
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the output of ``--json``; times are in seconds."""
        found: dict[str, Any] = {
            "ok": True,
            "measured": self.is_measured,
            "layouts": self.layouts,
            "solved": self.solved,
            "bound": self.bound,
            "orders": {"tried": self.orders[0], "all": self.orders[1]},
            "doubts": self.doubts(),
            "rejected": dict(self.rejected),
            "best": [dict(row) for row in self.rows],
        }
        if self.front is not None:
            found["pareto"] = [
                {**row, "counts": dict(point.nodes), "gpu_hours": point.gpu_hours, "price": point.price}
                for point, row in self.front
            ]
        return found


def read_job(options: TuneOptions) -> Config:
    """Return the job to search a layout for.

    Raises:
        TrainerError: The file is not a job, an override sets a key that is searched, or
            no layout supports a key.
    """
    job = configuration.load(options.config, options.overrides)
    for override in options.overrides:
        if override.partition("=")[0] in _SEARCHED:
            raise TrainerError(f"{override} is what is searched here; leave it out.")
    require_modelled(job)
    # The search ignores the file's values of these keys.
    held = _held(options)
    parallel = dataclasses.replace(
        job.parallel,
        zero_stage=job.parallel.zero_stage if "parallel.zero_stage" in held else 1,
        virtual_pipeline=job.parallel.virtual_pipeline if "parallel.virtual_pipeline" in held else 1,
        eager_forwards=job.parallel.eager_forwards if "parallel.eager_forwards" in held else 0,
        context=job.parallel.context if "parallel.context" in held else 1,
    )
    for problem in (
        *unsupported(dataclasses.replace(job, parallel=parallel)),
        *recomputed_blocks_problems(job),
    ):
        raise TrainerError(problem)
    return job


def _held(options: TuneOptions) -> set[str]:
    """Return the keys on the command line, which are fixed."""
    return {override.partition("=")[0] for override in options.overrides}


def _space(options: TuneOptions, job: Config, nodes: Sequence[NodeKind]) -> SearchSpace:
    """Return the layouts to search: those with the values that the command line fixes."""
    held, parallel = _held(options), job.parallel
    chunks = "parallel.virtual_pipeline" in held
    if chunks and job.spec.kind == "t5" and parallel.virtual_pipeline > 1:
        raise TrainerError(
            f"parallel.virtual_pipeline is {parallel.virtual_pipeline}, and no layout of a T5, whose "
            "blocks are of two kinds, is searched for it; leave it out."
        )
    fixed: dict[str, Any] = {}
    for key, name in (
        ("zero_stage", "zero_stages"),
        ("activation_checkpointing", "checkpointing"),
        ("expert", "expert_degrees"),
        ("context", "context_degrees"),
        ("virtual_pipeline", "virtual_degrees"),
    ):
        if f"parallel.{key}" in held:
            fixed[name] = [getattr(parallel, key)]
    if "parallel.eager_forwards" in held:
        fixed["eager_forwards"] = parallel.eager_forwards
    if not chunks and (fixed.get("eager_forwards") or len(set(nodes)) > 1):
        # With nodes of several kinds, searching all their orders would take many times as long.
        fixed["virtual_degrees"] = [1]
    return SearchSpace(job, **fixed)


def answer(
    options: TuneOptions,
    job: Config,
    fleet: Fleet,
    statement: Callable[[Config], EngineStep],
    *,
    keep: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Answer:
    """Search for the fastest layouts.

    Args:
        options: The options.
        job: The result of :func:`read_job`.
        fleet: The nodes.
        statement: Describes the engine's step for a job with a layout.
        keep: How many layouts to return; ``--top`` by default.
        progress: Called with the number of layouts done and the total.

    Raises:
        TrainerError: There is no layout, or none fits.
    """
    prices = fleet.prices(options)
    nodes = fleet.nodes(options)
    for key, value, other, effect in (
        ("optimisation.fp8_recipe", job.optimisation.fp8_recipe, "none", "gains"),
        ("parallel.activation_memory_budget", job.parallel.activation_memory_budget, 1, "costs"),
    ):
        if value != other and not fleet.profiles:
            guess = f"without --guess, which leaves out {fleet.left_out}."
            raise TrainerError(
                f"{key} is {value}, and only a profile knows what that {effect}; search with {key}={other}, "
                f"or {guess if fleet.left_out else f'measure it: {fleet.measure}'}"
            )
    peaks = fleet.peaks()
    times = (
        fleet.measured(nodes) if fleet.profiles else published_peaks(job, nodes, peaks, options.efficiency)
    )
    described = Job(_space(options, job, nodes), times, statement)
    models = _models(described, nodes)
    # Keep the best micro-batch for each choice of degrees. On a tie the largest wins, as it comes first.
    found = search(models, keep=keep or options.top, alike=_degrees, progress=progress)
    if not found.layouts:
        raise TrainerError(_no_layout(job, models[0]))
    if not found.best:
        raise TrainerError(_too_large(described, nodes), exit_code=FAILED)
    best = _with_fewest(models, found.best)
    rows = [_row(job, fleet, estimate, peaks, prices, models[0].gpus) for estimate in best]
    for row, estimate in zip(rows, best, strict=True):
        row["slower"] = dataclasses.asdict(report.slower(best[0], estimate))
    front = None
    if options.pareto or options.html is not None:
        front = [
            (point, _row(job, fleet, point.estimate, peaks, prices, models[0].gpus))
            for point in _front(described, nodes, prices)
        ]
    return Answer(
        job=job,
        fleet=fleet,
        is_measured=described.times.is_measured,
        layouts=found.layouts,
        solved=found.solved,
        bound=found.bound,
        is_proved=found.bound >= found.best[0].seconds * (1 - _SAME),
        orders=(len(models), order_count(nodes)),
        rejected=report.rejected(models[0], found.unfit),
        estimates=best,
        rows=rows,
        front=front,
    )


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tensor, layout.data, layout.pipeline, layout.expert, layout.context


def _with_fewest(models: Sequence[TrainerModel], estimates: Iterable[Estimate]) -> list[Estimate]:
    """Return layouts, the fastest first, each with the fewest eager forward passes that make it fast."""
    by_order = {tuple(node.gpu for node in model.nodes): model for model in models}
    found = [_trimmed(by_order[estimate.nodes], estimate) for estimate in estimates]
    return sorted(found, key=operator.attrgetter("seconds"))


def _trimmed(model: TrainerModel, estimate: Estimate) -> Estimate:
    """Return a layout without eager forward passes that save next to no time: they need memory."""
    most = estimate.layout.eager_forwards if model.job.space.eager_forwards is None else 0
    for eager in range(most):
        layout = dataclasses.replace(estimate.layout, eager_forwards=eager)
        limit = estimate.seconds * (1 + _LEAST_GAIN)
        if cut := best_cut(model.problem(layout), below=limit, tries=[estimate.cut]):
            return dataclasses.replace(model.estimate(layout, cut.layers), bound=cut.bound)
    return estimate


def _front(described: Job, nodes: list[NodeKind], prices: dict[str, float]) -> list[Point]:
    """Return the subsets of the nodes that no other subset beats in time and cost."""

    def fastest(some: Sequence[NodeKind]) -> Estimate | None:
        models = _models(described, some)
        best = _with_fewest(models, search(models, keep=1, alike=_degrees).best)
        return best[0] if best else None

    return report.pareto_front(report.subsets(nodes), fastest, prices)


def _too_large(described: Job, nodes: list[NodeKind]) -> str:
    """Return the message for a model that fits nowhere, with how many GPUs it needs."""
    name, gpus = described.config.name, len(nodes) * nodes[0].gpus
    needed = report.gpus_needed(described, nodes)
    if needed is None:
        return f"{name} does not fit {gpus} of these GPUs, nor many times more; take GPUs with more memory."
    return f"{name} does not fit {gpus} of these GPUs in any layout; {needed} of them would do."


def _models(described: Job, nodes: Sequence[NodeKind]) -> list[TrainerModel]:
    """Return a model for each order of nodes to try."""
    return [TrainerModel(described, order) for order in tried_orders(nodes)]


def _no_layout(job: Config, model: TrainerModel) -> str:
    batch = report.nearest_batch(model.job, model.world_size, model.gpus)
    if batch is not None:
        return (
            f"No layout of {model.world_size} GPUs divides optimisation.global_batch_size "
            f"{model.job.batch}; the nearest that one divides is {batch}."
        )
    if problem := _problem_of_held(model):
        return problem
    (context,) = model.job.space.context_degrees or (1,)
    if model.world_size % context:
        return f"parallel.context {context} does not divide {model.world_size} GPUs; take one that does."
    least = model.job.space.least_micro_batch(1, context)
    alone = with_layout(job, Layout(1, 1, 1, least, context=context))
    alone = dataclasses.replace(alone, parallel=dataclasses.replace(alone.parallel, data=None))
    if problems := configuration.check(alone):
        return problems[0]
    return (
        f"No layout divides {model.world_size} GPUs, {job.spec.blocks} blocks and "
        f"{job.spec.heads} heads; take another number of GPUs."
    )


def _problem_of_held(model: TrainerModel) -> str | None:
    """Return why no layout has the fixed eager forward passes or chunks; None if they are not the reason."""
    held = []
    if model.job.space.eager_forwards:
        held.append("parallel.eager_forwards")
    if model.job.space.virtual_degrees is not None and max(model.job.space.virtual_degrees) > 1:
        held.append("parallel.virtual_pipeline")
    # The first degrees have the most stages and the most micro-batches, so they allow the most.
    reasons = model.job.space.rejections(model.world_size, model.gpus)
    return next((reason for reason in reasons if reason.startswith(tuple(held))), None)


def _row(
    job: Config,
    fleet: Fleet,
    estimate: Estimate,
    peaks: Mapping[str, float],
    prices: Mapping[str, float],
    gpus: int,
) -> dict[str, Any]:
    layout = estimate.layout
    tuned = with_layout(job, layout, estimate.cut)
    batch = job.optimisation.global_batch_size
    known = all(gpu in peaks for gpu in estimate.nodes)
    peak = sum(peaks[gpu] for gpu in estimate.nodes) * gpus * 1e12 if known else None
    hours = gpus * estimate.seconds / 3600
    has_price = all(gpu in prices for gpu in estimate.nodes)
    placed = fleet.placed(estimate.nodes)
    overrides = [
        f"parallel.tensor={layout.tensor}",
        f"parallel.pipeline={layout.pipeline}",
        f"optimisation.micro_batch_size={layout.micro_batch}",
        f"parallel.activation_checkpointing={tuned.parallel.activation_checkpointing}",
        f"parallel.zero_stage={layout.zero_stage}",
    ]
    if (blocks := job.parallel.activation_checkpointing_blocks) is not None:
        # The configuration rejects the key without checkpointing.
        overrides.append(
            f"parallel.activation_checkpointing_blocks={blocks if layout.checkpointing else 'null'}"
        )
    if (budget := job.parallel.activation_memory_budget) < 1:
        # The configuration rejects a budget with checkpointing.
        overrides.append(f"parallel.activation_memory_budget={1 if layout.checkpointing else budget}")
    if job.spec.experts:
        overrides.append(f"parallel.expert={layout.expert}")
    if job.engine == "native" or job.parallel.virtual_pipeline > 1:
        overrides.append(f"parallel.virtual_pipeline={layout.virtual_pipeline}")
    if max(layout.eager_forwards, job.parallel.eager_forwards) > 0:
        overrides.append(f"parallel.eager_forwards={layout.eager_forwards}")
    if max(layout.context, job.parallel.context) > 1:
        overrides.append(f"parallel.context={layout.context}")
    if job.parallel.data is not None:
        overrides.append(f"parallel.data={layout.data}")
    if job.launcher.nodes is not None:
        overrides.append(f"launcher.nodes={len(estimate.nodes)}")
    if job.launcher.devices_per_node is not None:
        overrides.append(f"launcher.devices_per_node={gpus}")
    if tuned.parallel.sequence_parallel != job.parallel.sequence_parallel:
        overrides.append("parallel.sequence_parallel=false")
    if tuned.parallel.partition != job.parallel.partition:
        overrides.append(f"parallel.partition={tuned.parallel.partition}")
    if placed and len(set(estimate.nodes)) > 1:
        overrides.append(f"launcher.nodelist=[{', '.join(placed)}]")
    return {
        "tensor": layout.tensor,
        "data": layout.data,
        "pipeline": layout.pipeline,
        "virtual_pipeline": layout.virtual_pipeline,
        "eager_forwards": layout.eager_forwards,
        "expert": layout.expert,
        "context": layout.context,
        "micro_batch": layout.micro_batch,
        "checkpointing": layout.checkpointing,
        "zero_stage": layout.zero_stage,
        "partition": "-".join(map(str, blocks_of(estimate.cut))),
        "nodes": list(estimate.nodes),
        "placement": placed,
        "seconds": estimate.seconds,
        "price": hours * sum(prices[gpu] for gpu in estimate.nodes) if has_price else None,
        "bound": estimate.bound,
        "tokens_per_second": batch * job.spec.tokens_per_sample / estimate.seconds,
        "mfu": flops.flops_per_sample(tuned.spec) * batch / estimate.seconds / peak if peak else None,
        "memory_gib": estimate.memory_gib,
        "stage_memory_gib": list(estimate.stage_memory_gib),
        "parts": dict(estimate.parts),
        "overrides": overrides,
    }
