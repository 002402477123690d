# SPDX-License-Identifier: GPL-3.0-or-later
"""The process groups of a rank, in worlds of which only that rank exists."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from rdm_core.config import load
from rdm_trainer.distributed.topology import Topology, own_group, split_color
from rdm_trainer.engines.create import create_topology

CONFIGS = Path(__file__).parents[2] / "configs"
TIMEOUT = datetime.timedelta(minutes=3)
GROUPS = ("tensor", "pipeline", "data", "context", "expert", "model", "replica", "key_value")


@contextmanager
def world_of(size: int, rank: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "axes",
    [
        {"tensor": 1, "pipeline": 1},
        {"tensor": 16, "pipeline": 1},
        {"tensor": 4, "pipeline": 2, "context": 2, "sharing": 2},
        {"tensor": 2, "pipeline": 2, "expert": 2},
        {"tensor": 2, "pipeline": 2, "expert": 2, "context": 4},
        {"tensor": 2, "pipeline": 1, "expert": 4, "context": 2},
    ],
    ids=str,
)
def test_ranks_agree_on_their_groups(axes: dict[str, Any]) -> None:
    members: dict[str, dict[int, list[int]]] = {name: {} for name in GROUPS}
    for rank in range(16):
        with world_of(16, rank):
            topology = Topology.create(**axes)
            for name in GROUPS:
                group = getattr(topology, f"{name}_group")
                members[name][rank] = [] if group is None else dist.get_process_group_ranks(group)
    for name, found in members.items():
        assert all(found[other] == ranks for ranks in found.values() for other in ranks), name
    tensor, pipeline = axes["tensor"], axes["pipeline"]
    data, context, expert = 16 // tensor // pipeline, axes.get("context", 1), axes.get("expert", 1)
    for rank in range(16):
        first, stage = rank // tensor * tensor, rank // (tensor * data) * tensor * data
        replicas = list(range(stage + rank % tensor, stage + tensor * data, tensor))
        assert members["tensor"][rank] == list(range(first, first + tensor))
        assert members["pipeline"][rank] == list(range(rank % (tensor * data), 16, tensor * data))
        assert members["data"][rank] == replicas
        index = replicas.index(rank)
        if context > 1:
            assert members["context"][rank] == replicas[index // context * context :][:context]
        if expert > 1:
            assert members["expert"][rank] == replicas[index // expert * expert :][:expert]
            assert members["replica"][rank] == replicas[index % expert :: expert]
    assert all(rank in ranks for name in ("model", "replica") for rank, ranks in members[name].items())


def test_each_group_has_a_name_for_the_verdict_on_a_hanging_job() -> None:
    with world_of(16, rank=5):
        shared = Topology.create(2, 2, expert=2, context=2, sharing=2)
        plain = Topology.create(2, 2)
    for topology, names in ((shared, GROUPS), (plain, GROUPS[:3])):
        kind_of = {group: kind for kind, group in topology.kinds.items() if group is not None}
        kinds = {kind_of[getattr(topology, f"{name}_group")] for name in names}
        assert kinds == set(kind_of.values())
        assert len(kinds) == len(names)


@pytest.mark.parametrize("size", [64, 256, 4096])
def test_nccl_creates_the_groups_of_an_axis_in_one_split(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    splits: list[int] = []
    apart: list[list[int]] = []

    def split(*, split_ranks: list[list[int]], timeout: Any) -> Any:
        assert timeout == TIMEOUT
        splits.append(len(split_ranks))
        return dist.new_group(
            next(ranks for ranks in split_ranks if 5 in ranks), use_local_synchronization=True
        )

    created: list[Any] = []
    create = dist.new_group

    def counted(ranks: list[int], **options: Any) -> Any:
        if "use_local_synchronization" not in options:
            apart.append(ranks)
            return create(ranks, **options)
        created.append(create(ranks, **options))
        return created[-1]

    monkeypatch.setattr(dist, "new_group", counted)
    monkeypatch.setattr(dist, "split_group", split)
    with world_of(size, rank=5):
        world: Any = dist.group.WORLD
        world.bound_device_id = torch.device("cuda", 0)
        topology = Topology.create(4, 4, context=2, timeout=TIMEOUT)
        assert dist.get_process_group_ranks(topology.context_group) == [1, 5]
    # Two of the 2,048 groups of the context axis have one color.
    assert apart == ([[1104, 1108]] if size == 4096 else [])
    assert sorted(splits) == sorted([size // 4, size // 4, 16, size // 2 - len(apart)])
    assert len(created) == len(splits)


def test_rank_outside_every_group_still_takes_part_in_the_split(monkeypatch: pytest.MonkeyPatch) -> None:
    splits: list[list[list[int]]] = []
    monkeypatch.setattr(dist, "split_group", lambda *, split_ranks, timeout: splits.append(split_ranks))
    with world_of(6, rank=5):
        world: Any = dist.group.WORLD
        world.bound_device_id = torch.device("cuda", 0)
        own_group(torch.tensor([[0, 2], [1, 3]]))
    assert splits == [[[0, 2], [1, 3], [4], [5]]]


@pytest.mark.parametrize("rank", [83, 133])
def test_groups_of_one_color_are_split_in_two_calls(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [[69, 133], [83, 147], [5, 6]]
    assert split_color(pairs[0]) == split_color(pairs[1])
    calls: list[str] = []

    def split(*, split_ranks: list[list[int]], timeout: Any) -> str | None:
        assert timeout == TIMEOUT
        calls.append("split")
        assert pairs[1] not in split_ranks
        assert all([one] in split_ranks for one in range(256) if not any(one in pair for pair in pairs))
        return next((str(ranks) for ranks in split_ranks if rank in ranks), None)

    def new_group(ranks: list[int], *, timeout: Any) -> str | None:
        assert timeout == TIMEOUT
        calls.append(str(ranks))
        return str(ranks) if rank in ranks else None

    with world_of(256, rank):
        world: Any = dist.group.WORLD
        world.bound_device_id = torch.device("cuda", 0)
        monkeypatch.setattr(dist, "split_group", split)
        monkeypatch.setattr(dist, "new_group", new_group)
        assert own_group(torch.tensor(pairs), TIMEOUT) == str(next(pair for pair in pairs if rank in pair))
    assert calls == ["split", "[83, 147]"]


def test_every_group_has_the_timeout_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ["parallel.tensor=2", "parallel.data=4", "launcher.distributed_timeout_minutes=3"]
    job = load(CONFIGS / "gpt-345m.yaml", ["engine=native", "parallel.pipeline=2", *keys])
    timeouts = []
    create = dist.new_group

    def new_group(ranks: list[int], *, timeout: Any = None, **options: Any) -> Any:
        timeouts.append(timeout)
        return create(ranks, timeout=timeout, **options)

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(dist.distributed_c10d, "new_group", new_group)
    with world_of(16, rank=5):
        assert create_topology(job).timeout == TIMEOUT
    assert set(timeouts) == {TIMEOUT}
