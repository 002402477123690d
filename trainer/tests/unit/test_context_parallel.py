# SPDX-License-Identifier: GPL-3.0-or-later
"""Sequences sharded over ranks: which rank has which tokens, what is rejected, what a rank keeps."""

from __future__ import annotations

import dataclasses

import torch
from hypothesis import given
from hypothesis import strategies as st

from rdm_core.config import Config, ModelConfig, OptimisationConfig, ParallelConfig, check
from rdm_core.cost.dry_run import dry_run
from rdm_trainer.distributed.context_parallel import SequencePart
from rdm_trainer.models.seen_tokens import attention_of_last
from tests.distributed.training import configure

JOB = Config(
    model=ModelConfig(layers=2, hidden_size=16, attention_heads=2, seq_length=64, vocab_size=100),
    parallel=ParallelConfig(context=2),
    optimisation=OptimisationConfig(train_iterations=1),
    data=dataclasses.replace(Config().data, mock=True),
    engine="native",
)
T5_CHANGES = {"model.kind": "t5", "model.vocab_extra_ids": 10, "model.decoder_layers": 2}
MEANS = {"optimisation.calculate_per_token_loss": False}


@given(ranks=st.integers(1, 8), size=st.integers(1, 5))
def test_each_token_is_of_one_rank_and_all_ranks_see_as_many(ranks: int, size: int) -> None:
    tokens = 2 * ranks * size
    sequence = torch.arange(tokens)[None]
    parts = [SequencePart(rank, ranks, None) for rank in range(ranks)]
    positions = [part.places(tokens // ranks, torch.device("cpu")) for part in parts]
    assert sorted(torch.cat(positions).tolist()) == list(range(tokens))
    for part, own in zip(parts, positions, strict=True):
        assert part.own(sequence)[0].tolist() == own.tolist()
    # With a causal mask, the token at position n sees n + 1 tokens.
    assert len({int(own.sum()) for own in positions}) == 1


def test_the_parts_of_attention_are_those_of_the_whole() -> None:
    torch.manual_seed(1)
    query, key, value = torch.randn(3, 2, 24, 4, 8).unbind()
    causal = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), is_causal=True
    ).transpose(1, 2)
    for rank in range(3):
        part = SequencePart(rank, 3, None)
        own = part.own(query)
        mixed = []
        for chunk, begin in zip(own.chunk(2, dim=1), part.before(own), strict=True):
            seen = slice(begin + chunk.shape[1])
            keys, values = (one[:, seen].transpose(1, 2) for one in (key, value))
            mixed.append(attention_of_last(chunk.transpose(1, 2), keys, values))
        torch.testing.assert_close(torch.cat(mixed, dim=2).transpose(1, 2), part.own(causal))


def test_what_cannot_be_is_one_sentence() -> None:
    for possible in ({}, {"model.kind": "bert"}, T5_CHANGES):
        assert check(configure(JOB, possible), 2) == []
    experts = {"model.experts": 6, "model.biases": "none", "parallel.expert": 3}
    for changes, world, words in (
        ({"engine": "deepspeed"}, 2, "parallel.context 2 needs the native engine"),
        ({"model.seq_length": 50}, 2, "2 x parallel.context 2 = 4, and each rank has two parts"),
        ({"model.seq_length": 50}, 2, "; 48 or 52 would be."),
        ({"data.eod_mask_loss": True, **MEANS}, 2, "needs optimisation.calculate_per_token_loss"),
        ({}, 3, "A world of 3 is not a multiple of parallel tensor 1 x context 2 x pipeline 1 = 2"),
        ({"parallel.data": 2}, 2, "context 2 x pipeline 1 x data 2 = 4, but the world is 2"),
        (experts, 4, "2 data-parallel ranks x parallel.context 2 = 4 are not a multiple"),
        ({**T5_CHANGES, "model.decoder_seq_length": 50}, 2, "model.decoder_seq_length 50 is not a multiple"),
        ({"model.kind": "bert", **MEANS}, 2, "needs optimisation.calculate_per_token_loss"),
    ):
        found = check(configure(JOB, changes), world)
        assert len(found) == 1, found
        assert words in found[0]


def test_context_ranks_may_share_experts() -> None:
    experts = {"model.experts": 4, "model.biases": "none"}
    for context, expert, world in ((2, 4, 4), (4, 2, 4), (2, 2, 2)):
        job = configure(JOB, {**experts, "parallel.context": context, "parallel.expert": expert})
        assert job.written_world_size == world
        assert check(job, world) == []


def test_a_rank_keeps_its_own_tokens_and_all_keys_and_values() -> None:
    whole, shared = (
        dry_run(configure(JOB, {"parallel.context": context}), 2).peak.memory for context in (1, 2)
    )
    assert whole.activations / 2 < shared.activations < whole.activations
    assert (shared.weights, shared.optimiser) == (whole.weights, whole.optimiser)
