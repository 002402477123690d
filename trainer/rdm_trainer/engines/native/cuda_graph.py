# SPDX-License-Identifier: GPL-3.0-or-later
"""The passes of a micro-batch as a CUDA graph: the host launches all its kernels with one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import nn

from rdm_trainer.distributed.token_counts import Batch

__all__ = ["GraphedPasses", "StaticBatch"]

# Micro-batches before the capture. Kernels are compiled and chosen, and libraries allocate, in the first one.
_WARM_UPS = 2


class StaticBatch:
    """A micro-batch at fixed addresses.

    Args:
        batch: The first one.

    Attributes:
        inputs: Like the batch's.
        labels: Like the batch's.
    """

    def __init__(self, batch: Batch) -> None:
        inputs, labels = batch
        own = tuple(map(torch.empty_like, inputs)) if isinstance(inputs, tuple) else torch.empty_like(inputs)
        self.inputs, self.labels = own, tuple(map(torch.empty_like, labels))

    def fits(self, batch: Batch) -> bool:
        """Return whether a batch has the same shapes and types."""
        own, other = (
            [(tensor.shape, tensor.dtype) for tensor in _tensors(one)]
            for one in ((self.inputs, self.labels), batch)
        )
        return own == other

    def fill(self, batch: Batch) -> None:
        """Take over the values of a batch that fits."""
        torch._foreach_copy_(_tensors((self.inputs, self.labels)), _tensors(batch))


class GraphedPasses:
    """Computes the gradients of a whole model's micro-batches, and replays that as a CUDA graph.

    A replay runs the kernels of the capture on the same addresses, and no Python code. Dropout draws the
    numbers that it would draw without a graph, because each replay advances the generator.

    Args:
        module: The model; it returns the loss of inputs and labels.
        device: The GPU.
        span: Reports the start and the end of an operation to observers.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        span: Callable[[str, str], contextlib.AbstractContextManager[None]],
    ) -> None:
        self._module, self._span = module, span
        # Of the loss of a micro-batch, whose part of the step's depends on the batch's size.
        self._gradient = torch.zeros((), device=device)
        self._total = torch.zeros((), device=device)
        # Warm-ups use the same stream: autograd adds up a weight's gradients on the stream that it first saw.
        self._stream = torch.cuda.Stream(device)
        self._batch: StaticBatch | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm_ups = 0

    def train(self, batches: Iterator[Batch], micro_batches: int) -> torch.Tensor:
        """Add the weights' gradients for the mean loss of a step's micro-batches to sums that are zero.

        Args:
            batches: Micro-batches on the device.
            micro_batches: Micro-batches of the step.

        Returns:
            float32 scalar: the mean loss.
        """
        self._gradient.fill_(1.0 / micro_batches)
        self._total.zero_()
        for _ in range(micro_batches):
            with self._span("load", "LoadMicroBatch"):
                batch = next(batches)
            if self._batch is None or not self._batch.fits(batch):
                self._batch, self._graph, self._warm_ups = StaticBatch(batch), None, 0
            self._batch.fill(batch)
            # Nothing can be observed between a graph's kernels.
            with self._span("forward", "ForwardBackwardPass"):
                self._run(self._batch)
        return self._total / micro_batches

    def _run(self, batch: StaticBatch) -> None:
        if self._graph is None:
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            if self._warm_ups < _WARM_UPS:
                self._warm_ups += 1
                with torch.cuda.stream(self._stream):
                    self._passes(batch)
                current.wait_stream(self._stream)
                return
            self._graph = torch.cuda.CUDAGraph()
            # Other threads, such as NCCL's watchdog, may call CUDA meanwhile.
            with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
                self._passes(batch)
        self._graph.replay()

    def _passes(self, batch: StaticBatch) -> None:
        loss = self._module(batch.inputs, batch.labels)
        loss.backward(self._gradient)
        self._total += loss.detach()


def _tensors(batch: Batch) -> list[torch.Tensor]:
    inputs, labels = batch
    return [*(inputs if isinstance(inputs, tuple) else (inputs,)), *labels]
