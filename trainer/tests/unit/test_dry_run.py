# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from rdm_core.config import Config, check, from_dict, load
from rdm_core.cost import flops
from rdm_core.cost.dry_run import GIB, Report, Stage, dry_run
from rdm_core.pipeline_schedule import received_before

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if "finetune" not in path.stem)


def job(name: str, *overrides: str) -> Config:
    return load(CONFIGS / f"{name}.yaml", overrides)


def report(name: str, *overrides: str, world: int | None = None) -> Report:
    config = job(name, *overrides)
    return dry_run(config, world or config.written_world_size)


def test_all_shapes_of_the_document_are_shipped() -> None:
    documents = {"t5-23b", "t5-11b", "gpt-5b", "gpt-1.3b", "gpt-345m", "gpt2-xl", "gpt2-small", "slurm-debug"}
    assert documents <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_sound_in_the_world_that_it_names(name: str) -> None:
    config = job(name)
    world = config.written_world_size
    assert config.name == name
    assert check(config, world, config.launcher.devices_per_node) == []
    nodes, devices = config.launcher.nodes, config.launcher.devices_per_node
    if nodes is not None and devices is not None:
        assert nodes * devices == world
    assert dry_run(config, world).flops_per_step > 0


@pytest.mark.parametrize(
    ("name", "batch", "accumulation", "world", "layout"),
    [
        ("t5-23b", 54_400, 170, 320, (1, 5, 64)),
        ("t5-11b", 217_600, 170, 320, (2, 1, 160)),
        ("gpt-5b", 27_200, 170, 160, (1, 2, 80)),
        ("gpt-1.3b", 512, 64, 16, (2, 2, 4)),
        ("gpt-345m", 128, 1, 16, (1, 1, 16)),
        ("gpt2-xl", 64, 16, 32, (1, 8, 4)),
        ("slurm-debug", 128, 16, 16, (4, 2, 2)),
    ],
)
def test_the_documents_batches_and_layouts(
    name: str, batch: int, accumulation: int, world: int, layout: tuple[int, int, int]
) -> None:
    found = report(name)
    assert (found.global_batch_size, found.accumulation, found.world_size) == (batch, accumulation, world)
    assert (found.tensor, found.pipeline, found.data) == layout


def test_stages_hold_the_layers_of_the_partition() -> None:
    stages = report("gpt2-xl").stages
    assert [stage.blocks for stage in stages] == [0, 11, 8, 8, 8, 8, 5, 0]
    assert stages[0].layers == ("Embedding",)
    assert stages[-1].layers == ("FinalNorm", "Head")
    # The head is tied to the embedding on another stage, so both stages hold the weights.
    whole = flops.parameters(job("gpt2-xl").spec)
    words = 50304 * 1600
    assert sum(stage.parameters for stage in stages) == whole + words


@pytest.mark.parametrize("name", NAMES)
def test_one_stage_holds_every_parameter_once(name: str) -> None:
    single = [f"parallel.{axis}=1" for axis in ("pipeline", "tensor", "expert", "data")]
    found = report(name, *single, "parallel.partition=even", world=1)
    assert [stage.parameters for stage in found.stages] == [found.parameters]


def test_each_engine_shards_states_next_to_experts_over_its_replicas() -> None:
    sizes = flops.layer_sizes(job("qwen3-30b-a3b").spec)
    experts = sum(size.experts for size in sizes) // 8
    others = sum(size.split + size.whole for size in sizes)
    for engine, replicas in (("native", 16), ("deepspeed", 2)):
        found = report(
            "qwen3-30b-a3b", f"engine={engine}", "parallel.pipeline=1", "parallel.data=16", world=16
        )
        assert found.stages[0].memory.optimiser == pytest.approx(12 * (others / replicas + experts / 2))


def test_memory_of_weights_gradients_and_states_by_precision_and_zero_stage() -> None:
    """Bytes per parameter: Rajbhandari et al. 2020 count 2 + 2 + 12 for mixed precision."""
    shape = (
        "parallel.data=8",
        "parallel.pipeline=1",
        "parallel.tensor=1",
        "optimisation.global_batch_size=64",
    )
    expected = {
        ("fp16", 0): (2, 2, 16 / 8),
        ("fp16", 1): (2, 2, 16 / 8),
        ("fp16", 2): (2, 2 / 8, 16 / 8),
        # DeepSpeed keeps up to 1e9 weights gathered.
        ("fp16", 3): (2 / 8 + 2, 2 / 8, 16 / 8),
        ("bf16", 1): (2, 4, 12 / 8),
        ("fp32", 0): (4, 4, 8),
        ("fp32", 1): (4, 4, 12 / 8),
    }
    for (precision, stage), bytes_each in expected.items():
        found = report(
            "gpt-345m",
            *shape,
            f"optimisation.precision={precision}",
            f"parallel.zero_stage={stage}",
            world=8,
        )
        memory = found.stages[0].memory
        given = [size / found.parameters for size in (memory.weights, memory.gradients, memory.optimiser)]
        assert given == pytest.approx(bytes_each, rel=1e-6), (precision, stage)


def test_offloaded_states_take_host_memory() -> None:
    def stage(name: str, zero: int, *offloaded: str) -> Stage:
        one = ("parallel.data=8", "parallel.pipeline=1", "parallel.tensor=1", "optimisation.precision=bf16")
        keys = (f"parallel.{key}=cpu" for key in offloaded)
        batch = "optimisation.global_batch_size=64"
        found = report(name, "engine=deepspeed", *one, batch, f"parallel.zero_stage={zero}", *keys, world=8)
        return found.stages[0]

    one_rank = report("gpt-345m", "parallel.pipeline=1", "parallel.tensor=1", "parallel.data=8", world=8)
    parameters, vocabulary = one_rank.parameters, one_rank.padded_vocab_size
    # Bytes of each weight: gradients on the GPU, and all on the host. In bf16, sums of gradients are fp32.
    for zero, gradients, host in ((1, 4 + 4 / 8, 18 / 8), (2, 4 / 8, 18 / 8), (3, 0, 20 / 8)):
        kept = stage("gpt-345m", zero)
        assert kept.host == 0
        states = stage("gpt-345m", zero, "offload_optimizer")
        on_gpu = states.memory.gradients
        # A buffer is as large as the word embedding.
        buffers = kept.memory.buffers + (0 if zero == 3 else 2 * 1024 * vocabulary)
        expected = dataclasses.replace(kept.memory, optimiser=0, gradients=on_gpu, buffers=buffers)
        assert states.memory == expected
        assert on_gpu == pytest.approx(gradients * parameters, rel=1e-6)
        assert states.host == pytest.approx(host * parameters, rel=1e-6)
    both = ("offload_optimizer", "offload_parameters")
    # DeepSpeed keeps up to 1e9 weights gathered.
    assert stage("llama3-8b", 3, *both).memory.weights == 2 * 10**9
    small = stage("gpt-345m", 3, *both)
    assert small.memory.weights == pytest.approx(2 * parameters, rel=1e-6)
    assert small.host == pytest.approx(22 * parameters / 8, rel=1e-6)
    for name in ("gpt-345m", "llama3-8b"):
        assert stage(name, 3, *both).memory.weights < stage(name, 3).memory.weights


def test_activations_are_those_of_korthikanti_without_attention_scores() -> None:
    """Per block, 34 s b h bytes in 16 bits with the dropout masks; over t ranks, s b h (10 + 24 / t)."""
    one_dimension = ("parallel.pipeline=1", "parallel.data=1", "optimisation.global_batch_size=16")
    for tensor in (1, 2, 4):
        sizes = []
        for layers in (24, 25):
            found = report(
                "gpt-345m",
                *one_dimension,
                f"parallel.tensor={tensor}",
                f"model.layers={layers}",
                "model.hidden_dropout=0.1",
                world=tensor,
            )
            sizes.append(found.stages[0].memory.activations)
        sbh = 1024 * 8 * 1024
        # The attention also keeps one fp32 number per head and token.
        per_head = 4 * 16 * 1024 * 8 / tensor
        assert sizes[1] - sizes[0] == pytest.approx(sbh * (10 + 24 / tensor) + per_head)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "length", "micro_batch", "measured_gib"),
    [(48, 1600, 25, 1024, 16, 49), (24, 2048, 16, 2048, 8, 34), (24, 1024, 16, 1024, 32, 30)],
)
def test_estimates_match_the_measured_memory_of_a_plain_loop_on_an_h200(
    layers: int, hidden: int, heads: int, length: int, micro_batch: int, measured_gib: float
) -> None:
    """Peaks of bf16 training with 2 bytes each of weight, gradient and both moments, compiled, torch 2.11."""
    config = from_dict(
        {
            "model": {
                "layers": layers,
                "hidden_size": hidden,
                "attention_heads": heads,
                "seq_length": length,
            },
            "optimisation": {"micro_batch_size": micro_batch, "global_batch_size": micro_batch},
        }
    )
    found = dry_run(config, 1)
    # That loop keeps all its logits at once.
    logits = micro_batch * length * 50304 * 2
    estimate = found.stages[0].memory.activations + 8 * found.parameters + logits
    assert estimate / GIB == pytest.approx(measured_gib, rel=0.06)


def test_a_stage_keeps_as_many_micro_batches_as_stages_follow_it() -> None:
    stages = report("gpt2-xl").stages
    assert [stage.in_flight for stage in stages] == [8, 7, 6, 5, 4, 3, 2, 1]
    # With fewer micro-batches than stages, no more than these are in flight.
    few = report("gpt2-xl", "optimisation.global_batch_size=12")
    assert [stage.in_flight for stage in few.stages] == [3, 3, 3, 3, 3, 3, 2, 1]
    assert few.bubble == pytest.approx(7 / 10)


def test_chunks_make_the_bubble_smaller_and_keep_more_activations() -> None:
    changes = ["engine=native", "model.layers=48", "parallel.partition=even"]
    one, two = (report("gpt2-xl", *changes, f"parallel.virtual_pipeline={chunks}") for chunks in (1, 2))
    assert two.bubble == pytest.approx(7 / (2 * two.accumulation + 7))
    assert [stage.blocks for stage in two.stages] == [6] * 8
    assert [stage.in_flight for stage in two.stages] == [23, 21, 19, 17, 15, 13, 11, 9]
    # The last stage keeps eight micro-batches in its first chunk and one in its second, which has the head.
    kept = [found.stages[-1].memory.activations for found in (one, two)]
    ends = 2 * 1024 * 1600 * 2
    received = 8 * 1024 * 1600 * 2
    assert kept[1] - ends - received == pytest.approx((kept[0] - ends) * 9 / 2, rel=1e-6)
    assert sum(stage.parameters for stage in one.stages) == sum(stage.parameters for stage in two.stages)


def test_chunks_of_unequal_sizes_save_their_own_activations() -> None:
    changes = ["engine=native", "parallel.tensor=1"]

    def kept(partition: str, *more: str) -> list[int]:
        found = report("gpt-1.3b", *changes, f"parallel.partition={partition}", *more)
        return [stage.memory.activations for stage in found.stages]

    block = kept("12-12")[1] - kept("13-11")[1]
    state = kept("12-12")[0] - 2 * 12 * block  # of two micro-batches
    found = kept("6-7-7-4", "parallel.virtual_pipeline=2")
    # Three micro-batches through the first chunk and two through the second, then three through the first.
    # What a chunk without embedding and head received.
    passed = [2 * state // 2, 3 * state // 2]
    assert found == [(3 * 6 + 2 * 7) * block + state * 3 // 2 + passed[0], 3 * 7 * block + passed[1]]
    full = kept("6-7-7-4", "parallel.virtual_pipeline=2", "parallel.activation_checkpointing=full")
    assert full[1] == block + 3 * 7 * state // 2 + passed[1]


def test_a_backward_pass_has_gradients_where_no_logits_took_more() -> None:
    line = 2 * 8192 * 4096
    pipeline = ("engine=native", "parallel.pipeline=2", "parallel.tensor=1", "parallel.data=1")
    for chunks in (1, 2):
        batch = (f"parallel.virtual_pipeline={chunks}", "optimisation.global_batch_size=8")
        stages = report("llama3-8b", *pipeline, *batch, world=2).stages
        # The first stage sends gradients to the last one if it has several chunks.
        proofs = received_before(1, True, 2, chunks, 8)
        sent = max((count - proved for count, proved in enumerate(proofs[1:], 2)), default=0)
        # Of the block's output and of its gated layer's two inputs, 3.5 times as wide.
        own = 1 + 2 * 3.5 + (sent if chunks > 1 else 0)
        assert [stage.memory.backward for stage in stages] == [own * line, 0]


def test_the_gradients_of_a_backward_pass_count_each_expert_that_a_token_has() -> None:
    layout = ("engine=native", "parallel.pipeline=2", "parallel.expert=1", "parallel.data=1")
    first = report("mixtral-8x7b", *layout, "optimisation.global_batch_size=8", world=2).stages[0]
    # Of the block's output, and of both inputs of the gated layers of two experts.
    assert first.memory.backward == 2 * 4096 * (4096 + 2 * 2 * 14336)


def test_a_decoders_stage_also_receives_the_states_of_the_encoder() -> None:
    def kept(cut: str) -> int:
        overrides = (f"parallel.partition={cut}", "parallel.activation_checkpointing=none")
        return report("t5-23b", *overrides).stages[3].memory.activations

    block = kept("15-15-14-16-12") - kept("15-15-15-15-12")
    # Two micro-batches of 5, with the tokens of the encoder and of the decoder.
    assert kept("15-15-15-15-12") - 15 * block == 2 * 5 * (512 + 512) * 5120 * 2


@pytest.mark.parametrize(
    ("other", "context", "copies"),
    [
        (("model.position_embedding=rope",), 1, 1),
        (("model.qk_norm=true",), 1, 1),
        (("model.position_embedding=rope", "model.qk_norm=true"), 1, 1),
        # Context parallelism copies values, too.
        (("model.position_embedding=rope",), 2, 0),
    ],
)
def test_normed_queries_and_keys_add_to_the_product_that_values_view(
    other: tuple[str, ...], context: int, copies: int
) -> None:
    one = ("parallel.data=1", "parallel.activation_checkpointing=none", "optimisation.global_batch_size=1")
    for tensor in (1, 2):
        axes = (*one, "engine=native", f"parallel.tensor={tensor}", f"parallel.context={context}")
        plain, changed = (
            report("llama3-8b", *axes, "model.position_embedding=learned", *more, world=tensor * context)
            for more in ((), other)
        )
        more = changed.stages[0].memory.activations - plain.stages[0].memory.activations
        assert more == copies * 32 * 8192 * (4096 + 1024) * 2 // tensor


def test_eager_forwards_keep_more_micro_batches() -> None:
    changes = ["engine=native", "parallel.pipeline=4", "parallel.partition=even"]
    plain, eager = (report("gpt2-xl", *changes, f"parallel.eager_forwards={count}") for count in (0, 2))
    assert [stage.in_flight for stage in plain.stages] == [4, 3, 2, 1]
    assert [stage.in_flight for stage in eager.stages] == [10, 7, 4, 1]
    kept = [[stage.memory.activations for stage in found.stages] for found in (plain, eager)]
    assert [more / less for less, more in zip(*kept, strict=True)] == pytest.approx([10 / 4, 7 / 3, 2, 1])
    # Stages that are alike wait as long.
    assert eager.bubble == plain.bubble
    few = report("gpt2-xl", *changes, "parallel.eager_forwards=2", "optimisation.global_batch_size=16")
    assert [stage.in_flight for stage in few.stages] == [
        min(few.accumulation, most) for most in (10, 7, 4, 1)
    ]


def test_checkpointing_trades_activations_for_flops() -> None:
    plain = report("gpt-5b")
    full = report("gpt-5b", "parallel.activation_checkpointing=full")
    assert full.stages[0].memory.activations < plain.stages[0].memory.activations / 5
    assert plain.recomputed_flops_per_step == 0
    assert full.recomputed_flops_per_step == pytest.approx(full.flops_per_step / 3)
    # Fewer checkpoints keep less between the passes and more during one.
    wider = report(
        "gpt-5b",
        "parallel.activation_checkpointing=full",
        "parallel.activation_checkpointing_interval=12",
    )
    assert wider.stages[0].memory.activations > full.stages[0].memory.activations


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt-5b", ()),
        ("t5-23b", ()),
        ("gpt2-xl", ("parallel.virtual_pipeline=2", "engine=native", "parallel.partition=even")),
    ],
)
def test_the_more_blocks_compute_again_the_less_a_pipeline_keeps(name: str, changes: tuple[str, ...]) -> None:
    full = (*changes, "parallel.activation_checkpointing=full")
    found = [
        report(name, *full, f"parallel.activation_checkpointing_blocks={blocks}")
        for blocks in range(report(name, *changes).stages[0].blocks + 1)
    ]
    kept = [one.stages[0].memory.activations for one in found]
    again = [one.recomputed_flops_per_step for one in found]
    assert kept == sorted(set(kept), reverse=True)
    assert again == sorted(set(again))
    assert found[0].stages == report(name, *changes).stages
    assert found[-1].stages == report(name, *full).stages
    assert again[-1] == pytest.approx(found[-1].flops_per_step / 3)


@pytest.mark.parametrize("name", ["gpt-5b", "t5-23b", "mixtral-8x7b"])
def test_the_smaller_the_budget_the_less_a_stage_keeps(name: str) -> None:
    plain, full = (
        report(name, f"parallel.activation_checkpointing={saved}").stages[0].memory.activations
        for saved in ("none", "full")
    )
    budgets = (1.0, 0.7, 0.3, 0.01)
    kept = [
        report(name, "parallel.activation_checkpointing=none", f"parallel.activation_memory_budget={budget}")
        for budget in budgets
    ]
    sizes = [one.stages[0].memory.activations for one in kept]
    assert sizes[0] == plain
    assert sizes == sorted(set(sizes), reverse=True)
    # Only what a MoE's experts keep is not for the compiler to choose.
    assert (sizes[-1] < 1.1 * full) is (name != "mixtral-8x7b")
    assert sizes[-1] > 0.9 * full


def test_the_rdm_runs_fit_their_gpus_and_not_smaller_ones() -> None:
    a10, h200 = flops.find_accelerator("A10"), flops.find_accelerator("H200")
    assert a10 is not None
    assert h200 is not None
    for name in ("t5-23b", "t5-11b", "gpt-5b"):
        assert report(name).fits(h200)
        assert not report(name).fits(a10)
    # The tdpp document trains this one on A10s.
    assert report("gpt2-xl").fits(a10)


def test_time_follows_from_flops_and_bubble() -> None:
    h200 = flops.find_accelerator("H200")
    assert h200 is not None
    found = report("gpt2-xl")
    seconds = found.seconds_per_step(h200, 0.5)
    useful = found.flops_per_step / (32 * h200.tflops * 1e12 * 0.5)
    assert seconds * (1 - found.bubble) == pytest.approx(useful)


# A CPU, unlike a GPU, copies a 16-bit gradient to add it to a sum, as both engines do in bf16 with ZeRO 1.
@pytest.mark.parametrize(
    ("engine", "precision"), [("deepspeed", "fp32"), ("deepspeed", "bf16"), ("native", "fp32")]
)
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("tokens", "hidden"), [(256, 64), (64, 1024)])
def test_the_loss_takes_the_memory_of_its_estimate(
    engine: str, precision: str, several: bool, tokens: int, hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    from rdm_core.cost import chunks
    from rdm_trainer.distributed.gradient_sum import GradientSum
    from rdm_trainer.distributed.tensor_parallel.cross_entropy import linear_cross_entropy

    rows = 4096
    if several:
        monkeypatch.setitem(chunks._ELEMENTS, False, tokens * rows // 4)
    config = from_dict(
        {
            "model": {
                "layers": 1,
                "hidden_size": hidden,
                "attention_heads": 2,
                "seq_length": tokens,
                "vocab_size": rows,
            },
            "optimisation": {"micro_batch_size": 1, "precision": precision},
            "parallel": {"zero_stage": 2 if precision == "bf16" else 1},
            "engine": engine,
        }
    )
    total = GradientSum(torch.zeros(rows, hidden), lambda: None) if engine == "native" else None
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    states = torch.randn(tokens, hidden, dtype=dtype, requires_grad=True)
    weight = torch.randn(rows, hidden, dtype=dtype, requires_grad=True)
    labels, mask = torch.randint(0, rows, (tokens,)), torch.ones(tokens)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        linear_cross_entropy(states, weight, labels, mask, gradient_sum=total).backward()
    events = seen.profiler.kineto_results.events()
    peak = max(itertools.accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
    assert dry_run(config, 1).stages[0].memory.logits == pytest.approx(peak, rel=0.03)


def test_a_head_whose_gradient_is_added_to_a_sum_takes_less_memory() -> None:
    def logits(*overrides: str) -> int:
        # A head that is large for its few tokens.
        large = ("model.vocab_size=256000", "model.seq_length=256", "parallel.pipeline=1", *overrides)
        return report("gpt-1.3b", *large).stages[-1].memory.logits

    summed = logits("engine=native")
    assert logits("engine=deepspeed") == summed
    for other in ("zero_stage=2", "offload_optimizer=cpu"):
        assert logits("engine=deepspeed", f"parallel.{other}") > summed


def test_estimate_for_a_huge_world_is_fast() -> None:
    # A prime: no number of equal chunks is found.
    found = report(
        "gpt2-small",
        "model.vocab_size=2000000000",
        "optimisation.micro_batch_size=999999937",
        "optimisation.global_batch_size=999999937",
        "parallel.data=1",
    )
    assert found.stages[0].memory.total > 1e12
