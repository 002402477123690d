# SPDX-License-Identifier: GPL-3.0-or-later
"""A faster step for bf16 weights with fp32 copies.

DeepSpeed's ``BF16_Optimizer`` passes over the fp32 gradients seven times per step and waits for the device
twice. This optimiser keeps its data (flat weights, copies, gradients) and shortens the path of a gradient:
the matrix products of layers add to the sums, small gradients are added together, a replica gets the sum of
only its own part, and the fused AdamW applies the clipping factor as its divisor for loss scales. The device
skips a step whose norm is not finite, without a synchronisation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from torch import nn

from rdm_trainer.distributed.gradient_sum import Accumulator, GradientSum
from rdm_trainer.distributed.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from rdm_trainer.distributed.topology import Topology


class DistributedOptimizer(BF16_Optimizer):
    """DeepSpeed's bf16 optimiser after ``adopt``."""

    topology: Topology
    pieces: list[torch.Tensor]
    accumulator: Accumulator
    sums: list[GradientSum]
    fp32_groups_has_gradients: list[list[bool]]  # untyped in DeepSpeed

    @classmethod
    def adopt(
        cls,
        engine: Any,
        topology: Topology,
        counts: Callable[[nn.Parameter], bool],
        *,
        compiled: bool = False,
    ) -> None:
        """Convert the engine's ``BF16_Optimizer`` to this class before its first step.

        Args:
            engine: DeepSpeed's engine, just initialised.
            topology: This rank's place.
            counts: Returns whether this rank counts a parameter's gradient in the global norm.
            compiled: Sum the gradients of micro-batches with compiled kernels.
        """
        optimiser = engine.optimizer
        assert type(optimiser) is BF16_Optimizer
        # DeepSpeed creates the object deep inside its initialisation, so it can only be changed afterwards.
        optimiser.__class__ = cls
        optimiser.topology = topology
        optimiser.accumulator = Accumulator(compiled=compiled)
        optimiser.pieces = optimiser._counted_pieces(counts)
        # Ranks that share the experts average each gradient by a hook, which a sum does not call.
        optimiser.sums = list(optimiser._take_sums(engine.module)) if topology.expert == 1 else []

    def _counted_pieces(self, counts: Callable[[nn.Parameter], bool]) -> list[torch.Tensor]:
        """Return views of this replica's part of the gradients that this rank counts."""
        pieces = []
        for weights, gradients, part in zip(
            self.bf16_groups,
            self.fp32_groups_gradients_flat,
            self.fp32_groups_gradient_flat_partition,
            strict=True,
        ):
            begin = part.storage_offset() - gradients.storage_offset()
            spans: list[list[int]] = []
            offset = 0
            for weight in weights:
                low = max(offset, begin)
                offset += weight.numel()
                high = min(offset, begin + part.numel())
                if low >= high or not counts(weight):
                    continue
                if spans and spans[-1][1] == low:
                    spans[-1][1] = high
                else:
                    spans.append([low, high])
            pieces += [gradients[low:high] for low, high in spans]
        return pieces

    def _take_sums(self, module: nn.Module) -> Iterator[GradientSum]:
        """Let the backward passes of layers add to the sums of their weights' gradients; yield these sums."""
        places = {
            weight: (group, number)
            for group, weights in enumerate(self.bf16_groups)
            for number, weight in enumerate(weights)
        }
        for layer in module.modules():
            if isinstance(layer, ColumnParallelLinear | RowParallelLinear | VocabParallelEmbedding):
                weight: Any = layer.weight
                group, number = places[weight]
                total = self.fp32_groups_gradients[group][number]
                # The pipeline's engine sums it over the stages that share the weight.
                weight._hp_grad = total
                layer.gradient_sum = GradientSum(
                    total.view(weight.shape), functools.partial(self._note, group, number)
                )
                yield layer.gradient_sum

    def _note(self, group: int, number: int) -> None:
        """Note that a weight's gradient is in its sum."""
        self.fp32_groups_has_gradients[group][number] = True

    @torch.no_grad()
    def _update_hp_grad(self, lp: Any, group_idx: int, param_idx: int, clear_lp_grads: bool) -> None:
        # A backward pass calls this, and releases the gradient.
        assert not clear_lp_grads
        if lp.grad is None:
            return
        total = self.fp32_groups_gradients[group_idx][param_idx]
        self._note(group_idx, param_idx)
        self.accumulator.add(total, lp.grad.view(total.shape))
        lp._hp_grad = total

    @torch.no_grad()
    def sum_over_replicas(self) -> None:
        """Sum the gradients over the replicas; the step divides them."""
        group = self.topology.replica_group
        if self.topology.replicas == 1:
            return
        scatters = dist.get_backend(group) == "nccl"
        for gradients, part in zip(
            self.fp32_groups_gradients_flat, self.fp32_groups_gradient_flat_partition, strict=True
        ):
            if scatters:
                dist.reduce_scatter_tensor(part, gradients, group=group)
            else:
                dist.all_reduce(gradients, group=group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        """Take a step with the sums of ``sum_over_replicas``."""
        device = self.fp32_groups_flat_partition[0].device
        squares = torch.zeros((), device=device)
        for piece in self.pieces:
            squares += torch.linalg.vector_norm(piece).square()
        if self.topology.world_size > 1:
            dist.all_reduce(squares)
        replicas = float(self.topology.replicas)
        norm = squares.sqrt() / replicas
        self._global_grad_norm = norm
        self.overflow = False
        divisor = torch.full((), replicas, device=device)
        if self.clip_grad > 0.0:
            divisor = divisor * ((norm + 1e-6) / self.clip_grad).clamp_min(1.0)
        self.optimizer.grad_scale = divisor
        self.optimizer.found_inf = 1.0 - norm.isfinite().float()
        for weights, gradient in zip(
            self.fp32_groups_flat_partition, self.fp32_groups_gradient_flat_partition, strict=True
        ):
            weights.grad = gradient
        self.optimizer.step()
        self.update_lp_params()
        self.clear_hp_grads()

    def clear_hp_grads(self) -> None:
        """Reset the sums."""
        # DeepSpeed also calls this after the step, which has done it.
        if any(map(any, self.fp32_groups_has_gradients)):
            super().clear_hp_grads()

    def destroy(self) -> None:
        """Release the weights."""
        for one in self.sums:
            one.close()
        super().destroy()
