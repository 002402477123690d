# SPDX-License-Identifier: GPL-3.0-or-later
"""Kinds of nodes, and the links between the devices of a cluster."""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ORDERS = 200
# If there are more orders, only rotations are tried: all of them up to 90 nodes, beyond that only as many as
# a search handles in seconds.
_ROTATED_NODES = 8192
_LEAST_ROTATIONS = 8


@dataclass(frozen=True)
class NodeKind:
    """What all nodes of one kind have in common.

    Args:
        gpu: The name of its GPUs, unique to this kind.
        gpus: GPUs of a node.
        inter: Bandwidth to other nodes, bit/s.
        intra: Bandwidth between GPUs of the node, bit/s.
        memory_gib: Memory of a GPU that a program can use, GiB.
        price: Price of a node-hour; 0 if unknown.
        speed: Compute speed relative to the known speed of its GPUs.
    """

    gpu: str
    gpus: int
    inter: float
    intra: float
    memory_gib: float
    price: float = 0.0
    speed: float = 1.0

    def link(self, other: NodeKind) -> float:
        """Return the bandwidth to another node, bit/s."""
        return min(self.inter, other.inter)


def orders(nodes: Sequence[NodeKind]) -> Iterator[tuple[NodeKind, ...]]:
    """Yield every distinct order of nodes, the given one first."""
    kinds = list(dict.fromkeys(nodes))
    given = [kinds.index(node) for node in nodes]
    yield tuple(nodes)
    order = sorted(given)
    while True:
        if order != given:
            yield tuple(kinds[index] for index in order)
        # The lexicographically next permutation.
        position = next((at for at in range(len(order) - 2, -1, -1) if order[at] < order[at + 1]), None)
        if position is None:
            return
        other = next(at for at in range(len(order) - 1, position, -1) if order[at] > order[position])
        order[position], order[other] = order[other], order[position]
        order[position + 1 :] = reversed(order[position + 1 :])


def order_count(nodes: Sequence[NodeKind]) -> int:
    """Return how many distinct orders of nodes there are."""
    alike = (math.factorial(count) for count in collections.Counter(nodes).values())
    return math.factorial(len(nodes)) // math.prod(alike)


def tried_orders(nodes: Sequence[NodeKind]) -> list[tuple[NodeKind, ...]]:
    """Return the orders of nodes that a search tries: all distinct ones, or only rotations if there are many.

    Up to 90 nodes, all rotations are among them. FASOP tries these, so none of its layouts is missed.

    Args:
        nodes: The nodes in order, those of a kind together.
    """
    tried = list(itertools.islice(orders(nodes), _ORDERS + 1))
    if len(tried) > _ORDERS:
        rotations = min(len(nodes), max(_LEAST_ROTATIONS, _ROTATED_NODES // len(nodes)))
        firsts = range(0, len(nodes), -(-len(nodes) // rotations))
        tried = list(dict.fromkeys((*nodes[first:], *nodes[:first]) for first in firsts))
    return tried


def ring_nodes(stage: int, rank: int, tensor: int, data: int, gpus: int) -> list[int]:
    """Return the node of each replica of a stage, for one tensor rank.

    Ranks run over tensor first, then data, then pipeline: rank = k + tensor * j + tensor * data * i.

    Args:
        stage: Pipeline stage i.
        rank: Tensor rank k.
        tensor: Tensor-parallel degree.
        data: Data-parallel degree.
        gpus: GPUs of a node.
    """
    first = rank + tensor * data * stage
    return [(first + tensor * replica) // gpus for replica in range(data)]
