# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed's JSON configuration of a job."""

from __future__ import annotations

from typing import Any

from rdm_core.config.schema import Config, OptimisationConfig
from rdm_core.cost import flops

# Elements of DeepSpeed's communication buffers; a small model needs smaller ones.
_BUCKET = 200_000_000
_SMALLEST_BUCKET = 1_000_000


def deepspeed_json(config: Config, world_size: int, *, clips: bool = True) -> dict[str, Any]:
    """Return DeepSpeed's configuration.

    It has no optimiser. The engine passes torch's AdamW, because DeepSpeed would compile its own for minutes,
    on the first start with each launcher. The training loop sets the learning rate.

    Args:
        config: The job, checked against this number of ranks.
        world_size: Number of ranks.
        clips: DeepSpeed clips the gradients; otherwise the engine does.
    """
    optimisation = config.optimisation
    accumulation = config.accumulation(config.data_parallel(world_size))
    settings: dict[str, Any] = {
        # DeepSpeed does not treat the ranks of the expert axis as replicas.
        "train_batch_size": optimisation.global_batch_size // config.parallel.expert,
        "train_micro_batch_size_per_gpu": optimisation.micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": optimisation.clip_grad if clips else 0.0,
        # The training loop writes the log lines and their times.
        "steps_per_print": None,
        "wall_clock_breakdown": False,
        "timers": {"throughput": {"enabled": False}},
        "zero_optimization": _zero(config),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        **_precision(optimisation),
    }
    if config.parallel.pipeline > 1:
        # Splitting the stages' messages over tensor ranks costs more in gathers than it saves in traffic.
        settings["pipeline"] = {"pipe_partitioned": False, "grad_partitioned": False}
    return settings


def _zero(config: Config) -> dict[str, Any]:
    stage = config.zero_stage
    tensor, expert = config.parallel.tensor, config.parallel.expert
    held = sum(layer.own(tensor, expert) for layer in flops.layer_sizes(config.spec))
    own = held // config.parallel.pipeline
    bucket = max(_SMALLEST_BUCKET, min(_BUCKET, own))
    settings: dict[str, Any] = {
        "stage": stage,
        "contiguous_gradients": True,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    if stage >= 2:
        settings["overlap_comm"] = True
    if config.parallel.offload_optimizer != "none":
        settings["offload_optimizer"] = {"device": config.parallel.offload_optimizer, "pin_memory": True}
    if config.parallel.offload_parameters != "none":
        settings["offload_param"] = {"device": config.parallel.offload_parameters, "pin_memory": True}
    return settings


def _precision(optimisation: OptimisationConfig) -> dict[str, Any]:
    """Return the sections for the precision; fp32 needs none."""
    if optimisation.precision == "bf16":
        return {
            # Each gradient is added to the fp32 sum at once, and its memory is freed.
            "bf16": {"enabled": True, "immediate_grad_update": True},
            # Sums over micro-batches and replicas in bf16 would lose small values.
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "fp32",
        }
    if optimisation.precision == "fp16":
        return {
            "fp16": {
                "enabled": True,
                # 0 is a dynamic scale.
                "loss_scale": optimisation.loss_scale or 0,
                "initial_scale_power": optimisation.initial_loss_scale_power,
                "loss_scale_window": optimisation.loss_scale_window,
                "hysteresis": optimisation.loss_scale_hysteresis,
                "min_loss_scale": optimisation.min_loss_scale,
            }
        }
    return {}
