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

LARGE = 4_000_000
VALUES: dict[str, list[Any]] = {
    "all alike": ["a", "b", "c", "d"],
    "nothing": [None] * 4,
    "two ranks have little": [None, "b", {"c": 1}, None],
    "one has much": [None, "x" * LARGE, False, 0],
}


def tell() -> dict[str, tuple[bool, int]]:
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


def groups() -> tuple[int, int]:
    """Return how many groups of one rank, and of several, this rank helped to create."""
    made: list[int] = []
    new_group = dist.new_group

    def counted(ranks: Any = None, **options: Any) -> Any:
        made.append(len(ranks))
        return new_group(ranks, **options)

    dist.new_group = counted  # type: ignore[assignment]
    place = Topology.create(1, 1)
    for group in (place.tensor_group, place.pipeline_group, place.data_group):
        assert dist.get_world_size(group) in (1, 4)
        dist.barrier(group)
    return made.count(1), len(made) - made.count(1)


@pytest.mark.parametrize("name", VALUES)
def test_every_rank_knows_what_each_said(name: str, told: list[dict[str, tuple[bool, int]]]) -> None:
    assert all(one[name][0] for one in told)


@pytest.fixture(scope="module")
def told() -> list[dict[str, tuple[bool, int]]]:
    """The results of each rank."""
    return processes.run(4, tell)


def test_what_one_rank_has_is_not_padded_for_each(told: list[dict[str, tuple[bool, int]]]) -> None:
    assert all(one["one has much"][1] == 0 for one in told)


def test_no_rank_makes_another_one_s_group_of_one() -> None:
    every = processes.run(4, groups)
    # The tensor and the pipeline axis share a group of one; the data axis is the world.
    assert every == [(1, 0)] * 4
