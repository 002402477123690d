# SPDX-License-Identifier: GPL-3.0-or-later
"""Choose whom each container measures: everyone in a small cluster, a few well-spread peers in a large one.

Every node asks the nodes that follow it in rank at the same distances. So each node is asked by as many as
it asks, and none is asked by all. The distances are random, so that wherever the bad nodes are, the good ones
hold together; one of them is 1, so that all nodes are connected, whatever the others are.

Pure, and the same for the same list of nodes.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence


def distances(nodes: Sequence[str], peers: int) -> list[int]:
    """Return how far in rank, around the circle, the peers of every node are, in rising order.

    A distance and its complement measure the same pairs from their other ends, so the complement is taken
    only when nothing else is left.

    Args:
        nodes: all names in the order of ranks.
        peers: how many each node is to ask; all others where there are no more.
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
    """Return the distances; they are the same for all nodes of a cluster."""
    return distances(nodes, peers)


def peers_of(node: str, nodes: Sequence[str], run: Sequence[str], peers: int, above: int) -> list[str]:
    """Return whom a node measures, in the order of ranks.

    These are its peers in the cluster and its peers among the nodes of the run, so that a run of a few nodes
    of a large cluster proves that these reach each other, and still looks at the others.

    Args:
        node: one of the nodes.
        nodes: all names of the cluster in the order of ranks.
        run: the nodes that take part in this run, in any order.
        peers: how many a node asks where not all are asked.
        above: up to so many nodes, each asks all others.
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
