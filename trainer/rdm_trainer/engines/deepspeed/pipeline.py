# SPDX-License-Identifier: GPL-3.0-or-later
"""A list of layers cut into the stages of DeepSpeed's pipeline."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from deepspeed.runtime.pipe.module import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn

from rdm_core.config import Config
from rdm_trainer.distributed.pipeline_parallel.pipeline import (
    BlockGroups,
    Fill,
    Labels,
    Layer,
    Maker,
    bounds,
    recomputed_blocks,
)
from rdm_trainer.distributed.topology import Topology, quiet


def _spec(layer: Layer, index: int, make: Maker) -> LayerSpec:
    spec = TiedLayerSpec(layer.tied, nn.Module) if layer.tied else LayerSpec(nn.Module)
    spec.build = functools.partial(make, layer, index)
    return spec


class PipelineModel(PipelineModule):
    """This rank's stage of the list of layers.

    DeepSpeed's own cuts are even, by type or by size; ours come from ``partition``. The head is not run as a
    layer: with the labels it becomes the loss.

    Args:
        config: The job.
        topology: This rank's place.
        layers: The model; the last layer is the head.
        device: The device of the parameters.
        dtype: The type of the parameters.
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
        make = Maker(config, device, dtype, fill=fill)
        specs = [_spec(layer, index, make) for index, layer in enumerate(layers)]
        # DeepSpeed's constructor calls _partition_layers, which reads this.
        self._bounds = bounds(config, layers)
        with quiet():
            super().__init__(
                layers=specs,
                topology=topology.grid.topology(),
                loss_fn=self._loss,
            )
        self.local_layers = tuple(layers[self._local_start : self._local_stop])
        self._recomputed = recomputed_blocks(config, [self.local_layers])[0]
        self._groups = BlockGroups.of(config, topology)

    def _partition_layers(self, method: str = "uniform") -> None:  # noqa: ARG002
        self.parts = list(self._bounds)
        self._set_bounds(self.parts[self.stage_id], self.parts[self.stage_id + 1])

    def forward(self, inputs: Any) -> Any:
        """Run this stage's layers; on the last stage, up to the head."""
        count = len(self.local_layers) - (self._local_stop == self._num_layers)
        return self._groups.run(
            self.local_layers[:count], self.forward_funcs[:count], inputs, self._recomputed
        )

    def _loss(self, states: torch.Tensor, labels: Labels) -> torch.Tensor:
        loss: torch.Tensor = self.forward_funcs[-1](states, labels)
        return loss
