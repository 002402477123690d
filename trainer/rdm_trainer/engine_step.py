# SPDX-License-Identifier: GPL-3.0-or-later
"""How :mod:`rdm_trainer.engines` take a step, for the planner. No torch.

Change this file whenever an engine changes what it sends, when it sends it, or what computing hides it.
"""

from __future__ import annotations

from rdm_core.config.schema import Config
from rdm_planner.engine_step import EngineStep


def engine_step(config: Config) -> EngineStep:
    """Return how a job's engine takes a step: DeepSpeed's, as we configure it, or the native one.

    DeepSpeed's pipeline engine waits for every send and receive. The native one waits for receives only,
    which are half of them (:mod:`rdm_trainer.engines.native.pipeline`). ZeRO 1 reduces after the last
    micro-batch, in fp32 unless weights are fp16. ZeRO 2 and 3 reduce every micro-batch's gradients during its
    backward pass (``overlap_comm``); 3 gathers the weights for each forward and each backward pass, and
    prefetches them. The native engine reduces during the last micro-batch's backward pass, in
    ``parallel.reduce_dtype``, and gathers the weights during the next step's first forward pass. These two
    micro-batches join no blocks in a graph, so that communication waits for single blocks only.

    Both wait for the rows of tokens that a block's experts exchange (:mod:`rdm_trainer.models.moe`). The
    native engine reduces the gradients of weights that are no expert's over all replicas. For DeepSpeed they
    are averaged over the expert axis, in fp32, in each backward pass, which waits for that.

    The ranks of the context axis gather keys and values in each forward pass of a block, and sum their
    gradients in the backward pass (:mod:`rdm_trainer.distributed.context_parallel`). A GPT's first call of
    the attention kernel overlaps with both, but copying and merging the blocks then takes about as long as
    that saves: on two H200 a step takes as long as if nothing overlapped (docs/training-performance.md).
    """
    precision, zero = config.optimisation.precision, config.zero_stage
    is_native = config.engine == "native"
    gradient = 2 if precision == "fp16" else 4
    width = 4 if precision == "fp32" else 2
    reduced = 2 if config.parallel.reduce_dtype == "bf16" else gradient
    return EngineStep(
        hidden_sends=0.5 if is_native else 0.0,
        gradient_bytes=reduced,
        reduces_each_micro_batch=zero >= 2,
        shards_optimiser=zero >= 1,
        hidden_reduction=1.0 if zero >= 2 or is_native else 0.0,
        weight_bytes=width,
        gathers_each_micro_batch=2 if zero >= 3 else 0,
        hidden_gathers=1.0 if zero >= 3 or is_native else 0.0,
        tied_bytes=gradient,
        exchange_bytes=width,
        mean_bytes=0 if is_native else 4,
    )
