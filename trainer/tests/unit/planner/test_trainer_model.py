# SPDX-License-Identifier: GPL-3.0-or-later
"""What a job is predicted to take and to hold in a layout."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core import config as configuration
from rdm_core.cost import flops
from rdm_core.cost.dry_run import GIB, dry_run
from rdm_planner.job import Job
from rdm_planner.layouts import Layout, with_layout
from rdm_planner.nodes import NodeKind
from rdm_planner.partition import best_cut
from rdm_planner.schedules import BlockingSends
from rdm_planner.search import search
from rdm_planner.times import Link, PublishedPeaks
from rdm_planner.trainer_model import TrainerModel
from rdm_trainer.engine_step import engine_step
from tests.unit.planner.models import A10, H100, LONG, cuts, moe_model, trainer_model


def _with_statements(model: TrainerModel, layout: Layout, **changes: Any) -> TrainerModel:
    """Return the model of an engine that states other things of its step."""
    stated = dataclasses.replace(engine_step(with_layout(model.job.config, layout)), **changes)
    return TrainerModel(Job(model.job.space, model.job.times, lambda _: stated), model.nodes)


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
    model = trainer_model(name, H100, A10, overrides=overrides)
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
    layouts = [*trainer_model("gpt2-xl", A10, A10, overrides=overrides).layouts()]
    assert {layout.data * layout.micro_batch for layout in layouts} == {1, 2, 4}


def test_one_gpu_takes_its_flops_at_its_rate() -> None:
    model = trainer_model("gpt-1.3b", NodeKind("H100", 1, 1e9, 1e9, 79.1))
    best = search([model], keep=1).best[0]
    job = model.job.config
    work = flops.flops_per_sample(job.spec) * job.optimisation.global_batch_size
    assert best.seconds == pytest.approx(work / (989.4e12 * 0.5), rel=5e-3)


def test_model_follows_the_engines_statements() -> None:
    model = trainer_model("gpt2-xl", A10, A10)
    layout = Layout(1, 2, 4, 1, zero_stage=1)
    cut = (13, 12, 12, 13)
    parts = {}
    changes: dict[str, dict[str, Any]] = {
        "now": {},
        "half of sends hidden": {"hidden_sends": 0.5},
        "half a gradient": {"gradient_bytes": 2, "weight_bytes": 1, "tied_bytes": 2},
    }
    for name, changed in changes.items():
        parts[name] = _with_statements(model, layout, **changed).estimate(layout, cut).parts
    assert parts["now"]["pipeline sends"] > 0
    assert parts["half of sends hidden"]["pipeline sends"] == pytest.approx(
        parts["now"]["pipeline sends"] / 2
    )
    for name in ("data reduction", "embedding reduction"):
        assert parts["half a gradient"][name] == pytest.approx(parts["now"][name] / 2)


def test_a_stage_hides_its_reduction_behind_its_own_passes() -> None:
    slow = NodeKind("A10", gpus=4, inter=10e9, intra=20e9, memory_gib=22.2)
    model = trainer_model("gpt2-xl", slow, slow, overrides=["engine=native", "model.layers=8"])
    layout = Layout(1, 4, 2, 1, zero_stage=1)
    for cut in cuts(10, 2):
        estimate = model.estimate(layout, cut)
        tuned = dataclasses.replace(
            with_layout(model.job.config, layout, cut),
            launcher=dataclasses.replace(model.job.config.launcher, nodes=None),
        )
        own = [stage.parameters for stage in dry_run(tuned, model.world_size).stages]
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
        every = cuts(10, layout.pipeline * layout.virtual_pipeline)
        fitting = [problem.seconds(cut) for cut in every if problem.holds(cut)]
        best = best_cut(problem, tries=model.tries(layout))
        assert (best.seconds if best else None) == (pytest.approx(min(fitting)) if fitting else None)


def test_tokens_are_exchanged_within_a_node_and_over_the_link_that_its_gpus_share() -> None:
    model = moe_model("native", H100, H100)
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
    model = TrainerModel(Job(model.job.space, measured, engine_step), model.nodes)
    assert exchange(2, 1) == 0
    assert exchange(2, 2) == pytest.approx((3 / 4 - 1 / 2) * within / 2)


class _Measured(PublishedPeaks):
    is_measured = True


def test_each_engine_reduces_experts_and_shared_weights_in_its_way() -> None:
    experts = 3 * 8 * 3 * 2048 * 768 // 4
    layout = Layout(1, 8, 1, 1, False, 1, 4)
    seconds = {}
    for engine in ("native", "deepspeed"):
        model = moe_model(engine, H100, H100)
        others, own = model.job.shaped(layout).own(0, 5)
        assert own == experts
        model = _with_statements(model, layout, hidden_reduction=0.0, hidden_gathers=0.0)
        parts = model.estimate(layout, (5,)).parts
        seconds[engine] = parts["data reduction"], parts["expert exchange"]
    # fp32 gradients and bf16 weights, of experts over two replicas in four rings that share a node's link.
    reduced = 6 * 8 * 1 / 2 * experts * 4 / H100.inter
    assert seconds["native"][0] == pytest.approx(reduced + 6 * 8 * 7 / 8 * others / H100.inter)
    assert seconds["deepspeed"][0] == pytest.approx(reduced + 6 * 8 * 1 / 2 * others * 4 / H100.inter)
    # For DeepSpeed they are averaged over the four in each of two backward passes, in fp32.
    mean = 2 * 3 / 4 * 4 * 8 * others / H100.intra
    assert seconds["deepspeed"][1] - seconds["native"][1] == pytest.approx(2 * mean)


def test_context_ranks_share_the_tokens_and_gather_keys_and_values() -> None:
    model = trainer_model("llama3-8b", H100, H100, overrides=LONG)
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
    return trainer_model("llama3-8b", H100, H100, overrides=[*LONG, "optimisation.global_batch_size=64"])


def test_a_t5s_decoder_gathers_the_keys_of_both_its_attentions(monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ["engine=native", "model.seq_length=1024", "model.decoder_seq_length=256"]
    model = trainer_model("t5-11b", H100, overrides=overrides)
    spec = model.job.config.spec
    layout = Layout(1, 1, 1, 1, False, 1, context=4)
    found = model.estimate(layout, (model.problem(layout).layers,)).parts["context exchange"]
    tokens = spec.layers * 1024 + spec.decoder_layers * (256 + 1024)
    bits = 2 * 3 / 4 * tokens * 2 * spec.key_value_size * 16 / H100.intra
    assert found == pytest.approx(model.job.batch * bits)
    # Each of the gathers begins after the link's latency, and so does each sum of their gradients.
    monkeypatch.setattr(PublishedPeaks, "all_reduce", lambda *_nodes, **_where: Link(1e-3, H100.intra))
    model = trainer_model("t5-11b", H100, overrides=overrides)
    found = model.estimate(layout, (model.problem(layout).layers,)).parts["context exchange"]
    late = 2 * (spec.layers + 2 * spec.decoder_layers) * 1e-3
    assert found == pytest.approx(model.job.batch * (bits + late))


def test_chunks_make_the_bubble_smaller_and_send_more() -> None:
    model = trainer_model("gpt2-xl", H100, overrides=["engine=native", "optimisation.global_batch_size=16"])
    layouts = (Layout(1, 1, 4, 1, False, 1, 1, chunks) for chunks in (1, 2, 4))
    one, two, four = (model.estimate(layout, model.tries(layout)[0]) for layout in layouts)
    assert one.parts["bubble"] > 1.6 * two.parts["bubble"] > 1.6 * four.parts["bubble"]
    assert one.parts["compute"] == pytest.approx(two.parts["compute"]) == pytest.approx(four.parts["compute"])
    assert one.parts["pipeline sends"] < two.parts["pipeline sends"] < four.parts["pipeline sends"]
    # A stage holds more micro-batches, each through a part of its layers.
    assert one.memory_gib < two.memory_gib


def test_chunks_of_unequal_sizes_are_held_as_the_dry_run_counts() -> None:
    cut, layout = (7, 7, 7, 5), Layout(1, 1, 2, 4, zero_stage=1, virtual_pipeline=2)
    overrides = ["engine=native", "optimisation.global_batch_size=64", "launcher.nodes=1"]

    def model(gib: float) -> TrainerModel:
        return trainer_model("gpt-1.3b", NodeKind("H100", 2, 400e9, 3600e9, gib), overrides=overrides)

    report = dry_run(with_layout(model(80).job.config, layout, cut), 2)
    held = [stage.memory.total / GIB for stage in report.stages]
    assert model(80).estimate(layout, cut).stage_memory_gib == pytest.approx(held)
    for gib, fits in ((max(held) - 0.01, False), (max(held) + 0.01, True)):
        assert model(gib).problem(layout).holds(cut) is fits


@pytest.mark.parametrize(
    ("layers", "checkpointing"),
    [
        (9, {}),
        (9, {"": "full"}),
        (12, {"": "full", "_interval": 4, "_blocks": 5}),
    ],
)
def test_the_cut_of_unequal_chunks_is_the_best_of_those_that_fit(
    layers: int, checkpointing: dict[str, Any]
) -> None:
    layout = Layout(1, 1, 2, 4, zero_stage=1, checkpointing=bool(checkpointing), virtual_pipeline=2)
    overrides = ["engine=native", f"model.layers={layers}", "optimisation.global_batch_size=16"]
    overrides += ["launcher.nodes=1"]
    overrides += [f"parallel.activation_checkpointing{key}={value}" for key, value in checkpointing.items()]

    def model(gib: float) -> TrainerModel:
        return trainer_model("gpt-1.3b", NodeKind("H100", 2, 400e9, 3600e9, gib), overrides=overrides)

    every, any_memory = [cut for cut in cuts(layers + 2, 4) if cut[0] > 1], model(80)
    seconds = {cut: any_memory.problem(layout).seconds(cut) for cut in every}
    held = {cut: max(any_memory.estimate(layout, cut).stage_memory_gib) for cut in every}
    for gib in sorted(set(held.values())):
        found = best_cut(model(gib + 1e-6).problem(layout))
        assert found is not None
        fastest = min(seconds[cut] for cut in every if held[cut] <= gib)
        assert found.seconds == pytest.approx(fastest)
        assert found.bound <= fastest * (1 + 1e-9)


def test_eager_forwards_hide_a_bubble_behind_a_slower_first_stage_and_hold_more() -> None:
    node = NodeKind("H100", gpus=2, inter=400e9, intra=3600e9, memory_gib=79.1)
    batch = ["optimisation.global_batch_size=256", "engine=native"]
    model = trainer_model("gpt-1.3b", node, overrides=batch)
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


def test_recomputing_some_blocks_costs_between_none_and_all() -> None:
    full = Layout(1, 1, 4, 1, True, 1)
    cut, seconds, memory = (13, 12, 12, 13), [], []
    for blocks in (0, 4, 8, 12, "null"):
        key = f"parallel.activation_checkpointing_blocks={blocks}"
        model = trainer_model("gpt2-xl", H100, overrides=["parallel.activation_checkpointing=full", key])
        estimate = model.estimate(full, cut)
        seconds.append(estimate.seconds)
        memory.append(estimate.memory_gib)
    plain = model.estimate(dataclasses.replace(full, checkpointing=False), cut)
    assert (seconds[0], memory[0]) == pytest.approx((plain.seconds, plain.memory_gib))
    assert (seconds[3], memory[3]) == pytest.approx((seconds[4], memory[4]))
    assert seconds[:4] == sorted(set(seconds[:4]))
    assert memory[:4] == sorted(set(memory[:4]), reverse=True)


def test_last_stage_with_the_head_is_evaluated_separately() -> None:
    keys = ("activation_checkpointing=full", "activation_checkpointing_blocks=4")
    layout = Layout(1, 1, 4, 1, True, 1)

    def shaped() -> Any:
        model = trainer_model("gpt2-xl", H100, overrides=[f"parallel.{key}" for key in keys])
        return model.job.shaped(layout)

    partial = shaped()
    without = partial.memory(3, 36, 49)
    assert partial.memory(3, 37, 50) == shaped().memory(3, 37, 50) > without


def test_boundary_within_a_node_is_crossed_only_by_ranks_that_leave_it() -> None:
    slow = NodeKind("A10", gpus=8, inter=1e9, intra=1e15, memory_gib=22.2)
    model = trainer_model("gpt2-xl", slow, slow, slow, overrides=["optimisation.global_batch_size=96"])
    # Ranks 3 to 5 are stage 1 and 6 to 8 stage 2: rank 5 sends to rank 8, on the next node.
    layout = Layout(1, 3, 8, 1, zero_stage=1)
    schedule = model.problem(layout).schedule
    assert isinstance(schedule, BlockingSends)
    added = schedule.seconds
    assert added[0] < 1e-3
    assert added[1] > 0.01


def test_two_context_ranks_match_the_measured_throughput() -> None:
    # docs/performance.md, "Long sequences": GPT-1.3B on H200. The bandwidth is that of its "Slow fabric".
    one, two = 29_201, 27_112
    overrides = [*LONG, "model.max_position_embeddings=32768"]
    node = NodeKind("H200", gpus=2, inter=400e9, intra=8 * 174e9, memory_gib=139.8)

    def rate(efficiency: float, context: int) -> float:
        model = trainer_model("gpt-1.3b", node, overrides=overrides, efficiency=efficiency)
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
def test_steps_on_a_slow_fabric_match_the_measured_times(
    ranks: int, reduced: str, measured: dict[float, float]
) -> None:
    # docs/performance.md, "Slow fabric": GPT-1.3B on H200, 8 micro-batches; GB/s → seconds of a step.
    one = 1.998

    def seconds(ranks: int, bandwidth: float, efficiency: float) -> float:
        overrides = ["engine=native", f"parallel.reduce_dtype={reduced}"]
        overrides += [f"optimisation.global_batch_size={64 * ranks}"]
        node = NodeKind("H200", gpus=ranks, inter=400e9, intra=8e9 * bandwidth, memory_gib=139.8)
        model = trainer_model("gpt-1.3b", node, overrides=overrides, efficiency=efficiency)
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
def test_eager_forwards_match_the_measured_gain_and_memory(
    name: str, micro_batch: int, cut: tuple[int, int], error: float, measured: list[tuple[float, float]]
) -> None:
    # docs/performance.md, "Two GPUs": tokens/s of each H200, and GiB on the first stage.
    overrides = ["engine=native", f"optimisation.global_batch_size={32 * micro_batch}"]
    node = NodeKind("H200", gpus=2, inter=400e9, intra=8 * 174e9, memory_gib=139.8)
    model = trainer_model(name, node, overrides=overrides, efficiency=0.6)
    layouts = [Layout(1, 1, 2, micro_batch, False, 1, eager_forwards=eager) for eager in range(3)]
    found = [model.estimate(layout, cut) for layout in layouts]
    for estimate, (rate, held) in zip(found, measured, strict=True):
        assert found[0].seconds / estimate.seconds == pytest.approx(rate / measured[0][0], abs=error)
        # PyTorch does not count the context of its device.
        assert estimate.stage_memory_gib[0] - 1.25 == pytest.approx(held, rel=0.02)
