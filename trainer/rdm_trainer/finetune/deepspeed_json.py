# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed's JSON for a fine-tuning."""

from __future__ import annotations

from typing import Any

from rdm_core.config.finetune import FinetuneConfig

_SMALLEST_BUCKET = 1_000_000


def deepspeed_json(
    config: FinetuneConfig, parameters: int, *, each_node_saves: bool = False
) -> dict[str, Any] | None:
    """Return DeepSpeed's configuration; None if torch's own data parallelism does the work.

    The learning rate and the optimiser are not in it: a scheduler here would override transformers' cosine,
    and DeepSpeed would compile its own optimisers on the first start.

    Args:
        config: The fine-tuning.
        parameters: Number of the model's weights.
        each_node_saves: The nodes share no file system.
    """
    zero = config.zero
    if zero.stage == 0:
        return None
    # DeepSpeed allocates buffers of this many elements.
    bucket = max(_SMALLEST_BUCKET, min(zero.bucket_size, parameters))
    stage: dict[str, Any] = {
        "stage": zero.stage,
        "contiguous_gradients": True,
        "overlap_comm": zero.overlap_comm,
        "reduce_scatter": True,
        "reduce_bucket_size": bucket,
    }
    if zero.offload_optimizer != "none":
        stage["offload_optimizer"] = {"device": zero.offload_optimizer, "pin_memory": True}
    if zero.stage == 3:
        stage["stage3_gather_16bit_weights_on_model_save"] = True
        if zero.offload_parameters != "none":
            stage["offload_param"] = {"device": zero.offload_parameters, "pin_memory": True}
    else:
        stage |= {"allgather_partitions": True, "allgather_bucket_size": bucket}
    return {
        # transformers replaces "auto" with its own settings.
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": stage,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31 - 1,
        "wall_clock_breakdown": False,
        "checkpoint": {"use_node_local_storage": each_node_saves},
    }
