# SPDX-License-Identifier: GPL-3.0-or-later
"""Which ranks compute longer than their peers, by the timers that Megatron writes of each rank. Pure.

``--timing-log-option all`` writes ``forward-compute`` and ``backward-compute`` of every rank. What a rank
waits for other stages is not in them, but what it waits for its tensor-parallel group is: that is one, here.
They are averages over a run, so that who becomes slow late is named late.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping

from rdm_log.peers import limit_of
from rdm_log.signs import Sign

__all__ = ["TIMERS", "layout", "slow"]

TIMERS = ("forward-compute", "backward-compute")
"""Whose sum is what a rank computes in a step."""
_TOLD = 8


def layout(told: Mapping[str, str]) -> tuple[int, int] | None:
    """Return the stages of the pipeline and the ranks that share a layer; None where they are not told.

    Args:
        told: Megatron's arguments, or the job info.
    """
    found = []
    for names in (
        ("pipeline_model_parallel_size", "PIPELINE_MP_SIZE"),
        ("tensor_model_parallel_size", "TENSOR_MP_SIZE"),
    ):
        text = next((told[name] for name in names if name in told), "")
        if not text.isdecimal() or not int(text):
            return None
        found.append(int(text))
    return found[0], found[1]


def slow(milliseconds: Mapping[int, float], stages: int, tensor: int, nodes: Mapping[int, str]) -> list[Sign]:
    """Return who computes longer than the other replicas of its stage, the slowest first.

    Args:
        milliseconds: What each rank computes in a step.
        stages: Of the pipeline.
        tensor: Ranks that share a layer.
        nodes: On which node a rank is, where that is known.

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
    return [sign for _, sign in found[:_TOLD]]


def _of_stage(
    groups: list[range], times: list[float], nodes: Mapping[int, str]
) -> Iterator[tuple[float, Sign]]:
    if len(times) < 2:
        return
    typical, limit = limit_of(times)
    if not typical:
        return  # timers that most ranks do not use: nothing to compare with
    for group, seconds in zip(groups, times, strict=True):
        if seconds <= limit:
            continue
        where = {nodes[rank] for rank in group if rank in nodes}
        node = where.pop() if len(where) == 1 else ""
        alone = len(group) == 1
        who = f"Rank {group[0]}" if alone else f"One of the ranks {group[0]} to {group[-1]}"
        text = (
            f"{who}{f' on {node}' if node else ''} is slow: it computes for {1000 * seconds:.0f} ms in a "
            f"step, its peers for {1000 * typical:.0f} ms ({seconds / typical:.1f} times)."
        )
        yield seconds / typical, Sign("slow", text, node, group[0] if alone else None)
