# SPDX-License-Identifier: GPL-3.0-or-later
"""The times that make up a step: from published figures, or measured on the user's cluster.

Units are seconds, bits and GiB. GPUs are named as in :class:`rdm_planner.nodes.NodeKind`. Layers have the
names of their kinds in the model's configuration (``Embedding``, ``Block``, ``EncoderBlock``, ``Head``…).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from rdm_planner.nodes import NodeKind


@dataclass(frozen=True)
class Link:
    """A link; moving data takes ``latency + bits / bandwidth``.

    Args:
        latency: Seconds per message or collective.
        bandwidth: Bit/s. Within a node it is one GPU's; between nodes it is one node's, shared by the GPUs
            that send at the same time. For an all-reduce it is the bus bandwidth as in nccl-tests: n ranks
            move ``2 (n - 1) / n`` of their data; a reduce-scatter or an all-gather moves half of that.
    """

    latency: float
    bandwidth: float

    def seconds(self, bits: float) -> float:
        """Return the time to move some data."""
        return self.latency + bits / self.bandwidth


class Times(Protocol):
    """The times of one model's layers on each GPU, and of the links between GPUs."""

    @property
    def is_measured(self) -> bool:
        """Whether the times were measured rather than estimated."""
        ...

    def tensors(self, gpu: str) -> Collection[int] | None:
        """Return the tensor degrees with known times; None if the times of any degree are known."""
        ...

    def forward(self, gpu: str, kind: str, micro_batch: float, tensor: int) -> float:
        """Return the seconds of one layer's forward pass, including its tensor-parallel communication.

        Args:
            gpu: The device's name.
            kind: The layer's kind.
            micro_batch: Samples; context ranks have a fraction of each.
            tensor: Tensor degree.
        """
        ...

    def backward(self, gpu: str, kind: str, micro_batch: float, tensor: int, *, checkpointed: bool) -> float:
        """Return the seconds of one layer's backward pass, including its tensor-parallel communication.

        Args:
            gpu: The device's name.
            kind: The layer's kind.
            micro_batch: Samples; context ranks have a fraction of each.
            tensor: Tensor degree.
            checkpointed: It first recomputes the forward pass.
        """
        ...

    def optimiser(self, gpu: str) -> float:
        """Return the seconds of the optimiser's step for each parameter that a rank updates."""
        ...

    def point_to_point(self, here: str, there: str, *, across: bool) -> Link:
        """Return the link from one GPU to another."""
        ...

    def all_reduce(self, gpus: Collection[str], *, across: bool) -> Link:
        """Return the link of an all-reduce over GPUs of these kinds."""
        ...

    def memory_gib(self, gpu: str) -> float:
        """Return the memory of a device that a program can use, in GiB."""
        ...


@dataclass(frozen=True)
class LayerWork:
    """The work of one layer for one sample.

    Args:
        flops: FLOPs of a forward pass.
        summed_bits: Bits that its tensor-parallel ranks sum in a forward pass; a backward pass sums as many.
        head_bits: Bits that ranks sharing a key-value head gather; a backward pass sums them.
        key_value_heads: Number of key-value heads.
    """

    flops: float
    summed_bits: float = 0.0
    head_bits: float = 0.0
    key_value_heads: int = 1

    def sent_bits(self, tensor: int) -> float:
        """Return the bits that each tensor rank sends in a pass, using rings."""
        sharing = max(1, tensor // self.key_value_heads)
        return 2 * (tensor - 1) / tensor * self.summed_bits + (sharing - 1) / sharing * self.head_bits


@dataclass(frozen=True)
class PublishedPeaks:
    """An estimate: FLOPs over a share of the published peak, bits over the published bandwidth, no latency.

    A backward pass takes twice as long as a forward pass. The optimiser's step is memory-bound and counts as
    zero.

    Args:
        work: The work of each kind of layer.
        nodes: A node with each GPU, by its name.
        peaks: Dense peak of each GPU by its name, TFLOP/s.
        efficiency: The share of the peak that layers reach, from 0 to 1.
    """

    work: Mapping[str, LayerWork]
    nodes: Mapping[str, NodeKind]
    peaks: Mapping[str, float]
    efficiency: float

    @property
    def is_measured(self) -> bool:
        """See :class:`Times`."""
        return False

    def tensors(self, gpu: str) -> None:  # noqa: ARG002
        """See :class:`Times`."""
        return

    def forward(self, gpu: str, kind: str, micro_batch: float, tensor: int) -> float:
        """See :class:`Times`."""
        work = self.work[kind]
        seconds = micro_batch * work.flops / (self._rate(gpu) * tensor)
        return seconds + micro_batch * work.sent_bits(tensor) / self.nodes[gpu].intra

    def backward(self, gpu: str, kind: str, micro_batch: float, tensor: int, *, checkpointed: bool) -> float:
        """See :class:`Times`."""
        work = self.work[kind]
        seconds = 2 * micro_batch * work.flops / (self._rate(gpu) * tensor)
        once = seconds + micro_batch * work.sent_bits(tensor) / self.nodes[gpu].intra
        return once + self.forward(gpu, kind, micro_batch, tensor) if checkpointed else once

    def optimiser(self, gpu: str) -> float:  # noqa: ARG002
        """See :class:`Times`."""
        return 0.0

    def point_to_point(self, here: str, there: str, *, across: bool) -> Link:
        """See :class:`Times`."""
        if across:
            return Link(0.0, self.nodes[here].link(self.nodes[there]))
        return Link(0.0, self.nodes[here].intra)

    def all_reduce(self, gpus: Collection[str], *, across: bool) -> Link:
        """See :class:`Times`."""
        return Link(0.0, min(self.nodes[gpu].inter if across else self.nodes[gpu].intra for gpu in gpus))

    def memory_gib(self, gpu: str) -> float:
        """See :class:`Times`."""
        return self.nodes[gpu].memory_gib

    def _rate(self, gpu: str) -> float:
        return self.peaks[gpu] * 1e12 * self.efficiency * self.nodes[gpu].speed
