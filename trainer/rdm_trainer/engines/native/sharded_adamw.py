# SPDX-License-Identifier: GPL-3.0-or-later
"""AdamW with its states sharded over the replicas: ZeRO 1 with fp32 weights and gradients.

Weights are stored contiguously in buckets, which backward passes fill from the last layer to the first. In a
step's last backward pass, each full bucket is reduced while the pass continues. Every replica gets the sum
of its own part and updates that part of the weights in fp32. Then the replicas gather all parts while the
next forward pass begins; it waits for each bucket where it first needs it.

Source: Rajbhandari et al., "ZeRO" (2020), stage 1.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rdm_core.config import Config
from rdm_trainer.checkpoint.fragments import STATES, Fragment
from rdm_trainer.distributed.gradient_sum import Accumulator, GradientSum
from rdm_trainer.distributed.parameters import shard_spec_of
from rdm_trainer.distributed.pipeline_parallel.pipeline import FlatModel
from rdm_trainer.distributed.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.engine import DTYPES, adamw

# Elements of a bucket: 128 MiB of fp32 gradients keep a link busy and leave little to reduce at the end.
_BUCKET = 1 << 25
# Elements: kernels expect a weight to begin at a multiple of 128 bytes.
_ALIGNMENT = 64


class _Bucket:
    """Some weights, their summed gradients, and this replica's part of both.

    Args:
        weights: Names and weights, in the order in which their gradients arrive.
        topology: This rank's place.
    """

    def __init__(self, weights: Sequence[tuple[str, nn.Parameter]], topology: Topology) -> None:
        self.weights = list(weights)
        first = weights[0][1]
        self.spans: dict[nn.Parameter, slice] = {}
        size = 0
        for _, weight in weights:
            self.spans[weight] = slice(size, size + weight.numel())
            size += -(-weight.numel() // _ALIGNMENT) * _ALIGNMENT
        if shard_spec_of(first).experts:
            # Ranks of the expert axis have different experts.
            parts, part, group = topology.replicas, topology.replica, topology.replica_group
        else:
            parts, part, group = topology.data, topology.data_rank, topology.data_group
        self.group = group if parts > 1 else None
        size = -(-size // (parts * _ALIGNMENT)) * parts * _ALIGNMENT
        self.values = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros(size, dtype=torch.float32, device=first.device)
        for weight, span in self.spans.items():
            self.values[span].copy_(weight.data.flatten())
            weight.data = self.values[span].view(weight.shape)
        own = size // parts
        self.own = slice(own * part, own * (part + 1))
        self.own_values, self.own_gradients = self.values[self.own], self.gradients[self.own]
        # fp32 weights are their own master copy.
        is_fp32 = first.dtype == torch.float32
        self.master = self.own_values.detach() if is_fp32 else self.own_values.float()
        self.decays = shard_spec_of(first).decays
        # Number of gradients from a step's last backward passes that complete the bucket.
        self.uses = 0
        self.clear()

    def clear(self) -> None:
        """Reset the bucket at the start of a step."""
        self.complete = 0
        self.work: Any = None
        self.sum: torch.Tensor | None = None

    def overlap(self, weight: nn.Parameter) -> tuple[int, int]:
        """Return the start and the end of this replica's part of a weight, as positions in the bucket."""
        span = self.spans[weight]
        return max(span.start, self.own.start), min(span.stop, self.own.stop)


class ShardedAdamW:
    """The optimiser of one rank.

    Args:
        config: The job.
        module: This rank's stage; its weights are moved into the buckets.
        topology: This rank's place.
        device: Where it computes.
        shared: Weights shared with other stages: names → the ranks of all these stages in order.
    """

    def __init__(
        self,
        config: Config,
        module: FlatModel,
        topology: Topology,
        device: torch.device,
        shared: Mapping[str, Sequence[int]],
    ) -> None:
        self._topology, self._device, self._shared = topology, device, shared
        self._accumulator = Accumulator(compiled=config.optimisation.compile)
        self._clip = config.optimisation.clip_grad
        self._reduce_dtype = DTYPES[config.parallel.reduce_dtype]
        self.buckets = [_Bucket(weights, topology) for weights in _divided(module, shared)]
        self._bucket_of = {weight: bucket for bucket in self.buckets for weight in bucket.spans}
        for weight, count in module.uses().items():
            self._bucket_of[weight].uses += count
        self.optimiser = adamw(
            config,
            [
                {"params": [bucket.master for bucket in self.buckets if bucket.decays]},
                {
                    "params": [bucket.master for bucket in self.buckets if not bucket.decays],
                    "weight_decay": 0.0,
                },
            ],
            device,
        )
        for bucket in self.buckets:
            # Create all states now, so that a checkpoint can be loaded before the first step.
            self.optimiser.state[bucket.master] = {
                "step": torch.zeros((), device=device),
                **{state: torch.zeros_like(bucket.master) for state in STATES[1:]},
            }
        self._counted = list(self._pieces(self.is_counted))
        # With sequence parallelism, a tensor rank computes these gradients from its own tokens only.
        self._partial = list(
            self._pieces(lambda _, weight: shard_spec_of(weight).dimension is None)
            if topology.sequence_parallel
            else ()
        )
        self._reducing, self._next = False, 0
        self._gathering: dict[_Bucket, Any] = {}
        self._hooks = [weight.register_post_accumulate_grad_hook(self._take) for weight in self._bucket_of]
        self._sums: list[GradientSum] = []
        for layer in module.modules():
            kinds = (ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding)
            # A product in fp8 does not add to a sum.
            if isinstance(layer, kinds) and getattr(layer, "float8", None) is None:
                layer.gradient_sum = self._sum_of(layer.weight)

    def close(self) -> None:
        """Release the weights: hooks keep them in a reference cycle that Python's collector cannot see."""
        for hook in self._hooks:
            hook.remove()
        for one in self._sums:
            one.close()

    # Gradients.

    def begin(self) -> None:
        """Begin the sums of a step."""
        for bucket in self.buckets:
            bucket.clear()
        torch._foreach_zero_([bucket.gradients for bucket in self.buckets])
        self._reducing, self._next = False, 0

    def expect_backward(self, is_last: bool) -> None:
        """Set whether the next backward pass is its chunk's last of the step; if so, it reduces buckets."""
        self._reducing = is_last

    @torch.no_grad()
    def _take(self, weight: torch.Tensor) -> None:
        assert isinstance(weight, nn.Parameter)
        if weight.grad is None:
            # The backward pass adds to the sum, and its token says so. Not all versions of PyTorch call this.
            return
        bucket = self._bucket_of[weight]
        total = bucket.gradients[bucket.spans[weight]].view(weight.shape)
        self._accumulator.add(total, weight.grad)
        weight.grad = None
        self._added(weight)

    def _sum_of(self, weight: nn.Parameter) -> GradientSum:
        """Return the sum to which backward passes add a weight's gradient; :meth:`begin` zeroes it."""
        bucket = self._bucket_of[weight]
        total = bucket.gradients[bucket.spans[weight]].view(weight.shape)
        self._sums.append(GradientSum(total, functools.partial(self._added, weight)))
        return self._sums[-1]

    @torch.no_grad()
    def _added(self, weight: nn.Parameter) -> None:
        """Note that a weight's gradient has been added, and reduce the buckets that this completes."""
        if self._reducing:
            self._bucket_of[weight].complete += 1
            # All replicas reduce in the same order, whichever bucket is complete first.
            while self._next < len(self.buckets) and self._is_complete(self.buckets[self._next]):
                self._reduce(self.buckets[self._next])
                if self._next and self._reduce_dtype != torch.float32:
                    # One copy is in transit while the next one is made; more would take memory.
                    self._finish(self.buckets[self._next - 1])
                self._next += 1

    @staticmethod
    def _is_complete(bucket: _Bucket) -> bool:
        return bucket.complete == bucket.uses

    def _reduce(self, bucket: _Bucket) -> None:
        """Begin to sum a bucket over the replicas; the step divides the sum.

        An expert's gradient already includes the parts of all ranks of the expert axis.
        """
        group = bucket.group
        if group is None:
            return
        self._accumulator.flush()
        sent = bucket.gradients.to(self._reduce_dtype)
        bucket.sum = sent[bucket.own]
        if dist.get_backend(group) == "gloo":
            bucket.work = dist.all_reduce(sent, group=group, async_op=True)
        else:
            bucket.work = dist.reduce_scatter_tensor(bucket.sum, sent, group=group, async_op=True)

    @staticmethod
    def _finish(bucket: _Bucket) -> None:
        """Wait for a bucket's sum, and release its copy in another type."""
        if bucket.sum is not None:
            bucket.work.wait()
            if bucket.sum.dtype != torch.float32:
                bucket.own_gradients.copy_(bucket.sum)
            bucket.work = bucket.sum = None

    @torch.no_grad()
    def reduce(self) -> None:
        """Finish the sums over replicas, over tensor ranks, and over the stages that share weights."""
        # Gathers for layers that no forward pass used.
        while self._gathering:
            self._gathering.popitem()[1].wait()
        for bucket in self.buckets[self._next :]:
            self._reduce(bucket)
        self._next = len(self.buckets)
        for bucket in self.buckets:
            self._finish(bucket)
        self._sum_over_tensor_ranks()
        for bucket in self.buckets:
            ranks = self._shared.get(bucket.weights[0][0])
            if ranks is not None:
                self._sum_over_stages(bucket.own_gradients, ranks)

    def _sum_over_tensor_ranks(self) -> None:
        """Sum the gradients that tensor ranks computed from their own tokens, in one message."""
        if self._partial:
            total = torch.cat(self._partial)
            dist.all_reduce(total, group=self._topology.tensor_group)
            torch._foreach_copy_(self._partial, total.split([len(piece) for piece in self._partial]))

    def _sum_over_stages(self, gradient: torch.Tensor, ranks: Sequence[int]) -> None:
        """Sum the gradients of shared weights over stages, in the same order on all of them."""
        rank, group = self._topology.rank, self._topology.pipeline_group
        parts = {other: gradient if other == rank else torch.empty_like(gradient) for other in ranks}
        operations = []
        for other in ranks:
            if other != rank:
                operations += [
                    dist.P2POp(dist.isend, gradient, other, group),
                    dist.P2POp(dist.irecv, parts[other], other, group),
                ]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        gradient.copy_(sum((parts[other] for other in ranks[1:]), parts[ranks[0]]))

    def _pieces(self, chosen: Callable[[str, nn.Parameter], bool]) -> Iterator[torch.Tensor]:
        """Yield views of this replica's gradients of some weights."""
        for bucket in self.buckets:
            for name, weight in bucket.weights:
                low, high = bucket.overlap(weight)
                if low < high and chosen(name, weight):
                    yield bucket.gradients[low:high]

    def is_counted(self, name: str, weight: nn.Parameter) -> bool:
        """Return whether this rank counts a weight; one stage and one tensor rank per replica does."""
        if name in self._shared and self._shared[name][0] != self._topology.rank:
            return False
        return self._topology.tensor_rank == 0 or shard_spec_of(weight).dimension is not None

    # The step.

    @torch.no_grad()
    def step(self, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Update the weights with the sums of :meth:`reduce`.

        The device skips a step whose norm is not finite.

        Args:
            loss: This rank's contribution to the step's loss; all ranks' contributions add up to the sum over
                the replicas.

        Returns:
            The mean loss and the norm of the mean gradient before clipping, on the device.
        """
        totals = torch.zeros(2, device=self._device)
        if self._counted:
            totals[0] = torch.stack(torch._foreach_norm(self._counted)).square().sum()
        totals[1] = loss
        if self._topology.world_size > 1:
            dist.all_reduce(totals)
        replicas = float(self._topology.data)
        norm, mean_loss = totals[0].sqrt() / replicas, totals[1] / replicas
        divisor = torch.full((), replicas, device=self._device)
        if self._clip:
            divisor = divisor * ((norm + 1e-6) / self._clip).clamp_min(1.0)
        # The fused AdamW supports both for loss scaling.
        optimiser: Any = self.optimiser
        optimiser.grad_scale, optimiser.found_inf = divisor, 1.0 - norm.isfinite().float()
        for bucket in self.buckets:
            bucket.master.grad = bucket.own_gradients
        self.optimiser.step()
        self.publish()
        return mean_loss, norm

    @torch.no_grad()
    def publish(self) -> None:
        """Begin to update the weights from the replicas' fp32 parts; see :meth:`wait_for`."""
        # In the order in which a forward pass needs them.
        for bucket in reversed(self.buckets):
            if bucket.values.dtype != torch.float32:
                bucket.own_values.copy_(bucket.master)
            if bucket.group is not None:
                self._gathering[bucket] = dist.all_gather_into_tensor(
                    bucket.values, bucket.own_values, group=bucket.group, async_op=True
                )

    def wait_for(self, layer: nn.Module) -> None:
        """Make later computation wait for the gathered weights of a layer."""
        if self._gathering:
            for weight in layer.parameters():
                work = self._gathering.pop(self._bucket_of[weight], None)
                if work is not None:
                    work.wait()

    def fragments(self) -> Iterator[Fragment]:
        """Yield this replica's fragment of each weight."""
        for bucket in self.buckets:
            moments = self.optimiser.state[bucket.master]
            values = {"fp32": bucket.master, **{state: moments[state] for state in STATES[1:]}}
            for name, weight in bucket.weights:
                low, high = bucket.overlap(weight)
                if low < high:
                    begin, own = bucket.spans[weight].start, bucket.own.start
                    yield Fragment(
                        name,
                        weight,
                        low - begin,
                        high - begin,
                        {state: value[low - own : high - own] for state, value in values.items()},
                    )

    @property
    def steps(self) -> torch.Tensor:
        """Number of updates of the weights, float32 scalar on the device."""
        step: torch.Tensor = self.optimiser.state[self.buckets[0].master]["step"]
        return step

    @steps.setter
    def steps(self, count: float) -> None:
        for state in self.optimiser.state.values():
            state["step"].fill_(count)


def _divided(module: nn.Module, shared: Mapping[str, Sequence[int]]) -> list[list[tuple[str, nn.Parameter]]]:
    """Return the weights of each bucket, in the order in which a backward pass completes the buckets.

    Weights with and without decay have separate buckets, for the optimiser's groups. So have experts, because
    they have fewer replicas. Weights shared between stages have their own buckets, equal on all these stages.
    """
    # The last bucket of a kind is the one being filled.
    buckets: dict[Any, list[list[tuple[str, nn.Parameter]]]] = {}
    completed: dict[str, int] = {}
    for position, (name, weight) in enumerate(reversed(list(module.named_parameters()))):
        shard_spec = shard_spec_of(weight)
        kind = name if name in shared else (shard_spec.decays, shard_spec.experts)
        of_kind = buckets.setdefault(kind, [[]])
        if of_kind[-1] and sum(one.numel() for _, one in of_kind[-1]) + weight.numel() > _BUCKET:
            of_kind.append([])
        of_kind[-1].append((name, weight))
        completed[name] = position
    found = [bucket for of_kind in buckets.values() for bucket in of_kind]
    return sorted(found, key=lambda bucket: completed[bucket[-1][0]])
