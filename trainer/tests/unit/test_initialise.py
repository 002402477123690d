# SPDX-License-Identifier: GPL-3.0-or-later
"""Initial weights: the same numbers in every layout."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from rdm_core.config import Config, ModelConfig
from rdm_trainer import models
from rdm_trainer.distributed import parameters as subject
from rdm_trainer.distributed.parameters import ShardSpec, initialise, parameter, seed_of
from rdm_trainer.distributed.topology import Topology

DRAWN = "cf0c92f05b72abfe76a98b6dbfecebf06afbf3d2121db8f11a8548240d69c8fa"


class Holder(nn.Module):
    def __init__(self, shard_spec: ShardSpec) -> None:
        super().__init__()
        self.weight = parameter(shard_spec)


def drawn(shard_spec: ShardSpec, prefix: str = "3.", seed: int = 1) -> torch.Tensor:
    holder = Holder(shard_spec)
    initialise(holder, prefix, seed)
    return holder.weight.data


@given(
    rows=st.integers(1, 12),
    columns=st.integers(1, 12),
    parts=st.integers(1, 4),
    dimension=st.sampled_from([0, 1]),
    block=st.integers(1, 60),
)
@settings(max_examples=60, deadline=None)
def test_shards_make_up_the_whole_weight(
    rows: int, columns: int, parts: int, dimension: int, block: int
) -> None:
    shape = (rows * parts, columns) if dimension == 0 else (rows, columns * parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "_BLOCK_ELEMENTS", block)
        whole = drawn(ShardSpec(shape, std=0.5))
        pieces = [drawn(ShardSpec(shape, dimension, index, parts, std=0.5)) for index in range(parts)]
    assert torch.equal(torch.cat(pieces, dim=dimension), whole)


@given(rows=st.integers(1, 40), more=st.integers(0, 40))
@settings(max_examples=30, deadline=None)
def test_padding_a_vocabulary_further_leaves_its_tokens_alone(rows: int, more: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "_BLOCK_ELEMENTS", 35)
        short, long = drawn(ShardSpec((rows, 5), std=1.0)), drawn(ShardSpec((rows + more, 5), std=1.0))
    assert torch.equal(short, long[:rows])


@pytest.mark.parametrize("threads", [1, 5])
def test_initial_weights_are_those_of_earlier_releases_with_any_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "_BLOCK_ELEMENTS", 100)
    monkeypatch.setattr(subject, "_threads", lambda: threads)
    model = ModelConfig(layers=2, hidden_size=16, attention_heads=4, seq_length=8, vocab_size=50)
    weights = dict(models.build(Config(model=model), Topology.single()).named_parameters())
    # Processors' results differ in the last bits.
    rounded = [(weights[name].detach() * 100).round().to(torch.int8) for name in sorted(weights)]
    digest = hashlib.sha256(b"".join(one.numpy().tobytes() for one in rounded))
    assert digest.hexdigest() == DRAWN


def test_blocks_of_threads_are_bit_identical(monkeypatch: pytest.MonkeyPatch) -> None:
    shard_spec = ShardSpec((12000, 1000), 1, 1, 2, std=1.0)
    monkeypatch.setattr(subject, "_threads", lambda: 4)
    many = drawn(shard_spec)
    monkeypatch.setattr(subject, "_FEW", 100)
    assert torch.equal(drawn(shard_spec), many)


def test_parameters_differ_by_name_and_seed() -> None:
    shard_spec = ShardSpec((64, 64), std=1.0)
    first = drawn(shard_spec)
    assert not torch.equal(first, drawn(shard_spec, prefix="4."))
    assert not torch.equal(first, drawn(shard_spec, seed=2))
    assert torch.equal(first, drawn(shard_spec))


def test_initial_weights_have_the_configured_standard_deviation() -> None:
    weight = drawn(ShardSpec((2000, 1000), std=0.02))
    assert weight.std().item() == pytest.approx(0.02, rel=0.01)
    assert weight.mean().item() == pytest.approx(0.0, abs=1e-4)
    # Blocks are independent: a repeated one would show as equal rows.
    assert len({tuple(row) for row in weight[:, :4].tolist()}) == 2000


def test_a_constant_needs_no_draw() -> None:
    assert torch.equal(drawn(ShardSpec((3,), constant=1.0)), torch.ones(3))


def test_only_the_needed_blocks_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "_BLOCK_ELEMENTS", 10)
    seeds: list[object] = []

    def noted(*parts: int | str) -> int:
        seeds.append(parts[-1])
        return seed_of(*parts)

    monkeypatch.setattr(subject, "seed_of", noted)
    drawn(ShardSpec((100, 10), 0, 3, 4, std=1.0))
    assert seeds == list(range(75, 100))
