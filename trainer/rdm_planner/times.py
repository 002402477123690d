# SPDX-License-Identifier: GPL-3.0-or-later
"""The times that a step is made of: published figures, or what was measured on the user's cluster.

Seconds, bits and GiB. A GPU is named as in :class:`rdm_planner.nodes.NodeKind`, a layer as the model's
configuration names its kind (``Embedding``, ``Block``, ``EncoderBlock``, ``Head``…).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from rdm_planner.nodes import NodeKind

__all__ = ["LayerWork", "Link", "PublishedPeaks", "Times"]


@dataclass(frozen=True)
class Link:
    """What moving data takes: ``latency + bits / bandwidth``.

    Args:
        latency: Of one message, or of one collective, seconds.
        bandwidth: Bit/s. Within a node it is one GPU's, between nodes one node's, which the GPUs that send at
            once share. Of an all-reduce it is the bus bandwidth, as nccl-tests count it: n ranks move
            ``2 (n - 1) / n`` of their data; a reduce-scatter or an all-gather half of that.
    """

    latency: float
    bandwidth: float

    def seconds(self, bits: float) -> float:
        """Return the time of moving some data.

        Args:
            bits: How much.
        """
        return self.latency + bits / self.bandwidth


class Times(Protocol):
    """What one model's layers take on each GPU, and what the links between them do."""

    @property
    def is_measured(self) -> bool:
        """They were measured, and are not a guess."""
        ...

    def tensors(self, gpu: str) -> Collection[int] | None:
        """Return the tensor degrees whose times are known; None if those of any are.

        Args:
            gpu: Its name.
        """
        ...

    def forward(self, gpu: str, kind: str, micro_batch: int, tensor: int) -> float:
        """Return the seconds of one layer's forward pass, with the sums of its tensor parallelism.

        Args:
            gpu: Its name.
            kind: The layer's kind.
            micro_batch: Samples.
            tensor: Tensor degree.
        """
        ...

    def backward(self, gpu: str, kind: str, micro_batch: int, tensor: int, *, checkpointed: bool) -> float:
        """Return the seconds of one layer's backward pass, with the sums of its tensor parallelism.

        Args:
            gpu: Its name.
            kind: The layer's kind.
            micro_batch: Samples.
            tensor: Tensor degree.
            checkpointed: It computes the forward pass again first.
        """
        ...

    def optimiser(self, gpu: str) -> float:
        """Return the seconds of the optimiser's step for each parameter that a rank updates.

        Args:
            gpu: Its name.
        """
        ...

    def point_to_point(self, here: str, there: str, *, across: bool) -> Link:
        """Return the link from one GPU to another.

        Args:
            here: The sender.
            there: The receiver.
            across: They are in different nodes.
        """
        ...

    def all_reduce(self, gpus: Collection[str], *, across: bool) -> Link:
        """Return the link of an all-reduce over GPUs of these kinds.

        Args:
            gpus: Their kinds.
            across: They are in different nodes.
        """
        ...

    def memory_gib(self, gpu: str) -> float:
        """Return the memory of a device that a program can use, in GiB.

        Args:
            gpu: Its name.
        """
        ...


@dataclass(frozen=True)
class LayerWork:
    """What one layer does for one sample.

    Args:
        flops: Of a forward pass.
        summed_bits: What its tensor-parallel ranks sum in a forward pass; in a backward pass as much.
        head_bits: What ranks that share a head of keys and values gather, and in a backward pass sum.
        key_value_heads: There are so many of these.
    """

    flops: float
    summed_bits: float = 0.0
    head_bits: float = 0.0
    key_value_heads: int = 1

    def sent_bits(self, tensor: int) -> float:
        """Return what each of so many tensor ranks sends in a pass, in rings."""
        sharing = max(1, tensor // self.key_value_heads)
        return 2 * (tensor - 1) / tensor * self.summed_bits + (sharing - 1) / sharing * self.head_bits


@dataclass(frozen=True)
class PublishedPeaks:
    """A guess: FLOPs over a share of the published peak, bits over the published bandwidth, no latency.

    A backward pass takes twice a forward; the optimiser's step is bound by memory and counts as nothing.

    Args:
        work: What a layer of each kind does.
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

    def forward(self, gpu: str, kind: str, micro_batch: int, tensor: int) -> float:
        """See :class:`Times`."""
        work = self.work[kind]
        seconds = micro_batch * work.flops / (self._rate(gpu) * tensor)
        return seconds + micro_batch * work.sent_bits(tensor) / self.nodes[gpu].intra

    def backward(self, gpu: str, kind: str, micro_batch: int, tensor: int, *, checkpointed: bool) -> float:
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
