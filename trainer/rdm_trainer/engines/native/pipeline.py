# SPDX-License-Identifier: GPL-3.0-or-later
"""A stage of a pipeline: its passes, and its messages to and from its neighbours.

:mod:`rdm_core.pipeline_schedule` has the order of the passes. A pass receives its input just before it
begins, because on a GPU a waiting receive takes multiprocessors from compute. Sends overlap with the next
passes. Within a step, no pass waits for a send that has not arrived, so stages wait for each other only where
the order of the passes requires it.

``torch.distributed.pipelining`` was tried first; docs/engines.md has the results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rdm_core.pipeline_schedule import Pass, forwards, passes, received_before
from rdm_trainer.distributed.token_counts import Batch
from rdm_trainer.distributed.topology import Topology, own_group
from rdm_trainer.engines.engine import Observer

Tensors = tuple[torch.Tensor, ...]
Shapes = list[tuple[torch.Size, torch.dtype]]


class Stage:
    """Runs this rank's layers for the micro-batches of a step. Without a pipeline, it is the only stage.

    All ranks create their stages together.

    Args:
        module: This rank's layers; it takes inputs, labels, a chunk and whether replicas exchange weights or
            gradients meanwhile, and the last chunk of the last stage returns the loss.
        topology: This rank's place.
        device: Where it computes.
        micro_batches: Micro-batches of a step.
        chunks: Chunks of layers on each stage.
        eager: Additional forward passes of the warm-up, for each later stage.
        span: Reports the start and the end of an operation to observers.
    """

    def __init__(
        self,
        module: nn.Module,
        topology: Topology,
        device: torch.device,
        micro_batches: int,
        chunks: int,
        eager: int,
        span: Observer,
    ) -> None:
        self._module, self._device = module, device
        self.micro_batches, self._chunks, self._eager, self._span = micro_batches, chunks, eager, span
        self._stage, self._stages = topology.pipeline_rank, topology.pipeline
        self._channels = _channels(topology, device, chunks)
        # Shapes of a chunk's inputs and of the gradients that it receives, known from its first micro-batch.
        self._incoming: dict[int, Shapes] = {}
        self._outgoing: dict[int, Shapes] = {}

    def train(self, batches: Iterator[Batch], expect_backward: Callable[[bool], None]) -> torch.Tensor:
        """Compute the weights' gradients for the mean loss of a step's micro-batches.

        Args:
            batches: Micro-batches on the device; only the first and the last stage read them.
            expect_backward: Called before each backward pass with whether it is its chunk's last of the step.

        Returns:
            float32 scalar: the mean loss on the last stage, 0 on the others.
        """
        held: dict[tuple[int, int], tuple[Tensors, Any]] = {}
        total = torch.zeros((), device=self._device)
        order = self._stages, self._chunks, self.micro_batches, self._eager
        # A message of a neighbour proves that it has received those that were sent to it before.
        arrived = {
            is_forward: iter(received_before((self._stage + step) % self._stages, is_forward, *order))
            for is_forward, step in ((True, -1), (False, 1))
        }
        for one in passes(self._stage, *order):
            received = self._receive(one)
            if received:
                self._channels[not one.is_forward, True].release(next(arrived[one.is_forward]))
            key = one.chunk, one.micro_batch
            if one.is_forward:
                for tensor in received:
                    if tensor.is_floating_point():
                        tensor.requires_grad_()
                # Replicas gather weights in the first passes, and reduce gradients in the last ones.
                in_sync = one.micro_batch in (0, self.micro_batches - 1)
                outputs = self._forward(one, received, batches, in_sync=in_sync)
                held[key] = received, outputs
                if self._is_end(one):
                    total += outputs.detach()
                continue
            inputs, outputs = held.pop(key)
            expect_backward(one.micro_batch == self.micro_batches - 1)
            with self._span("backward", self._named("BackwardPass", one)):
                if self._is_end(one):
                    (outputs / self.micro_batches).backward()
                else:
                    torch.autograd.backward(_states(outputs), received)
            gradients = [
                torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.contiguous()
                for tensor in inputs
                if tensor.is_floating_point()
            ]
            self._send(one, gradients)
        self._finish()
        return total / self.micro_batches

    def evaluate(self, batches: Iterator[Batch], *, in_sync: bool = False) -> torch.Tensor:
        """Return the mean loss of a step's micro-batches on the last stage, and 0 on the others.

        Args:
            batches: Micro-batches on the device; only the first and the last stage read them.
            in_sync: Compute as where replicas exchange weights or gradients.
        """
        total = torch.zeros((), device=self._device)
        for one in forwards(self._stages, self._chunks, self.micro_batches):
            outputs = self._forward(one, self._receive(one), batches, in_sync=in_sync)
            if self._is_end(one):
                total += outputs
        self._finish()
        return total / self.micro_batches

    def _forward(self, one: Pass, received: Tensors, batches: Iterator[Batch], *, in_sync: bool) -> Any:
        labels = None
        inputs: Any = received if len(received) > 1 else received[0] if received else None
        is_begin, is_end = self._is_begin(one), self._is_end(one)
        if is_begin or is_end:
            with self._span("load", "LoadMicroBatch"):
                read, labels = next(batches)
            if is_begin:
                inputs = read
        with self._span("forward", self._named("ForwardPass", one)):
            outputs = self._module(inputs, labels if is_end else None, one.chunk, in_sync=in_sync)
        if not is_end:
            sent = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
            if one.chunk not in self._outgoing:
                self._outgoing[one.chunk] = _shapes(_states(outputs))
                self._channels[True, True].announce(_shapes(sent), self._device)
            self._send(one, [tensor.detach().contiguous() for tensor in sent])
        return outputs

    def _is_begin(self, one: Pass) -> bool:
        """Whether a pass is through the model's first layers."""
        return self._stage == one.chunk == 0

    def _is_end(self, one: Pass) -> bool:
        """Whether a pass is through the model's last layers."""
        return self._stage == self._stages - 1 and one.chunk == self._chunks - 1

    def _named(self, name: str, one: Pass) -> str:
        return f"{name} {one.chunk}" if self._chunks > 1 else name

    # The neighbours.

    def _receive(self, one: Pass) -> Tensors:
        """Return a pass's input from a neighbour; empty if the input is data or the stage's own loss."""
        is_own = self._is_begin(one) if one.is_forward else self._is_end(one)
        if is_own:
            return ()
        channel = self._channels[one.is_forward, False]
        with self._span("receive", self._named("RecvActivation" if one.is_forward else "RecvGrad", one)):
            if one.is_forward and one.chunk not in self._incoming:
                self._incoming[one.chunk] = channel.announced(self._device)
            shapes = (self._incoming if one.is_forward else self._outgoing)[one.chunk]
            room = tuple(torch.empty(shape, dtype=dtype, device=self._device) for shape, dtype in shapes)
            channel.receive(room)
        return room

    def _send(self, one: Pass, tensors: list[torch.Tensor]) -> None:
        is_own = self._is_end(one) if one.is_forward else self._is_begin(one)
        if not is_own:
            with self._span("send", self._named("SendActivation" if one.is_forward else "SendGrad", one)):
                self._channels[one.is_forward, True].send(tensors)

    def _finish(self) -> None:
        for channel in self._channels.values():
            channel.finish()


class _Channel:
    """Messages of one kind from one rank to another; they arrive in the order of sending.

    It has its own process group. On a GPU, an operation that waits in a group's stream blocks all later ones:
    a send waits for its receiver, which may first wait for a message in the other direction.

    Args:
        group: The process group of the two ranks.
        peer: The other rank.
    """

    def __init__(self, group: Any, peer: int) -> None:
        self._group, self._peer = group, peer
        self._sent: deque[tuple[list[dist.Work], list[torch.Tensor]]] = deque()
        # Messages of a step that were released.
        self._released = 0

    def send(self, tensors: list[torch.Tensor]) -> None:
        """Begin to send tensors, and keep them until they have arrived."""
        while self._sent and all(work.is_completed() for work in self._sent[0][0]):
            self._release()
        self._sent.append((self._begin(dist.isend, tensors), tensors))

    def release(self, count: int) -> None:
        """Release the first messages of a step, which have arrived.

        On a GPU, the host may be many passes ahead, and does not see that they have.
        """
        while self._released < count:
            self._release()

    def _release(self) -> None:
        for work in self._sent.popleft()[0]:
            work.wait()
        self._released += 1

    def receive(self, room: Tensors) -> None:
        """Wait for a message; on a GPU, later kernels wait for it."""
        for work in self._begin(dist.irecv, room):
            work.wait()

    def _begin(self, operation: Any, tensors: Sequence[torch.Tensor]) -> list[dist.Work]:
        works: list[dist.Work] = dist.batch_isend_irecv(
            [dist.P2POp(operation, tensor, self._peer, self._group) for tensor in tensors]
        )
        return works

    def announce(self, shapes: Shapes, device: torch.device) -> None:
        """Send the shapes of all messages of a chunk."""
        dist.send_object_list([shapes], self._peer, group=self._group, device=device)

    def announced(self, device: torch.device) -> Shapes:
        """Wait for the shapes of a chunk's messages."""
        what: list[Any] = [None]
        dist.recv_object_list(what, self._peer, group=self._group, device=device)
        shapes: Shapes = what[0]
        return shapes

    def finish(self) -> None:
        """Wait until all messages are sent."""
        while self._sent:
            self._release()
        self._released = 0


def _channels(topology: Topology, device: torch.device, chunks: int) -> dict[tuple[bool, bool], _Channel]:
    """Return this stage's channels, keyed by (carries activations, not gradients; this stage sends).

    With several chunks, the first stage follows the last one.
    """
    stage, stages = topology.pipeline_rank, topology.pipeline
    found: dict[tuple[bool, bool], _Channel] = {}
    if stages == 1:
        return found
    # Ranks count pipeline stages last.
    ranks = torch.arange(topology.world_size).view(stages, -1)
    own = ranks[:, topology.rank % ranks.shape[1]].tolist()
    borders = range(stages if chunks > 1 else stages - 1)
    # Borders that share no stage take the same turn. In an odd ring, the last border has its own turn.
    of_turn = {border: 2 if border == stages - 1 and stages % 2 else border % 2 for border in borders}
    for turn in sorted(set(of_turn.values())):
        these = [border for border in borders if of_turn[border] == turn]
        pairs = torch.cat([torch.stack((ranks[one], ranks[(one + 1) % stages]), dim=1) for one in these])
        border = next((one for one in these if stage in (one, (one + 1) % stages)), None)
        for activations in (True, False):
            group = own_group(pairs.sort(dim=1).values, topology.timeout)
            if border is None:
                continue
            ends = own[border], own[(border + 1) % stages]
            sends = activations == (stage == border)
            channel = _Channel(group, ends[stage == border])
            found[activations, sends] = channel
            # NCCL connects two ranks at their first message, and both wait for the connection.
            one = torch.zeros(1, device=device)
            if sends:
                channel.send([one])
                channel.finish()
            else:
                channel.receive((one,))
    return found


def _states(outputs: Any) -> list[torch.Tensor]:
    """Return the outputs of a chunk that have a gradient; tokens have none."""
    tensors = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
    return [tensor for tensor in tensors if tensor.is_floating_point()]


def _shapes(tensors: Sequence[torch.Tensor]) -> Shapes:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]
