# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate measurements between pairs of nodes: find the faulty nodes and the faulty single links.

A slow node makes all its pairs slow, though the nodes at their other ends are good. So the node with the
largest share of bad pairs is named first, its pairs are removed, and the search repeats. A node is faulty if
more than half of its remaining pairs are bad, and at least two; the bad pairs that remain are faulty links.

"Usual" is the median over nodes of the median over a node's pairs: if a third of the nodes is slow, more than
half of all pairs are slow, but less than half of a good node's.

Pure. Bandwidths are in Gb/s, latencies in microseconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names as listed

_WIDE = 0.5  # slow below this share of the fastest pair, whatever is usual

Pair = tuple[str, str]


class Bounds(NamedTuple):
    """When a pair counts as slow.

    Attributes:
        share: below this share of the usual bandwidth.
        factor: above this multiple of the usual latency …
        floor_us: … and by more than this.
    """

    share: float = 0.8
    factor: float = 2.0
    floor_us: float = 3.0


class Evaluation(NamedTuple):
    """The faulty nodes and links.

    Attributes:
        nodes: the faulty nodes, each with the reason.
        links: the faulty pairs of other nodes, each with the reason.
        usual_gbit: the usual bandwidth; None without any.
        usual_us: the usual latency; None without any.
        sent_gbit: by node, the median bandwidth it sends; None without any.
        received_gbit: by node, the median bandwidth it receives.
        latency_us: by node, the median of its latencies.
        unclear: sentences on a wide spread that no faulty node or link explains, as when half of the nodes
            are slow and make slow usual.
    """

    nodes: dict[str, str]
    links: dict[Pair, str]
    usual_gbit: float | None
    usual_us: float | None
    sent_gbit: dict[str, float | None]
    received_gbit: dict[str, float | None]
    latency_us: dict[str, float | None]
    unclear: list[str]


def evaluate(
    nodes: Sequence[str],
    bandwidth: Mapping[Pair, float],
    latency: Mapping[Pair, float],
    failed: Mapping[Pair, str],
    bounds: Bounds = Bounds(),  # noqa: B008  # immutable
) -> Evaluation:
    """Return the faulty nodes and links.

    Args:
        nodes: the names of all measured nodes, in the order of ranks.
        bandwidth: from the first to the second of a pair.
        latency: of pairs, in either order.
        failed: why a pair, in either order, could not be measured.
        bounds: when a pair counts as slow.
    """
    rank = {name: number for number, name in enumerate(nodes)}
    sent = _by_node(nodes, ((one, value) for (one, _), value in bandwidth.items()))
    received = _by_node(nodes, ((other, value) for (_, other), value in bandwidth.items()))
    times = _by_node(nodes, ((name, value) for pair, value in latency.items() for name in pair))
    both = {name: [*sent[name], *received[name]] for name in nodes}
    # The better of two middle values: one slow node of three must not make slow usual.
    usual_gbit = _usual(both.values(), statistics.median_high)
    usual_us = _usual(times.values(), statistics.median_low)
    bad: dict[Pair, str] = {_ordered(pair, rank): why for pair, why in failed.items()}
    for pair, value in sorted(bandwidth.items(), key=lambda item: item[1]):
        if usual_gbit is not None and value < bounds.share * usual_gbit:
            output = f"{pair[0]} sends {pair[1]} {value:.3g} Gb/s; usual are {usual_gbit:.3g}"
            bad.setdefault(_ordered(pair, rank), output)
    for pair, value in latency.items():
        if usual_us is not None and value > max(bounds.factor * usual_us, usual_us + bounds.floor_us):
            output = f"the latency is {value:.3g} us; usual are {usual_us:.3g}"
            bad.setdefault(_ordered(pair, rank), output)
    measured = {_ordered(pair, rank) for pair in (*bandwidth, *latency, *failed)}
    medians = [
        {name: statistics.median_high(values) if values else None for name, values in found.items()}
        for found in (sent, received)
    ]
    waits = {name: statistics.median_low(values) if values else None for name, values in times.items()}
    faulty = _faulty(nodes, measured, set(bad))
    result = Evaluation({}, {}, usual_gbit, usual_us, medians[0], medians[1], waits, [])
    for name, (count, of) in faulty.items():
        failures = [why for pair, why in failed.items() if name in pair]
        result.nodes[name] = _reason(name, result, failures, (count, of), bounds)
    for pair in sorted(bad, key=lambda pair: (rank[pair[0]], rank[pair[1]])):
        if not set(pair) & set(faulty):
            result.links[pair] = bad[pair]
    explained = {pair for pair in measured if pair in bad or set(pair) & set(faulty)}
    rates: dict[Pair, float] = {}
    for pair, value in bandwidth.items():  # the slower of two directions
        both_ways = _ordered(pair, rank)
        if both_ways not in explained:
            rates[both_ways] = min(value, rates.get(both_ways, value))
    late = {one: value for pair, value in latency.items() if (one := _ordered(pair, rank)) not in explained}
    if rates:
        share, most = min(bounds.share, _WIDE), max(rates.values())
        slow = [pair for pair in sorted(rates, key=rates.__getitem__) if rates[pair] < share * most]
        result.unclear.extend(_unclear("bandwidths", "Gb/s", rates, slow))
    if late:
        least = min(late.values())
        most = max(bounds.factor * least, least + bounds.floor_us)
        slow = [pair for pair in sorted(late, key=lambda pair: -late[pair]) if late[pair] > most]
        result.unclear.extend(_unclear("latencies", "us", late, slow))
    return result


def _unclear(what: str, unit: str, values: Mapping[Pair, float], slow: Sequence[Pair]) -> list[str]:
    """Return a sentence on the spread, if any pair is slow."""
    if not slow:
        return []
    span = f"{min(values.values()):.3g} to {max(values.values()):.3g} {unit}"
    pairs = listed([f"{one} <-> {other}" for one, other in slow])
    return [f"the {what} go from {span}, and no single node or link explains it; slow are {pairs}"]


def _faulty(nodes: Sequence[str], measured: set[Pair], bad: set[Pair]) -> dict[str, tuple[int, int]]:
    """Return the faulty nodes by rank, each with the number of its bad pairs and of all its pairs."""
    of: dict[str, set[Pair]] = {name: set() for name in nodes}
    mine: dict[str, set[Pair]] = {name: set() for name in nodes}
    for pair in measured:
        for name in pair:
            of[name].add(pair)
            if pair in bad:
                mine[name].add(pair)
    found: dict[str, tuple[int, int]] = {}
    left = {name for name in nodes if len(mine[name]) > 1}
    while left:
        worst = max(sorted(left), key=lambda name: (len(mine[name]) / len(of[name]), len(mine[name])))
        count, total = len(mine[worst]), len(of[worst])
        if 2 * count <= total:
            break
        found[worst] = (count, total)
        for one, other in of.pop(worst):
            peer = other if one == worst else one
            if peer in of:
                of[peer].discard((one, other))
                mine[peer].discard((one, other))
        left = {name for name in left - {worst} if len(mine[name]) > 1}
    return {name: found[name] for name in nodes if name in found}


def _reason(
    name: str, result: Evaluation, failures: Sequence[str], bad: tuple[int, int], bounds: Bounds
) -> str:
    """Return why a node is faulty, in one sentence."""
    parts = []
    usual = result.usual_gbit
    directions = {
        "sends": result.sent_gbit[name],
        "receives": result.received_gbit[name],
    }
    slow = {
        verb: value
        for verb, value in directions.items()
        if value is not None and usual is not None and value < bounds.share * usual
    }
    if slow and usual is not None:
        output = " and ".join(f"{verb} {value:.3g}" for verb, value in slow.items())
        parts.append(f"it {output} Gb/s where {usual:.3g} are usual")
    late, common = result.latency_us[name], result.usual_us
    if (
        late is not None
        and common is not None
        and late > max(bounds.factor * common, common + bounds.floor_us)
    ):
        parts.append(f"its latency is {late:.3g} us where {common:.3g} are usual")
    if failures:
        reasons = sorted(set(failures), key=lambda why: -failures.count(why))
        parts.append(f"{len(failures)} of its pairs failed: {listed(reasons, 2)}")
    if not parts:
        parts.append(f"{bad[0]} of its {bad[1]} pairs are slow")
    return "; ".join(parts)


def _ordered(pair: Pair, rank: Mapping[str, int]) -> Pair:
    one, other = pair
    return pair if rank[one] < rank[other] else (other, one)


def _by_node(nodes: Sequence[str], values: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in nodes}
    for name, value in values:
        found[name].append(value)
    return found


def _usual(values: Iterable[Sequence[float]], median: Callable[[Sequence[float]], float]) -> float | None:
    medians = [median(one) for one in values if one]
    return median(medians) if medians else None
