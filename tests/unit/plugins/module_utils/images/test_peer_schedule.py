"""Who fetches which piece from whom."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images import peer, peer_server
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_schedule import (
    NEIGHBOURS,
    announce_every_s,
    neighbours,
    rarest,
    silent_after_s,
)

CHANCE = random.Random(1)


@pytest.mark.parametrize("size", [2, 5, 200, 1000])
def test_every_node_has_equal_numbers_of_sources_and_receivers(size: int) -> None:
    nodes = [f"n{number}" for number in range(size)]
    of_two_turns: Counter[str] = Counter()
    for turn in (7, 8):
        chosen = {own: neighbours(nodes, own, turn) for own in nodes}
        assert all(own not in theirs for own, theirs in chosen.items())
        fetching = Counter(other for theirs in chosen.values() for other in set(theirs))
        assert set(fetching.values()) == {min(NEIGHBOURS, size - 1)}
        of_two_turns += fetching
    connections = max(of_two_turns.values()) * (1 + peer._FETCHES_OF_ONE)
    assert connections <= peer_server._CONNECTIONS


@pytest.mark.parametrize(
    ("nodes", "every_s", "silent_s"), [(8, 0.5, 3.5), (200, 0.5, 3.5), (2000, 5, 17), (5000, 12.5, 39.5)]
)
def test_many_nodes_announce_themselves_less_often_and_are_lost_later(
    nodes: int, every_s: float, silent_s: float
) -> None:
    assert announce_every_s(nodes) == every_s
    assert nodes / every_s <= 400, "a second, of which the source handles twice as many"
    assert silent_after_s(every_s) == silent_s


def test_neighbours_are_others_in_the_next_turn() -> None:
    nodes = [f"n{number}" for number in range(200)]
    turns = {tuple(neighbours(nodes, "n7", turn)) for turn in range(10)}
    assert len(turns) == 10
    assert neighbours(nodes, "unknown", 0) == []


def test_the_rarest_of_the_wanted_pieces_is_chosen() -> None:
    haves = [0b0111, 0b0011, 0b1001, 0b0011]
    assert {rarest(0b0111, haves, CHANCE) for _again in range(20)} == {2}
    assert {rarest(0b1111, haves, CHANCE) for _again in range(200)} == {2, 3}
    assert rarest(0b0011, haves, CHANCE) == 1
    assert rarest(0b10000, haves, CHANCE) is None
    assert rarest(0b1, [], CHANCE) is None
