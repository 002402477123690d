# SPDX-License-Identifier: GPL-3.0-or-later
"""FASOP's heuristic: move one layer at a time from the slowest stage to the fastest."""

from __future__ import annotations

from collections.abc import Sequence


def minmax(
    layers: int,
    costs: Sequence[Sequence[float]],
    boundaries: Sequence[float],
    *,
    with_slips: bool = True,
) -> tuple[list[int], list[float]]:
    """Return the layers of each stage, and the stage times that FASOP continues with.

    Args:
        layers: Number of layers to cut.
        costs: For each stage, the time of each layer on it, seconds; equal lists may be one object.
        boundaries: Time to send from each stage to the next, seconds; an inner stage's time includes the
            send before it.
        with_slips: Reproduce a bug of FASOP's program: when the slowest stage is the first or the last and
            has two layers, it means to undo the last move, but makes another one and returns the times from
            before it. Otherwise the last move is undone.
    """
    stages = len(costs)
    cut = [layers // stages] * stages
    for extra in range(layers % stages):
        cut[extra - 1] += 1
    known: dict[tuple[int, int, int], float] = {}

    def plain_times() -> list[float]:
        times, begin = [], 0
        for stage, count in enumerate(cut):
            key = (id(costs[stage]), begin, count)
            if key not in known:
                known[key] = sum(costs[stage][begin : begin + count])
            times.append(known[key])
            begin += count
        return times

    history: list[tuple[int, ...]] = []
    seen: set[tuple[int, ...]] = set()
    move: tuple[int, int] | None = None
    previous = 0.0
    while True:
        plain = plain_times()
        times = list(plain)
        for stage in range(1, stages - 1):
            times[stage] += boundaries[stage - 1]
        largest = max(times)
        if move is not None and (largest > previous or (largest == previous and history[-1] in seen)):
            break
        slowest, fastest = times.index(largest), times.index(min(times))
        if slowest in (0, stages - 1) and cut[slowest] == 2:
            if move is None or not with_slips:
                break
            cut[slowest] += 1
            cut[fastest] -= 1
            return cut, plain
        if cut[slowest] <= 1:
            return cut, plain
        if history:
            seen.add(history[-1])
        cut[slowest] -= 1
        cut[fastest] += 1
        history.append(tuple(cut))
        move, previous = (slowest, fastest), largest
    if move is not None:
        cut[move[0]] += 1
        cut[move[1]] -= 1
    return cut, plain_times()
