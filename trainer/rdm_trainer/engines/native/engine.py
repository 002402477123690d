# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine built on torch only."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import nn

from rdm_core.config import Config
from rdm_trainer import models, process
from rdm_trainer.distributed.pipeline_parallel.pipeline import Fill, bounds
from rdm_trainer.distributed.token_counts import Batch
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.engine import DTYPES, Engine, StepResult
from rdm_trainer.engines.native.cuda_graph import GraphedPasses
from rdm_trainer.engines.native.float8 import Float8Layers
from rdm_trainer.engines.native.pipeline import Stage
from rdm_trainer.engines.native.sharded_adamw import ShardedAdamW
from rdm_trainer.engines.native.states import NativeStates


class NativeEngine(Engine):
    """The model, a schedule for its micro-batches, and an optimiser sharded over the replicas.

    Args:
        config: The job.
        topology: This rank's place.
        fill: Gives each layer its weights; initial ones by default.
        on_loss: Receives the losses that this rank computes in training, before they are averaged.
    """

    steps = 0

    def __init__(
        self,
        config: Config,
        topology: Topology,
        *,
        fill: Fill | None = None,
        on_loss: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        super().__init__(config, topology, process.device())
        self._on_loss = on_loss
        dtype = DTYPES[config.optimisation.precision]
        model = models.build(config, topology, device=self.device, dtype=dtype, fill=fill)
        self.module = model
        self.work = self._work([layer.kind for layer in model.layers])
        self._float8 = Float8Layers(config, model)
        self.sharded = ShardedAdamW(config, model, topology, self.device, _shared(config, topology))
        model.before_layer = self._before_layer
        self.optimiser = self.sharded.optimiser
        self._stage = Stage(
            model,
            topology,
            self.device,
            self.accumulation,
            config.parallel.virtual_pipeline,
            config.parallel.eager_forwards,
            self._span,
        )
        self._graphed: GraphedPasses | None = None
        if config.optimisation.cuda_graphs and self.device.type == "cuda":
            self._graphed = GraphedPasses(model, self.device, self._span)
        self.states = NativeStates(self)

    def set_batch(self, samples: int) -> None:
        """Use this number of samples for steps and evaluations from now on."""
        super().set_batch(samples)
        self._stage.micro_batches = self.accumulation

    def first_not_finite(self) -> str | None:
        """See :meth:`Engine.first_not_finite`."""
        self.sharded.wait_for(self.module)
        return super().first_not_finite()

    def close(self) -> None:
        """Free the device's memory."""
        self.states.wait(float("inf"))
        self.sharded.wait_for(self.module)
        self.sharded.close()
        del self.sharded, self.optimiser, self._stage, self._graphed, self._float8, self.module

    def _train_step(self, batches: Iterator[Batch]) -> StepResult:
        self.module.train()
        self.sharded.begin()
        self._float8.begin()
        if self._graphed is None:
            loss = self._stage.train(batches, self.sharded.expect_backward)
        else:
            # What layers do once a step is in no graph.
            for layer in self.module.children():
                self._before_layer(layer)
            loss = self._graphed.train(batches, self.accumulation)
        if self._on_loss is not None and self.topology.is_last_stage:
            self._on_loss(loss)
        with self._span("reduce", "ReduceGrads"):
            self.sharded.reduce()
        with self._span("optimiser", "OptimizerStep"):
            mean_loss, norm = self.sharded.step(self._counted(loss))
        self.steps += 1
        return StepResult(mean_loss, norm)

    def _evaluate(self, batches: Iterator[Batch]) -> torch.Tensor:
        self.module.eval()
        self._float8.begin()
        # With one or two micro-batches, a training without CUDA graphs has only the graphs of passes in sync.
        in_sync = self._graphed is None and self.accumulation <= 2
        loss = self._counted(self._stage.evaluate(batches, in_sync=in_sync))
        if self.topology.world_size > 1:
            dist.all_reduce(loss)
        return loss / self.topology.data

    def _before_layer(self, layer: nn.Module) -> None:
        self.sharded.wait_for(layer)
        self._float8.update(layer)

    def _counted(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss on one rank of each replica's last stage, and zero on the others."""
        is_counted = self.topology.is_last_stage and self.topology.tensor_rank == 0
        return loss if is_counted else torch.zeros_like(loss)


def _shared(config: Config, topology: Topology) -> dict[str, Sequence[int]]:
    """Return the weights that several stages share: names → the ranks of these stages in order."""
    if topology.pipeline == 1:
        return {}
    layers = models.layers(config, topology)
    begins = bounds(config, layers)
    stages: dict[str, set[int]] = {}
    names: dict[str, list[str]] = {}
    for index, layer in enumerate(layers):
        if layer.tied is None:
            continue
        stage = (bisect.bisect(begins, index) - 1) % topology.pipeline
        stages.setdefault(layer.tied, set()).add(stage)
        if layer.tied not in names:
            with torch.device("meta"):
                names[layer.tied] = [
                    layer.prefix(index) + name for name, _ in layer.make().named_parameters()
                ]
    group = topology.pipeline_group
    return {
        name: [dist.get_global_rank(group, stage) for stage in sorted(stages[key])]
        for key, found in names.items()
        if len(stages[key]) > 1
        for name in found
    }
