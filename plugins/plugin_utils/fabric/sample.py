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

from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import parse_nodes


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


@functools.lru_cache(maxsize=1)
def nodes_of(address_map: str) -> dict[str, str]:
    """Return MY_IP by name, cached, since every node of a run has the same address map.

    Raises:
        ValueError: a line has another form.
    """
    return parse_nodes(address_map)


def lines_of_peers(
    address_map: str,
    node: str,
    run: Sequence[str],
    peers: int = 16,
    above: int = 256,
    all_pairs: bool = False,
) -> str:
    """Return the lines of a node and of the nodes that it measures, in the order of the address map.

    Args:
        address_map: one line `node MY_IP` for each node of the cluster.
        node: the node that measures.
        run: the nodes that take part in this run.
        peers: how many nodes each measures if there are more than `above`.
        above: up to this number of nodes, each measures all others.
        all_pairs: whether each measures all others whatever their number.

    Raises:
        ValueError: an argument is invalid.
    """
    if peers < 1:
        raise ValueError(f"a node must measure at least 1 peer, not {peers}")
    nodes = nodes_of(address_map)
    if all_pairs or len(nodes) <= above or node not in nodes:
        return address_map  # the module reports a node that is not in it
    chosen = {node, *peers_of(node, list(nodes), run, peers, above)}
    return "".join(f"{name} {address}\n" for name, address in nodes.items() if name in chosen)
