# SPDX-License-Identifier: GPL-3.0-or-later
"""What sequence parallelism needs, and what it saves according to the formulas."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rdm_core.config import Config, check, load
from rdm_core.cost.dry_run import Memory, dry_run
from rdm_planner.layouts import Layout, with_layout
from tests.distributed.training import GPT, T5, configure

SHARDED = {"engine": "native", "parallel.tensor": 2, "parallel.sequence_parallel": True}
JOB = configure(GPT, {**SHARDED, "data.mock": True, "optimisation.micro_batch_size": 1})
CONFIGS = Path(__file__).parents[2] / "configs"


def test_what_cannot_be_is_one_sentence() -> None:
    assert check(JOB, 2) == []
    for changes, words in (
        ({"engine": "deepspeed"}, "parallel.sequence_parallel true needs the native engine"),
        ({"parallel.tensor": 1}, "but parallel.tensor is 1"),
        ({"model.seq_length": 17}, "model.seq_length 17 is not a multiple of parallel.tensor 2,"),
        (
            {"model.seq_length": 20, "parallel.tensor": 4, "parallel.context": 2},
            "model.seq_length 20 is not a multiple of parallel.tensor 4 x parallel.context 2 = 8,",
        ),
    ):
        found = check(configure(JOB, changes), 8)
        assert len(found) == 1, found
        assert words in found[0]
    decoder = configure(T5, {**SHARDED, "data.mock": True, "model.decoder_seq_length": 13})
    assert [problem[:30] for problem in check(decoder, 2)] == ["model.decoder_seq_length 13 is"]


def memory(job: Config, world: int) -> Memory:
    return dry_run(job, world).peak.memory


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_activations_outside_the_tensor_parallel_regions_are_sharded(checkpointing: str) -> None:
    changes = [f"parallel.{key}" for key in ("tensor=4", "pipeline=1", "partition=even")]
    job = load(CONFIGS / "gpt2-xl.yaml", ["engine=native", *changes])
    job = configure(job, {"parallel.activation_checkpointing": checkpointing})
    whole, shared = (memory(configure(job, {"parallel.sequence_parallel": it}), 4) for it in (False, True))
    spec, lines = job.spec, job.optimisation.micro_batch_size * job.model.seq_length * 2
    line = lines * spec.hidden_size
    # Each block has four lines, or its input and the four of the block that is recomputed. The embedding and
    # the last norm add one each, while the head's stays whole.
    kept = 4 * spec.layers if checkpointing == "none" else spec.layers + 4
    assert whole.activations - shared.activations == (kept + 2) * line * 3 // 4
    assert dataclasses.replace(shared, activations=whole.activations) == whole


def test_a_layout_without_tensor_ranks_is_searched_without_it() -> None:
    assert with_layout(JOB, Layout(4, 1, 1, 1)).parallel.sequence_parallel
    assert not with_layout(JOB, Layout(1, 4, 1, 1)).parallel.sequence_parallel
