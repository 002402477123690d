# SPDX-License-Identifier: GPL-3.0-or-later
"""Pure functions that decide which node fetches which piece of an archive from which other node.

benchmarks/images.py simulates transfers with them. This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import random
from typing import List, Optional, Sequence

NEIGHBOURS = 6
"""Nodes that a node fetches from in a turn; as many fetch from it."""
TURN_S = 5.0
"""Seconds after which a node gets other neighbours."""
_ANNOUNCED_PER_S = 400
"""Announcements that a source handles in half of a core's time; the other half is for what it sends."""


def announce_every_s(nodes: int) -> float:
    """Return the seconds between two announcements of a node, by the number of nodes."""
    return max(0.5, nodes / _ANNOUNCED_PER_S)


def silent_after_s(every_s: float) -> float:
    """Return the seconds after which a node is taken for lost: three announcements in a row are missing."""
    return 2 + 3 * every_s


def neighbours(nodes: Sequence[str], own: str, turn: int) -> List[str]:
    """Return the nodes that a node fetches from.

    The nodes form a ring, and each node takes the nodes at a few distances, which are the same for all. So as
    many nodes fetch from a node as it fetches from, and a node with a piece that all want is not overloaded.

    Args:
        nodes: all peers, in an order that is the same for all.
        own: the node; a node that is not in `nodes` has no neighbours.
        turn: number of the turn, which determines the distances.
    """
    if own not in nodes:
        return []
    at, size = nodes.index(own), len(nodes)
    chance = random.Random(turn)  # noqa: S311  # the same for all nodes
    distances = chance.sample(range(1, size), min(NEIGHBOURS, size - 1))
    return [nodes[(at + distance) % size] for distance in distances]


def rarest(wanted: int, haves: Sequence[int], chance: random.Random) -> Optional[int]:
    """Return a random one of the wanted pieces that the fewest nodes have; None if no node has any.

    Args:
        wanted: pieces, as bits.
        haves: the pieces that each of the other nodes has, as bits.
        chance: the random generator.
    """
    at_least = [0] * (len(haves) + 2)
    for level, have in enumerate(haves):
        for fewer in range(level, 0, -1):
            at_least[fewer + 1] |= at_least[fewer] & have
        at_least[1] |= have & wanted
    for level in range(1, len(haves) + 1):
        found = at_least[level] & ~at_least[level + 1]
        if found:
            return any_of(found, chance)
    return None


def any_of(bits: int, chance: random.Random) -> int:
    """Return the number of one of the bits that are set."""
    begin = chance.randrange(bits.bit_length())
    later = bits >> begin << begin
    return (later & -later).bit_length() - 1
