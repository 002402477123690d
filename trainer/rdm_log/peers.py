# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank is slow, holds up the others, or had the first NaN loss. Pure functions.

In synchronous training every rank takes as long as the slowest one, so the time of a step names no rank. The
compute time, without waiting for other ranks, distinguishes the faulty rank from those that wait for it.
"""

from __future__ import annotations

import collections
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from rdm_log.signs import Sign

_MANY = 8
_SLOWER = {True: 1.3, False: 1.5}
"""A rank is slow when its compute time is this multiple of its peers', by whether they are many…"""
_BEYOND = 6.0
"""… and this many standard deviations above theirs…"""
_AWAITED = 0.5
"""… and its peers wait longer than it does, by at least this share of its extra time."""
_GROWN = 1.6
"""Without peers: when its compute time is this multiple of what it was, unless most others' grew so, too."""
_LEAST_S = 0.002
"""Differences below this are noise."""
_RECORDS = 8
_SURE_S = 15.0
"""A rank's usual times need at least this many records over at least this many seconds…"""
_WARM = 2
"""… after its first ones."""
_MOST_SIGNS = 8


class GroupState(NamedTuple):
    """How far a rank has come in a process group.

    Attributes:
        name: The group's name in torch. Groups without common ranks may share it.
        first: The first of its ranks.
        size: The number of its ranks.
        kind: What the group is for, such as ``data-parallel``; may be empty.
        entered: The number of the last collective that the rank has entered.
        waits: The number of the first one that is not complete; 0 if all are.
        operation: Its name.
        since: When the rank entered it, in seconds since 1970.
    """

    name: str
    first: int
    size: int
    kind: str
    entered: int
    waits: int = 0
    operation: str = ""
    since: float = 0.0


@dataclass(frozen=True)
class RankHeartbeat:
    """The progress and speed of a rank.

    Attributes:
        rank: Its number.
        node: Its node.
        group: Equal for ranks with the same work: a stage of the pipeline.
        iteration: Steps that it has begun.
        waits: It waits for other ranks at this moment; None if unknown.
        compute_s: Its compute time per step, without waiting for other ranks: the median of its last records.
        least_s: The least compute time of these records, without waiting for a processor either.
        waited_s: The time per step that it waits for other ranks: the median.
        starved_s: The time per step that it waits for a busy processor: the median.
        before_s: Its usual compute time at the beginning.
        before_waited_s: Its usual waiting time at the beginning.
        nan_at: The first step whose loss on this rank was NaN or infinite.
        retries: How often lately its GPU's memory was full, so that the cache had to be freed.
        collectives: How far it has come in each process group; only while it hangs.
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
    collectives: Sequence[GroupState] = ()

    @classmethod
    def of(cls, node: str, data: Mapping[str, Any]) -> RankHeartbeat:
        """Return the heartbeat that an agent reports for a rank; older releases say ``own_s``."""
        fields = {"compute_s" if key == "own_s" else key: value for key, value in data.items()}
        groups = [GroupState(*one) for one in data.get("collectives", ())]
        return cls(**{**fields, "node": node, "collectives": groups})


def usual(records: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return a rank's times per step, as fields of ``RankHeartbeat``; empty while there are too few records.

    Args:
        records: Its records, the oldest first: ``time`` in s, and ``compute_s``, ``waited_s`` and
            ``starved_s`` as averages per step since the record before (the last two are 0 if absent).
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
    # Other programs on a node make some records slow; a fault makes all of them slow.
    least_s = min(max(0.0, one["compute_s"] - (one.get("starved_s") or 0.0)) for one in window)
    return {"compute_s": compute_s, "least_s": least_s, "waited_s": waited_s, "starved_s": starved_s}


def slow(
    ranks: Iterable[RankHeartbeat],
    held_back: Mapping[str, str] | None = None,
    quotas: Mapping[str, float] | None = None,
) -> list[Sign]:
    """Return the ranks that are slower than their peers and make them wait.

    A node whose ranks are all slow is reported once. A rank is slow if even its fastest record takes longer
    than its peers usually do. Time in which it was ready to run but other programs had the processor does not
    count; such load is only a note. If a node's own limits keep its ranks from the processors, the node is
    named, unless its peers' nodes have the same quota: then the timing of their scheduling periods decides
    which node is throttled first in a step.

    Args:
        ranks: All ranks of a job.
        held_back: What limits a node, by node; see ``signs.held_back``.
        quotas: How many processors the job may use, by node; nodes without such a limit are left out.
    """
    groups: dict[str, list[RankHeartbeat]] = {}
    all_ranks = list(ranks)
    for one in all_ranks:
        if one.compute_s is not None:
            groups.setdefault(one.group, []).append(one)
    counts = collections.Counter(one.node for one in all_ranks)
    shares = {node: quota / max(1, counts[node]) for node, quota in (quotas or {}).items()}
    found: list[_Found] = []
    starved: list[_Found] = []
    for group in groups.values():
        if len(group) > 1:
            times = [one.compute_s or 0.0 for one in group]
            # Of two ranks, the faster one gives the typical time, and the longer wait is the cost.
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
                        starved.append(replace(entry, has_less=_has_less(one, group, all_ranks, shares)))
    found += _grown([group[0] for group in groups.values() if len(group) == 1])
    return [*_slow_signs(found, all_ranks), *_starved_signs(starved, held_back or {})]


def _has_less(
    one: RankHeartbeat,
    group: Sequence[RankHeartbeat],
    all_ranks: Sequence[RankHeartbeat],
    shares: Mapping[str, float],
) -> bool:
    """Return whether a rank may use less processor time than its peers on other nodes.

    A quota makes a rank slower by the ratio of the quotas at most. If all peers are on its own node, and so
    have its quota, it is compared with all ranks of other nodes.

    Args:
        one: The rank.
        group: The rank and its peers.
        all_ranks: All ranks of the job.
        shares: Processors per rank, by node; nodes without a quota are left out.
    """
    far = [other for other in group if other.node != one.node]
    far = far or [other for other in all_ranks if other.node != one.node]
    others = [shares.get(other.node, math.inf) for other in far]
    if one.node not in shares or not others:
        return True
    return statistics.median_low(others) >= _SLOWER[len(group) >= _MANY] * shares[one.node]


def limit_of(times: Sequence[float]) -> tuple[float, float]:
    """Return the typical time of peers and the limit above which one is slow, in seconds.

    Source: the median absolute deviation as a robust estimate of the spread (Rousseeuw and Croux 1993).
    """
    typical = statistics.median_low(times)
    spread = 1.4826 * statistics.median_low([abs(time - typical) for time in times])
    return typical, max(_SLOWER[len(times) >= _MANY] * typical, typical + max(_BEYOND * spread, _LEAST_S))


@dataclass(frozen=True)
class _Found:
    """A slow rank.

    Attributes:
        rank: The rank.
        times: How many times as long as the others it takes.
        than: What the others take, in words.
        has_less: It may use less processor time than they may.
    """

    rank: RankHeartbeat
    times: float
    than: str
    has_less: bool = True


def _grown(single: Sequence[RankHeartbeat]) -> Iterator[_Found]:
    """Yield ranks without peers that became slower, if the others wait longer than before, too."""
    grown = [one for one in single if _growth(one) > _GROWN]
    if len(grown) > len(single) / 2:
        return
    for one in grown:
        more = [other.waited_s - other.before_waited_s for other in single if other is not one]
        if statistics.median(more) >= _AWAITED * ((one.least_s or 0.0) - (one.before_s or 0.0)):
            yield _Found(one, _growth(one), f"it took {_time(one.before_s or 0.0)} before")


def _growth(one: RankHeartbeat) -> float:
    if one.least_s is None or not one.before_s or one.least_s - one.before_s < _LEAST_S:
        return 1.0
    return one.least_s / one.before_s


def _starved_signs(found: Sequence[_Found], held_back: Mapping[str, str]) -> list[Sign]:
    """Return a sign for each node with too few processors, and a note for each with other load.

    If all nodes have equally few processors, that is only a note, too.
    """
    worst: dict[str, _Found] = {}
    for entry in sorted(found, key=lambda entry: entry.times):
        worst[entry.rank.node] = entry
    signs = []
    for node, entry in list(worst.items())[-_MOST_SIGNS:]:
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


def _slow_signs(found: Sequence[_Found], all_ranks: Sequence[RankHeartbeat]) -> list[Sign]:
    of_node = collections.Counter(one.node for one in all_ranks)
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
    return [sign for _, sign in signs[:_MOST_SIGNS]]


def holding(ranks: Iterable[RankHeartbeat]) -> list[RankHeartbeat]:
    """Return the ranks that the others wait for when a job hangs: the few that do not wait themselves.

    Empty if that cannot be decided: most ranks are busy, or all wait.
    """
    known = [one for one in ranks if one.waits is not None]
    busy = [one for one in known if not one.waits]
    if not busy or len(busy) > len(known) / 2:
        return []
    behind = min(one.iteration for one in busy)
    return [one for one in busy if one.iteration == behind]


def first_nan(ranks: Iterable[RankHeartbeat]) -> list[Sign]:
    """Return the ranks whose loss was not finite first; empty if all were at once, or none was."""
    all_ranks = list(ranks)
    hit = [one for one in all_ranks if one.nan_at is not None]
    if not hit:
        return []
    at = min(one.nan_at or 0 for one in hit)
    first = [one for one in hit if one.nan_at == at]
    groups = {one.group for one in first}
    if len(first) == len([one for one in all_ranks if one.group in groups]) > 1:
        return []
    return [
        Sign(
            "nan",
            f"The loss of rank {one.rank} on {one.node} was not a number first, at iteration {at}.",
            one.node,
            one.rank,
        )
        for one in first[:_MOST_SIGNS]
    ]


def strained(ranks: Iterable[RankHeartbeat]) -> list[Sign]:
    """Return the ranks whose GPU memory is at its limit, which slows down steps and may soon fail one."""
    return [
        Sign(
            "memory",
            f"The GPU's memory of rank {one.rank} on {one.node} was full {one.retries} times lately, and its "
            "cache was given back.",
            one.node,
            one.rank,
        )
        for one in sorted(ranks, key=lambda one: -one.retries)[:_MOST_SIGNS]
        if one.retries
    ]


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.0f} ms"
