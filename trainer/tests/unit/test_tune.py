# SPDX-License-Identifier: GPL-3.0-or-later
"""Layouts of a job on GPUs with published figures only."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core import config as configuration
from rdm_core.config import Config
from rdm_core.cost import flops
from rdm_core.cost.dry_run import GIB, dry_run
from rdm_core.errors import TrainerError
from rdm_planner.engine_step import EngineStep
from rdm_planner.fasop.minmax import minmax
from rdm_planner.interleaved import timeline
from rdm_planner.job import Job, published_peaks, with_layout
from rdm_planner.layouts import Layout
from rdm_planner.nodes import NodeKind, orders
from rdm_planner.partition import best_cut
from rdm_planner.schedules import BlockingSends
from rdm_planner.search import Found, search
from rdm_planner.times import Link, PublishedPeaks
from rdm_planner.trainer_model import TrainerModel
from rdm_planner.tune.validation import chosen, compared, rank_correlation
from rdm_trainer.cli import cli
from rdm_trainer.engine_step import engine_step

CONFIGS = Path(__file__).parents[2] / "configs"
H100 = NodeKind("H100", gpus=4, inter=400e9, intra=3600e9, memory_gib=79.1)
A10 = NodeKind("A10", gpus=4, inter=40e9, intra=128e9, memory_gib=22.2)
CHUNKS = ["parallel.virtual_pipeline=2"]


_PEAKS = {"H100": 989.4, "A10": 125.0}


def _model(name: str, *nodes: NodeKind, overrides: Sequence[str] = (), **options: Any) -> TrainerModel:
    config = configuration.load(CONFIGS / f"{name}.yaml", overrides)
    return TrainerModel(
        Job(config, published_peaks(config, nodes, _PEAKS, 0.5), engine_step, **options), nodes
    )


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("gpt2-xl", []),
        ("t5-11b", ["model.layers=8"]),
        ("qwen3-30b-a3b", ["model.layers=8"]),
        ("qwen3-30b-a3b", ["model.layers=8", "engine=native"]),
        ("gpt2-xl", ["engine=native", "parallel.activation_checkpointing=full"]),
        ("llama3-8b", ["model.layers=8", "engine=native", "model.seq_length=32768"]),
        ("qwen3-30b-a3b", ["model.layers=4", "engine=native", "model.seq_length=16384"]),
    ],
)
def test_memory_is_the_dry_runs_and_the_trainer_takes_the_layout(name: str, overrides: list[str]) -> None:
    model = _model(name, H100, A10, overrides=overrides)
    found = search(
        [model],
        keep=40,
        alike=lambda one: (one.tensor, one.data, one.pipeline, one.eager_forwards, one.expert, one.context),
    )
    assert len({estimate.layout.pipeline for estimate in found.best}) > 1
    is_native = model.job.config.engine == "native"
    assert is_native is (len({estimate.layout.eager_forwards for estimate in found.best}) > 1)
    spec = model.job.config.spec
    is_long = is_native and spec.seq_length >= 16384
    assert is_long is (len({estimate.layout.context for estimate in found.best}) > 1)
    has_experts = spec.experts > 0
    assert has_experts is (len({estimate.layout.expert for estimate in found.best}) > 1)
    for estimate in found.best:
        tuned = with_layout(model.job.config, estimate.layout, estimate.cut)
        tuned = dataclasses.replace(
            tuned, launcher=dataclasses.replace(tuned.launcher, nodes=None, devices_per_node=None)
        )
        assert not configuration.check(tuned, model.world_size)
        report = dry_run(tuned, model.world_size)
        assert estimate.memory_gib == pytest.approx(report.peak.memory.total / GIB)
        assert sum(estimate.parts.values()) == pytest.approx(estimate.seconds)
        assert estimate.bound is not None
        assert estimate.bound <= estimate.seconds * (1 + 1e-9)


def test_a_batch_that_grows_is_divided_at_each_of_its_sizes() -> None:
    ramp = [f"optimisation.rampup_batch_size.{key}" for key in ("start=4", "increment=12", "samples=640")]
    length = ["train_iterations=null", "decay_iterations=null", "train_samples=6400"]
    overrides = [*ramp, *(f"optimisation.{word}" for word in length)]
    layouts = [*_model("gpt2-xl", A10, A10, overrides=overrides).layouts()]
    assert {layout.data * layout.micro_batch for layout in layouts} == {1, 2, 4}


def test_the_slower_kind_gets_fewer_blocks() -> None:
    model = _model("gpt2-xl", H100, A10)
    best = next(one for one in search([model], keep=30).best if one.layout.pipeline == 2)
    assert best.cut[0] > 2 * best.cut[1]


def test_the_given_order_stays_where_others_cost_the_same() -> None:
    models = [
        _model("gpt2-xl", *order, overrides=["optimisation.global_batch_size=48"])
        for order in orders((H100, A10, A10))
    ]
    found = search(models, keep=100).best
    without_pipeline = [one for one in found if one.layout.pipeline == 1]
    assert {one.nodes for one in without_pipeline} == {("H100", "A10", "A10")}


def test_one_gpu_takes_its_flops_at_its_rate() -> None:
    model = _model("gpt-1.3b", NodeKind("H100", 1, 1e9, 1e9, 79.1))
    best = search([model], keep=1).best[0]
    job = model.job.config
    work = flops.flops_per_sample(job.spec) * job.optimisation.global_batch_size
    assert best.seconds == pytest.approx(work / (989.4e12 * 0.5), rel=5e-3)


def _stated(step: EngineStep, _config: Config) -> EngineStep:
    return step


def test_the_model_follows_what_the_engine_states() -> None:
    layout = Layout(1, 2, 4, 1, zero_stage=1)
    cut = (13, 12, 12, 13)
    parts = {}
    changes: dict[str, dict[str, Any]] = {
        "now": {},
        "half of sends hidden": {"hidden_sends": 0.5},
        "half a gradient": {"gradient_bytes": 2, "weight_bytes": 1, "tied_bytes": 2},
    }
    for name, changed in changes.items():
        model = _model("gpt2-xl", A10, A10)
        stated = dataclasses.replace(engine_step(with_layout(model.job.config, layout)), **changed)
        job = Job(model.job.config, model.job.times, functools.partial(_stated, stated))
        parts[name] = TrainerModel(job, model.nodes).estimate(layout, cut).parts
    assert parts["now"]["pipeline sends"] > 0
    assert parts["half of sends hidden"]["pipeline sends"] == pytest.approx(
        parts["now"]["pipeline sends"] / 2
    )
    for name in ("data reduction", "embedding reduction"):
        assert parts["half a gradient"][name] == pytest.approx(parts["now"][name] / 2)


def _cuts(layers: int, stages: int) -> list[tuple[int, ...]]:
    borders = itertools.combinations(range(1, layers), stages - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *inner, layers))) for inner in borders]


def test_a_stage_hides_its_reduction_behind_its_own_passes() -> None:
    slow = NodeKind("A10", gpus=4, inter=10e9, intra=20e9, memory_gib=22.2)
    model = _model("gpt2-xl", slow, slow, overrides=["engine=native", "model.layers=8"])
    layout = Layout(1, 4, 2, 1, zero_stage=1)
    for cut in _cuts(10, 2):
        estimate = model.estimate(layout, cut)
        own = _own(model, layout, cut)
        reduced, gathered = [], []
        for seconds, held in zip(model.problem(layout).times(cut), own, strict=True):
            ring = 3 / 4 * held * 8 / slow.intra
            reduced.append(max(0.0, 4 * ring - 2 / 3 * seconds))
            gathered.append(max(0.0, 2 * ring - 1 / 3 * seconds))
        assert reduced[0] > 0
        ends = model.problem(layout).schedule.ends(model.problem(layout).times(cut))
        assert estimate.parts["data reduction"] == pytest.approx(
            max(map(sum, zip(ends, reduced, strict=True))) - ends[0] + max(gathered)
        )
    for layout in model.layouts():
        problem = model.problem(layout)
        cuts = _cuts(10, layout.pipeline * layout.virtual_pipeline)
        fitting = [problem.seconds(cut) for cut in cuts if problem.holds(cut)]
        best = best_cut(problem, tries=model.tries(layout))
        assert (best.seconds if best else None) == (pytest.approx(min(fitting)) if fitting else None)


def _own(model: TrainerModel, layout: Layout, cut: Sequence[int]) -> list[int]:
    """Return the parameters of a rank in each stage."""
    tuned = dataclasses.replace(
        with_layout(model.job.config, layout, cut),
        launcher=dataclasses.replace(model.job.config.launcher, nodes=None),
    )
    return [stage.parameters for stage in dry_run(tuned, model.world_size).stages]


def _moe(engine: str, *nodes: NodeKind, more: Sequence[str] = (), **options: Any) -> TrainerModel:
    small = ("layers=3", "experts=8", "moe_router_topk=2", "vocab_size=8000")
    overrides = [*(f"model.{key}" for key in small), "optimisation.global_batch_size=16", f"engine={engine}"]
    return _model("qwen3-30b-a3b", *nodes, overrides=[*overrides, *more], **options)


def test_tokens_are_exchanged_within_a_node_and_over_the_link_that_its_gpus_share() -> None:
    model = _moe("native", H100, H100)
    rows = 2 * 4096 * 2 * 2048 * 16  # two samples' bits: two experts of each token, bf16

    def exchange(tensor: int, expert: int, *, checkpointing: bool = False) -> float:
        layout = Layout(tensor, 8 // tensor, 1, 2, checkpointing, 1, expert)
        return model.estimate(layout, (5,)).parts["expert exchange"] / (3 * 16 / (2 * layout.data))

    # There and back, in both passes; between two nodes a node's four GPUs send half of theirs.
    within, across = 4 * rows / H100.intra, 4 * rows / H100.inter
    assert exchange(1, 1) == 0
    assert exchange(1, 2) == pytest.approx(1 / 2 * within)
    assert exchange(1, 4) == pytest.approx(3 / 4 * within)
    assert exchange(1, 4, checkpointing=True) == pytest.approx(3 / 2 * 3 / 4 * within)
    assert exchange(1, 8) == pytest.approx(4 * 1 / 2 * across)
    # Tensor ranks share the tokens, and the experts.
    assert exchange(2, 2) == pytest.approx(3 / 4 * within / 2)
    assert exchange(2, 4) == pytest.approx(4 * 1 / 2 * across / 2)
    # Measured times of layers include the exchange among tensor ranks.
    among = exchange(2, 1)
    assert among == pytest.approx(1 / 2 * within / 2)
    measured = _Measured(**vars(model.job.times))
    model = TrainerModel(Job(model.job.config, measured, engine_step), model.nodes)
    assert exchange(2, 1) == 0
    assert exchange(2, 2) == pytest.approx((3 / 4 - 1 / 2) * within / 2)


class _Measured(PublishedPeaks):
    is_measured = True


def test_each_engine_reduces_experts_and_what_their_ranks_have_alike_in_its_way() -> None:
    experts = 3 * 8 * 3 * 2048 * 768 // 4
    layout = Layout(1, 8, 1, 1, False, 1, 4)
    seconds = {}
    for engine in ("native", "deepspeed"):
        model = _moe(engine, H100, H100)
        others, own = model.job.shaped(layout).own(0, 5)
        assert own == experts
        stated = engine_step(with_layout(model.job.config, layout))
        stated = dataclasses.replace(stated, hidden_reduction=0.0, hidden_gathers=0.0)
        job = Job(model.job.config, model.job.times, functools.partial(_stated, stated))
        parts = TrainerModel(job, model.nodes).estimate(layout, (5,)).parts
        seconds[engine] = parts["data reduction"], parts["expert exchange"]
    # fp32 gradients and bf16 weights, of experts over two replicas in four rings that share a node's link.
    reduced = 6 * 8 * 1 / 2 * experts * 4 / H100.inter
    assert seconds["native"][0] == pytest.approx(reduced + 6 * 8 * 7 / 8 * others / H100.inter)
    assert seconds["deepspeed"][0] == pytest.approx(reduced + 6 * 8 * 1 / 2 * others * 4 / H100.inter)
    # For DeepSpeed they are averaged over the four in each of two backward passes, in fp32.
    mean = 2 * 3 / 4 * 4 * 8 * others / H100.intra
    assert seconds["deepspeed"][1] - seconds["native"][1] == pytest.approx(2 * mean)


def _fastest(model: TrainerModel, degree: Callable[[Layout], int]) -> dict[int, float]:
    """Return the seconds of the fastest layout of each degree, of all layouts and cuts of three blocks."""
    every: dict[int, float] = {}
    for layout in model.layouts():
        problem = model.problem(layout)
        for cut in _cuts(5, layout.pipeline):
            if problem.holds(cut):
                seconds = model.estimate(layout, cut).seconds
                every[degree(layout)] = min(every.get(degree(layout), seconds), seconds)
    return every


@pytest.mark.parametrize("engine", ["native", "deepspeed"])
def test_expert_degrees_are_searched_as_by_trying_all(engine: str) -> None:
    small = NodeKind("A10", gpus=4, inter=100e9, intra=400e9, memory_gib=22.2)
    nodes = (dataclasses.replace(H100, memory_gib=16.0), small)
    model = _moe(engine, *nodes)
    every = _fastest(model, lambda layout: layout.expert)
    assert every.keys() == {1, 2, 4, 8}
    found = search([model], keep=4, alike=lambda one: one.expert)
    assert {one.layout.expert: one.seconds for one in found.best} == pytest.approx(every)
    for expert, fastest in every.items():
        held = search([_moe(engine, *nodes, expert_degrees=[expert])], keep=1)
        assert held.best[0].seconds == pytest.approx(fastest)
        assert found.best[0].seconds <= held.best[0].seconds


_LONG = ["engine=native", "model.seq_length=32768", "optimisation.global_batch_size=8"]


def test_context_ranks_share_the_tokens_and_gather_keys_and_values() -> None:
    model = _model("llama3-8b", H100, H100, overrides=_LONG)
    held = 2 * 1024 * 32768 * 16  # a sample's bits: keys and values of 8 heads of 128 features, bf16

    def parts(tensor: int, context: int, *, checkpointing: bool = False) -> tuple[float, float]:
        layout = Layout(tensor, 8 // (tensor * context), 1, 1, checkpointing, 1, context=context)
        found = model.estimate(layout, (34,)).parts
        samples = layout.accumulation(8)
        return found["compute"] / samples, found["context exchange"] / samples / 32

    alone, _ = parts(1, 1)
    assert parts(1, 1)[1] == 0
    for context in (2, 4, 8):
        assert parts(1, context)[0] == pytest.approx(alone / context)
        assert parts(2, context // 2)[0] == pytest.approx(parts(2, 1)[0] * 2 / context)
    # Gathered in the forward pass, their gradients summed in the backward pass, and gathered again in it.
    assert parts(1, 2)[1] == pytest.approx(2 * 1 / 2 * held / H100.intra)
    assert parts(1, 4)[1] == pytest.approx(2 * 3 / 4 * held / H100.intra)
    assert parts(1, 4, checkpointing=True)[1] == pytest.approx(3 * 3 / 4 * held / H100.intra)
    # Each tensor rank has its heads. Between two nodes, the rings of tensor ranks share a node's link.
    assert parts(2, 2)[1] == pytest.approx(2 * 1 / 2 * held / 2 / H100.intra)
    assert parts(1, 8)[1] == pytest.approx(2 * 7 / 8 * held / H100.inter)
    assert parts(2, 4)[1] == pytest.approx(2 * 3 / 4 * held / 2 / (H100.inter / 2))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.sampled_from([1, 2, 4]), st.booleans())
def test_context_ranks_compute_as_much_as_replicas_and_hold_less(
    tensor: int, pipeline: int, samples: int, checkpointing: bool
) -> None:
    model = _context_model()
    cut = (34,) if pipeline == 1 else (17, 17)
    replicas = 8 // (tensor * pipeline)
    found = []
    for context in (degree for degree in (1, 2, 4, 8) if degree <= replicas):
        layout = Layout(tensor, replicas // context, pipeline, samples, checkpointing, 1, context=context)
        one = model.estimate(layout, cut)
        found.append(one)
        assert one.parts["compute"] == pytest.approx(found[0].parts["compute"])
        assert sum(one.parts.values()) == pytest.approx(one.seconds)
        assert min(one.parts.values()) >= -1e-9
    for one, other in itertools.pairwise(found):
        assert one.parts["context exchange"] < other.parts["context exchange"]
        assert one.memory_gib > other.memory_gib


@functools.cache
def _context_model() -> TrainerModel:
    return _model("llama3-8b", H100, H100, overrides=[*_LONG, "optimisation.global_batch_size=64"])


def test_what_overlaps_with_gathering_keys_and_values_does_not_count() -> None:
    model = _model("llama3-8b", H100, overrides=_LONG)
    layout = Layout(1, 1, 1, 1, False, 1, context=4)
    stated = engine_step(with_layout(model.job.config, layout))
    seconds = {}
    for hidden in (0.0, 0.25, 1.0):
        step = dataclasses.replace(stated, hidden_context=hidden)
        job = Job(model.job.config, model.job.times, functools.partial(_stated, step))
        seconds[hidden] = TrainerModel(job, model.nodes).estimate(layout, (34,)).parts["context exchange"]
    assert seconds[0.25] == pytest.approx(3 / 4 * seconds[0.0])
    assert seconds[1.0] == pytest.approx(0.0, abs=1e-12)


def test_a_t5s_decoder_gathers_the_keys_of_both_its_attentions(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["engine=native", "model.seq_length=1024", "model.decoder_seq_length=256"]
    model = _model("t5-11b", H100, overrides=overrides)
    spec = model.job.config.spec
    layout = Layout(1, 1, 1, 1, False, 1, context=4)
    found = model.estimate(layout, (model.problem(layout).layers,)).parts["context exchange"]
    tokens = spec.layers * 1024 + spec.decoder_layers * (256 + 1024)
    bits = 2 * 3 / 4 * tokens * 2 * spec.key_value_size * 16 / H100.intra
    assert found == pytest.approx(model.job.batch * bits)
    # Each of the gathers begins after the link's latency, and so does each sum of their gradients.
    monkeypatch.setattr(PublishedPeaks, "all_reduce", lambda *_nodes, **_where: Link(1e-3, H100.intra))
    model = _model("t5-11b", H100, overrides=overrides)
    found = model.estimate(layout, (model.problem(layout).layers,)).parts["context exchange"]
    late = 2 * (spec.layers + 2 * spec.decoder_layers) * 1e-3
    assert found == pytest.approx(model.job.batch * (bits + late))


def test_two_context_ranks_take_the_tokens_that_were_measured() -> None:
    # docs/performance.md, "Long sequences": GPT-1.3B on H200. The bandwidth is that of its "Slow fabric".
    one, two = 29_201, 27_112
    overrides = [*_LONG, "model.max_position_embeddings=32768"]
    config = configuration.load(CONFIGS / "gpt-1.3b.yaml", overrides)
    node = NodeKind("H200", gpus=2, inter=400e9, intra=8 * 174e9, memory_gib=139.8)

    def rate(efficiency: float, context: int) -> float:
        times = published_peaks(config, [node], {"H200": 989.4}, efficiency)
        model = TrainerModel(Job(config, times, engine_step), (node,))
        seconds = model.estimate(Layout(1, 1, 1, 1, False, 1, context=context), (26,)).seconds
        return 8 * 32768 / seconds / context

    # The share of the peak at which one GPU takes what it took.
    efficiency = one / rate(1.0, 1)
    assert rate(efficiency, 1) == pytest.approx(one)
    assert rate(efficiency, 2) == pytest.approx(two, rel=0.015)


@pytest.mark.parametrize(
    ("ranks", "reduced", "measured"),
    [
        (2, "fp32", {1.25: 4.917, 5.0: 2.539, 12.5: 2.092, 25.0: 2.032, 50.0: 2.022}),
        (2, "bf16", {1.25: 3.868, 5.0: 2.319, 12.5: 2.089, 25.0: 2.029, 50.0: 2.032}),
        (64, "fp32", {12.5: 2.403, 25.0: 2.095, 50.0: 2.015}),
    ],
)
def test_steps_on_a_slow_fabric_take_what_was_measured(
    ranks: int, reduced: str, measured: dict[float, float]
) -> None:
    # docs/performance.md, "Slow fabric": GPT-1.3B on H200, 8 micro-batches; GB/s → seconds of a step.
    one = 1.998

    def seconds(ranks: int, bandwidth: float, efficiency: float) -> float:
        overrides = ["engine=native", f"parallel.reduce_dtype={reduced}"]
        overrides += [f"optimisation.global_batch_size={64 * ranks}"]
        config = configuration.load(CONFIGS / "gpt-1.3b.yaml", overrides)
        node = NodeKind("H200", gpus=ranks, inter=400e9, intra=8e9 * bandwidth, memory_gib=139.8)
        times = published_peaks(config, [node], {"H200": 989.4}, efficiency)
        model = TrainerModel(Job(config, times, engine_step), (node,))
        return model.estimate(Layout(1, ranks, 1, 8, False, 1), (26,)).seconds

    # The share of the peak at which one GPU takes what it took.
    efficiency = seconds(1, 1.0, 1.0) / one
    for bandwidth, took in measured.items():
        assert seconds(ranks, bandwidth, efficiency) == pytest.approx(took, rel=0.035)


@pytest.mark.parametrize(
    ("name", "micro_batch", "cut", "error", "measured"),
    [
        ("gpt-1.3b", 4, (14, 12), 0.01, [(59_898, 26.1), (60_462, 32.6), (60_659, 39.2)]),
        # The head's share of the time is less than that of the FLOPs.
        ("gpt-345m", 16, (15, 11), 0.02, [(187_365, 18.1), (189_870, 25.1), (189_806, 32.2)]),
    ],
)
def test_eager_forwards_gain_and_hold_about_what_they_do_in_steps_that_were_measured(
    name: str, micro_batch: int, cut: tuple[int, int], error: float, measured: list[tuple[float, float]]
) -> None:
    # docs/performance.md, "Two GPUs": tokens/s of each H200, and GiB on the first stage.
    overrides = ["engine=native", f"optimisation.global_batch_size={32 * micro_batch}"]
    config = configuration.load(CONFIGS / f"{name}.yaml", overrides)
    node = NodeKind("H200", gpus=2, inter=400e9, intra=8 * 174e9, memory_gib=139.8)
    job = Job(config, published_peaks(config, [node], {"H200": 989.4}, 0.6), engine_step)
    layouts = [Layout(1, 1, 2, micro_batch, False, 1, eager_forwards=eager) for eager in range(3)]
    found = [TrainerModel(job, (node,)).estimate(layout, cut) for layout in layouts]
    for estimate, (rate, held) in zip(found, measured, strict=True):
        assert found[0].seconds / estimate.seconds == pytest.approx(rate / measured[0][0], abs=error)
        # PyTorch does not count the context of its device.
        assert estimate.stage_memory_gib[0] - 1.25 == pytest.approx(held, rel=0.02)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b"])
def test_context_degrees_are_searched_as_by_trying_all(name: str) -> None:
    small = NodeKind("A10", gpus=4, inter=100e9, intra=400e9, memory_gib=22.2)
    sizes = ["layers=3", "vocab_size=8000", "seq_length=32768"]
    sizes += ["experts=4", "moe_router_topk=2"] if name == "qwen3-30b-a3b" else []
    overrides = [*(f"model.{size}" for size in sizes), "engine=native", "optimisation.global_batch_size=4"]
    model = _model(name, H100, small, overrides=overrides)
    every = _fastest(model, lambda layout: layout.context)
    assert every.keys() == {1, 2, 4}
    found = search([model], keep=3, alike=lambda one: one.context)
    assert {one.layout.context: one.seconds for one in found.best} == pytest.approx(every)
    for context, fastest in every.items():
        held = search([_model(name, H100, small, overrides=overrides, context_degrees=[context])], keep=1)
        assert held.best[0].seconds == pytest.approx(fastest)


def test_context_degrees_are_searched_where_samples_are_long() -> None:
    def degrees(*overrides: str) -> set[int]:
        return {one.context for one in _model("llama3-8b", H100, H100, overrides=overrides).layouts()}

    assert degrees("engine=native") == {1}
    assert degrees("engine=native", "model.seq_length=16384") == {1, 2}
    assert degrees("engine=native", "model.seq_length=131072") == {1, 2, 4, 8}
    assert degrees("model.seq_length=131072") == {1}


def test_the_context_degree_is_shown_written_and_held(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((CONFIGS / "llama3-8b.yaml").read_text("utf-8"), "utf-8")
    nodes = ["--nodes", "2xH100:8"]
    code, output = _tune(str(path), *nodes, *_LONG, "parallel.context=8", "--write")
    assert code == 0
    assert re.search(r" tp +dp +pp +v +cp +micro ", output)
    assert "context exchange" in output
    tuned = configuration.load(path)
    assert tuned.parallel.context == 8
    assert not configuration.check(tuned, 16)
    # Everything that the command line does not fix is searched: the file's degree does not matter.
    searched = json.loads(_tune(str(path), *nodes, "--json")[1])["best"]
    held = json.loads(_tune(str(path), *nodes, "parallel.context=8", "--json")[1])["best"]
    assert {row["context"] for row in held} == {8}
    assert searched[0]["seconds"] <= held[0]["seconds"]
    assert _tune(str(path), *nodes, "parallel.context=1", "--write")[0] == 0
    assert configuration.load(path).parallel.context == 1


def test_the_expert_degree_is_shown_written_and_held(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((CONFIGS / "qwen3-30b-a3b.yaml").read_text("utf-8"), "utf-8")
    nodes = ["--nodes", "4xA100-40:4"]
    code, output = _tune(str(path), *nodes, "engine=native", "--write")
    assert code == 0
    row = re.search(r"^ 1 .*$", output, re.MULTILINE)
    assert row is not None
    assert re.search(r" tp +dp +pp +v +ep +micro ", output)
    tuned = configuration.load(path).parallel
    degrees = (tuned.tensor, tuned.data, tuned.pipeline, tuned.virtual_pipeline, tuned.expert)
    assert row[0].split()[4:9] == [str(degree) for degree in degrees]
    code, output = _tune(str(path), *nodes, "parallel.expert=4", "--json")
    assert {best["expert"] for best in json.loads(output)["best"]} == {4}
    assert " ep " not in _tune(str(CONFIGS / "gpt2-xl.yaml"), "--nodes", "1xA100-40:4")[1]


def test_what_is_not_searched_is_refused() -> None:
    job = str(CONFIGS / "llama3-8b.yaml")
    code, output = _tune(job, "--nodes", "1xH100:8", "engine=deepspeed", "parallel.offload_optimizer=cpu")
    assert code == 3
    assert "search layouts with parallel.offload_optimizer=none" in output
    code, output = _tune(job, "--nodes", "1xH100:8", "engine=native", "optimisation.cuda_graphs=true")
    assert code == 3
    assert "search layouts with optimisation.cuda_graphs=false" in output
    nodes = ("--nodes", "1xH100:8", "engine=native", "parallel.virtual_pipeline=2")
    code, output = _tune(str(CONFIGS / "t5-11b.yaml"), *nodes)
    assert code == 3
    assert "parallel.virtual_pipeline is 2, and no layout of a T5, whose blocks are of two kinds" in output


def test_the_chunks_of_a_stage_are_shown_written_and_held(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((CONFIGS / "gpt2-xl.yaml").read_text("utf-8"), "utf-8")
    nodes = ["--nodes", "4xA10:2", "engine=native", "optimisation.global_batch_size=16"]
    code, output = _tune(str(path), *nodes, "parallel.virtual_pipeline=3", "--write")
    assert code == 0
    assert re.search(r" tp +dp +pp +v +micro ", output)
    tuned = configuration.load(path)
    assert (tuned.engine, tuned.parallel.virtual_pipeline) == ("native", 3)
    assert not configuration.check(tuned, 8)
    stages = tuned.parallel.pipeline
    assert len(tuned.parallel.partition.split("-")) == 3 * stages > 3
    assert "blocks of each chunk" in output
    # Everything that the command line does not fix is searched: the file's degree does not matter.
    searched = json.loads(_tune(str(path), *nodes, "--json")[1])["best"]
    held = json.loads(_tune(str(path), *nodes, "parallel.virtual_pipeline=3", "--json")[1])["best"]
    assert {row["virtual_pipeline"] for row in held} == {3}
    assert searched[0]["seconds"] <= held[0]["seconds"]


def test_chunks_of_a_file_are_taken_back_where_the_engine_has_none(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (CONFIGS / "gpt2-xl.yaml").read_text("utf-8")
    path.write_text(text.replace("parallel:", "parallel:\n  virtual_pipeline: 2"), "utf-8")
    assert configuration.load(path).parallel.virtual_pipeline == 2
    nodes = ("--nodes", "4xA10:2", "optimisation.global_batch_size=16")
    assert _tune(str(path), *nodes, "--write")[0] == 0
    assert not configuration.check(configuration.load(path), 8)


def test_chunks_make_the_bubble_smaller_and_send_more() -> None:
    model = _model("gpt2-xl", H100, overrides=["engine=native", "optimisation.global_batch_size=16"])
    layouts = (Layout(1, 1, 4, 1, False, 1, 1, chunks) for chunks in (1, 2, 4))
    one, two, four = (model.estimate(layout, model.tries(layout)[0]) for layout in layouts)
    assert one.parts["bubble"] > 1.6 * two.parts["bubble"] > 1.6 * four.parts["bubble"]
    assert one.parts["compute"] == pytest.approx(two.parts["compute"]) == pytest.approx(four.parts["compute"])
    assert one.parts["pipeline sends"] < two.parts["pipeline sends"] < four.parts["pipeline sends"]
    # A stage holds more micro-batches, each through a part of its layers.
    assert one.memory_gib < two.memory_gib


def test_eager_forwards_hide_a_bubble_behind_a_slower_first_stage_and_hold_more() -> None:
    node = NodeKind("H100", gpus=2, inter=400e9, intra=3600e9, memory_gib=79.1)
    batch = ["optimisation.global_batch_size=256", "engine=native"]
    model = _model("gpt-1.3b", node, overrides=batch)
    found = []
    for eager in (0, 1, 2):
        layout = Layout(1, 1, 2, 8, zero_stage=1, eager_forwards=eager)
        cut = best_cut(model.problem(layout))
        assert cut is not None
        assert cut.is_proved
        found.append(model.estimate(layout, cut.layers))
    assert {estimate.cut for estimate in found} == {(14, 12)}
    # A micro-batch takes the first stage longer than the second, and one more is enough for that.
    assert found[0].stage_seconds[0] > 1.005 * found[0].stage_seconds[1]
    none, one, two = (estimate.parts["bubble"] for estimate in found)
    assert none > 2 * one == pytest.approx(2 * two)
    held = [estimate.stage_memory_gib for estimate in found]
    assert held[2][0] - held[1][0] == pytest.approx(held[1][0] - held[0][0])
    assert held[0][0] < held[1][0]
    assert held[0][1] == held[1][1] == held[2][1]


def test_eager_forwards_are_searched_as_by_trying_all() -> None:
    small = NodeKind("A10", gpus=4, inter=100e9, intra=400e9, memory_gib=9.0)
    overrides = ["engine=native", "model.layers=7", "optimisation.global_batch_size=32"]
    model = _model("gpt2-xl", small, overrides=overrides, virtual_degrees=[1])
    every: dict[int, float] = {}
    for layout in model.layouts():
        problem = model.problem(layout)
        assert layout.eager_forwards == 0 or layout.pipeline > 1
        for cut in _cuts(9, layout.pipeline):
            if problem.holds(cut):
                seconds = problem.seconds(cut)
                every[layout.eager_forwards] = min(every.get(layout.eager_forwards, seconds), seconds)
    found = search([model], keep=3, alike=lambda one: one.eager_forwards)
    assert {one.layout.eager_forwards: one.seconds for one in found.best} == pytest.approx(every)
    held = _model("gpt2-xl", small, overrides=overrides, virtual_degrees=[1], eager_forwards=1)
    assert search([held], keep=1).best[0].seconds == pytest.approx(every[1])


def test_eager_forwards_are_shown_written_and_held(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text((CONFIGS / "gpt2-xl.yaml").read_text("utf-8"), "utf-8")
    fabric = ["--nodes", "8xA10:4", "--inter", "40", "--intra", "128"]
    nodes = [*fabric, "engine=native"]
    code, output = _tune(str(path), *nodes, "--write")
    assert code == 0
    assert re.search(r" ckpt +eager +GiB", output)
    tuned = configuration.load(path)
    assert tuned.parallel.eager_forwards == 1
    assert not configuration.check(tuned, 32)
    searched = json.loads(_tune(str(path), *nodes, "--json")[1])["best"]
    # No row has more of them than gain something.
    assert {row["eager_forwards"] for row in searched} == {0, 1, 2}
    held = json.loads(_tune(str(path), *nodes, "parallel.eager_forwards=3", "--json")[1])["best"]
    assert {(row["eager_forwards"], row["virtual_pipeline"]) for row in held} == {(3, 1)}
    none = json.loads(_tune(str(path), *nodes, "parallel.eager_forwards=0", "--json")[1])["best"]
    assert none[0]["seconds"] > 1.05 * searched[0]["seconds"]
    # DeepSpeed has none: those of the file are taken back.
    code, output = _tune(str(path), *fabric, "engine=deepspeed", "--write")
    assert code == 0
    assert " eager " not in output
    assert configuration.load(path).parallel.eager_forwards == 0


def test_a_table_with_a_price_and_eager_forwards_fits_a_terminal_of_80_columns() -> None:
    command = (str(CONFIGS / "gpt-1.3b.yaml"), "--nodes", "2xH200:8", "--price", "H200=3", "engine=native")
    output = _tune(*command)[1]
    heading = "step s tokens/s MFU tp dp pp v micro zero ckpt eager GiB price"
    (line,) = (line for line in output.splitlines() if line.split() == heading.split())
    assert len(line.rstrip()) <= 80
    assert "…" not in output
    best = json.loads(_tune(*command, "--json")[1])["best"][0]
    assert re.search(rf" {best['memory_gib']:.1f} +{1000 * best['price']:,.2f} ", output)


def test_a_winner_with_fewer_eager_forwards_than_the_fastest_is_proved_as_that_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = ("--nodes", "4xH100:2", "--inter", "40", "--intra", "128")
    command = (str(CONFIGS / "gpt-345m.yaml"), *nodes, "engine=native", "optimisation.global_batch_size=256")
    found = json.loads(_tune(*command, "--json")[1])
    assert found["best"][0]["eager_forwards"] == 1
    assert 0.999 < found["bound"] / found["best"][0]["seconds"] < 1 - 1e-4
    assert found["doubts"] == []

    def cut_short(models: Sequence[TrainerModel], **options: Any) -> Found:
        whole = search(models, **options)
        return dataclasses.replace(whole, bound=whole.bound * (1 - 1e-4))

    monkeypatch.setattr("rdm_planner.tune.answer.search", cut_short)
    (doubt,) = json.loads(_tune(*command, "--json")[1])["doubts"]
    assert doubt.startswith("Not proved: the search for cuts was cut short")


@pytest.mark.parametrize(
    ("gpus", "fixed", "reason"),
    [
        (1, ["eager_forwards=1"], "eager_forwards is 1, but parallel.pipeline is 1, in which no stage runs"),
        (1, ["virtual_pipeline=2"], "virtual_pipeline is 2, but parallel.pipeline is 1, in which no stage"),
        (8, ["eager_forwards=1000"], "1000, but a step has only 512 micro-batches; take 512 or fewer."),
        (8, ["eager_forwards=1", "virtual_pipeline=2"], "is not combined with parallel.virtual_pipeline 2"),
    ],
)
def test_a_fixed_key_that_no_layout_can_have_is_the_reason(gpus: int, fixed: list[str], reason: str) -> None:
    keys = [f"parallel.{key}" for key in fixed]
    code, output = _tune(str(CONFIGS / "gpt-1.3b.yaml"), "--nodes", f"1xH200:{gpus}", "engine=native", *keys)
    assert code == 3
    assert reason in output


def test_some_blocks_that_compute_again_cost_between_none_and_all() -> None:
    full = Layout(1, 1, 4, 1, True, 1)
    cut, seconds, memory = (13, 12, 12, 13), [], []
    for blocks in (0, 4, 8, 12, "null"):
        key = f"parallel.activation_checkpointing_blocks={blocks}"
        model = _model("gpt2-xl", H100, overrides=["parallel.activation_checkpointing=full", key])
        estimate = model.estimate(full, cut)
        seconds.append(estimate.seconds)
        memory.append(estimate.memory_gib)
    plain = model.estimate(dataclasses.replace(full, checkpointing=False), cut)
    assert (seconds[0], memory[0]) == pytest.approx((plain.seconds, plain.memory_gib))
    assert (seconds[3], memory[3]) == pytest.approx((seconds[4], memory[4]))
    assert seconds[:4] == sorted(set(seconds[:4]))
    assert memory[:4] == sorted(set(memory[:4]), reverse=True)


def test_a_last_stage_without_the_head_says_nothing_of_one_with_it() -> None:
    keys = ("activation_checkpointing=full", "activation_checkpointing_blocks=4")
    layout = Layout(1, 1, 4, 1, True, 1)

    def shaped() -> Any:
        model = _model("gpt2-xl", H100, overrides=[f"parallel.{key}" for key in keys])
        return model.job.shaped(layout)

    partial = shaped()
    without = partial.memory(3, 36, 49)
    assert partial.memory(3, 37, 50) == shaped().memory(3, 37, 50) > without


def test_the_blocks_that_compute_again_are_kept_where_they_have_a_meaning(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (CONFIGS / "slurm-debug.yaml").read_text("utf-8")
    key = "activation_checkpointing: full"
    path.write_text(text.replace(key, f"{key}\n  activation_checkpointing_blocks: 1"), "utf-8")
    for held, blocks in (("full", 1), ("none", None)):
        code, _ = _tune(
            str(path), "--nodes", "2xA10:2", f"parallel.activation_checkpointing={held}", "--write"
        )
        assert code == 0
        parallel = configuration.load(path).parallel
        assert (parallel.activation_checkpointing, parallel.activation_checkpointing_blocks) == (held, blocks)


@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-30b-a3b"])
def test_a_layout_without_tensor_ranks_is_given_without_sequence_parallelism(name: str) -> None:
    job = str(CONFIGS / f"{name}.yaml")
    keys = ["engine=native", "parallel.sequence_parallel=true", "--json", "--top", "6"]
    code, output = _tune(job, "--nodes", "1xH100:8", *keys)
    assert code == 0
    best = json.loads(output)["best"]
    assert len({row["tensor"] for row in best}) > 1
    for row in best:
        assert ("parallel.sequence_parallel=false" in row["overrides"]) == (row["tensor"] == 1)


@pytest.mark.parametrize("is_sharded", [False, True])
def test_a_layout_whose_tensor_ranks_cannot_exchange_is_given_with_collectives(is_sharded: bool) -> None:
    job = CONFIGS / "llama3-8b.yaml"
    keys = ["engine=native", "parallel.tensor_communication=copy_engines"]
    keys.append(f"parallel.sequence_parallel={str(is_sharded).lower()}")
    code, output = _tune(str(job), "--nodes", "1xH100:8", *keys, "--json", "--top", "12")
    assert code == 0
    best = json.loads(output)["best"]
    assert {1, 2, 4} <= {row["tensor"] for row in best}
    for row in best:
        found = configuration.load(job, [*keys, *row["overrides"]]).parallel.tensor_communication
        assert (found == "copy_engines") == (row["tensor"] == 2 or (row["tensor"] > 2 and is_sharded))


def test_zero_and_checkpointing_make_room() -> None:
    small = NodeKind("A10", gpus=4, inter=40e9, intra=128e9, memory_gib=15.0)
    model = _model("gpt2-xl", small)
    found = search([model], keep=100, alike=lambda one: (one.zero_stage, one.checkpointing))
    by_kind = {(one.layout.zero_stage, one.layout.checkpointing): one for one in found.best}
    assert all(one.fits for one in found.best)
    assert {zero for zero, _ in by_kind} == {1, 2, 3}
    # ZeRO 2 and 3 are for a single stage, and each needs less memory than the one before.
    assert by_kind[3, True].layout.pipeline == 1
    held = [model.estimate(Layout(1, 4, 1, 4, True, zero), (50,)).memory_gib for zero in (1, 2, 3)]
    assert held == sorted(held, reverse=True)


def _tune(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["tune", *arguments], standalone_mode=False)
    if isinstance(result.exception, TrainerError):
        return result.exception.exit_code, str(result.exception)
    assert result.exception is None, result.exception
    return result.return_value, result.output


def test_its_json_has_what_to_start_with() -> None:
    code, output = _tune(str(CONFIGS / "gpt2-xl.yaml"), "--nodes", "2xA10:4", "--json", "--top", "3")
    assert code == 0
    found = json.loads(output)
    assert found["measured"] is False
    assert len(found["best"]) == 3
    times = [row["seconds"] for row in found["best"]]
    assert times == sorted(times)
    job = configuration.load(CONFIGS / "gpt2-xl.yaml", found["best"][0]["overrides"])
    assert not configuration.check(job, 8)


def test_its_json_says_why_others_are_slower_or_no_layouts() -> None:
    code, output = _tune(
        *(str(CONFIGS / "gpt2-xl.yaml"), "--nodes", "2xA10:4", "--nodes", "1xH100:4", "--json", "--top", "3"),
        *("--pareto", "--price", "A10=1", "--price", "H100=4"),
    )
    assert code == 0
    found = json.loads(output)
    second = found["best"][1]
    parts = {name: seconds - found["best"][0]["parts"][name] for name, seconds in second["parts"].items()}
    assert second["slower"]["most"] == max(parts, key=lambda name: parts[name])
    assert sum(parts.values()) == pytest.approx(second["seconds"] - found["best"][0]["seconds"])
    assert any("more stages" in reason or "divide" in reason for reason in found["rejected"])
    assert found["orders"] == {"tried": 3, "all": 3}
    best = found["best"][0]["seconds"]
    assert found["bound"] <= best
    is_proved = found["bound"] == pytest.approx(best)
    assert is_proved is not any("Not proved" in doubt for doubt in found["doubts"])
    front = found["pareto"]
    is_slower = front[0]["seconds"] < best * (1 - 1e-6)
    assert is_slower is any("Leaving nodes out is faster" in doubt for doubt in found["doubts"])
    assert [point["seconds"] for point in front] == sorted(point["seconds"] for point in front)
    assert [point["price"] for point in front] == sorted((point["price"] for point in front), reverse=True)
    for point in front:
        hourly = sum(count * 4 * {"A10": 1, "H100": 4}[gpu] for gpu, count in point["counts"].items())
        assert point["price"] == pytest.approx(hourly * point["seconds"] / 3600)


def test_people_read_that_it_is_a_guess_and_what_to_do_next() -> None:
    arguments = str(CONFIGS / "gpt2-xl.yaml"), "--nodes", "1xA100-40:4", "--nodes", "1xA10:4"
    code, output = _tune(*arguments)
    assert code == 0
    assert "nothing has been measured" in output
    assert "rdm-trainer dry-run" in output
    best = json.loads(_tune(*arguments, "--json")[1])["best"]
    lines = output.splitlines()
    for number, row in enumerate(best, 1):
        compute = row["parts"]["compute"] / row["seconds"]
        place = next(
            at for at, line in enumerate(lines) if line.startswith(f"{number}  compute {compute:.0%}")
        )
        shown = lines[place + 1 : place + 4] if row["pipeline"] > 1 else [lines[place + 1]]
        assert shown[-1] == f"   nodes: {', '.join(f'1 x {gpu}' for gpu in row['nodes'])}"
        if row["pipeline"] > 1:
            assert shown[0] == f"   blocks of each stage: {row['partition']}"
            assert shown[1].startswith(f"   GiB of each stage: {row['stage_memory_gib'][0]:.0f}-")


def test_the_next_command_has_the_keys_of_the_command_line_too() -> None:
    config = str(CONFIGS / "gpt2-xl.yaml")
    output = _tune(config, "--nodes", "1xH100:2", "engine=native", "--top", "1")[1]
    assert f"Next: rdm-trainer dry-run {config} engine=native parallel.tensor=" in output


SMALL = ["--nodes", "2xA10:2"]
LARGE = ["--nodes", "2xA10:4"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--nodes", "2xA11:4"], "'A11' is not known"),
        (["--nodes", "A10"], "write how many"),
        (["--nodes", "0xA10:4"], "write how many"),
        ([*LARGE, "--inter", "0"], "--inter is 0"),
        ([*LARGE, "--intra", "nan"], "--intra is nan"),
        ([*LARGE, "parallel.tensor=4"], "leave it out"),
        ([*LARGE, "--html", "/no/such/page.html"], "the directory /no/such does not exist"),
        ([*LARGE, "--html", "/dev/full"], "/dev/full cannot be written: No space left"),
        ([*LARGE, "--nodes", "1xA10:2"], "as many GPUs"),
        (["--nodes", "7xA10:1", "model.layers=3"], "the nearest that one divides is 63"),
        (
            [*CHUNKS, *SMALL, "engine=native", "optimisation.global_batch_size=7"],
            "the nearest that one divides is 8.",
        ),
        ([*CHUNKS, *SMALL], "needs the native engine, but engine is deepspeed"),
        (
            ["--nodes", "2xA10:3", "engine=native", "parallel.context=3"],
            "model.seq_length 1024 is not a multiple of 2 x parallel.context 3 = 6",
        ),
        (["--nodes", "1xA10:4", "engine=native", "parallel.context=3"], "3 does not divide 4 GPUs"),
        ([*SMALL, "engine=native", "parallel.zero_stage=3"], "zero_stage 3 needs DeepSpeed"),
        ([*SMALL, "engine=native", "optimisation.precision=fp16"], "fp16 needs DeepSpeed"),
        ([*LARGE, "--pareto", "--price", "A11=2"], "'A11' of --price is not known"),
        ([*LARGE, "--pareto", "--price", "A10=0"], "write an amount above 0"),
        ([*LARGE, "--model", "fasop"], "is no model of FASOP's; write one of T5, bert, gpt2XL"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], problem: str) -> None:
    code, message = _tune(str(CONFIGS / "gpt2-xl.yaml"), *arguments)
    assert code == 3
    assert problem in message


@pytest.mark.parametrize(
    ("width", "problem"), [(4800, "any layout; 13 of them would do"), (64000, "take GPUs with more memory")]
)
def test_a_model_that_fits_no_layout_is_told_what_would_do(width: int, problem: str) -> None:
    code, message = _tune(str(CONFIGS / "gpt2-xl.yaml"), "--nodes", "1xA10:1", f"model.hidden_size={width}")
    assert code == 1
    assert problem in message


def test_a_t5_needs_a_block_in_each_half_and_has_no_more_stages_than_blocks() -> None:
    t5 = str(CONFIGS / "t5-11b.yaml"), "--nodes", "1xH100:4"
    for halves, key in ((0, 1), "layers"), ((1, 0), "decoder_layers"):
        given = f"model.layers={halves[0]}", f"model.decoder_layers={halves[1]}"
        assert _tune(*t5, *given) == (3, f"model.{key} is 0; it must be at least 1 and at most 4096.")
    code, output = _tune(*t5, "model.layers=1", "model.decoder_layers=1", "--json", "--top", "100")
    assert code == 0
    found = json.loads(output)
    assert {row["pipeline"] for row in found["best"]} == {1, 2}
    assert found["rejected"]["There are more stages than the model's 2 blocks."] > 0


def test_fasops_heuristic_is_never_faster_under_our_model() -> None:
    model = _model("gpt2-xl", H100, A10, A10)
    slower = 0
    for layout in model.layouts():
        if layout.zero_stage != 1 or layout.pipeline == 1:
            continue
        problem = model.problem(layout)
        costs = [[b - a for a, b in itertools.pairwise(sums)] for sums in problem.sums]
        heuristic, _times = minmax(problem.layers, costs, [0.0] * layout.pipeline, with_slips=False)
        best = best_cut(problem, tries=model.tries(layout))
        if problem.holds(heuristic):
            assert best is not None
            assert best.seconds <= problem.seconds(heuristic) * (1 + 1e-9)
            slower += problem.seconds(heuristic) > best.seconds * (1 + 1e-9)
    assert slower > 10


def test_a_case_of_fasops_paper() -> None:
    case = ("bert", "--model", "fasop", "--nodes", "1xA100:4", "--nodes", "3xA10:4", "--top", "1")
    code, output = _tune(*case, "--json")
    assert code == 0
    found = json.loads(output)
    assert found["layouts"] == 356
    (heuristic,), (exact,) = found["heuristic"], found["exact"]
    assert heuristic["layers"] == [14, 5, 5, 2]
    assert heuristic["seconds"] == pytest.approx(0.819658, rel=1e-6)
    assert exact["seconds"] == pytest.approx(found["bound"])
    assert exact["seconds"] < heuristic["seconds"]
    code, output = _tune(*case)
    assert "14-5-5-2 on" in output
    for wrong, problem in (
        (("--nodes", "1xA10:8"), "FASOP has no nodes of 8 A10"),
        (("--write",), "--write is not for --model fasop"),
    ):
        code, output = _tune(*case, *wrong)
        assert code == 3
        assert problem in output


def test_a_border_within_a_node_is_crossed_by_those_who_leave_it() -> None:
    slow = NodeKind("A10", gpus=8, inter=1e9, intra=1e15, memory_gib=22.2)
    model = _model("gpt2-xl", slow, slow, slow, overrides=["optimisation.global_batch_size=96"])
    # Ranks 3 to 5 are stage 1 and 6 to 8 stage 2: rank 5 sends to rank 8, on the next node.
    layout = Layout(1, 3, 8, 1, zero_stage=1)
    schedule = model.problem(layout).schedule
    assert isinstance(schedule, BlockingSends)
    added = schedule.seconds
    assert added[0] < 1e-3
    assert added[1] > 0.01


def test_a_thousand_nodes_of_a_kind_have_one_order() -> None:
    assert len(list(orders((A10,) * 3000))) == 1


def test_the_winner_goes_into_the_file_with_the_overrides(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (CONFIGS / "gpt2-xl.yaml").read_text("utf-8")
    path.write_text(text, "utf-8")
    given = "optimisation.global_batch_size=32"
    arguments = ["tune", str(path), given, "--nodes", "2xH100:4", "--json", "--top", "1"]
    result = CliRunner().invoke(cli, [*arguments, "--write"])
    assert result.exit_code == 0, result.output
    winner = json.loads(result.stdout)["best"][0]["overrides"]
    assert configuration.load(path) == configuration.load(CONFIGS / "gpt2-xl.yaml", [given, *winner])
    assert path.read_text("utf-8").splitlines()[:3] == text.splitlines()[:3]


def test_a_file_of_nodes_says_what_options_say(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "inter: 40\nintra: 600\nnodes:\n"
        "  - {gpu: A100-40, nodes: 1, gpus: 4, price: 2.5}\n  - {gpu: A10, nodes: 3, gpus: 4}\n"
    )
    job = str(CONFIGS / "gpt2-xl.yaml")
    found = _tune(job, "--cluster", str(file), "--price", "A10=0.6", "--json", "--top", "2")
    options = ["--nodes", "1xA100-40:4", "--nodes", "3xA10:4", "--inter", "40", "--intra", "600"]
    prices = ["--price", "A100-40=2.5", "--price", "A10=0.6"]
    assert found == _tune(job, *options, *prices, "--json", "--top", "2")
    best = json.loads(found[1])["best"][0]
    assert best["price"] == pytest.approx(best["seconds"] / 3600 * 4 * (2.5 + 3 * 0.6))
    file.write_text(file.read_text().replace("gpus: 4}", "gpus: 4, inter: 20}"))
    slower = _tune(job, "--cluster", str(file), "--json", "--top", "1")[1]
    assert json.loads(slower)["best"][0]["seconds"] > json.loads(found[1])["best"][0]["seconds"]


def test_nodes_of_one_gpu_that_differ_are_kinds_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    alike = "{gpu: A10, nodes: 1, gpus: 1}"
    seconds = []
    for slow, fast in (("speed: 0.5", "inter: 400"), ("speed: 0.5", "inter: 1"), ("speed: 1", "inter: 400")):
        kinds = [alike.replace("}", f", {own}}}") for own in (fast, slow)]
        file.write_text(f"inter: 400\nnodes: [{', '.join(kinds)}]")
        held = ["parallel.zero_stage=1", "parallel.activation_checkpointing=full"]
        code, output = _tune(str(CONFIGS / "gpt2-xl.yaml"), *held, "--cluster", str(file), "--json")
        assert code == 0
        best = json.loads(output)["best"][0]
        seconds.append(best["seconds"])
        if slow == "speed: 0.5":
            assert best["nodes"][0] != best["nodes"][1]
    assert seconds[1] > seconds[0] > 1.2 * seconds[2]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "is not YAML"),
        ("nodes: []", "names no nodes; write nodes: [{gpu: H100, nodes: 2, gpus: 8}]"),
        ("nodes: [{gpu: H100, nodes: 2}]", "nodes[0] lacks gpus"),
        ("nodes: [{gpu: H100, nodes: 0, gpus: 8}]", "nodes[0].nodes is '0'; write a number from 1 to 4096"),
        (
            "nodes: [{gpu: H100, nodes: 1, gpus: 8, inter: 0}]",
            "nodes[0].inter is '0'; write a number above",
        ),
        ("nodes: [{gpu: H100, nodes: 1, gpus: 8, cost: 1}]", "nodes[0] has the key 'cost'; known are gpu, "),
        (
            "nodes: [{gpu: H100, nodes: 1, gpus: 8, speed: 90}]",
            "nodes[0].speed is '90'; write a share of its",
        ),
        ("intre: 1\nnodes: [{gpu: H100, nodes: 1, gpus: 8}]", "has the key 'intre'; besides nodes there are"),
    ],
)
def test_a_file_that_describes_no_nodes_is_one_sentence(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    code, output = _tune(str(CONFIGS / "gpt2-xl.yaml"), "--cluster", str(file))
    assert (code, output.count("\n")) == (3, 0)
    assert problem in output


def test_the_best_and_as_many_others_are_run() -> None:
    assert chosen(10, 2) == [0, 1, 5, 9]
    assert chosen(4, 3) == [0, 1, 2, 3]
    assert chosen(1, 3) == [0]


def test_ranks_that_are_equal_share_a_place() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # By hand: ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(3 / 10**0.5)
    assert rank_correlation([1], [1]) is None
    found = compared([{"predicted": 1.1, "measured": 1.0}, {"predicted": 1.0, "measured": None}])
    assert found["layouts"] == 1
    assert found["mean_absolute_error"] == pytest.approx(0.1)
    assert found["winner_excess"] == 0
    found = compared([{"predicted": 1.1, "measured": 1.0}, {"predicted": 1.0, "measured": 1.02}])
    assert found["winner_excess"] == pytest.approx(0.02)
    assert compared([{"predicted": 1.0, "measured": None}])["winner_excess"] is None


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (4, 2), (4, 9)])
def test_the_picture_of_a_pipeline_is_1f1b(stages: int, micro_batches: int) -> None:
    work = [(0.25 * seconds, 0.75 * seconds) for seconds in (1.0 + stage / 8 for stage in range(stages))]
    passes = timeline(work, stages, micro_batches)
    assert len(passes) == 2 * stages * micro_batches
    done = {(one.stage, one.is_forward, one.micro_batch): one for one in passes}
    for (stage, is_forward, number), one in done.items():
        before = done.get((stage - 1 if is_forward else stage + 1, is_forward, number))
        assert before is None or before.end <= one.begin
    for stage in range(stages):
        own = [one for one in passes if one.stage == stage]
        assert all(one.end <= after.begin + 1e-12 for one, after in itertools.pairwise(own))
        held, most = 0, 0
        for one in own:
            held += 1 if one.is_forward else -1
            most = max(most, held)
        assert most == min(stages - stage, micro_batches)
    # Equal stages take (m + p - 1) times.
    even = timeline([(0.25, 0.75)] * stages, stages, micro_batches)
    assert max(one.end for one in even) == pytest.approx(micro_batches + stages - 1)


def test_the_page_needs_no_network_and_has_it_all(tmp_path: Path) -> None:
    path, html = CONFIGS / "gpt2-xl.yaml", tmp_path / "page.html"
    nodes = ["--nodes", "1xH100:4", "--nodes", "2xA10:4"]
    result = CliRunner().invoke(cli, ["tune", str(path), *nodes, "--html", str(html), "--json"])
    assert result.exit_code == 0, result.output
    best = json.loads(result.stdout)["best"]
    text = html.read_text("utf-8")
    assert "://" not in text
    for row in best:
        assert f">{row['partition']}</td>" in text
        assert f">{row['seconds']:.3f}</td>" in text
    drawn = len(re.findall(r'<rect class="(?:forward|backward)"', text))
    job = configuration.load(path)
    size = best[0]["data"] * best[0]["micro_batch"]
    assert drawn == 2 * best[0]["pipeline"] * min(24, job.optimisation.global_batch_size // size)
    assert "<polyline" in text


def test_a_file_that_cannot_be_changed_is_said_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = (CONFIGS / "gpt2-xl.yaml").read_text("utf-8")
    text = text.replace("pipeline: 8", "pipeline: &eight 8").replace("nodes: 8", "nodes: *eight")
    path.write_text(text, "utf-8")
    with pytest.raises(TrainerError, match=r"set by hand: parallel\.tensor="):
        CliRunner().invoke(cli, ["tune", str(path), "--nodes", "2xH100:4", "--write"], catch_exceptions=False)
    assert path.read_text("utf-8") == text
