# SPDX-License-Identifier: GPL-3.0-or-later
"""A list of layers as a model: whole on one stage, or cut into the stages of a pipeline.

Parameters have the same names in both forms (``3.self_attention.qkv_proj.weight``,
``tied_modules.embed.weight``), so that each form reads the checkpoints of the other.
"""

from __future__ import annotations

import collections
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from rdm_core.config import Config
from rdm_core.errors import TrainerError
from rdm_core.partition import is_block
from rdm_trainer.distributed.parameters import initialise
from rdm_trainer.distributed.tensor_parallel.halves import parts_of, whole_of
from rdm_trainer.distributed.topology import Topology

Labels = tuple[torch.Tensor, ...]
Fill = Callable[[nn.Module, str], None]
"""Fills a layer's weights, given the layer and the prefix of their names in the whole model."""


@dataclass(frozen=True)
class Layer:
    """One layer of a model that may not be built here.

    Attributes:
        kind: Its name in partitions; a transformer block's name ends with ``Block``.
        make: Creates the module.
        tied: Layers with the same key share one module.
        joined: It stays with the layer before it, and partitions do not count it.
    """

    kind: str
    make: Callable[[], nn.Module]
    tied: str | None = None
    joined: bool = False

    def prefix(self, index: int) -> str:
        """Return the prefix of the parameters' names in the whole model."""
        return f"tied_modules.{self.tied}." if self.tied else f"{index}."


def bounds(config: Config, layers: Sequence[Layer]) -> list[int]:
    """Return where each virtual stage begins in the layers, and where the last one ends.

    The last norm stays with the head. Every stage must have parameters with and without weight decay, so that
    all stages' optimisers have the same groups, because they sum the norms group by group.
    """
    places = [index for index, layer in enumerate(layers) if not layer.joined]
    found = [[*places, len(layers)][bound] for bound in config.stage_bounds()]
    if found[-2] == len(layers) - 1:
        found[-2] -= 1
    if len(set(found)) < len(found):
        raise TrainerError(
            f"parallel.partition {config.parallel.partition} leaves a stage of {config.parallel.pipeline} "
            "nothing but the last norm; take fewer stages."
        )
    return found


# Options that overlap compiled blocks' compute with their all-reduces over tensor ranks. These begin early
# and end late. In the other order of the passes, the gradients of all weights would be computed at a graph's
# end, and only its last all-reduce would overlap with them. The halves of a batch share the norms' weights.
# Such small shared tensors must not fuse the kernels of both halves, or each half would wait for both sums.
# Inductor lets each collective depend on the one before it in the code, in graphs of one block as of several,
# so that ranks begin them in the same order although context ranks have different graphs.
_OVERLAP: dict[str, Any] = {
    "reorder_for_compute_comm_overlap": True,
    "reorder_for_compute_comm_overlap_passes": ["raise_comms", "sink_waits"],
    "score_fusion_memory_threshold": 1 << 20,
}


def _cache_autograd_functions() -> None:
    """Let PyTorch's cache of compiled graphs also keep those with autograd functions, as all blocks have.

    The functions' traced code is part of the graphs, and so of the cache's keys.
    """
    from torch._functorch import config as functorch

    functorch.autograd_cache_allow_custom_autograd_functions = True


def _compiler(budget: float, options: dict[str, Any] | None) -> Callable[..., Any]:
    """Return a backend like ``inductor`` whose backward passes compute again what exceeds a budget.

    The budget is no option of ``torch.compile``, which compiles when a block is first called. PyTorch's cache
    distinguishes the budgets that hold while it compiles.

    Args:
        budget: As in ``parallel.activation_memory_budget``.
        options: Inductor's.
    """
    import torch._inductor
    from torch._functorch import config as functorch

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        with functorch.patch(activation_memory_budget=budget):
            return torch._inductor.compile(graph, inputs, options=options)

    return compile_graph


# Blocks in one graph: where one ends and the next one begins, a kernel for both reads and writes the states
# once. More blocks take longer to compile. They gain little with one tensor rank; with several, the last sum
# of each graph overlaps with nothing.
_JOINED = 4
_JOINED_WITH_TENSOR_RANKS = 8


def _joined_blocks(config: Config, topology: Topology) -> int:
    # Experts break a graph. A memory budget holds for each block. ZeRO 2 reduces gradients in every backward
    # pass, and ZeRO 3 gathers weights for each block.
    is_alone = (
        config.spec.experts
        or config.parallel.activation_memory_budget < 1
        or config.zero_stage == 3
        or (config.zero_stage == 2 and topology.data > 1)
    )
    if is_alone or not config.optimisation.compile:
        return 1
    return _JOINED_WITH_TENSOR_RANKS if topology.tensor > 1 else _JOINED


class Maker:
    """Creates initialised layers on their device, one at a time, so that host memory holds only one."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        dtype: torch.dtype,
        shard: Callable[[nn.Module], object] | None = None,
        fill: Fill | None = None,
    ) -> None:
        self._shard = shard
        self._fill = fill or functools.partial(initialise, seed=config.optimisation.seed)
        self._compile = config.optimisation.compile
        if self._compile:
            _cache_autograd_functions()
        options = _OVERLAP if config.parallel.tensor > 1 else None
        budget = config.parallel.activation_memory_budget
        # All blocks share one backend, or each would be compiled.
        self._options: dict[str, Any] = (
            {"options": options} if budget == 1 else {"backend": _compiler(budget, options)}
        )
        self._device, self._dtype = device, dtype

    def __call__(self, layer: Layer, index: int) -> nn.Module:
        """Create the layer with an index, which is part of its weights' names."""
        module = layer.make()
        self._fill(module, layer.prefix(index))
        for weight in module.parameters():
            weight.data = weight.data.to(self._device, self._dtype)
        if self._shard is not None:
            self._shard(module)
        if self._compile and is_block(layer.kind):
            module.compile(dynamic=False, **self._options)
        elif self._compile and layer.kind.endswith("Norm"):
            # PyTorch's own norm takes longer.
            module.compile(dynamic=False)
        return module


def _chain(functions: Sequence[Callable[[Any], Any]], states: Any) -> Any:
    for function in functions:
        states = function(states)
    return states


def _detached(states: Any) -> Any:
    return tuple(one.detach() for one in states) if isinstance(states, tuple) else states.detach()


def _chain_of_parts(functions: Sequence[Callable[[Any], Any]], states: Any) -> Any:
    """Apply blocks of tensor ranks, whose last sums end in the next block."""
    own, *others = states if isinstance(states, tuple) else (states,)
    parts = parts_of(own)
    states = _chain(functions, (parts, *others) if others else parts)
    own, *others = states if isinstance(states, tuple) else (states,)
    return (whole_of(own), *others) if others else whole_of(own)


@functools.cache
def _compiled_chain(tensor_parallel: bool) -> Callable[[Sequence[Callable[[Any], Any]], Any], Any]:
    import torch._dynamo

    # Each kind, number and shape of blocks is compiled, for training and for evaluation.
    torch._dynamo.config.recompile_limit = 64
    if tensor_parallel:
        return torch.compile(_chain_of_parts, dynamic=False, options=_OVERLAP)
    return torch.compile(_chain, dynamic=False)


@dataclass(frozen=True)
class BlockGroups:
    """How successive blocks are computed together.

    Attributes:
        joined: Number of blocks in one compiled graph.
        joined_in_sync: The same where replicas gather weights or reduce gradients during the passes.
        interval: Number of blocks of which only the first one's input is kept, where they are recomputed.
        tensor_parallel: Joined blocks are sharded over tensor ranks, and map the first of the states.
        evaluated_as_trained: Evaluations run the graphs of training, and drop the activations after each.
    """

    joined: int
    joined_in_sync: int
    interval: int
    tensor_parallel: bool
    evaluated_as_trained: bool

    @classmethod
    def of(cls, config: Config, topology: Topology) -> BlockGroups:
        """Return the groups of a job's blocks."""
        # On an H200, PyTorch 2.11's graphs without gradients computed attention to documents and within
        # windows wrongly: losses differed from the uncompiled ones, and between engines of the same weights.
        is_limited = config.data.reset_attention_mask or config.model.sliding_window is not None
        joined = _joined_blocks(config, topology)
        return cls(
            joined=joined,
            # A graph waits for all of its weights, and its gradients are complete together. Those of several
            # blocks would leave less to compute while replicas gather and reduce.
            joined_in_sync=1 if topology.data > 1 else joined,
            interval=config.parallel.activation_checkpointing_interval,
            tensor_parallel=topology.tensor > 1,
            evaluated_as_trained=config.optimisation.compile and is_limited,
        )

    def run(
        self,
        layers: Sequence[Layer],
        functions: Sequence[Callable[[Any], Any]],
        states: Any,
        recomputed: int,
        before: Callable[[Any], object] | None = None,
        *,
        in_sync: bool = False,
    ) -> Any:
        """Apply layers.

        Args:
            layers: The layers in order.
            functions: The function of each layer.
            states: Input of the first layer.
            recomputed: Number of blocks, from the first, that compute their activations again.
            before: Called with each function before it computes, if set.
            in_sync: Replicas gather weights or reduce gradients during these passes.
        """
        joined = self.joined_in_sync if in_sync else self.joined
        index = 0
        while index < len(layers):
            is_recomputed = recomputed > 0 and is_block(layers[index].kind)
            most = min(self.interval, recomputed) if is_recomputed else joined
            blocks = itertools.takewhile(lambda layer: is_block(layer.kind), layers[index : index + most])
            group = functions[index : index + max(1, len(list(blocks)))]
            if before is not None:
                for function in group:
                    before(function)
            if is_recomputed:
                recomputed -= len(group)
            if is_recomputed and torch.is_grad_enabled():
                states = checkpoint(_chain, group, states, use_reentrant=False)
            else:
                # An evaluation takes the graphs of training's blocks: those of a checkpoint are not joined.
                is_joined = len(group) > 1 and not is_recomputed
                chain = _compiled_chain(self.tensor_parallel) if is_joined else _chain
                if self.evaluated_as_trained and not torch.is_grad_enabled():
                    with torch.enable_grad():
                        states = chain(group, states)
                    states = _detached(states)
                else:
                    states = chain(group, states)
            index += len(group)
        return states


def recomputed_blocks(config: Config, chunks: Sequence[Sequence[Layer]]) -> list[int]:
    """Return how many blocks of each of a stage's chunks recompute their activations.

    Args:
        config: The job.
        chunks: The layers of each chunk, in the order of the stage's blocks.
    """
    blocks = [sum(is_block(layer.kind) for layer in chunk) for chunk in chunks]
    ends = [config.parallel.recomputed(end) for end in (0, *itertools.accumulate(blocks))]
    return [end - begin for begin, end in itertools.pairwise(ends)]


class FlatModel(nn.Module):
    """The list of layers, or a stage of it, on one rank; with tensor parallelism, its part of each layer.

    Args:
        config: The job.
        layers: The whole model; the last layer is the head.
        groups: How its blocks are computed together.
        device: The device of the parameters.
        dtype: The type of the parameters.
        shard: Called with each layer once it has its weights, before the next layer is created; ZeRO-3 uses
            it to shard the layer over replicas.
        fill: Gives each layer its weights; initial ones by default.
        chunks: The layers of this stage, in ascending order; all in one chunk by default.

    Attributes:
        layers: The layers of all chunks.
        groups: How their blocks are computed together.
        recomputed: Number of blocks of each chunk that compute their activations again.
        before_layer: Called with each layer before it computes, if set.
    """

    before_layer: Callable[[nn.Module], object] | None = None

    def __init__(
        self,
        config: Config,
        layers: Sequence[Layer],
        groups: BlockGroups,
        device: torch.device,
        dtype: torch.dtype,
        shard: Callable[[nn.Module], object] | None = None,
        fill: Fill | None = None,
        chunks: Sequence[range] = (),
    ) -> None:
        super().__init__()
        make = Maker(config, device, dtype, shard, fill)
        self._all, self._chunks = layers, chunks or (range(len(layers)),)
        numbers = [index for chunk in self._chunks for index in chunk]
        self.layers = tuple(layers[index] for index in numbers)
        self.groups = groups
        self.recomputed = recomputed_blocks(
            config, [layers[chunk.start : chunk.stop] for chunk in self._chunks]
        )
        self.tied_modules = nn.ModuleDict()
        for index, layer in zip(numbers, self.layers, strict=True):
            if layer.tied is None:
                self.add_module(str(index), make(layer, index))
            elif layer.tied not in self.tied_modules:
                self.tied_modules[layer.tied] = make(layer, index)

    def forward(
        self, inputs: Any, labels: Labels | None = None, chunk: int = 0, *, in_sync: bool = False
    ) -> Any:
        """Return the input of the next chunk; the chunk with the head returns the loss of a micro-batch.

        Without labels, the head returns the logits [batch, sequence, vocabulary].

        Args:
            inputs: Of the first layer.
            labels: Read by the head.
            chunk: Which of this stage's chunks.
            in_sync: See :meth:`BlockGroups.run`.
        """
        numbers = self._chunks[chunk]
        has_head = numbers.stop == len(self._all)
        modules = self._modules_of(numbers)
        body = len(modules) - has_head
        states = self.groups.run(
            [self._all[index] for index in numbers[:body]],
            modules[:body],
            inputs,
            self.recomputed[chunk],
            self.before_layer,
            in_sync=in_sync,
        )
        if has_head:
            if self.before_layer is not None:
                self.before_layer(modules[-1])
            states = modules[-1](states, labels)
        return states

    def uses(self) -> collections.Counter[nn.Parameter]:
        """Return the number of chunks that use each weight; tied ones may be in several."""
        return collections.Counter(
            weight
            for numbers in self._chunks
            for module in dict.fromkeys(self._modules_of(numbers))
            for weight in module.parameters()
        )

    def _modules_of(self, numbers: range) -> list[nn.Module]:
        return [
            self.tied_modules[tied] if (tied := self._all[index].tied) else self.get_submodule(str(index))
            for index in numbers
        ]
