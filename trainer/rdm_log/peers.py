# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank is slow, holds the others up, or was the first whose loss is no number. Pure functions.

In a synchronous training every rank takes the time of the slowest one, so the time of a step names nobody.
What a rank spends outside of waiting for others is its own: by that, culprits differ from their victims.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rdm_log.signs import Sign

__all__ = ["RankPace", "first_nan", "holding", "slow", "strained"]

_MANY = 8
_SLOWER = {True: 1.3, False: 1.5}
"""A rank is slow when its own time is so many times its peers', of many or of few…"""
_BEYOND = 6.0
"""… and so many standard deviations beyond them."""
_GROWN = 1.6
"""Without peers, when its own time is so many times what it was, and no other rank's has grown so."""
_LEAST_S = 0.002
"""Differences below this are noise."""
_TOLD = 8


@dataclass(frozen=True)
class RankPace:
    """How a rank gets on.

    Attributes:
        rank: Which.
        node: Where.
        group: Ranks with the same work have the same: a stage of the pipeline.
        iteration: Steps that it has begun.
        waits: It waits for other ranks at this moment; None when that is not known.
        own_s: Its own time of a step, without waiting: the least of its last records.
        before_s: What it usually was at its beginning.
        nan_at: The first step with a loss of its own that was no number.
        retries: How often its GPU's memory was full, so that the cache had to be given back, lately.
    """

    rank: int
    node: str
    group: str = ""
    iteration: int = 0
    waits: bool | None = None
    own_s: float | None = None
    before_s: float | None = None
    nan_at: int | None = None
    retries: int = 0

    @classmethod
    def of(cls, node: str, data: Mapping[str, Any]) -> RankPace:
        """Return what an agent's report tells of one of its ranks."""
        return cls(node=node, **data)


def slow(ranks: Iterable[RankPace]) -> list[Sign]:
    """Return who is slower than its peers; a node whose ranks all are is named once.

    Source: the median absolute deviation as a robust estimate of the spread (Rousseeuw and Croux 1993).
    """
    groups: dict[str, list[RankPace]] = {}
    everyone = list(ranks)
    for one in everyone:
        if one.own_s is not None:
            groups.setdefault(one.group, []).append(one)
    found: dict[int, tuple[RankPace, float, str]] = {}
    for group in groups.values():
        if len(group) > 1:
            times = [one.own_s or 0.0 for one in group]
            # Of two ranks the faster one is how fast it goes.
            usual = statistics.median_low(times)
            spread = 1.4826 * statistics.median_low([abs(time - usual) for time in times])
            slower = _SLOWER[len(group) >= _MANY]
            for one in group:
                time = one.own_s or 0.0
                if time > slower * usual and time > usual + max(_BEYOND * spread, _LEAST_S):
                    found[one.rank] = (one, time / max(usual, 1e-9), f"its peers take {_time(usual)}")
    lonely = [group[0] for group in groups.values() if len(group) == 1]
    grown = [one for one in lonely if _growth(one) > _GROWN]
    if grown and len(grown) < len(lonely):
        for one in grown:
            found[one.rank] = (one, _growth(one), f"it took {_time(one.before_s or 0.0)} before")
    return _told(list(found.values()), everyone)


def _growth(one: RankPace) -> float:
    if one.own_s is None or not one.before_s or one.own_s - one.before_s < _LEAST_S:
        return 1.0
    return one.own_s / one.before_s


def _told(found: Sequence[tuple[RankPace, float, str]], everyone: Sequence[RankPace]) -> list[Sign]:
    of_node: dict[str, int] = {}
    for one in everyone:
        of_node[one.node] = of_node.get(one.node, 0) + 1
    by_node: dict[str, list[tuple[RankPace, float, str]]] = {}
    for entry in found:
        by_node.setdefault(entry[0].node, []).append(entry)
    signs: list[tuple[float, Sign]] = []
    for node, entries in by_node.items():
        worst = max(entries, key=lambda entry: entry[1])
        if len(entries) == of_node[node] > 1:
            text = (
                f"{node} is slow: its {len(entries)} ranks take {worst[1]:.1f} times as long as others"
                f" (rank {worst[0].rank}: {_time(worst[0].own_s or 0.0)} of its own in a step)."
            )
            signs.append((worst[1], Sign("slow", text, node)))
            continue
        for one, times, than in entries:
            text = (
                f"Rank {one.rank} on {node} is slow: {_time(one.own_s or 0.0)} of its own in a step, "
                f"{than} ({times:.1f} times)."
            )
            signs.append((times, Sign("slow", text, node, one.rank)))
    signs.sort(key=lambda pair: -pair[0])
    return [sign for _, sign in signs[:_TOLD]]


def holding(ranks: Iterable[RankPace]) -> list[RankPace]:
    """Return the ranks that the others wait for, when nothing gets on: few that do not wait themselves.

    Empty where that cannot be told: nobody waits, or all do.
    """
    known = [one for one in ranks if one.waits is not None]
    busy = [one for one in known if not one.waits]
    if not busy or len(busy) > len(known) / 2:
        return []
    behind = min(one.iteration for one in busy)
    return [one for one in busy if one.iteration == behind]


def first_nan(ranks: Iterable[RankPace]) -> list[Sign]:
    """Return whose loss was no number first; nothing when all were at once, or none was."""
    everyone = list(ranks)
    hit = [one for one in everyone if one.nan_at is not None]
    if not hit:
        return []
    at = min(one.nan_at or 0 for one in hit)
    first = [one for one in hit if one.nan_at == at]
    told = {one.group for one in first}
    if len(first) == len([one for one in everyone if one.group in told]) > 1:
        return []
    return [
        Sign(
            "nan",
            f"The loss of rank {one.rank} on {one.node} was not a number first, at iteration {at}.",
            one.node,
            one.rank,
        )
        for one in first[:_TOLD]
    ]


def strained(ranks: Iterable[RankPace]) -> list[Sign]:
    """Return whose GPU's memory is at its limit: full memory costs a step much time, and more fails it."""
    return [
        Sign(
            "memory",
            f"The GPU's memory of rank {one.rank} on {one.node} was full {one.retries} times lately, and its "
            "cache was given back.",
            one.node,
            one.rank,
        )
        for one in sorted(ranks, key=lambda one: -one.retries)[:_TOLD]
        if one.retries
    ]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
