# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is slow among the ranks: planted culprits are named, their victims and noise are not."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_log.peers import RankPace, first_nan, holding, slow, strained

EACH = 8


def job(count: int, stages: int, seed: int, noise: float) -> list[RankPace]:
    """Return ranks, eight on a node, whose stages have different work."""
    drawn = random.Random(seed)
    return [
        RankPace(
            rank,
            f"n{rank // EACH}",
            f"stage {rank * stages // count}",
            own_s=(1 + rank * stages // count) * 0.3 * drawn.uniform(1 - noise, 1 + noise),
        )
        for rank in range(count)
    ]


def named(ranks: list[RankPace]) -> set[tuple[str, int | None]]:
    return {(sign.node, sign.rank) for sign in slow(ranks)}


@settings(deadline=None)
@given(
    seed=st.integers(0, 2**32),
    stages=st.sampled_from([1, 2, 4, 8]),
    culprits=st.sets(st.integers(0, 999), max_size=8),
    times=st.floats(1.6, 50),
)
def test_of_a_thousand_ranks_the_culprits_are_named_and_nobody_else(
    seed: int, stages: int, culprits: set[int], times: float
) -> None:
    ranks = job(1000, stages, seed, 0.04)
    for rank in culprits:
        ranks[rank] = replace(ranks[rank], own_s=times * (ranks[rank].own_s or 0))
    on_node = [rank // EACH for rank in culprits]
    if max((on_node.count(node) for node in on_node), default=0) < EACH:
        assert named(ranks) == {(f"n{rank // EACH}", rank) for rank in culprits}
    random.Random(seed).shuffle(ranks)
    assert len(slow(ranks)) == len(slow(sorted(ranks, key=lambda one: one.rank)))


@given(seed=st.integers(0, 2**32), unit=st.floats(0.02, 1000))
def test_noise_names_nobody_whatever_a_step_takes(seed: int, unit: float) -> None:
    ranks = [replace(one, own_s=unit * (one.own_s or 0)) for one in job(64, 2, seed, 0.12)]
    assert slow(ranks) == []


def test_a_slow_node_is_named_once() -> None:
    ranks = job(1000, 4, 1, 0.03)
    ranks[80:88] = [replace(one, own_s=2 * (one.own_s or 0)) for one in ranks[80:88]]
    (sign,) = slow(ranks)
    assert (sign.kind, sign.node, sign.rank) == ("slow", "n10", None)
    assert "its 8 ranks" in sign.text


def test_of_two_ranks_the_slower_one_is_named() -> None:
    pair = [RankPace(0, "n1", "s", own_s=0.4), RankPace(1, "n2", "s", own_s=0.9)]
    (sign,) = slow(pair)
    assert (
        sign.text == "Rank 1 on n2 is slow: 900 ms of its own in a step, its peers take 400 ms (2.2 times)."
    )
    # The victim's own time is short, however long its step is.
    assert slow([RankPace(0, "n1", own_s=None), RankPace(1, "n2", own_s=0.9)]) == []


def test_a_stage_alone_is_compared_with_what_it_was() -> None:
    stages = [RankPace(n, f"n{n}", f"stage {n}", own_s=0.4, before_s=0.4) for n in range(4)]
    assert slow(stages) == []
    (sign,) = slow([*stages[:2], replace(stages[2], own_s=0.9), stages[3]])
    assert (sign.node, sign.rank) == ("n2", 2)
    # Longer sequences, or a slower data set, slow all of them.
    assert slow([replace(one, own_s=0.9) for one in stages]) == []


def test_who_does_not_wait_holds_the_others_up() -> None:
    ranks = [RankPace(n, f"n{n}", iteration=41, waits=n != 2) for n in range(4)]
    assert [one.rank for one in holding(ranks)] == [2]
    assert holding([replace(one, waits=True) for one in ranks]) == []
    assert holding([replace(one, waits=False) for one in ranks]) == []
    assert holding([replace(one, waits=None) for one in ranks]) == []


def test_the_first_loss_that_is_no_number_is_named() -> None:
    ranks = [RankPace(n, f"n{n}", "stage 1", nan_at=None if n == 0 else 12) for n in range(4)]
    assert first_nan(ranks[:1]) == []
    ranks[3] = replace(ranks[3], nan_at=11)
    (sign,) = first_nan(ranks)
    assert sign.text == "The loss of rank 3 on n3 was not a number first, at iteration 11."
    assert first_nan([replace(one, nan_at=11) for one in ranks]) == []


def test_full_memory_is_named() -> None:
    (sign,) = strained([RankPace(0, "n1"), RankPace(1, "n2", retries=3)])
    assert (sign.node, sign.rank) == ("n2", 1)
