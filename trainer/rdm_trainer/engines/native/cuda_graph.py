# SPDX-License-Identifier: GPL-3.0-or-later
"""The passes of a micro-batch as a CUDA graph: the host launches all its kernels with one call."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from rdm_trainer.distributed.token_counts import Batch
from rdm_trainer.engines.engine import Observer

# Micro-batches before the capture. Kernels are compiled and chosen, and libraries allocate, in the first one.
_WARM_UPS = 2


class StaticBatch:
    """A micro-batch at fixed addresses.

    Args:
        batch: The first one.

    Attributes:
        inputs: Like the batch's.
        labels: Like the batch's.
        warm_ups: How often it was computed without a graph.
        graph: The graph of its passes, once they are captured.
    """

    def __init__(self, batch: Batch) -> None:
        inputs, labels = batch
        own = tuple(map(torch.empty_like, inputs)) if isinstance(inputs, tuple) else torch.empty_like(inputs)
        self.inputs, self.labels = own, tuple(map(torch.empty_like, labels))
        self.warm_ups = 0
        self.graph: torch.cuda.CUDAGraph | None = None

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

    A replay runs the kernels of the capture on the same addresses, those of NCCL too, and no Python code.
    Ranks that share a model capture at the same micro-batch. Dropout draws the numbers that it would draw
    without a graph, because each replay advances the generator. Micro-batches of each shape have a graph.

    Args:
        module: The model; it returns the loss of inputs and labels.
        device: The GPU.
        span: Reports the start and the end of an operation to observers.

    Attributes:
        batches: A micro-batch of each shape, with its graph.
    """

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        span: Observer,
    ) -> None:
        self._module, self._span = module, span
        # Of the loss of a micro-batch, whose part of the step's depends on the batch's size.
        self._gradient = torch.zeros((), device=device)
        self._total = torch.zeros((), device=device)
        # Warm-ups use the same stream: autograd adds up a weight's gradients on the stream that it first saw.
        self._stream = torch.cuda.Stream(device)
        self.batches: list[StaticBatch] = []
        self._pool: Any = None
        # NCCL waits for all graphs with its kernels before it closes, also when an error ends the process.
        weakref.finalize(self, _release, self.batches)

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
            own = next((one for one in self.batches if one.fits(batch)), None)
            if own is None:
                own = StaticBatch(batch)
                self.batches.append(own)
            own.fill(batch)
            # Nothing can be observed between a graph's kernels.
            with self._span("forward", "ForwardBackwardPass"):
                self._run(own)
        return self._total / micro_batches

    def _run(self, batch: StaticBatch) -> None:
        if batch.graph is None:
            current = torch.cuda.current_stream()
            self._stream.wait_stream(current)
            if batch.warm_ups < _WARM_UPS:
                batch.warm_ups += 1
                with torch.cuda.stream(self._stream):
                    self._passes(batch)
                current.wait_stream(self._stream)
                return
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as NCCL's watchdog, may call CUDA meanwhile.
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                self._passes(batch)
            # One graph runs at a time, and leaves nothing in its memory that is read later.
            batch.graph, self._pool = graph, graph.pool()
        batch.graph.replay()

    def _passes(self, batch: StaticBatch) -> None:
        loss = self._module(batch.inputs, batch.labels)
        loss.backward(self._gradient)
        self._total += loss.detach()


def _release(batches: list[StaticBatch]) -> None:
    for batch in batches:
        batch.graph = None


def _tensors(batch: Batch) -> list[torch.Tensor]:
    inputs, labels = batch
    return [*(inputs if isinstance(inputs, tuple) else (inputs,)), *labels]
