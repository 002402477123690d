# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose the peers that each container measures: all in a small cluster, a well-spread sample in a large one.

Every node measures the nodes that follow it in rank at the same distances. So each node is measured as often
as it measures, and none is measured by all. The distances are random, so that the good nodes stay connected
wherever the bad ones are; one distance is 1, so that all nodes are connected whatever the others are.

Pure, and the same for the same list of nodes.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence


def distances(nodes: Sequence[str], peers: int) -> list[int]:
    """Return the distances in rank, around the circle, from a node to its peers, ascending.

    A distance and its complement give the same pairs, measured from the other end, so the complement is used
    only if nothing else is left.

    Args:
        nodes: all names in the order of ranks.
        peers: the number of peers per node; all others if there are no more.
    """
    total = len(nodes)
    if peers >= total - 1:
        return list(range(1, total))
    draw = random.Random(" ".join(nodes))  # noqa: S311
    others = sorted(range(2, total), key=lambda _distance: draw.random())
    fresh: list[int] = []
    half: list[int] = []
    mirrored: list[int] = []
    for distance in [1, *others]:
        if len(fresh) == peers:
            break
        kind = half if 2 * distance == total else mirrored if total - distance in fresh else fresh
        kind.append(distance)
    return sorted((fresh + half + mirrored)[:peers])


@functools.lru_cache(maxsize=8)
def _distances(nodes: tuple[str, ...], peers: int) -> list[int]:
    """Return the distances, cached: they are the same for all nodes of a cluster."""
    return distances(nodes, peers)


def peers_of(node: str, nodes: Sequence[str], run: Sequence[str], peers: int, above: int) -> list[str]:
    """Return the peers that a node measures, in the order of ranks.

    These are its peers in the cluster and its peers among the nodes of the run: a run of a few nodes of a
    large cluster proves that these reach each other, and still checks the others.

    Args:
        node: one of the nodes.
        nodes: all names of the cluster in the order of ranks.
        run: the nodes that take part in this run, in any order.
        peers: the number of peers per node in a sample.
        above: a group of more nodes is sampled.
    """
    members = set(run)
    chosen: set[str] = set()
    for group in (nodes, [name for name in nodes if name in members]):
        if node not in group:
            continue
        count = len(group) - 1 if len(group) <= above else peers
        rank = list(group).index(node)
        chosen.update(group[(rank + distance) % len(group)] for distance in _distances(tuple(group), count))
    return [name for name in nodes if name in chosen]
