# SPDX-License-Identifier: GPL-3.0-or-later
"""Gathering objects from ranks costs no more than their size."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
import torch.distributed as dist

from rdm_trainer.distributed.collective import Collective
from rdm_trainer.distributed.topology import Topology
from tests.distributed import processes

Gathered = list[dict[str, tuple[bool, int]]]
LARGE = 4_000_000
VALUES: dict[str, list[Any]] = {
    "all alike": ["a", "b", "c", "d"],
    "nothing": [None] * 4,
    "two ranks have little": [None, "b", {"c": 1}, None],
    "one has much": [None, "x" * LARGE, False, 0],
}


def gather_each_case() -> dict[str, tuple[bool, int]]:
    """Gather each case, and return whether it is right and the bytes that padded gathering took."""
    collective = Collective(datetime.timedelta(minutes=5))
    padded: list[int] = []
    gather = collective._gather_padded

    def counted(data: bytes, size: int) -> list[memoryview]:
        padded.append(size)
        return gather(data, size)

    collective._gather_padded = counted  # type: ignore[method-assign]
    found = {}
    for name, values in VALUES.items():
        padded.clear()
        found[name] = collective.gather(values[collective.rank]) == values, sum(padded) * collective.size
    return found


def created_groups() -> tuple[int, int]:
    """Return how many groups of one rank, and of several, this rank helped to create."""
    made: list[int] = []
    new_group = dist.new_group

    def counted(ranks: Any = None, **options: Any) -> Any:
        made.append(len(ranks))
        return new_group(ranks, **options)

    dist.new_group = counted  # type: ignore[assignment]
    topology = Topology.create(1, 1)
    for group in (topology.tensor_group, topology.pipeline_group, topology.data_group):
        assert dist.get_world_size(group) in (1, 4)
        dist.barrier(group)
    return made.count(1), len(made) - made.count(1)


@pytest.mark.parametrize("name", VALUES)
def test_every_rank_gathers_the_objects_of_all(name: str, gathered: Gathered) -> None:
    assert all(one[name][0] for one in gathered)


@pytest.fixture(scope="module")
def gathered() -> Gathered:
    """The results of each rank."""
    return processes.run(4, gather_each_case)


def test_large_object_of_one_rank_is_not_padded_for_each_rank(gathered: Gathered) -> None:
    assert all(one["one has much"][1] == 0 for one in gathered)


def test_ranks_create_no_groups_of_other_single_ranks() -> None:
    every = processes.run(4, created_groups)
    # The tensor and the pipeline axis share a group of one; the data axis is the world.
    assert every == [(1, 0)] * 4
