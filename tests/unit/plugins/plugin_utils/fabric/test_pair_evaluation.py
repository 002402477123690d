"""Planted slow nodes and links are named, and no others, even among a thousand nodes."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import pairwise

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.pair_evaluation import (
    Evaluation,
    Pair,
    evaluate,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.pair_schedule import chosen_rounds, rounds
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plugins.plugin_utils.fabric.node_names import names

GOOD, SLOW = 97.0, 24.0


def evaluated(
    schedule: Sequence[Sequence[Pair]],
    nodes: list[str],
    *,
    slow: Collection[str] = (),
    late: Collection[str] = (),
    dead: Collection[str] = (),
    links: Collection[Pair] = (),
    cut: Collection[Pair] = (),
    direction: str = "both",
) -> Evaluation:
    """Evaluate a cluster with planted faults; good links differ by a few percent."""
    noise = random.Random(7)
    bandwidth, latency, failed = {}, {}, {}
    for one, other in (pair for pairs in schedule for pair in pairs):
        if {one, other} & set(dead) or (one, other) in cut:
            failed[one, other] = "no answer"
            continue
        for sender, receiver in ((one, other), (other, one)):
            bad = (
                (one, other) in links
                or (sender in slow and direction != "receives")
                or (receiver in slow and direction != "sends")
            )
            bandwidth[sender, receiver] = (SLOW if bad else GOOD) * noise.uniform(0.95, 1.02)
        latency[one, other] = (20.0 if {one, other} & set(late) else 2.0) * noise.uniform(0.9, 1.2)
    return evaluate(nodes, bandwidth, latency, failed)


@st.composite
def planted(draw: st.DrawFn) -> tuple[list[str], list[str], list[Pair]]:
    """Return a cluster, its bad nodes, and bad links between good nodes, at most one at each."""
    nodes = names(draw(st.integers(5, 40)))
    bad = draw(st.lists(st.sampled_from(nodes), unique=True, max_size=(len(nodes) - 1) // 4))
    good = draw(st.permutations([name for name in nodes if name not in bad]))
    count = draw(st.integers(0, (len(good) - 2) // 2 if len(good) > 5 else 0))
    links = [
        (min(pair, key=nodes.index), max(pair, key=nodes.index))
        for pair in list(pairwise(good))[: 2 * count : 2]
    ]
    return nodes, bad, links


@given(planted(), st.sampled_from(["both", "sends", "receives"]))
def test_only_planted_slow_nodes_and_links_are_named(
    found: tuple[list[str], list[str], list[Pair]], direction: str
) -> None:
    nodes, bad, links = found
    result = evaluated(rounds(nodes), nodes, slow=bad, links=links, direction=direction)
    assert set(result.nodes) == set(bad)
    assert set(result.links) == set(links)


@given(planted())
def test_planted_failures_are_named(found: tuple[list[str], list[str], list[Pair]]) -> None:
    nodes, bad, links = found
    result = evaluated(rounds(nodes), nodes, dead=bad, cut=links)
    assert set(result.nodes) == set(bad)
    assert set(result.links) == set(links)


@given(st.integers(2, 30).map(names))
def test_healthy_cluster_is_healthy(nodes: list[str]) -> None:
    result = evaluated(rounds(nodes), nodes)
    assert (result.nodes, result.links) == ({}, {})
    assert result.usual_gbit == pytest.approx(GOOD, rel=0.06)


@pytest.mark.parametrize("most", [16, 100])
def test_at_a_thousand_nodes(most: int) -> None:
    nodes = names(1000)
    schedule = chosen_rounds(nodes, most, above=128)
    draw = random.Random(3)
    bad = draw.sample(nodes, 60)
    slow, late, dead = bad[:30], bad[30:50], bad[50:]
    good = [pair for pair in schedule[0] if not set(pair) & set(bad)]
    links, cut = good[:20], good[20:25]
    result = evaluated(schedule, nodes, slow=slow, late=late, dead=dead, links=links, cut=cut)
    assert set(result.nodes) == set(bad)
    assert set(result.links) == {*links, *cut}


def test_of_three_a_slow_one_is_known_and_of_two_it_is_a_link() -> None:
    three = names(3)
    assert set(evaluated(rounds(three), three, slow=["n2"]).nodes) == {"n2"}
    two = names(2)
    result = evaluate(two, {("n1", "n2"): 20.0, ("n2", "n1"): 97.0}, {}, {})
    assert result.nodes == {}
    assert result.links == {("n1", "n2"): "n1 sends n2 20 Gb/s; usual are 97"}


def test_half_of_the_nodes_slow_is_reported_though_no_node_is_faulty() -> None:
    nodes = names(4)
    result = evaluated(rounds(nodes), nodes, slow=["n3", "n4"])
    assert (result.nodes, result.links) == ({}, {})
    [sentence] = result.unclear
    assert sentence.startswith("the bandwidths go from ")
    assert "no single node or link explains it; slow are " in sentence
    assert "n1 <-> n2" not in sentence
    [sentence] = evaluated(rounds(nodes), nodes, late=["n3", "n4"]).unclear
    assert sentence.startswith("the latencies go from ")
    for clear in (evaluated(rounds(nodes), nodes), evaluated(rounds(nodes), nodes, slow=["n3"], late=["n3"])):
        assert clear.unclear == []


def test_the_reason_says_how_slow_and_in_which_direction() -> None:
    nodes = names(8)
    result = evaluated(rounds(nodes), nodes, slow=["n3"], direction="sends")
    assert result.nodes["n3"].startswith("it sends 2")
    assert result.nodes["n3"].endswith(" are usual")
    assert "receives" not in result.nodes["n3"]
    assert "its latency is 1" in evaluated(rounds(nodes), nodes, late=["n3"]).nodes["n3"]
    assert evaluated(rounds(nodes), nodes, dead=["n3"]).nodes["n3"] == "7 of its pairs failed: no answer"


def test_no_measurement_gives_no_finding() -> None:
    result = evaluate(names(3), {}, {}, {})
    assert (result.nodes, result.links, result.usual_gbit, result.usual_us) == ({}, {}, None, None)
