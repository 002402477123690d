# SPDX-License-Identifier: GPL-3.0-or-later
"""The same tiny model gives the same losses in every layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rdm_core.config import Config
from tests import architectures
from tests.distributed import processes, training
from tests.distributed.training import BERT, GPT, MOE, QWEN, T5, configure

Results = dict[str, list[dict[str, Any]]]

STEPS = 2
"""The second step's loss and gradient show the first update, the evaluation the second, which has moments."""
TENSOR = {"parallel.tensor": 2}
PIPELINE = {"parallel.pipeline": 2}
FOUR = {"parallel.pipeline": 4}
FOUR_TENSOR = {"parallel.tensor": 4}
INTERLEAVED = {"engine": "native", "parallel.pipeline": 2, "parallel.virtual_pipeline": 2}
EAGER = {"parallel.eager_forwards": 1}
FULL = {"parallel.activation_checkpointing": "full"}
SELECTIVE = {**FULL, "parallel.activation_checkpointing_blocks": 1}
OFFLOADED = {"parallel.offload_optimizer": "cpu"}
ALL_OFFLOADED = {**OFFLOADED, "parallel.zero_stage": 3, "parallel.offload_parameters": "cpu"}
# The busiest experts drop tokens, and most of each step is for the balance.
BALANCING = configure(MOE, {"model.moe_expert_capacity_factor": 1.0, "model.moe_aux_loss_coeff": 2.0})
# T5 1.1, as Hugging Face has it: with a table of relative positions for each stack, and an untied head.
RELATIVE = {
    "model.tied_embeddings": False,
    "model.relative_attention_num_buckets": 8,
    "model.relative_attention_max_distance": 12,
    **{f"model.{key}": value for key, value in architectures.T5_1_1.items()},
}


def zero(stage: int) -> dict[str, Any]:
    return {"parallel.zero_stage": stage}


def cut(partition: str) -> dict[str, Any]:
    return {"parallel.partition": partition}


# World size, then name of the layout, then the difference from one process.
LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {
        "one micro-batch": {"optimisation.micro_batch_size": 8},
        "zero 0": zero(0),
        "all offloaded": ALL_OFFLOADED,
        "checkpointing": FULL,
        "checkpointing by 3": {**FULL, "parallel.activation_checkpointing_interval": 3},
    },
    2: {
        "dp 2": {},
        "dp 2, zero 0": zero(0),
        "dp 2, zero 2": zero(2),
        "dp 2, zero 3": zero(3),
        "dp 2, zero 3, checkpointing": {**zero(3), **FULL},
        "dp 2, offloaded": OFFLOADED,
        "dp 2, zero 2, offloaded": {**zero(2), **OFFLOADED},
        "dp 2, zero 3, offloaded": {**zero(3), **OFFLOADED},
        "dp 2, weights offloaded": {**zero(3), "parallel.offload_parameters": "cpu"},
        "dp 2, all offloaded": ALL_OFFLOADED,
        "tp 2, offloaded": {**TENSOR, **OFFLOADED},
        "tp 2": TENSOR,
        "tp 2, checkpointing": {**TENSOR, **FULL},
        "pp 2": PIPELINE,
        "pp 2, zero 0": {**PIPELINE, **zero(0)},
        "pp 2, checkpointing": {**PIPELINE, **FULL},
        "pp 2, checkpointing of 1": {**PIPELINE, **SELECTIVE},
        "pp 2, 3-1": {**PIPELINE, **cut("3-1")},
        "pp 2, 0-4": {**PIPELINE, **cut("0-4")},
        "pp 2, 4-0": {**PIPELINE, **cut("4-0")},
    },
    4: {
        "tp 2, pp 2": {**TENSOR, **PIPELINE},
        "pp 2, dp 2": PIPELINE,
        "tp 2, dp 2, all offloaded": {**TENSOR, **ALL_OFFLOADED},
        "pp 4, 0-2-2-0": {**FOUR, **cut("0-2-2-0")},
    },
    8: {"2 x 2 x 2": {**TENSOR, **PIPELINE}},
}
# The native engine's layouts for every model; their names begin with the engine.
NATIVE = {"engine": "native"}
NATIVE_LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    1: {"one": {}, "checkpointing": FULL},
    2: {
        "dp 2": {},
        "tp 2": TENSOR,
        "pp 2": PIPELINE,
        "pp 2, checkpointing": {**PIPELINE, **FULL},
        "pp 2, 0-4": {**PIPELINE, **cut("0-4")},
        "pp 2, eager": {**PIPELINE, **EAGER},
        "interleaved": INTERLEAVED,
        "interleaved, checkpointing of 1": {**INTERLEAVED, **SELECTIVE},
        "interleaved, 1-1-2-0": {**INTERLEAVED, **FULL, **cut("1-1-2-0")},
    },
    4: {
        "tp 2, pp 2": {**TENSOR, **PIPELINE},
        "tp 2, dp 2": TENSOR,
        "pp 2, dp 2": PIPELINE,
        "interleaved, dp 2": INTERLEAVED,
        "pp 4, 0-2-2-0": {**FOUR, **cut("0-2-2-0")},
        "pp 4, eager": {**FOUR, **EAGER},
    },
}
for world, found in NATIVE_LAYOUTS.items():
    LAYOUTS[world] |= {f"native, {name}": {**NATIVE, **changes} for name, changes in found.items()}
CONTEXT = {**NATIVE, "parallel.context": 2}
RELATIVE_LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "dp 2, zero 3": zero(3),
        "tp 2, checkpointing": {**TENSOR, **FULL},
        "pp 2": PIPELINE,
        "pp 2, 0-4": {**PIPELINE, **cut("0-4")},
        "interleaved": INTERLEAVED,
    },
    4: {"native, cp 2, pp 2, checkpointing": {**CONTEXT, **PIPELINE, **FULL}},
}
# QWEN is untied, too.
QWEN_LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "dp 2, zero 3": zero(3),
        "tp 2, checkpointing": {**TENSOR, **FULL},
        "pp 2, 4-0": {**PIPELINE, **cut("4-0")},
        "native, interleaved": INTERLEAVED,
        "native, cp 2, checkpointing": {**CONTEXT, **FULL},
    },
    4: {
        "native, cp 4": {**NATIVE, "parallel.context": 4},
        "native, cp 2, interleaved": {**CONTEXT, **INTERLEAVED},
        "native, cp 2, tp 2": {**CONTEXT, **TENSOR},
    },
}
# Two ranks share a key-value head; their queries differ.
SHARED = configure(QWEN, {"model.query_groups": 2})
SHARED_LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    4: {
        "tp 4, zero 3": {**FOUR_TENSOR, **zero(3)},
        "native, tp 4, checkpointing": {**NATIVE, **FOUR_TENSOR, **FULL},
    }
}
DOCUMENTS = {"data.reset_attention_mask": True, "data.reset_position_ids": True, "model.sliding_window": 4}
BERT_LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {"dp 2, zero 3": zero(3), "tp 2, checkpointing": {**TENSOR, **FULL}, "pp 2": PIPELINE},
    4: {
        "native, tp 2, pp 2": {**NATIVE, **TENSOR, **PIPELINE},
        "native, cp 2, tp 2": {**CONTEXT, **TENSOR},
    },
}
EXPERT = {"parallel.expert": 2}
SHARDED = {**NATIVE, **TENSOR, "parallel.sequence_parallel": True}
MOE_LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "ep 2, checkpointing": {**EXPERT, **FULL},
        "ep 2, all offloaded": {**EXPERT, **ALL_OFFLOADED},
        "native, interleaved": INTERLEAVED,
        "native, cp 2, ep 2, checkpointing": {**CONTEXT, **EXPERT, **FULL},
        "native, sp 2, checkpointing": {**SHARDED, **FULL},
    },
    4: {
        "ep 2, dp 2": EXPERT,
        "ep 4, zero 0": {"parallel.expert": 4, **zero(0)},
        "ep 2, tp 2": {**EXPERT, **TENSOR},
        "ep 2, pp 2": {**EXPERT, **PIPELINE},
        "native, cp 2, dp 2, ep 4": {**CONTEXT, "parallel.expert": 4},
        "native, cp 2, ep 2, tp 2": {**CONTEXT, **EXPERT, **TENSOR},
        "native, cp 2, ep 2, interleaved": {**CONTEXT, **EXPERT, **INTERLEAVED},
        "native, sp 2, interleaved": {**SHARDED, **INTERLEAVED},
    },
}
# Ranks with different tokens of a micro-batch agree on its load and on the experts' capacity.
SHARDED_LAYOUTS: dict[int, dict[str, dict[str, Any]]] = {
    2: {"native, cp 2": CONTEXT, "native, sp 2": SHARDED},
    4: {
        "ep 2, tp 2": {**EXPERT, **TENSOR},
        "native, cp 2, dp 2, ep 2": {**CONTEXT, **EXPERT},
        "native, sp 2, pp 2": {**SHARDED, **PIPELINE},
        "native, sp 2, cp 2, ep 2": {**SHARDED, **CONTEXT, **EXPERT},
    },
}
# Layouts that do not depend on the model, or are a part of another one here, and so need no test with a T5.
NOT_FOR_T5 = (
    *("zero 0", "all offloaded", "dp 2", "dp 2, zero 0", "dp 2, zero 2", "dp 2, zero 3, checkpointing"),
    *("tp 2", "tp 2, pp 2", "pp 2, dp 2", "pp 2, zero 0"),
    *("dp 2, offloaded", "dp 2, zero 2, offloaded", "dp 2, zero 3, offloaded", "dp 2, all offloaded"),
    *("dp 2, weights offloaded", "tp 2, offloaded", "tp 2, dp 2, all offloaded"),
    *("native, one", "native, checkpointing", "native, dp 2", "native, pp 2, checkpointing"),
    *("native, tp 2, dp 2", "native, pp 2, dp 2", "native, interleaved, dp 2", "native, pp 4, eager"),
)


def without(*names: str) -> dict[int, dict[str, dict[str, Any]]]:
    return {
        world: {name: changes for name, changes in found.items() if name not in names}
        for world, found in LAYOUTS.items()
    }


def with_context(layouts: dict[int, dict[str, dict[str, Any]]]) -> dict[int, dict[str, dict[str, Any]]]:
    return {**layouts, 2: {**layouts[2], "native, cp 2": CONTEXT}}


MODELS: dict[str, tuple[Config, dict[int, dict[str, dict[str, Any]]]]] = {
    # Only the T5, with stages of two kinds, is tested in all three dimensions at once.
    "gpt": (GPT, with_context(without("2 x 2 x 2"))),
    # As Megatron has it, whose head has a bias.
    "t5": (configure(T5, {"model.lm_head_bias": True}), with_context(without(*NOT_FOR_T5))),
    "qwen": (QWEN, QWEN_LAYOUTS),
    "qwen, shared heads": (SHARED, SHARED_LAYOUTS),
    "moe": (MOE, MOE_LAYOUTS),
    "moe, documents": (
        configure(MOE, DOCUMENTS),
        {2: {"ep 2": EXPERT, "pp 2": PIPELINE, "native, cp 2": CONTEXT, "native, sp 2": SHARDED}},
    ),
    "moe, dropping and balancing": (BALANCING, SHARDED_LAYOUTS),
    "bert": (BERT, BERT_LAYOUTS),
    "t5 relative": (configure(T5, RELATIVE), RELATIVE_LAYOUTS),
    "gpt of 8 blocks": (
        configure(GPT, {"model.layers": 8}),
        {4: {"interleaved": {**INTERLEAVED, "parallel.pipeline": 4}}},
    ),
}
CASES = [
    (model, world, layout)
    for model, (_, layouts) in MODELS.items()
    for world, found in layouts.items()
    for layout in found
]


def launch(world: int, jobs: Mapping[str, Config]) -> Results:
    answers = processes.run(world, training.losses, jobs, STEPS)
    for answer in answers[1:]:
        assert answer == answers[0], "the ranks of one launch disagree"
    results: Results = answers[0]
    return results


@pytest.fixture(scope="module")
def reported() -> dict[int, Results]:
    """The results of every layout of every model; one launch for each world size."""
    worlds = sorted({world for _, world, _ in CASES})
    results = {}
    for world in worlds:
        jobs = {
            f"{model}: {layout}": configure(base, changes)
            for model, (base, layouts) in MODELS.items()
            for layout, changes in layouts.get(world, {}).items()
        }
        if world == 1:
            jobs |= {model: base for model, (base, _) in MODELS.items()}
            jobs["gpt: means"] = configure(GPT, {"optimisation.calculate_per_token_loss": False})
        results[world] = launch(world, jobs)
    return results


@pytest.mark.parametrize(("model", "world", "layout"), CASES)
def test_layouts_have_the_losses_of_one_process(
    reported: dict[int, Results], model: str, world: int, layout: str
) -> None:
    expected, found = reported[1][model], reported[world][f"{model}: {layout}"]
    assert [step["loss"] for step in found] == pytest.approx(
        [step["loss"] for step in expected], abs=1e-4, rel=0
    )
    if model.startswith("moe"):
        # One process computes the same numbers in another order.
        assert [step["loss"] for step in found] == pytest.approx(
            [step["loss"] for step in expected], abs=1e-5, rel=0
        )
        balances = [step.get("balance") for step in found]
        assert balances[:-1] == pytest.approx([step["balance"] for step in expected[:-1]], abs=1e-4)
    norms = [step.get("grad_norm") for step in found]
    assert norms[:-1] == pytest.approx([step["grad_norm"] for step in expected[:-1]], rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_training_changes_the_loss(reported: dict[int, Results], model: str) -> None:
    # The evaluation uses the first step's samples: if nothing were learnt, equal losses would prove little.
    losses = [step["loss"] for step in reported[1][model]]
    assert abs(losses[-1] - losses[0]) > 10 * 1e-4


def test_mean_of_micro_batch_means_is_another_loss(reported: dict[int, Results]) -> None:
    tokens, means = (reported[1][name] for name in ("gpt", "gpt: means"))
    assert 1e-3 < abs(tokens[0]["loss"] - means[0]["loss"]) < 0.1


def test_masking_between_documents_changes_the_loss(reported: dict[int, Results]) -> None:
    together, apart = (reported[1][name][0]["loss"] for name in ("moe", "moe, documents"))
    assert abs(together - apart) > 1e-3
