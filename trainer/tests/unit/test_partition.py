# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core.errors import TrainerError
from rdm_core.partition import explicit, is_block, stage_bounds, work_of


def gpt(blocks: int) -> list[str]:
    return ["Embedding", *["Block"] * blocks, "FinalNorm", "Head"]


def t5(encoder: int, decoder: int) -> list[str]:
    return [
        "Embedding",
        *["EncoderBlock"] * encoder,
        "EncoderNorm",
        "DecoderEmbedding",
        *["DecoderBlock"] * decoder,
        "FinalNorm",
        "Head",
    ]


def blocks_of(names: list[str], bounds: list[int]) -> list[int]:
    return [sum(map(is_block, names[begin:end])) for begin, end in itertools.pairwise(bounds)]


@st.composite
def listed(draw: st.DrawFn) -> tuple[list[str], list[int]]:
    """Draw layers, and each stage's number of blocks; the first and the last stage may have none."""
    stages = draw(st.integers(2, 8))
    ends = st.integers(0, 6)
    counts = [draw(ends), *(draw(st.integers(1, 6)) for _ in range(stages - 2)), draw(ends)]
    total = sum(counts) or 1
    counts[0] += total - sum(counts)
    encoder = draw(st.integers(0, total - 1))
    return (t5(encoder, total - encoder) if encoder else gpt(total)), counts


@settings(deadline=None)
@given(listed())
def test_a_list_gives_each_stage_its_blocks_and_covers_all_layers(case: tuple[list[str], list[int]]) -> None:
    names, counts = case
    bounds = stage_bounds(names, None, "-".join(map(str, counts)), len(counts))
    assert bounds[0] == 0
    assert bounds[-1] == len(names)
    assert bounds == sorted(bounds)
    assert blocks_of(names, bounds) == counts
    # The embedding is on the first stage, the norm and the head are on the last one.
    assert bounds[1] >= 1
    assert bounds[-2] <= len(names) - 2
    # No stage is without a layer, and none begins with a layer that belongs to the previous block.
    assert all(begin < end for begin, end in itertools.pairwise(bounds))
    assert all(is_block(names[begin]) for begin in bounds[1:-2])


def test_the_documents_partition() -> None:
    bounds = stage_bounds(gpt(48), None, "0-11-8-8-8-8-5-0", 8)
    assert bounds == [0, 1, 12, 20, 28, 36, 44, 49, 51]


def test_between_encoder_and_decoder_the_norm_stays_with_the_encoder() -> None:
    names = t5(2, 2)
    bounds = stage_bounds(names, None, "2-2", 2)
    assert names[bounds[0] : bounds[1]][-2:] == ["EncoderNorm", "DecoderEmbedding"]


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 12))
def test_even_differs_by_one_at_most_and_never_grows_along_the_pipeline(blocks: int, stages: int) -> None:
    names = gpt(blocks)
    if stages > blocks + 1:
        with pytest.raises(TrainerError, match=r"without a block|has only"):
            stage_bounds(names, None, "even", stages)
        return
    counts = blocks_of(names, stage_bounds(names, None, "even", stages))
    assert sum(counts) == blocks
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts, reverse=True)


def heaviest(weights: list[int], bounds: tuple[int, ...]) -> int:
    return max(sum(weights[begin:end]) for begin, end in itertools.pairwise(bounds))


@settings(deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=9), st.integers(1, 5))
def test_parameters_finds_the_lightest_heaviest_stage(weights: list[int], stages: int) -> None:
    names = ["Block"] * len(weights)
    if stages > len(weights):
        with pytest.raises(TrainerError, match="only"):
            stage_bounds(names, weights, "parameters", stages)
        return
    bounds = stage_bounds(names, weights, "parameters", stages)
    assert len(bounds) == stages + 1
    assert all(begin < end for begin, end in itertools.pairwise(bounds))
    every = ((0, *cuts, len(weights)) for cuts in itertools.combinations(range(1, len(weights)), stages - 1))
    assert heaviest(weights, tuple(bounds)) == min(heaviest(weights, cuts) for cuts in every)


def test_parameters_balances_a_large_model_quickly() -> None:
    weights = [300, *[100] * 126, 300]
    bounds = stage_bounds(["Block"] * 128, weights, "parameters", 64)
    assert heaviest(weights, tuple(bounds)) == 300


def test_partition_too_large_to_balance_is_refused() -> None:
    with pytest.raises(TrainerError, match="too long for 4000 layers in 8 stages; use even"):
        stage_bounds(["Block"] * 4000, [100] * 4000, "parameters", 8)


def test_type_balances_matching_layers_alone() -> None:
    names = t5(4, 4)
    bounds = stage_bounds(names, None, "type:decoderblock", 2)
    assert names[bounds[1] :].count("DecoderBlock") == 2
    assert names[: bounds[1]].count("EncoderBlock") == 4
    assert stage_bounds(names, None, "type:Block", 4) == stage_bounds(names, None, "even", 4)


@pytest.mark.parametrize(
    ("partition", "stages", "words"),
    [
        ("3-3", 3, "is for 2 stages, but parallel.pipeline is 3"),
        ("3-2", 2, "sums to 5 blocks, but the model has 6"),
        ("3-0-3", 3, "leaves stage 1 of 3 without a block"),
        ("6", 2, "is for 1 stages"),
        ("9" * 5000, 1, "must be even, parameters, type:REGEX"),
        ("even", 10**9, "parallel.pipeline is 1000000000, but the model has only 9 layers"),
        ("three-three", 2, "must be even, parameters, type:REGEX"),
        ("", 2, "must be even"),
        ("type:Attention", 2, "matches 0 layers"),
        ("type:(", 2, "is not a regular expression"),
    ],
)
def test_impossible_partition_is_refused_with_an_explanation(partition: str, stages: int, words: str) -> None:
    with pytest.raises(TrainerError) as caught:
        stage_bounds(gpt(6), [1] * 9, partition, stages)
    assert words in str(caught.value)


def test_only_a_list_of_numbers_is_explicit() -> None:
    assert explicit("0-11-5") == [0, 11, 5]
    assert explicit("even") is None
    assert explicit("1--2") is None


def test_stages_between_the_first_and_the_last_are_peers_when_they_have_the_same_layers() -> None:
    names = gpt(7)
    bounds = stage_bounds(names, None, "2-2-2-1-0", 5)
    works = [work_of(n, 5, names[begin:end]) for n, (begin, end) in enumerate(itertools.pairwise(bounds))]
    assert works == ["stage 0", "2 Block", "2 Block", "1 Block", "stage 4"]
    assert work_of(0, 1, []) == "stage 0"
