# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ranks compute longer than their peers, from Megatron's timers of each rank. Pure functions.

``--timing-log-option all`` logs ``forward-compute`` and ``backward-compute`` of every rank. They exclude the
time that a rank waits for other stages, but include waiting for its tensor-parallel group, so each such group
counts as one. The timers are averaged over a run: a rank that becomes slow late is found late.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from rdm_log.peers import limit_of
from rdm_log.signs import Sign

TIMERS = ("forward-compute", "backward-compute")
"""The timers whose sum is a rank's compute time per step."""
_MOST_SIGNS = 8


def layout(reported: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the number of pipeline stages and of ranks that share a layer; None if either is unknown.

    Args:
        reported: Megatron's arguments, or the job info.
    """
    found = []
    for names in (
        ("pipeline_model_parallel_size", "PIPELINE_MP_SIZE"),
        ("tensor_model_parallel_size", "TENSOR_MP_SIZE"),
    ):
        text = next((reported[name] for name in names if name in reported), "")
        if not text.isdecimal() or not int(text):
            return None
        found.append(int(text))
    return found[0], found[1]


def slow(milliseconds: Mapping[int, float], stages: int, tensor: int, nodes: Mapping[int, str]) -> list[Sign]:
    """Return the ranks that compute longer than the other replicas of their stage, the slowest first.

    Args:
        milliseconds: The compute time per step, by rank.
        stages: The number of pipeline stages.
        tensor: The number of ranks that share a layer.
        nodes: The node of each rank, where it is known.

    Source: ranks count tensor first, then data, then pipeline (Megatron-LM's ``parallel_state``).
    """
    world = len(milliseconds)
    if sorted(milliseconds) != list(range(world)) or world % (stages * tensor):
        return []
    found: list[tuple[float, Sign]] = []
    each = world // stages
    for first in range(0, world, each):
        of_stage = range(first, first + each)
        groups = [of_stage[at : at + tensor] for at in range(0, each, tensor)]
        times = [statistics.median(milliseconds[rank] for rank in group) / 1000 for group in groups]
        found += _of_stage(groups, times, nodes)
    found.sort(key=lambda pair: -pair[0])
    return [sign for _, sign in found[:_MOST_SIGNS]]


def _of_stage(
    groups: list[range], times: list[float], nodes: Mapping[int, str]
) -> Iterator[tuple[float, Sign]]:
    if len(times) < 2:
        return
    typical, limit = limit_of(times)
    if not typical:
        return  # most ranks do not use these timers: there is nothing to compare with
    for group, seconds in zip(groups, times, strict=True):
        if seconds <= limit:
            continue
        where = {nodes[rank] for rank in group if rank in nodes}
        node = where.pop() if len(where) == 1 else ""
        alone = len(group) == 1
        ranks = f"Rank {group[0]}" if alone else f"One of the ranks {group[0]} to {group[-1]}"
        text = (
            f"{ranks}{f' on {node}' if node else ''} is slow: it computes for {1000 * seconds:.0f} ms in a "
            f"step, its peers for {1000 * typical:.0f} ms ({seconds / typical:.1f} times)."
        )
        yield seconds / typical, Sign("slow", text, node, group[0] if alone else None)
