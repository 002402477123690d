# SPDX-License-Identifier: GPL-3.0-or-later
"""Schedule the pairs to measure: rounds in which no node is in two pairs.

Two measurements over one link would halve each other's bandwidth. So the pairs are scheduled like a
round-robin tournament, by the circle method: one node is fixed, the others rotate around it. N nodes take
N - 1 rounds; an odd N takes N, with one node idle in each.

Pure, and the same for the same list of nodes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

Pair = tuple[str, str]


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return all pairs, each in one round.

    Args:
        nodes: distinct names in the order of ranks; the first is first in each of its pairs.
    """
    return [_round(nodes, number) for number in range(_count(nodes))]


def chosen_rounds(nodes: Sequence[str], most: int, above: int) -> list[list[Pair]]:
    """Return the rounds of a run: all, or a sample in a large cluster.

    Each round has every node in it (all but one of an odd number), so each node is measured with as many
    others as there are rounds. The rounds are drawn at random, since faults of a rack may follow the order of
    names, but the same nodes always give the same rounds.

    Args:
        nodes: distinct names in the order of ranks.
        most: the number of rounds in a sample; at least 1.
        above: a cluster of more nodes is sampled.
    """
    count = _count(nodes)
    if len(nodes) <= above or most >= count:
        return rounds(nodes)
    draw = random.Random(" ".join(nodes))  # noqa: S311
    return [_round(nodes, number) for number in sorted(draw.sample(range(count), most))]


def partners(schedule: Sequence[Sequence[Pair]]) -> dict[str, list[str]]:
    """Return each node's partners in the order of rounds; an empty name where it is idle."""
    names = {name for pairs in schedule for pair in pairs for name in pair}
    found: dict[str, list[str]] = {name: [] for name in sorted(names)}
    for pairs in schedule:
        met = {one: other for pair in pairs for one, other in (pair, pair[::-1])}
        for name, mine in found.items():
            mine.append(met.get(name, ""))
    return found


def time_limit(count: int, seconds: float, gather: float) -> float:
    """Return the seconds after which a node stops, even if rounds are left.

    A round of good nodes takes two measurements of bandwidth, and less than two seconds more.

    Args:
        count: how many rounds.
        seconds: how long one measurement of bandwidth takes.
        gather: seconds that nodes wait for each other at the beginning.
    """
    return gather + 60 + count * (2 * seconds + 4)


def _count(nodes: Sequence[str]) -> int:
    return len(nodes) - 1 + len(nodes) % 2 if len(nodes) > 1 else 0


def _round(nodes: Sequence[str], number: int) -> list[Pair]:
    """Return the pairs of one round, in the order of ranks."""
    seats: list[int | None] = [*range(len(nodes))]
    if len(seats) % 2:
        seats.append(None)
    walking = seats[1:]
    turned = [seats[0], *walking[number:], *walking[:number]]
    pairs = []
    for one, other in zip(turned[: len(turned) // 2], reversed(turned), strict=False):
        if one is not None and other is not None:
            pairs.append((min(one, other), max(one, other)))
    return [(nodes[one], nodes[other]) for one, other in sorted(pairs)]
