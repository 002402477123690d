# SPDX-License-Identifier: GPL-3.0-or-later
"""The axes of a job in DeepSpeed's grid; its engines use the process groups of this grid.

The expert axis is part of DeepSpeed's model-parallel axis, together with the tensor axis. So DeepSpeed's
replicas (of gradients, optimiser states, files) are ranks with the same experts, and its own Mixture of
Experts is not needed. The engine averages the gradients of all other parameters over the expert axis.
"""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator, set_accelerator
from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator
from deepspeed.runtime.pipe.topology import PipelineParallelGrid, PipeModelDataParallelTopology

from rdm_trainer.distributed.topology import (
    Topology,
    key_value_group,
    own_group,
    prefer_collectives,
    quiet,
    replicas,
)


class _CpuWithoutCompiler(CPU_Accelerator):
    def create_op_builder(self, class_name: str) -> Any:
        return None if class_name == "ShareMemCommBuilder" else super().create_op_builder(class_name)


def without_compiler() -> None:
    """Stop DeepSpeed from building its CPUs' shared-memory operation, because a node may lack a compiler."""
    if type(get_accelerator()) is CPU_Accelerator:
        set_accelerator(_CpuWithoutCompiler())


@contextlib.contextmanager
def _grid_groups(timeout: datetime.timedelta | None) -> Iterator[None]:
    """Let DeepSpeed create groups with a timeout of their operations, for which it has no option.

    Only its own rank creates a group of one; otherwise all ranks would synchronise for each group.
    """
    make = dist.new_group

    def new_group(ranks: Any = None, **options: Any) -> Any:
        options = {"timeout": timeout, **options}
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


def create_topology(
    tensor: int,
    pipeline: int,
    expert: int = 1,
    *,
    sharing: int = 1,
    timeout: datetime.timedelta | None = None,
) -> Topology:
    """Map the initialised world to axes; every rank calls this.

    Args:
        tensor: Ranks that share each layer.
        pipeline: Stages of each replica.
        expert: Data-parallel ranks that share the experts.
        sharing: Tensor ranks that share a key-value head.
        timeout: The timeout of an operation of the groups.

    Raises:
        TrainerError: The world size does not fit the axes.
    """
    without_compiler()
    if not deepspeed.comm.is_initialized():
        deepspeed.init_distributed(dist_backend=dist.get_backend(), auto_mpi_discovery=False)
    world = dist.get_world_size()
    data = replicas(world, tensor, pipeline, expert)
    axes = PipeModelDataParallelTopology(num_pp=pipeline, num_mp=expert * tensor, num_dp=data // expert)
    prefer_collectives()
    with quiet(), _grid_groups(timeout):
        grid = PipelineParallelGrid(topology=axes)
    shared, alike = grid.get_slice_parallel_group(), grid.get_data_parallel_group()
    tensors, samples, experts = shared, alike, None
    if expert > 1:
        ranks = torch.arange(world).view(pipeline, data, tensor)
        samples = own_group(ranks.transpose(1, 2).flatten(0, 1), timeout)
        ranks = ranks.view(pipeline, data // expert, expert, tensor)
        tensors = own_group(ranks.flatten(0, 2), timeout)
        experts = own_group(ranks.transpose(2, 3).flatten(0, 2), timeout)
    rank = dist.get_rank()
    place = axes.get_coord(rank)
    return Topology(
        world_size=world,
        rank=rank,
        tensor=tensor,
        pipeline=pipeline,
        data=data,
        tensor_rank=place.model % tensor,
        pipeline_rank=place.pipe,
        data_rank=place.data * expert + place.model // tensor,
        expert=expert,
        tensor_group=tensors,
        pipeline_group=grid.get_pipe_parallel_group(),
        data_group=samples,
        expert_group=experts,
        model_group=shared,
        replica_group=alike,
        key_value_group=key_value_group(sharing, timeout),
        timeout=timeout,
        grid=grid,
    )
