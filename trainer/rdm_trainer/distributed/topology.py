# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rank holds which part: the tensor, pipeline and data axes and their process groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from rdm_core.errors import TrainerError

__all__ = ["Topology", "prefer_collectives", "quiet", "replicas"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what DeepSpeed prints while it sets itself up out of the log, which other tools parse."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def replicas(world: int, tensor: int, pipeline: int) -> int:
    """Return how many replicas of a model a world has.

    Raises:
        TrainerError: The world cannot be divided like that.
    """
    if world % (tensor * pipeline):
        raise TrainerError(
            f"A world of {world} cannot be divided into replicas of parallel.tensor {tensor} times "
            f"parallel.pipeline {pipeline}; start a multiple of {tensor * pipeline} processes."
        )
    return world // (tensor * pipeline)


def prefer_collectives() -> None:
    """Let NCCL's sums go on beside matrix products, which would else leave them no multiprocessor."""
    os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")


@dataclass(frozen=True)
class Topology:
    """This rank's place. Ranks count tensor first, then data, then pipeline, as DeepSpeed's grid does.

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
    tensor_group: Any = None
    pipeline_group: Any = None
    data_group: Any = None
    grid: Any = None

    @classmethod
    def create(cls, tensor: int, pipeline: int) -> Topology:
        """Spread the initialised world over axes, on every rank.

        Args:
            tensor: Ranks that share each layer.
            pipeline: Stages of each replica.

        Raises:
            TrainerError: The world cannot be divided like that.
        """
        world, rank = dist.get_world_size(), dist.get_rank()
        data = replicas(world, tensor, pipeline)
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
        return cls(
            world_size=world,
            rank=rank,
            tensor=tensor,
            pipeline=pipeline,
            data=data,
            tensor_rank=rank % tensor,
            pipeline_rank=rank // (tensor * data),
            data_rank=rank // tensor % data,
            tensor_group=groups["tensor"],
            pipeline_group=groups["pipeline"],
            data_group=groups["data"],
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
    def is_first_stage(self) -> bool:
        """This rank has the embedding."""
        return self.pipeline_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """This rank computes the loss."""
        return self.pipeline_rank == self.pipeline - 1
