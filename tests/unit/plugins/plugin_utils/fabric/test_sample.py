"""The peers of each node: as many as measure it, well spread, and the same each time."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.fabric.sample import (
    distances,
    lines_of_peers,
    peers_of,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plugins.plugin_utils.fabric.node_names import names

clusters = st.integers(1, 120).map(names)


@given(clusters, st.integers(1, 40), st.integers(0, 150))
def test_each_node_measures_as_many_as_measure_it(nodes: list[str], peers: int, above: int) -> None:
    count = len(nodes) - 1 if len(nodes) <= above else min(peers, len(nodes) - 1)
    askers: dict[str, int] = dict.fromkeys(nodes, 0)
    for node in nodes:
        chosen = peers_of(node, nodes, nodes, peers, above)
        assert node not in chosen
        assert len(chosen) == len(set(chosen)) == count
        assert chosen == sorted(chosen, key=nodes.index)
        for peer in chosen:
            askers[peer] += 1
    assert set(askers.values()) == {count}


@given(clusters, st.integers(1, 40))
def test_the_next_node_is_always_among_them_so_all_are_connected(nodes: list[str], peers: int) -> None:
    assert len(nodes) == 1 or 1 in distances(nodes, peers)


@given(clusters, st.integers(1, 40))
def test_no_pair_is_measured_twice_while_there_are_others(nodes: list[str], peers: int) -> None:
    pairs = {frozenset((node, peer)) for node in nodes for peer in peers_of(node, nodes, nodes, peers, 0)}
    total = len(nodes)
    assert len(pairs) == min(peers * total, total * (total - 1) // 2)


def test_the_sample_is_the_same_each_time_and_another_for_another_cluster() -> None:
    assert distances(names(1000), 16) == distances(names(1000), 16)
    assert distances(names(1000), 16) != distances(names(1001), 16)


@given(clusters, st.data())
def test_a_run_of_a_few_measures_all_its_pairs_and_a_sample_of_the_others(
    nodes: list[str], data: st.DataObject
) -> None:
    run = data.draw(st.lists(st.sampled_from(nodes), min_size=1, max_size=10, unique=True))
    node = data.draw(st.sampled_from(run))
    chosen = peers_of(node, nodes, run, 4, 10)
    assert set(run) - {node} <= set(chosen)
    assert set(peers_of(node, nodes, nodes, 4, 10)) <= set(chosen)
    assert len(chosen) <= 9 + 9


ADDRESS_MAP = "".join(f"{name} 10.0.{rank // 250}.{rank % 250}\n" for rank, name in enumerate(names(1000)))


def test_a_node_gets_its_line_and_those_of_its_peers() -> None:
    lines = lines_of_peers(ADDRESS_MAP, "n7", names(1000)).splitlines()
    assert len(lines) == 17
    assert {"n7 10.0.0.6", "n8 10.0.0.7"} <= set(lines) <= set(ADDRESS_MAP.splitlines())


def test_a_node_gets_all_lines_in_a_small_cluster_or_with_all_pairs() -> None:
    assert lines_of_peers(ADDRESS_MAP, "n7", names(1000), all_pairs=True) == ADDRESS_MAP
    assert lines_of_peers(ADDRESS_MAP, "n7", names(1000), above=1000) == ADDRESS_MAP


def test_it_is_left_to_the_module_to_miss_a_node() -> None:
    assert lines_of_peers("", "n7", ["n7"]) == ""
    assert lines_of_peers(ADDRESS_MAP, "other", ["other"]) == ADDRESS_MAP


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 peer, not 0"):
        lines_of_peers(ADDRESS_MAP, "n7", [], peers=0)
    with pytest.raises(ValueError, match="line 1 of the cluster's nodes"):
        lines_of_peers("n7", "n7", [])
