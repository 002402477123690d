# SPDX-License-Identifier: GPL-3.0-or-later
"""A list of layers as a model: whole on one stage, or cut into the stages of DeepSpeed's pipeline.

Both forms give a parameter the same name (``3.self_attention.qkv_proj.weight``,
``tied_modules.embed.weight``), so that a checkpoint of one can be converted for the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from deepspeed.runtime.pipe.module import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn
from torch.utils.checkpoint import checkpoint

from rdm_core.config import Config
from rdm_core.errors import TrainerError
from rdm_core.partition import is_block
from rdm_trainer.distributed.parameters import initialise
from rdm_trainer.distributed.topology import Topology, quiet

__all__ = ["Fill", "FlatModel", "Layer", "PipelineModel", "bounds"]

Labels = tuple[torch.Tensor, ...]
Fill = Callable[[nn.Module, str], None]
"""Gives a layer its weights; it also takes what precedes their names in the whole model."""


@dataclass(frozen=True)
class Layer:
    """One layer of a model that may not be built here.

    Attributes:
        kind: Its name in partitions; a transformer block's ends with ``Block``.
        make: Makes the module.
        tied: Layers with the same key share one module.
        joined: It belongs to the layer before it, and partitions do not count it.
    """

    kind: str
    make: Callable[[], nn.Module]
    tied: str | None = None
    joined: bool = False

    def prefix(self, index: int) -> str:
        """Return what precedes the parameters' names in the whole model."""
        return f"tied_modules.{self.tied}." if self.tied else f"{index}."


def bounds(config: Config, layers: Sequence[Layer]) -> list[int]:
    """Return where each stage begins in the layers, and the end of the last.

    The last norm goes with the head: every stage must have parameters that decay and others that do not,
    or the stages' optimisers would not have the same groups, whose norms they sum one after the other.
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


# What keeps a compiled block computing while sums go over its tensor ranks: they begin early and are waited
# for late. The halves of a batch share the norms' weights, and small things that are shared must not join
# their kernels, or each half would wait for both sums.
_OVERLAP: dict[str, Any] = {
    "reorder_for_compute_comm_overlap": True,
    "reorder_for_compute_comm_overlap_passes": ["sink_waits", "raise_comms"],
    "score_fusion_memory_threshold": 1 << 20,
}


class _Maker:
    """Makes layers where they belong, initialised: one at a time, so that host memory holds only one."""

    def __init__(
        self,
        config: Config,
        device: torch.device,
        dtype: torch.dtype,
        divide: Callable[[nn.Module], object] | None = None,
        fill: Fill | None = None,
    ) -> None:
        self._divide = divide
        self._fill = fill or functools.partial(initialise, seed=config.optimisation.seed)
        self._compile = config.optimisation.compile
        self._options = _OVERLAP if config.parallel.tensor > 1 else None
        self._device, self._dtype = device, dtype

    def __call__(self, layer: Layer, index: int) -> nn.Module:
        module = layer.make()
        self._fill(module, layer.prefix(index))
        for weight in module.parameters():
            weight.data = weight.data.to(self._device, self._dtype)
        if self._divide is not None:
            self._divide(module)
        if self._compile and is_block(layer.kind):
            module.compile(dynamic=False, options=self._options)
        return module


def _chain(functions: Sequence[Callable[[Any], Any]], states: Any) -> Any:
    for function in functions:
        states = function(states)
    return states


def _run(
    layers: Sequence[Layer], functions: Sequence[Callable[[Any], Any]], states: Any, interval: int
) -> Any:
    """Apply the layers; with an interval, keep only the input of every so many successive blocks."""
    index = 0
    while index < len(layers):
        stop = index + 1
        if interval and torch.is_grad_enabled() and is_block(layers[index].kind):
            while stop < min(index + interval, len(layers)) and is_block(layers[stop].kind):
                stop += 1
            states = checkpoint(_chain, functions[index:stop], states, use_reentrant=False)
        else:
            states = functions[index](states)
        index = stop
    return states


def _checkpoint_interval(config: Config) -> int:
    parallel = config.parallel
    return parallel.activation_checkpointing_interval if parallel.activation_checkpointing == "full" else 0


class FlatModel(nn.Module):
    """The whole list of layers on every rank (of a tensor-parallel group: its part of each).

    Args:
        config: The job.
        layers: The model; the last one is the head.
        device: Where the parameters go.
        dtype: Of the parameters.
        divide: Called with each layer when it has its weights, before the next one is made; ZeRO-3 leaves
            of it what this replica keeps.
        fill: Gives each layer its weights; initial ones by default.
    """

    def __init__(
        self,
        config: Config,
        layers: Sequence[Layer],
        device: torch.device,
        dtype: torch.dtype,
        divide: Callable[[nn.Module], object] | None = None,
        fill: Fill | None = None,
    ) -> None:
        super().__init__()
        make = _Maker(config, device, dtype, divide, fill)
        self.layers = tuple(layers)
        self.interval = _checkpoint_interval(config)
        self.tied_modules = nn.ModuleDict()
        for index, layer in enumerate(layers):
            if layer.tied is None:
                self.add_module(str(index), make(layer, index))
            elif layer.tied not in self.tied_modules:
                self.tied_modules[layer.tied] = make(layer, index)

    def forward(self, inputs: Any, labels: Labels | None = None) -> torch.Tensor:
        """Return the loss of a micro-batch; without labels, the logits [batch, sequence, vocabulary]."""
        functions = [
            self.tied_modules[layer.tied] if layer.tied else self.get_submodule(str(index))
            for index, layer in enumerate(self.layers)
        ]
        states = _run(self.layers[:-1], functions[:-1], inputs, self.interval)
        result: torch.Tensor = functions[-1](states, labels)
        return result


class _Spec(LayerSpec):
    def __init__(self, layer: Layer, index: int, make: _Maker) -> None:
        super().__init__(nn.Module)
        self._layer, self._index, self._make = layer, index, make

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002
        return self._make(self._layer, self._index)


class _TiedSpec(TiedLayerSpec):
    def __init__(self, layer: Layer, index: int, make: _Maker) -> None:
        super().__init__(layer.tied, nn.Module)
        self._layer, self._index, self._make = layer, index, make

    def build(self, log: bool = False) -> nn.Module:  # noqa: ARG002
        return self._make(self._layer, self._index)


class PipelineModel(PipelineModule):
    """This rank's stage of the list of layers.

    DeepSpeed's own cuts are even, by type or by size; ours come from ``partition``. The head is not a layer
    that is run: with the labels it becomes the loss.

    Args:
        config: The job.
        topology: This rank's place.
        layers: The model; the last one is the head.
        device: Where the parameters go.
        dtype: Of the parameters.
        fill: Gives each layer its weights; initial ones by default.
    """

    def __init__(
        self,
        config: Config,
        topology: Topology,
        layers: Sequence[Layer],
        device: torch.device,
        dtype: torch.dtype,
        fill: Fill | None = None,
    ) -> None:
        make = _Maker(config, device, dtype, fill=fill)
        specs = [
            (_TiedSpec if layer.tied else _Spec)(layer, index, make) for index, layer in enumerate(layers)
        ]
        # Read by _partition_layers, which DeepSpeed's constructor calls.
        self._bounds = bounds(config, layers)
        with quiet():
            super().__init__(
                layers=specs,
                topology=topology.grid.topology(),
                loss_fn=self._loss,
            )
        self.interval = _checkpoint_interval(config)
        self.local_layers = tuple(layers[self._local_start : self._local_stop])

    def _partition_layers(self, method: str = "uniform") -> None:  # noqa: ARG002
        self.parts = list(self._bounds)
        self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    def forward(self, inputs: Any) -> Any:
        """Run this stage's layers; of the last stage up to the head."""
        count = len(self.local_layers) - (self._local_stop == self._num_layers)
        return _run(self.local_layers[:count], self.forward_funcs[:count], inputs, self.interval)

    def _loss(self, states: torch.Tensor, labels: Labels) -> torch.Tensor:
        loss: torch.Tensor = self.forward_funcs[-1](states, labels)
        return loss
