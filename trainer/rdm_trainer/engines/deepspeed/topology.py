# SPDX-License-Identifier: GPL-3.0-or-later
"""The axes of a job as DeepSpeed's grid has them, whose process groups its engines use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch.distributed as dist
from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology

from rdm_trainer.distributed.topology import Topology, prefer_collectives, quiet, replicas

__all__ = ["create_topology", "without_compiler"]


def without_compiler() -> None:
    """Keep DeepSpeed from building a shared-memory operation with a C++ compiler, which a node may lack."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


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


def create_topology(tensor: int, pipeline: int) -> Topology:
    """Spread the initialised world over axes, on every rank.

    Args:
        tensor: Ranks that share each layer.
        pipeline: Stages of each replica.

    Raises:
        TrainerError: The world cannot be divided like that.
    """
    without_compiler()
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False)
    world = dist.get_world_size()
    data = replicas(world, tensor, pipeline)
    axes = PipeModelDataParallelTopology(num_pp=pipeline, num_mp=tensor, num_dp=data)
    prefer_collectives()
    with quiet(), _groups_of_one_at_home():
        grid = PipelineParallelGrid(topology=axes)
    rank = dist.get_rank()
    place = axes.get_coord(rank)
    return Topology(
        world_size=world,
        rank=rank,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        tensor_rank=place.model,
        pipeline_rank=place.pipe,
        data_rank=place.data,
        tensor_group=grid.get_slice_parallel_group(),
        pipeline_group=grid.get_pipe_parallel_group(),
        data_group=grid.get_data_parallel_group(),
        grid=grid,
    )
