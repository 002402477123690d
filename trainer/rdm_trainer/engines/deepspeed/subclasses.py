# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed's engines and an optimiser, with methods overridden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import deepspeed
import torch
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from rdm_trainer.engines.deepspeed.distributed_optimizer import DistributedOptimizer
from rdm_trainer.engines.engine import Observer

_INSTRUCTIONS = {
    schedule.LoadMicroBatch: "load",
    schedule.ForwardPass: "forward",
    schedule.BackwardPass: "backward",
    schedule.SendActivation: "send",
    schedule.SendGrad: "send",
    schedule.RecvActivation: "receive",
    schedule.RecvGrad: "receive",
    schedule.ReduceGrads: "reduce",
    schedule.ReduceTiedGrads: "reduce",
    schedule.OptimizerStep: "optimiser",
}
"""The pipeline's instructions → kinds of ``rdm_log.timeline``."""


def adopt(engine: Any, span: Observer) -> None:
    """Convert an engine to its subclass here, and its optimiser if it offloads its states with ZeRO 1 or 2.

    ``deepspeed.initialize`` creates only its own classes.

    Args:
        engine: DeepSpeed's engine, just initialised.
        span: Returns the context of an instruction of a pipeline, given its kind and its name.
    """
    if isinstance(engine, PipelineEngine):
        engine.__class__ = _Stage
        engine.span = span
    else:
        engine.__class__ = _Whole
    if type(engine.optimizer) is DeepSpeedZeroOptimizer and engine.optimizer.cpu_offload:
        engine.optimizer.__class__ = _Offloaded


class _Offloaded(DeepSpeedZeroOptimizer):
    """ZeRO 1 and 2 with optimiser states in the host's memory."""

    def reset_cpu_buffers(self) -> None:
        """Reset what a step leaves, also one that is skipped because of gradients that are not finite.

        DeepSpeed would keep bf16's fp32 sums of such a step, add the next gradients to them, and so skip all
        later steps, too.
        """
        super().reset_cpu_buffers()
        for group in self.averaged_gradients:
            self.averaged_gradients[group] = None


class _Common:
    def buffered_allreduce_fallback(self, *arguments: Any, **options: Any) -> None:
        optimiser = self.optimizer  # type: ignore[attr-defined]
        if isinstance(optimiser, DistributedOptimizer):
            optimiser.sum_over_replicas()
        else:
            super().buffered_allreduce_fallback(*arguments, **options)  # type: ignore[misc]


class _Whole(_Common, deepspeed.DeepSpeedEngine):
    """All layers on each rank."""


def _in_span(instruction: type, execute: Callable[..., None]) -> Callable[..., None]:
    kind, name = _INSTRUCTIONS.get(instruction, "other"), instruction.__name__

    def executed(engine: _Stage, *arguments: Any, **options: Any) -> None:
        with engine.span(kind, name):
            execute(engine, *arguments, **options)

    return executed


class _Stage(_Common, PipelineEngine):
    """A stage of a pipeline."""

    span: Observer
    # The gradients that the next stage has sent.
    grad_layer: Any

    def _exec_backward_pass(self, buffer_id: int) -> None:
        """Run a stage's backward pass once, even if its output is several tensors.

        DeepSpeed would run it once for each of them: a T5's stage with the end of the encoder and the
        beginning of the decoder would run its encoder blocks twice.
        """
        outputs = self.pipe_buffers["outputs"][buffer_id]
        received = self.grad_layer
        if not self.is_last_stage() and isinstance(outputs, tuple) and len(received) > 1:
            states = [output for output in outputs if output.is_floating_point()]
            # The derivatives of these sums are the received gradients.
            joint = torch.stack(
                [(state * gradient).sum() for state, gradient in zip(states, received, strict=True)]
            )
            self.pipe_buffers["outputs"][buffer_id] = joint
            self.grad_layer = torch.ones_like(joint)
        super()._exec_backward_pass(buffer_id)
        # Its buffers are reused for the next gradients.
        self.grad_layer = received

    # The schedule finds functions here, not by the methods' names.
    _INSTRUCTION_MAP: ClassVar[dict[type, Callable[..., None]]] = {
        instruction: _in_span(instruction, execute)
        for instruction, execute in (
            PipelineEngine._INSTRUCTION_MAP | {schedule.BackwardPass: _exec_backward_pass}
        ).items()
    }
