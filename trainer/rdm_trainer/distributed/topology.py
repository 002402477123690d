# SPDX-License-Identifier: GPL-3.0-or-later
"""The axes of a job: tensor, context, expert, pipeline and data, with their process groups.

The context axis is the inner part of the data axis; its ranks have different tokens of the same samples. The
expert axis is an inner part of it too; its ranks have different tokens, of the same or of other samples, and
different experts of each layer. Either of the two axes may be longer.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rdm_core.errors import TrainerError

# The largest size_t.
_SIZE_T = 0xFFFFFFFFFFFFFFFF


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence DeepSpeed's output during its initialisation, because other tools parse the log."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def replicas(world: int, tensor: int, pipeline: int, expert: int = 1, context: int = 1) -> int:
    """Return the size of the data axis: the ranks of a world with tokens of their own, per rank of a model.

    Raises:
        TrainerError: The world size does not fit the axes.
    """
    smallest = tensor * pipeline * math.lcm(expert, context)
    if world % smallest:
        inner = {"expert": expert, "context": context}
        factors = [f"parallel.{axis} {size}" for axis, size in inner.items() if size > 1]
        more = f" times a multiple of {' and '.join(factors)}" if factors else ""
        raise TrainerError(
            f"A world of {world} cannot be divided into replicas of parallel.tensor {tensor} times "
            f"parallel.pipeline {pipeline}{more}; start a multiple of {smallest} processes."
        )
    return world // (tensor * pipeline)


def own_group(rows: torch.Tensor, timeout: datetime.timedelta | None = None) -> Any:
    """Create a group for each row of ranks, and return this rank's group; every rank calls this.

    With NCCL, one split of the world creates all groups. A call for each group would be as many splits.

    Args:
        rows: The ranks of each group in ascending order, [groups, ranks]; no rank is in two. The group of a
            rank in none must not be used.
        timeout: The timeout of its operations; by default torch's own, not the world's.
    """
    rank = dist.get_rank()
    if rows.shape[1] == 1:
        # Each rank creates only its own; with NCCL, all these calls together are one split.
        return dist.new_group([rank], timeout=timeout, use_local_synchronization=True)
    world: Any = dist.group.WORLD
    if world.bound_device_id is None:
        # Without a device, the world has no NCCL communicator to split.
        own, _ = dist.new_subgroups_by_enumeration(rows.tolist(), timeout=timeout)
        return own
    # torch counts a rank's groups to name the next one, and its members must agree on the name. So ranks in
    # no row get a group, too.
    absent = torch.ones(dist.get_world_size(), dtype=torch.bool)
    absent[rows.flatten()] = False
    groups: list[list[int]] = []
    apart: list[list[int]] = []
    colors: set[int] = set()
    for ranks in [*rows.tolist(), *absent.nonzero().tolist()]:
        color = split_color(ranks)
        # NCCL would join two groups of one color, and their ranks would exchange data or wait forever.
        (apart if color in colors else groups).append(ranks)
        colors.add(color)
    own = dist.split_group(split_ranks=groups, timeout=timeout)
    for ranks in apart:
        group = dist.new_group(ranks, timeout=timeout)
        if rank in ranks:
            own = group
    return own


def split_color(ranks: list[int]) -> int:
    """Return the color with which torch tells a group from the others of a split.

    Source: ``genNcclSplitColor`` of PyTorch. Of 2,048 pairs of ranks, up to five have that of another pair.

    Args:
        ranks: The group's, in ascending order.
    """
    color = 0
    for rank in ranks:
        color ^= (rank + 0x9E3779B9 + (color << 6) + (color >> 2)) & _SIZE_T
    return min(color, _SIZE_T + 1 - color) % 0x7FFFFFFF


def key_value_group(sharing: int, timeout: datetime.timedelta | None = None) -> Any:
    """Create the groups of tensor ranks that share a key-value head, and return this rank's; all call this.

    Args:
        sharing: Number of adjacent ranks that share a head.
        timeout: The timeout of its operations.
    """
    if sharing == 1:
        return None
    return own_group(torch.arange(dist.get_world_size()).view(-1, sharing), timeout)


def prefer_collectives() -> None:
    """Give NCCL's kernels priority, or matrix products would leave them no multiprocessor."""
    os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")


@dataclass(frozen=True)
class Topology:
    """This rank's place. Ranks count tensor first, then data, then pipeline, as in DeepSpeed's grid.

    Attributes:
        data: Ranks with tokens of their own, including the context and expert axes.
        context: Number of these ranks that share each sample.
        expert: Number of these ranks that share the experts.
        model_group: The ranks of the tensor and expert axes, which share the experts.
        replica_group: The ranks with the same parameters.
        key_value_group: The tensor ranks that share a key-value head, if there are fewer heads than ranks.
        sequence_parallel: Between the tensor-parallel layers, each tensor rank has its part of the tokens.
        timeout: The timeout of an operation of the groups; torch's own if None.

    The groups are ``None`` in a topology without process groups. With DeepSpeed's engine, ``grid`` is its
    ``PipelineParallelGrid`` (its model-parallel unit), which owns the groups.
    """

    world_size: int
    rank: int
    tensor: int
    pipeline: int
    data: int
    tensor_rank: int
    pipeline_rank: int
    data_rank: int
    expert: int = 1
    context: int = 1
    tensor_group: Any = None
    pipeline_group: Any = None
    data_group: Any = None
    context_group: Any = None
    expert_group: Any = None
    model_group: Any = None
    replica_group: Any = None
    key_value_group: Any = None
    sequence_parallel: bool = False
    timeout: datetime.timedelta | None = None
    grid: Any = None

    @classmethod
    def create(
        cls,
        tensor: int,
        pipeline: int,
        expert: int = 1,
        context: int = 1,
        *,
        sharing: int = 1,
        sequence_parallel: bool = False,
        timeout: datetime.timedelta | None = None,
    ) -> Topology:
        """Map the initialised world to axes; every rank calls this.

        Args:
            tensor: Ranks that share each layer.
            pipeline: Stages of each replica.
            expert: Data-parallel ranks that share the experts.
            context: Ranks that share each sample.
            sharing: Tensor ranks that share a key-value head.
            sequence_parallel: Tensor ranks shard the tokens between the tensor-parallel layers.
            timeout: The timeout of an operation of the groups.

        Raises:
            TrainerError: The world size does not fit the axes.
        """
        world, rank = dist.get_world_size(), dist.get_rank()
        data = replicas(world, tensor, pipeline, expert, context)
        prefer_collectives()
        ranks = torch.arange(world).view(pipeline, data, tensor)
        axes = {
            "pipeline": ranks.flatten(1).t(),
            "data": ranks.transpose(1, 2).flatten(0, 1),
            "tensor": ranks.flatten(0, 1),
        }
        create = functools.partial(own_group, timeout=timeout)
        alone = create(torch.arange(world)[:, None]) if 1 in (pipeline, data, tensor) else None
        groups: dict[str, Any] = {
            axis: alone if rows.shape[1] == 1 else dist.group.WORLD if len(rows) == 1 else create(rows)
            for axis, rows in axes.items()
        }
        groups |= {"context": None, "expert": None, "model": groups["tensor"], "replica": groups["data"]}
        if context > 1:
            of_samples = ranks.view(pipeline, data // context, context, tensor)
            groups["context"] = create(of_samples.transpose(2, 3).flatten(0, 2))
        if expert > 1:
            of_experts = ranks.view(pipeline, data // expert, expert, tensor)
            groups["expert"] = create(of_experts.transpose(2, 3).flatten(0, 2))
            groups["model"] = create(of_experts.flatten(2).flatten(0, 1))
            groups["replica"] = create(of_experts.permute(0, 2, 3, 1).flatten(0, 2))
        return cls(
            world_size=world,
            rank=rank,
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            tensor_rank=rank % tensor,
            pipeline_rank=rank // (tensor * data),
            data_rank=rank // tensor % data,
            expert=expert,
            context=context,
            tensor_group=groups["tensor"],
            pipeline_group=groups["pipeline"],
            data_group=groups["data"],
            context_group=groups["context"],
            expert_group=groups["expert"],
            model_group=groups["model"],
            replica_group=groups["replica"],
            key_value_group=key_value_group(sharing, timeout),
            sequence_parallel=sequence_parallel,
            timeout=timeout,
        )

    @property
    def kinds(self) -> dict[str, Any]:
        """The groups, by what they are for; those of experts by Megatron's names."""
        kinds = {
            "tensor-parallel": self.tensor_group,
            "pipeline-parallel": self.pipeline_group,
            "data-parallel": self.data_group,
            "context-parallel": self.context_group,
            "expert-parallel": self.expert_group,
            "key-value-head": self.key_value_group,
        }
        # Where no axis shares the experts, they are the groups of the tensor and the data axis.
        if self.expert > 1:
            kinds["tensor-and-expert-parallel"] = self.model_group
            kinds["expert-data-parallel"] = self.replica_group
        return kinds

    @classmethod
    def single(cls) -> Topology:
        """Return a topology of one rank without process groups."""
        return cls.part()

    @classmethod
    def part(cls, *, tensor: int = 1, tensor_rank: int = 0) -> Topology:
        """Return one tensor rank's view without process groups, to build its layers but not run them."""
        return cls(
            world_size=tensor,
            rank=tensor_rank,
            tensor=tensor,
            pipeline=1,
            data=1,
            tensor_rank=tensor_rank,
            pipeline_rank=0,
            data_rank=0,
        )

    @property
    def context_rank(self) -> int:
        """Rank among those that share a sample."""
        return self.data_rank % self.context

    @property
    def batch_ranks(self) -> int:
        """Number of groups of ranks with samples of their own."""
        return self.data // self.context

    @property
    def batch_rank(self) -> int:
        """Index of this rank's group among these."""
        return self.data_rank // self.context

    @property
    def expert_rank(self) -> int:
        """Rank among those that share the experts."""
        return self.data_rank % self.expert

    @property
    def model(self) -> int:
        """Number of ranks of the tensor and expert axes."""
        return self.expert * self.tensor

    @property
    def model_rank(self) -> int:
        """Rank among these."""
        return self.expert_rank * self.tensor + self.tensor_rank

    @property
    def replicas(self) -> int:
        """Number of ranks with the same parameters."""
        return self.data // self.expert

    @property
    def replica(self) -> int:
        """Rank among these."""
        return self.data_rank // self.expert

    @property
    def is_last_stage(self) -> bool:
        """This rank computes the loss."""
        return self.pipeline_rank == self.pipeline - 1
