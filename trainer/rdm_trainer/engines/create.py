# SPDX-License-Identifier: GPL-3.0-or-later
"""Creation of the engine that a job configures."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch

from rdm_core.config import Config
from rdm_core.errors import TrainerError
from rdm_trainer.distributed.pipeline_parallel.pipeline import Fill
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.engine import Engine
from rdm_trainer.engines.native.engine import NativeEngine


def create_topology(config: Config) -> Topology:
    """Map the initialised world to the job's axes, with the process groups that its engine uses.

    Raises:
        TrainerError: The world size does not fit the axes, or the engine is not installed.
    """
    parallel = config.parallel
    axes = (parallel.tensor, parallel.pipeline, parallel.expert)
    sharing = config.spec.ranks_of_key_value_head(parallel.tensor)
    timeout = config.launcher.distributed_timeout
    if config.engine == "native":
        return Topology.create(
            *axes,
            parallel.context,
            sharing=sharing,
            sequence_parallel=parallel.sequence_parallel,
            timeout=timeout,
        )
    if importlib.util.find_spec("deepspeed") is None:
        raise TrainerError(
            "engine is deepspeed, but DeepSpeed is not installed here; install it, or set engine to native."
        )
    # Imported late, because the native engine needs no DeepSpeed.
    from rdm_trainer.engines.deepspeed import topology

    return topology.create_topology(*axes, sharing=sharing, timeout=timeout)


def create(
    config: Config,
    topology: Topology,
    *,
    fill: Fill | None = None,
    on_loss: Callable[[torch.Tensor], None] | None = None,
) -> Engine:
    """Create the job's engine; every rank calls this.

    Args:
        config: The job.
        topology: This rank's place, from :func:`create_topology`.
        fill: Gives each layer its weights; initial ones by default.
        on_loss: Receives the losses that this rank computes in training, before they are averaged.
    """
    if config.engine == "native":
        return NativeEngine(config, topology, fill=fill, on_loss=on_loss)
    from rdm_trainer.engines.deepspeed.engine import DeepSpeedEngine

    return DeepSpeedEngine(config, topology, fill=fill, on_loss=on_loss)
