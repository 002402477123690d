"""Rounds of pairs: every pair once, no node twice in a round, and the fewest rounds possible."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.pair_schedule import (
    chosen_rounds,
    partners,
    rounds,
    time_limit,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plugins.plugin_utils.fabric.node_names import names


@given(st.integers(0, 70).map(names))
def test_every_pair_is_in_one_round_and_no_node_twice_in_any(nodes: list[str]) -> None:
    schedule = rounds(nodes)
    assert len(schedule) == (0 if len(nodes) < 2 else len(nodes) - 1 + len(nodes) % 2)
    met = Counter(pair for pairs in schedule for pair in pairs)
    assert met == Counter(combinations(nodes, 2))  # each once, the lower rank first
    for pairs in schedule:
        assert len(pairs) == len(nodes) // 2
        assert len({name for pair in pairs for name in pair}) == 2 * len(pairs)


@given(st.integers(2, 70).map(names), st.integers(1, 80), st.integers(0, 80))
def test_a_sample_is_some_of_the_rounds_and_always_the_same(nodes: list[str], most: int, above: int) -> None:
    chosen = chosen_rounds(nodes, most, above)
    everything = rounds(nodes)
    assert len(chosen) == (len(everything) if len(nodes) <= above else min(most, len(everything)))
    assert [pairs for pairs in everything if pairs in chosen] == chosen
    assert chosen_rounds(nodes, most, above) == chosen


@given(st.integers(0, 40).map(names))
def test_partners_are_each_others_and_an_odd_one_rests(nodes: list[str]) -> None:
    schedule = rounds(nodes)
    found = partners(schedule)
    assert set(found) == (set(nodes) if len(nodes) > 1 else set())
    for name, met in found.items():
        assert len(met) == len(schedule)
        for number, peer in enumerate(met):
            assert not peer or found[peer][number] == name
        assert met.count("") == len(nodes) % 2


def test_the_time_is_bounded_by_the_rounds() -> None:
    assert time_limit(7, 1.0, 30.0) == 30 + 60 + 7 * 6
