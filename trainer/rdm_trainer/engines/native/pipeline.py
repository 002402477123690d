# SPDX-License-Identifier: GPL-3.0-or-later
"""A stage of a pipeline: what it does in which order, and what it exchanges with its neighbours.

Source: Narayanan et al., "PipeDream-2BW" (2021), and Megatron-LM's 1F1B: after a few forward passes each
stage does one forward and one backward pass in turns, so that it holds no more micro-batches than there are
stages.

``torch.distributed.pipelining`` was tried first; docs/engines.md says what it showed.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rdm_trainer.distributed.token_counts import Batch
from rdm_trainer.distributed.topology import Topology

__all__ = ["Stage"]

Span = Callable[[str, str], contextlib.AbstractContextManager[None]]
Tensors = tuple[torch.Tensor, ...]


class Stage:
    """Runs this rank's layers for the micro-batches of a step. Without a pipeline, it is the only stage.

    Args:
        module: This rank's layers; the last stage's returns the loss.
        topology: This rank's place.
        device: Where it computes.
        micro_batches: Of a step.
        span: Shows those who watch that something begins, and that it ends.
    """

    def __init__(
        self, module: nn.Module, topology: Topology, device: torch.device, micro_batches: int, span: Span
    ) -> None:
        self._module, self._topology, self._device = module, topology, device
        self.micro_batches, self._span = micro_batches, span
        stage, stages = topology.pipeline_rank, topology.pipeline
        group = topology.pipeline_group
        self._before = dist.get_global_rank(group, stage - 1) if stage else None
        self._after = dist.get_global_rank(group, stage + 1) if stage + 1 < stages else None
        self._stages_after = stages - stage - 1
        # Shapes and types of what comes from the stage before; the first micro-batch brings them.
        self._incoming: list[tuple[torch.Size, torch.dtype]] | None = None
        self._announced = False

    def train(self, batches: Iterator[Batch], before_last_backward: Callable[[], None]) -> torch.Tensor:
        """Let the weights' gradients be those of the mean loss of a step's micro-batches.

        Args:
            batches: On the device; only the first and the last stage read them.
            before_last_backward: Called before the backward pass of the last micro-batch.

        Returns:
            float32 scalar: the mean loss where this is the last stage, else 0.
        """
        held: deque[tuple[Tensors, Any]] = deque()
        warm_up = min(self._stages_after, self.micro_batches)
        total = torch.zeros((), device=self._device)
        received = self._receive()
        for number in range(self.micro_batches):
            inputs, outputs = self._forward(received, batches)
            if self._after is None:
                total += outputs.detach()
            held.append((inputs, outputs))
            is_last = number == self.micro_batches - 1
            if number < warm_up:
                self._exchange(self._forward_sends(outputs), [])
                received = () if is_last else self._receive()
                continue
            gradients = self._exchange(self._forward_sends(outputs), self._backward_receives(held[0][1]))
            self._backward(held, gradients, before_last_backward if is_last and not warm_up else None)
            received = self._send_back(receives=not is_last)
        for number in range(warm_up):
            gradients = self._exchange([], self._backward_receives(held[0][1]))
            is_last = number == warm_up - 1
            self._backward(held, gradients, before_last_backward if is_last else None)
            self._send_back(receives=False)
        return total / self.micro_batches

    def evaluate(self, batches: Iterator[Batch]) -> torch.Tensor:
        """Return the mean loss of a step's micro-batches where this is the last stage, else 0."""
        total = torch.zeros((), device=self._device)
        for _ in range(self.micro_batches):
            _, outputs = self._forward(self._receive(), batches)
            if self._after is None:
                total += outputs
            self._exchange(self._forward_sends(outputs), [])
        return total / self.micro_batches

    # A micro-batch.

    def _forward(self, received: Tensors, batches: Iterator[Batch]) -> tuple[Tensors, Any]:
        labels = None
        inputs: Any = received if len(received) > 1 else received[0] if received else None
        if self._before is None or self._after is None:
            with self._span("load", "LoadMicroBatch"):
                read, labels = next(batches)
            if self._before is None:
                inputs = read
        with self._span("forward", "ForwardPass"):
            return received, self._module(inputs, labels if self._after is None else None)

    def _backward(
        self,
        held: deque[tuple[Tensors, Any]],
        gradients: list[torch.Tensor],
        before_last: Callable[[], None] | None,
    ) -> None:
        self._received, outputs = held.popleft()
        if before_last is not None:
            before_last()
        with self._span("backward", "BackwardPass"):
            if self._after is None:
                (outputs / self.micro_batches).backward()
            else:
                torch.autograd.backward(_states(outputs), gradients)

    # The neighbours.

    def _forward_sends(self, outputs: Any) -> list[tuple[torch.Tensor, int]]:
        if self._after is None:
            return []
        sent = _tensors(outputs)
        if not self._announced:
            what = [(tensor.shape, tensor.dtype) for tensor in sent]
            dist.send_object_list(
                [what], self._after, group=self._topology.pipeline_group, device=self._device
            )
            self._announced = True
        return [(tensor.detach().contiguous(), self._after) for tensor in sent]

    def _empty(self) -> Tensors:
        """Return room for what the stage before sends."""
        if self._before is None:
            return ()
        if self._incoming is None:
            what: list[Any] = [None]
            dist.recv_object_list(
                what, self._before, group=self._topology.pipeline_group, device=self._device
            )
            self._incoming = what[0]
        assert self._incoming is not None
        return tuple(torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in self._incoming)

    def _receive(self) -> Tensors:
        room = self._empty()
        assert self._before is not None or not room
        self._exchange([], [(tensor, self._before) for tensor in room if self._before is not None])
        return self._tracked(room)

    @staticmethod
    def _tracked(room: Tensors) -> Tensors:
        for tensor in room:
            if tensor.is_floating_point() and torch.is_grad_enabled():
                tensor.requires_grad_()
        return room

    def _backward_receives(self, outputs: Any) -> list[tuple[torch.Tensor, int]]:
        if self._after is None:
            return []
        return [(torch.empty_like(state), self._after) for state in _states(outputs)]

    def _send_back(self, *, receives: bool) -> Tensors:
        """Send the gradients of what the stage before sent, and maybe receive its next micro-batch."""
        if self._before is None:
            return ()
        gradients = [
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.contiguous()
            for tensor in self._received
            if tensor.is_floating_point()
        ]
        self._received = ()
        room = self._empty() if receives else ()
        before = self._before
        self._exchange([(gradient, before) for gradient in gradients], [(tensor, before) for tensor in room])
        return self._tracked(room)

    def _exchange(
        self, sends: list[tuple[torch.Tensor, int]], receives: list[tuple[torch.Tensor, int]]
    ) -> list[torch.Tensor]:
        """Send and receive at once, so that no two neighbours wait for each other; return what came."""
        group = self._topology.pipeline_group
        operations = [dist.P2POp(dist.isend, tensor, rank, group) for tensor, rank in sends]
        operations += [dist.P2POp(dist.irecv, tensor, rank, group) for tensor, rank in receives]
        if operations:
            with contextlib.ExitStack() as stack:
                for kind, messages in (("send", sends), ("receive", receives)):
                    if messages:
                        is_forward = (messages[0][1] == self._after) == (kind == "send")
                        what = "Activation" if is_forward else "Grad"
                        name = "Send" if kind == "send" else "Recv"
                        stack.enter_context(self._span(kind, name + what))
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
        return [tensor for tensor, _ in receives]


def _tensors(outputs: Any) -> Tensors:
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def _states(outputs: Any) -> list[torch.Tensor]:
    """Return what has a gradient of a stage's outputs: tokens travel along, too."""
    return [tensor for tensor in _tensors(outputs) if tensor.is_floating_point()]
