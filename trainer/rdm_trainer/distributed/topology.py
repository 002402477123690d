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

from rdm_core.errors import TrainerError

__all__ = ["Topology", "quiet"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what DeepSpeed prints while it sets itself up out of the log, which other tools parse."""
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


@contextlib.contextmanager
def _groups_of_one_at_home() -> Iterator[None]:
    """Let only its rank make a group of one. All ranks would wait for each other, once for each rank."""
    make = dist.new_group

    def new_group(ranks: Any = None, **options: Any) -> Any:
        if ranks is None or len(ranks) > 1:
            return make(ranks, **options)
        if dist.get_rank() not in ranks:
            return dist.GroupMember.NON_GROUP_MEMBER
        return make(ranks, **options, use_local_synchronization=True)

    dist.new_group = new_group  # type: ignore[assignment]
    try:
        yield
    finally:
        dist.new_group = make


@dataclass(frozen=True)
class Topology:
    """This rank's place. Ranks count tensor first, then data, then pipeline, as DeepSpeed's grid does.

    The groups are ``None`` in a topology made without process groups; ``grid`` is DeepSpeed's
    ``PipelineParallelGrid`` (its model-parallel unit), whose groups these are.
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
        import deepspeed
        from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology

        # DeepSpeed would build a shared-memory operation with a C++ compiler, which a node need not have.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        if not deepspeed.comm.is_initialized():
            deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False)

        world = dist.get_world_size()
        if world % (tensor * pipeline):
            raise TrainerError(
                f"A world of {world} cannot be divided into replicas of parallel.tensor {tensor} times "
                f"parallel.pipeline {pipeline}; start a multiple of {tensor * pipeline} processes."
            )
        axes = PipeModelDataParallelTopology(
            num_pp=pipeline, num_mp=tensor, num_dp=world // (tensor * pipeline)
        )
        # Sums over tensor ranks go on beside the matrix products, which would otherwise leave them no
        # multiprocessor until they are done.
        os.environ.setdefault("TORCH_NCCL_HIGH_PRIORITY", "1")
        with quiet(), _groups_of_one_at_home():
            grid = PipelineParallelGrid(topology=axes)
        rank = dist.get_rank()
        place = axes.get_coord(rank)
        return cls(
            world_size=world,
            rank=rank,
            tensor=tensor,
            pipeline=pipeline,
            data=world // (tensor * pipeline),
            tensor_rank=place.model,
            pipeline_rank=place.pipe,
            data_rank=place.data,
            tensor_group=grid.get_slice_parallel_group(),
            pipeline_group=grid.get_pipe_parallel_group(),
            data_group=grid.get_data_parallel_group(),
            grid=grid,
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
