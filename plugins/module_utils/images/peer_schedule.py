# SPDX-License-Identifier: GPL-3.0-or-later
"""Who fetches which piece from whom while an archive goes from node to node: decisions without a network.

benchmarks/images.py simulates transfers with the same functions. This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import random
from typing import List, Optional, Sequence

NEIGHBOURS = 6
"""Others that a node fetches from in a turn, and that fetch from it."""
TURN_S = 5.0
"""Then a node gets other neighbours."""


def neighbours(nodes: Sequence[str], own: str, turn: int) -> List[str]:
    """Return whom a node fetches from.

    The nodes are a ring, and each takes those at a few distances, which are the same for all. So as many
    fetch from every node as it fetches from itself, and who has a piece that all want is not overrun.

    Args:
        nodes: all that take part, in an order that is the same for all.
        own: the node; one that is not among them has no neighbours.
        turn: number of the turn, from which the distances follow.
    """
    if own not in nodes:
        return []
    at, size = nodes.index(own), len(nodes)
    chance = random.Random(turn)  # noqa: S311  # the same for all nodes
    distances = chance.sample(range(1, size), min(NEIGHBOURS, size - 1))
    return [nodes[(at + distance) % size] for distance in distances]


def rarest(wanted: int, haves: Sequence[int], chance: random.Random) -> Optional[int]:
    """Return one of the wanted pieces that the fewest have, at random among these; None if nobody has any.

    Args:
        wanted: as bits.
        haves: the pieces that each of the others has, as bits.
        chance: what chooses.
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
