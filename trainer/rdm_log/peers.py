# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank is slow, holds the others up, or was the first whose loss is no number. Pure functions.

In a synchronous training every rank takes the time of the slowest one, so the time of a step names nobody.
What a rank spends outside of waiting for others is its own: by that, culprits differ from their victims.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rdm_log.signs import Sign

__all__ = ["RankHeartbeat", "first_nan", "holding", "limit_of", "slow", "strained", "usual"]

_MANY = 8
_SLOWER = {True: 1.3, False: 1.5}
"""A rank is slow when its compute time is so many times its peers', of many or of few…"""
_BEYOND = 6.0
"""… and so many standard deviations beyond them…"""
_AWAITED = 0.5
"""… and its peers wait longer than it does, by this share at least of what it takes more."""
_GROWN = 1.6
"""Without peers, when its compute time is so many times what it was, and most others' has not grown so."""
_LEAST_S = 0.002
"""Differences below this are noise."""
_RECORDS = 8
_SURE_S = 15.0
"""A rank's usual times are those of so many records at least, over so many seconds at least…"""
_WARM = 2
"""… without its first ones."""
_TOLD = 8


@dataclass(frozen=True)
class RankHeartbeat:
    """How a rank gets on.

    Attributes:
        rank: Which.
        node: Where.
        group: Ranks with the same work have the same: a stage of the pipeline.
        iteration: Steps that it has begun.
        waits: It waits for other ranks at this moment; None when that is not known.
        compute_s: Its compute time of a step, without waiting for others: the median of its last records.
        least_s: The least of them, without waiting for a processor either: it takes that long in any case.
        waited_s: What it waits for others in a step: the median.
        starved_s: What it waits for a processor in a step, because others use it: the median.
        before_s: What its compute time usually was at its beginning.
        before_waited_s: What it waited then.
        nan_at: The first step with a loss of its own that was no number.
        retries: How often its GPU's memory was full, so that the cache had to be given back, lately.
    """

    rank: int
    node: str
    group: str = ""
    iteration: int = 0
    waits: bool | None = None
    compute_s: float | None = None
    least_s: float | None = None
    waited_s: float = 0.0
    starved_s: float = 0.0
    before_s: float | None = None
    before_waited_s: float = 0.0
    nan_at: int | None = None
    retries: int = 0

    @classmethod
    def of(cls, node: str, data: Mapping[str, Any]) -> RankHeartbeat:
        """Return what an agent reports of one of its ranks; one of an older release says ``own_s``."""
        return cls(
            node=node, **{"compute_s" if key == "own_s" else key: value for key, value in data.items()}
        )


def usual(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return what a rank takes in a step, of ``RankHeartbeat``; nothing while that is not known for sure.

    Args:
        records: What it wrote, the oldest first: ``time`` in s, and of a step on average since the record
            before ``compute_s``, ``waited_s`` (0 when absent) and ``starved_s`` (the same).
    """
    for begin in range(len(records) - _RECORDS, _WARM - 1, -1):
        if records[-1]["time"] - records[begin - 1]["time"] >= _SURE_S:
            window = records[begin:]
            break
    else:
        return {}
    compute_s, waited_s, starved_s = (
        statistics.median(float(one.get(key) or 0.0) for one in window)
        for key in ("compute_s", "waited_s", "starved_s")
    )
    # Somebody else's work on a node makes some records slow, and a fault all of them.
    least_s = min(max(0.0, one["compute_s"] - (one.get("starved_s") or 0.0)) for one in window)
    return {"compute_s": compute_s, "least_s": least_s, "waited_s": waited_s, "starved_s": starved_s}


def slow(
    ranks: Iterable[RankHeartbeat],
    held_back: Mapping[str, str] | None = None,
    quotas: Mapping[str, float] | None = None,
) -> list[Sign]:
    """Return who is slower than its peers, and is waited for; a node whose ranks all are is named once.

    Slow is who takes longer in the fastest of its records than its peers usually do. Time for which it was
    ready to run and others had the processor is not counted: somebody else's work on a node is only told.
    Where a node's own limits keep its ranks from the processors, the node is named, unless its peers' nodes
    have the same quota: of those it depends on when their periods begin who is held back first in a step.

    Args:
        ranks: All of a job.
        held_back: What limits a node, by node; see ``signs.held_back``.
        quotas: How many processors the job may use on a node, of those that have such a limit.
    """
    groups: dict[str, list[RankHeartbeat]] = {}
    everyone = list(ranks)
    for one in everyone:
        if one.compute_s is not None:
            groups.setdefault(one.group, []).append(one)
    counts = collections.Counter(one.node for one in everyone)
    shares = {node: quota / max(1, counts[node]) for node, quota in (quotas or {}).items()}
    found: list[_Found] = []
    crowded: list[_Found] = []
    for group in groups.values():
        if len(group) > 1:
            times = [one.compute_s or 0.0 for one in group]
            # Of two ranks the faster one is how fast it goes, and the other one's waiting what it costs.
            typical, limit = limit_of(times)
            waiting = statistics.median_high([one.waited_s for one in group])
            for one in group:
                time, least = one.compute_s or 0.0, one.least_s or 0.0
                seconds = least if least > limit else time
                if seconds > limit and waiting - one.waited_s >= _AWAITED * (seconds - typical):
                    entry = _Found(one, seconds / max(typical, 1e-9), f"its peers take {_time(typical)}")
                    if seconds == least:
                        found.append(entry)
                    elif one.starved_s >= _AWAITED * (time - typical):
                        crowded.append(replace(entry, has_less=_has_less(one, group, everyone, shares)))
    found += _grown([group[0] for group in groups.values() if len(group) == 1])
    return [*_told(found, everyone), *_crowded(crowded, held_back or {})]


def _has_less(
    one: RankHeartbeat,
    group: Sequence[RankHeartbeat],
    everyone: Sequence[RankHeartbeat],
    shares: Mapping[str, float],
) -> bool:
    """Return whether a rank may use less of the processors than its peers on other nodes.

    A quota can make it so many times slower as theirs are larger, and no more. Peers that are all on its own
    node have its quota: then it is compared with all ranks of other nodes.

    Args:
        one: The rank.
        group: It and its peers.
        everyone: All ranks of the job.
        shares: Processors for each rank, by node; a node without a quota is left out.
    """
    far = [other for other in group if other.node != one.node]
    far = far or [other for other in everyone if other.node != one.node]
    others = [shares.get(other.node, math.inf) for other in far]
    if one.node not in shares or not others:
        return True
    return statistics.median_low(others) >= _SLOWER[len(group) >= _MANY] * shares[one.node]


def limit_of(times: Sequence[float]) -> tuple[float, float]:
    """Return what peers usually take, in seconds, and from where on one is slow.

    Source: the median absolute deviation as a robust estimate of the spread (Rousseeuw and Croux 1993).
    """
    typical = statistics.median_low(times)
    spread = 1.4826 * statistics.median_low([abs(time - typical) for time in times])
    return typical, max(_SLOWER[len(times) >= _MANY] * typical, typical + max(_BEYOND * spread, _LEAST_S))


@dataclass(frozen=True)
class _Found:
    """A rank that takes so many times as long as what it is compared with, in words.

    Attributes:
        rank: Which.
        times: How many.
        than: What the others take.
        has_less: It may use less of the processors than they may.
    """

    rank: RankHeartbeat
    times: float
    than: str
    has_less: bool = True


def _grown(lonely: Sequence[RankHeartbeat]) -> Iterator[_Found]:
    """Yield those without peers that take longer than they did, where others wait longer than they did."""
    grown = [one for one in lonely if _growth(one) > _GROWN]
    if len(grown) > len(lonely) / 2:
        return
    for one in grown:
        more = [other.waited_s - other.before_waited_s for other in lonely if other is not one]
        if statistics.median(more) >= _AWAITED * ((one.least_s or 0.0) - (one.before_s or 0.0)):
            yield _Found(one, _growth(one), f"it took {_time(one.before_s or 0.0)} before")


def _growth(one: RankHeartbeat) -> float:
    if one.least_s is None or not one.before_s or one.least_s - one.before_s < _LEAST_S:
        return 1.0
    return one.least_s / one.before_s


def _crowded(found: Sequence[_Found], held_back: Mapping[str, str]) -> list[Sign]:
    """Return each node that has too few processors, and a note on each whose processors others use.

    That all have as few is a note, too.
    """
    worst: dict[str, _Found] = {}
    for entry in sorted(found, key=lambda entry: entry.times):
        worst[entry.rank.node] = entry
    signs = []
    for node, entry in list(worst.items())[-_TOLD:]:
        limit = held_back.get(node, "")
        starved_s = min(entry.rank.starved_s, entry.rank.compute_s or 0.0)
        is_note = not limit or not entry.has_less
        why = f"Others use the processors of {node}"
        if limit:
            as_few = " and its peers' no larger" if not entry.has_less else ""
            why = f"{node} has too few processors for its ranks, {limit}{as_few}"
        signs.append(
            Sign(
                "busy" if is_note else "processors",
                f"{why}: rank {entry.rank.rank} takes {_time(entry.rank.compute_s or 0.0)} of its own in a "
                f"step, {_time(starved_s)} of it waiting for a processor; {entry.than}.",
                node,
                entry.rank.rank,
                is_note=is_note,
            )
        )
    return signs


def _told(found: Sequence[_Found], everyone: Sequence[RankHeartbeat]) -> list[Sign]:
    of_node = collections.Counter(one.node for one in everyone)
    by_node: dict[str, list[_Found]] = {}
    for entry in found:
        by_node.setdefault(entry.rank.node, []).append(entry)
    signs: list[tuple[float, Sign]] = []
    for node, entries in by_node.items():
        worst = max(entries, key=lambda entry: entry.times)
        if len(entries) == of_node[node] > 1:
            text = (
                f"{node} is slow: its {len(entries)} ranks take {worst.times:.1f} times as long as others"
                f" (rank {worst.rank.rank}: {_time(worst.rank.least_s or 0.0)} of its own in a step)."
            )
            signs.append((worst.times, Sign("slow", text, node)))
            continue
        for entry in entries:
            text = (
                f"Rank {entry.rank.rank} on {node} is slow: {_time(entry.rank.least_s or 0.0)} of its own "
                f"in a step, {entry.than} ({entry.times:.1f} times)."
            )
            signs.append((entry.times, Sign("slow", text, node, entry.rank.rank)))
    signs.sort(key=lambda pair: -pair[0])
    return [sign for _, sign in signs[:_TOLD]]


def holding(ranks: Iterable[RankHeartbeat]) -> list[RankHeartbeat]:
    """Return the ranks that the others wait for, when nothing gets on: few that do not wait themselves.

    Empty where that cannot be told: nobody waits, or all do.
    """
    known = [one for one in ranks if one.waits is not None]
    busy = [one for one in known if not one.waits]
    if not busy or len(busy) > len(known) / 2:
        return []
    behind = min(one.iteration for one in busy)
    return [one for one in busy if one.iteration == behind]


def first_nan(ranks: Iterable[RankHeartbeat]) -> list[Sign]:
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


def strained(ranks: Iterable[RankHeartbeat]) -> list[Sign]:
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
