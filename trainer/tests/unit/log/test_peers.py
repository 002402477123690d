# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ranks are slow: planted slow ranks are named, their victims and noise are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_log.peers import RankHeartbeat, first_nan, holding, slow, strained, usual

EACH = 8
SECONDS = 24

Work = Callable[[int, random.Random], tuple[float, float]]
"""A rank's time for a step at some moment, and the share of it spent waiting for a processor."""


def job(count: int, stages: int, seed: int, work: Work) -> list[RankHeartbeat]:
    """Return the ranks of a synchronous training, eight on a node, whose stages have different work.

    In each second, all of them take as long as the slowest one: they wait for the rest of the time.
    """
    drawn = random.Random(seed)
    records: list[list[dict[str, float]]] = [[] for _ in range(count)]
    for second in range(SECONDS):
        now = [work(rank, drawn) for rank in range(count)]
        own = [time * (1 + rank * stages // count) for rank, (time, _) in enumerate(now)]
        for rank, time in enumerate(own):
            starved = now[rank][1] * time
            records[rank].append(
                {"time": second, "compute_s": time, "waited_s": max(own) - time + 0.01, "starved_s": starved}
            )
    return [
        RankHeartbeat.of(
            f"n{rank // EACH}", {"rank": rank, "group": f"stage {rank * stages // count}", **usual(of_rank)}
        )
        for rank, of_rank in enumerate(records)
    ]


def noise(share: float) -> Work:
    return lambda rank, drawn: (0.3 * drawn.uniform(1 - share, 1 + share), 0.0)


def pareto(unit: float, shape: float) -> Work:
    """Return work with Pareto's distribution: with a shape below 1 it has not even a mean."""
    return lambda rank, drawn: (unit * drawn.paretovariate(shape), 0.0)


def named(ranks: list[RankHeartbeat]) -> set[tuple[str, int | None]]:
    return {(sign.node, sign.rank) for sign in slow(ranks) if not sign.is_note}


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([2, 8, 64]),
    faulty=st.integers(0, 63),
    times=st.floats(1.8, 50),
)
def test_a_faulty_rank_is_named_and_no_other(seed: int, count: int, faulty: int, times: float) -> None:
    faulty %= count

    def work(rank: int, drawn: random.Random) -> tuple[float, float]:
        time, starved = noise(0.05)(rank, drawn)
        return time * (times if rank == faulty else 1), starved

    ranks = job(count, 1, seed, work)
    assert named(ranks) == {(f"n{faulty // EACH}", faulty)}
    drawn = random.Random(seed)
    drawn.shuffle(ranks)
    assert named(ranks) == {(f"n{faulty // EACH}", faulty)}


@pytest.mark.parametrize("stages", [1, 4])
def test_of_a_thousand_ranks_the_faulty_ones_are_named(stages: int) -> None:
    faulty = {3, 4, 137, 512, 999}

    def work(rank: int, drawn: random.Random) -> tuple[float, float]:
        time, starved = noise(0.05)(rank, drawn)
        return time * (1.8 if rank in faulty else 1), starved

    assert named(job(1000, stages, 7, work)) == {(f"n{rank // EACH}", rank) for rank in faulty}


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([2, 3, 8, 64]),
    stages=st.sampled_from([1, 2]),
    unit=st.floats(0.001, 100),
    shape=st.floats(0.8, 3),
)
def test_heavy_tailed_noise_on_all_ranks_names_no_rank(
    seed: int, count: int, stages: int, unit: float, shape: float
) -> None:
    ranks = job(count, stages, seed, pareto(unit, shape))
    assert slow(ranks) == []


def test_heavy_tailed_noise_on_a_thousand_ranks_names_no_rank() -> None:
    for shape in (0.8, 1.5, 3.0):
        assert slow(job(1000, 2, 11, pareto(1.0, shape))) == []


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), count=st.sampled_from([2, 16]), times=st.floats(2.2, 20))
def test_rank_that_waits_for_a_processor_is_noted_and_not_suspect(
    seed: int, count: int, times: float
) -> None:
    """The whole first node of two is busy with other work."""

    def work(rank: int, drawn: random.Random) -> tuple[float, float]:
        time, _ = noise(0.05)(rank, drawn)
        return (time * times, 1 - 1 / times) if rank == 0 else (time, 0.0)

    (sign,) = slow(job(count, 1, seed, work))
    assert (sign.kind, sign.node, sign.rank, sign.is_note) == ("busy", "n0", 0, True)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([16, 24]),
    quota=st.floats(0.5, 16),
    times=st.sampled_from([1.0, 1.2, 2.0, 4.0]),
)
def test_rank_with_a_smaller_quota_is_named(seed: int, count: int, quota: float, times: float) -> None:
    """All nodes have quotas. The last one's is ``times`` times smaller, and throttles its ranks."""
    node = f"n{count // EACH - 1}"

    def work(rank: int, drawn: random.Random) -> tuple[float, float]:
        time, _ = noise(0.05)(rank, drawn)
        return (time * 2.2, 0.5) if rank >= count - EACH else (time, 0.0)

    quotas = {f"n{n}": quota for n in range(count // EACH)} | {node: quota / times}
    (sign,) = slow(job(count, 1, seed, work), {node: "its quota is small"}, quotas)
    assert (sign.kind, sign.node, sign.is_note) == (
        ("processors", node, False) if times >= 2 else ("busy", node, True)
    )
    # A node without a quota has at least as much as any other.
    (sign,) = slow(job(count, 1, seed, work), {node: "its quota is small"}, {node: quota})
    assert (sign.kind, sign.node) == ("processors", node)


def test_equal_quotas_of_nodes_with_a_stage_each_make_none_suspect() -> None:
    """A rank's peers share its node's quota, so that is compared with the other nodes' quotas."""

    def work(rank: int, drawn: random.Random) -> tuple[float, float]:
        time, _ = noise(0.05)(rank, drawn)
        return (time * 2.2, 0.5) if rank == 3 else (time, 0.0)

    ranks = job(2 * EACH, 2, 1, work)
    for quota, kind in ((4.0, "busy"), (16.0, "processors")):
        (sign,) = slow(ranks, {"n0": "its quota is small"}, {"n0": 4.0, "n1": quota})
        assert (sign.kind, sign.node, sign.rank) == (kind, "n0", 3)


def test_slow_rank_that_delays_no_other_is_not_named() -> None:
    ranks = job(8, 1, 5, noise(0.02))
    ranks[2] = replace(ranks[2], compute_s=2.0, least_s=2.0)
    assert slow(ranks) == []


def test_short_or_small_delays_are_not_reported() -> None:
    records = [{"time": 1.0 * n, "compute_s": 0.5} for n in range(40)]
    assert usual(records[:16]) == {}
    assert usual(records[:17])["compute_s"] == 0.5
    # Long steps: eight of them.
    long = [{"time": 60.0 * n, "compute_s": 50.0} for n in range(40)]
    assert usual(long[:9]) == {}
    assert usual(long[:10])["compute_s"] == 50.0


def test_a_slow_node_is_named_once() -> None:
    ranks = job(
        64, 2, 1, lambda rank, drawn: (drawn.uniform(0.29, 0.31) * (2 if rank // EACH == 2 else 1), 0.0)
    )
    (sign,) = slow(ranks)
    assert (sign.kind, sign.node, sign.rank) == ("slow", "n2", None)
    assert "its 8 ranks" in sign.text


def test_of_two_ranks_the_slower_one_is_named() -> None:
    waiting = RankHeartbeat(0, "n1", "s", compute_s=0.4, least_s=0.4, waited_s=0.5)
    faulty = RankHeartbeat(1, "n2", "s", compute_s=0.9, least_s=0.9, waited_s=0.0)
    (sign,) = slow([waiting, faulty])
    assert (
        sign.text == "Rank 1 on n2 is slow: 900 ms of its own in a step, its peers take 400 ms (2.2 times)."
    )
    assert slow([RankHeartbeat(0, "n1"), faulty]) == []


def test_single_rank_of_a_stage_is_compared_with_its_past() -> None:
    stages = [
        RankHeartbeat(
            n,
            f"n{n}",
            f"stage {n}",
            compute_s=t,
            least_s=t,
            before_s=t,
            waited_s=1 - t,
            before_waited_s=1 - t,
        )
        for n, t in enumerate((0.4, 0.3, 0.3, 0.5))
    ]
    assert slow(stages) == []
    slower = [replace(one, waited_s=one.waited_s + 0.6) for one in stages]
    slower[2] = replace(stages[2], compute_s=0.9, least_s=0.9)
    (sign,) = slow(slower)
    assert (sign.node, sign.rank) == ("n2", 2)
    # No rank waits for it; and longer sequences or a slower data set would slow all of them.
    assert slow([*stages[:2], slower[2], stages[3]]) == []
    assert slow([replace(one, compute_s=0.9, least_s=0.9) for one in stages]) == []


def test_of_stages_with_the_same_layers_one_that_was_slow_from_its_start_is_named() -> None:
    work = ("stage 0", "2 Block", "2 Block", "2 Block", "stage 4")
    takes = (0.9, 0.4, 0.8, 0.4, 0.3)
    (sign,) = slow(
        RankHeartbeat(
            n, f"n{n}", group, compute_s=t, least_s=t, before_s=t, waited_s=1 - t, before_waited_s=1 - t
        )
        for n, (group, t) in enumerate(zip(work, takes, strict=True))
    )
    assert (sign.node, sign.rank) == ("n2", 2)


def test_rank_that_does_not_wait_holds_up_the_others() -> None:
    ranks = [RankHeartbeat(n, f"n{n}", iteration=41, waits=n != 2) for n in range(4)]
    assert [one.rank for one in holding(ranks)] == [2]
    assert holding([replace(one, waits=True) for one in ranks]) == []
    assert holding([replace(one, waits=False) for one in ranks]) == []
    assert holding([replace(one, waits=None) for one in ranks]) == []


def test_first_nan_loss_is_named() -> None:
    ranks = [RankHeartbeat(n, f"n{n}", "stage 1", nan_at=None if n == 0 else 12) for n in range(4)]
    assert first_nan(ranks[:1]) == []
    ranks[3] = replace(ranks[3], nan_at=11)
    (sign,) = first_nan(ranks)
    assert sign.text == "The loss of rank 3 on n3 was not a number first, at iteration 11."
    assert first_nan([replace(one, nan_at=11) for one in ranks]) == []


def test_full_memory_is_named() -> None:
    (sign,) = strained([RankHeartbeat(0, "n1"), RankHeartbeat(1, "n2", retries=3)])
    assert (sign.node, sign.rank) == ("n2", 1)
