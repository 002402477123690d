# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank holds which part: the tensor, context, expert, pipeline and data axes and their process groups.

The context axis is the inner part of the data axis: its ranks have different tokens of the same samples. So
is the expert axis, whose ranks have different samples, and different experts of each layer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from rdm_core.errors import TrainerError

__all__ = ["Topology", "key_value_group", "own_group", "prefer_collectives", "quiet", "replicas"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what DeepSpeed prints while it sets itself up out of the log, which other tools parse."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def replicas(world: int, tensor: int, pipeline: int, expert: int = 1, context: int = 1) -> int:
    """Return how many ranks with tokens of their own a world has for each rank of a model.

    Raises:
        TrainerError: The world cannot be divided like that.
    """
    smallest = tensor * pipeline * expert * context
    if world % smallest:
        inner = {"expert": expert, "context": context}
        more = "".join(f" times parallel.{axis} {size}" for axis, size in inner.items() if size > 1)
        raise TrainerError(
            f"A world of {world} cannot be divided into replicas of parallel.tensor {tensor} times "
            f"parallel.pipeline {pipeline}{more}; start a multiple of {smallest} processes."
        )
    return world // (tensor * pipeline)


def own_group(rows: torch.Tensor) -> Any:
    """Make a group of each row of ranks, on every rank, and return the one that this rank is in."""
    if rows.shape[1] == 1:
        # Nobody else has to wait for it.
        return dist.new_group([dist.get_rank()], use_local_synchronization=True)
    own, _ = dist.new_subgroups_by_enumeration(rows.tolist())
    return own


def key_value_group(sharing: int) -> Any:
    """Make the groups of tensor ranks that share a head of keys and values, on every rank; return the own.

    Args:
        sharing: So many ranks share one; they follow on each other.
    """
    if sharing == 1:
        return None
    return own_group(torch.arange(dist.get_world_size()).view(-1, sharing))


def prefer_collectives() -> None:
    """Let NCCL's sums go on beside matrix products, which would else leave them no multiprocessor."""
    os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")


@dataclass(frozen=True)
class Topology:
    """This rank's place. Ranks count tensor first, then data, then pipeline, as DeepSpeed's grid does.

    Attributes:
        data: Ranks with tokens of their own, those of the context and the expert axis included.
        context: Of these, so many share each sample.
        expert: Of these, so many share the experts.
        model_group: The ranks of the tensor and the expert axis, which share the experts.
        replica_group: Those that have the same of everything.
        key_value_group: The tensor ranks that share a head of keys and values, if there are fewer heads.
        sequence_parallel: Between the tensor-parallel layers, each tensor rank has its part of the tokens.

    The groups are ``None`` in a topology made without process groups; ``grid`` is DeepSpeed's
    ``PipelineParallelGrid`` (its model-parallel unit), whose groups these are, where its engine runs.
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
    ) -> Topology:
        """Spread the initialised world over axes, on every rank.

        Args:
            tensor: Ranks that share each layer.
            pipeline: Stages of each replica.
            expert: Data-parallel ranks that share the experts.
            context: Ranks that share each sample.
            sharing: Tensor ranks that share a head of keys and values.
            sequence_parallel: Tensor ranks share the tokens between the tensor-parallel layers.

        Raises:
            TrainerError: The world cannot be divided like that.
        """
        world, rank = dist.get_world_size(), dist.get_rank()
        data = replicas(world, tensor, pipeline, expert, context)
        prefer_collectives()
        sizes = {"pipeline": pipeline, "data": data, "tensor": tensor}
        # A mesh makes a group of one for each rank, all ranks waiting for each other each time.
        shared = {axis: size for axis, size in sizes.items() if size > 1}
        groups: dict[str, Any] = {}
        if shared:
            device = "cuda" if dist.get_backend() == "nccl" else "cpu"
            mesh = init_device_mesh(device, tuple(shared.values()), mesh_dim_names=tuple(shared))
            groups = {axis: mesh.get_group(axis) for axis in shared}
        if len(shared) < len(sizes):
            alone = dist.new_group([rank], use_local_synchronization=True)
            groups |= {axis: alone for axis in sizes if axis not in shared}
        groups |= {"context": None, "expert": None, "model": groups["tensor"], "replica": groups["data"]}
        if context > 1:
            ranks = torch.arange(world).view(pipeline, data // context, context, tensor)
            groups["context"] = own_group(ranks.transpose(2, 3).flatten(0, 2))
        if expert > 1:
            ranks = torch.arange(world).view(pipeline, data // expert, expert, tensor)
            groups["expert"] = own_group(ranks.transpose(2, 3).flatten(0, 2))
            groups["model"] = own_group(ranks.flatten(2).flatten(0, 1))
            groups["replica"] = own_group(ranks.permute(0, 2, 3, 1).flatten(0, 2))
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
            key_value_group=key_value_group(sharing),
            sequence_parallel=sequence_parallel,
        )

    @classmethod
    def single(cls) -> Topology:
        """One rank without process groups."""
        return cls.part()

    @classmethod
    def part(cls, *, tensor: int = 1, tensor_rank: int = 0) -> Topology:
        """One tensor rank's view without process groups, for building its layers but not running them."""
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
        """Which of the ranks that share a sample."""
        return self.data_rank % self.context

    @property
    def batch_ranks(self) -> int:
        """Groups of ranks that have samples of their own."""
        return self.data // self.context

    @property
    def batch_rank(self) -> int:
        """Which of them."""
        return self.data_rank // self.context

    @property
    def expert_rank(self) -> int:
        """Which of the ranks that share the experts."""
        return self.data_rank % self.expert

    @property
    def model(self) -> int:
        """Ranks of the tensor and the expert axis."""
        return self.expert * self.tensor

    @property
    def model_rank(self) -> int:
        """Which of them."""
        return self.expert_rank * self.tensor + self.tensor_rank

    @property
    def replicas(self) -> int:
        """Ranks that have the same of everything."""
        return self.data // self.expert

    @property
    def replica(self) -> int:
        """Which of them."""
        return self.data_rank // self.expert

    @property
    def is_last_stage(self) -> bool:
        """This rank computes the loss."""
        return self.pipeline_rank == self.pipeline - 1
