# SPDX-License-Identifier: GPL-3.0-or-later
"""The linear layers of a model that compute in fp8."""

from __future__ import annotations

from torch import nn

from rdm_core import float8
from rdm_core.config import Config
from rdm_trainer.distributed.tensor_parallel.float8 import Float8Weight
from rdm_trainer.distributed.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear


class Float8Layers:
    """Converts a model's linear layers to fp8, and casts their weights once for all micro-batches of a step.

    Args:
        config: The job; without a recipe, no layer is converted.
        model: The layers, with weights on their device.
    """

    def __init__(self, config: Config, model: nn.Module) -> None:
        recipe = config.optimisation.fp8_recipe
        self._linears: dict[nn.Module, list[ColumnParallelLinear | RowParallelLinear]] = {}
        self._changed: set[nn.Module] = set()
        if recipe == "none":
            return
        for layer in model.children():
            linears = [
                one
                for one in layer.modules()
                if isinstance(one, ColumnParallelLinear | RowParallelLinear)
                and float8.gains(recipe, *reversed(one.weight.flatten(0, -2).shape))
            ]
            for one in linears:
                one.float8 = Float8Weight(one.weight, recipe, compiled=config.optimisation.compile)
            if linears:
                self._linears[layer] = linears

    def begin(self) -> None:
        """Expect new weights: a step or an evaluation begins."""
        self._changed = set(self._linears)

    def update(self, layer: nn.Module) -> None:
        """Cast a layer's weights if they are new. The layer is about to compute."""
        if layer in self._changed:
            self._changed.remove(layer)
            for one in self._linears[layer]:
                assert one.float8 is not None
                one.float8.update(one.weight)
