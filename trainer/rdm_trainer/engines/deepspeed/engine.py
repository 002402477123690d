# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine that trains the model with DeepSpeed."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from torch import nn

from rdm_core.config import Config
from rdm_trainer import models
from rdm_trainer.distributed.parameters import shard_spec_of
from rdm_trainer.distributed.pipeline_parallel.pipeline import Fill
from rdm_trainer.distributed.token_counts import Batch
from rdm_trainer.distributed.topology import Topology, quiet
from rdm_trainer.engines.deepspeed.config import deepspeed_json
from rdm_trainer.engines.deepspeed.distributed_optimizer import DistributedOptimizer
from rdm_trainer.engines.deepspeed.pipeline import PipelineModel
from rdm_trainer.engines.deepspeed.states import DeepSpeedStates
from rdm_trainer.engines.deepspeed.subclasses import adopt
from rdm_trainer.engines.engine import DTYPES, Engine, StepResult, adamw


class DeepSpeedEngine(Engine):
    """The model, its optimiser and DeepSpeed.

    Args:
        config: The job.
        topology: This rank's place, from :func:`rdm_trainer.engines.deepspeed.topology.create_topology`.
        fill: Gives each layer its weights; initial ones by default.
        on_loss: Receives the losses that this rank computes in training, before they are averaged.

    Attributes:
        deepspeed: DeepSpeed's engine.
    """

    def __init__(
        self,
        config: Config,
        topology: Topology,
        *,
        fill: Fill | None = None,
        on_loss: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        super().__init__(config, topology, torch.device(get_accelerator().current_device_name()))
        self._on_loss = on_loss
        # DeepSpeed's messages per rank and layer would drown the log lines.
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", "c10d::broadcast_: an autograd kernel was not registered")
        clips_itself = config.optimisation.precision == "fp32" and config.zero_stage == 0
        settings = deepspeed_json(config, topology.world_size, clips=not clips_itself)
        with quiet():
            model = self._model(fill, settings)
        self.work = self._work([layer.kind for layer in model.local_layers] if topology.pipeline > 1 else [])
        if on_loss is not None and topology.pipeline > 1:
            loss_fn: Any = model.loss_fn
            model.loss_fn = functools.partial(_report_loss, loss_fn, on_loss)
        self._norm: torch.Tensor | None = None
        if topology.expert > 1:
            self._join_expert_axis(model)
        self.optimiser = adamw(config, _groups(model), self.device)
        if clips_itself:
            self.optimiser.register_step_pre_hook(self._clip)
        _import_muon()
        with quiet():
            self.deepspeed, *_ = deepspeed.initialize(
                model=model,
                optimizer=self.optimiser,
                mpu=None if topology.pipeline > 1 else topology.grid,
                config=settings,
                dist_init_required=False,
            )
        self.module = self.deepspeed.module
        adopt(self.deepspeed, self._span)
        if isinstance(self.deepspeed.optimizer, BF16_Optimizer):
            DistributedOptimizer.adopt(
                self.deepspeed, topology, self._counts, compiled=config.optimisation.compile
            )
        self.states = DeepSpeedStates(config, self.deepspeed, topology, self._counts)

    def _join_expert_axis(self, model: nn.Module) -> None:
        """Average gradients, and compute their norm, over the ranks that share the experts."""
        for weight in model.parameters():
            weight.register_hook(functools.partial(_mean_gradient, weight, self.topology))
            # DeepSpeed's norms count weights with this mark on each model-parallel rank, others on the first.
            weight.tensor_model_parallel = self._counts(weight)  # type: ignore[attr-defined]

    def _model(self, fill: Fill | None, settings: Mapping[str, Any]) -> Any:
        config, topology, dtype = self.config, self.topology, DTYPES[self.config.optimisation.precision]
        if topology.pipeline > 1:
            layers = models.layers(config, topology, models.padding_of(config), self.device)
            return PipelineModel(config, topology, layers, self.device, dtype, fill)
        shard = None
        # One replica has all weights anyway, unless they are in the host's memory: all at once may not fit.
        offloads = config.parallel.offload_parameters != "none"
        if config.zero_stage == 3 and (topology.data > 1 or offloads):
            shard = functools.partial(
                deepspeed.zero.Init,
                data_parallel_group=topology.replica_group,
                config_dict_or_path=settings,
                dtype=dtype,
                mpu=topology.grid,
            )
        model = models.build(config, topology, device=self.device, dtype=dtype, shard=shard, fill=fill)
        if shard is not None:
            for weight in model.parameters():
                _clear_padding(weight)
        return model

    @property
    def shape(self) -> dict[str, int]:
        """The actual sizes in DeepSpeed and the model; see :attr:`Engine.shape`."""
        return {
            **super().shape,
            "GLOBAL_BATCH_SIZE": self.deepspeed.train_batch_size() * self.topology.expert,
            "MICRO_BATCH_SIZE": self.deepspeed.train_micro_batch_size_per_gpu(),
        }

    def set_batch(self, samples: int) -> None:
        """Use this number of samples for steps and evaluations from now on."""
        super().set_batch(samples)
        # DeepSpeed does not treat the ranks of the expert axis as replicas.
        self.deepspeed.set_train_batch_size(samples // self.topology.expert)
        # A step ends when this is a multiple of the accumulation.
        self.deepspeed.micro_steps = 0

    @property
    def steps(self) -> int:
        """Number of steps taken, including those before a checkpoint."""
        return int(self.deepspeed.global_steps)

    def _whole_shape(self, weight: nn.Parameter) -> torch.Size:
        shape: torch.Size = getattr(weight, "ds_shape", weight.shape)
        return shape

    def _kept_part(self, weight: nn.Parameter) -> torch.Tensor:
        part: torch.Tensor = getattr(weight, "ds_tensor", weight)
        return part

    def close(self) -> None:
        """Free the device's memory."""
        self.states.wait(float("inf"))
        with quiet():
            self.deepspeed.destroy()

    def _train_step(self, batches: Iterator[Batch]) -> StepResult:
        if self.topology.pipeline > 1:
            loss = self._averaged_over_experts(self.deepspeed.train_batch(data_iter=batches))
        else:
            self.module.train()
            loss = torch.zeros((), device=self.device)
            for _ in range(self.accumulation):
                with self._span("load", "LoadMicroBatch"):
                    inputs, labels = next(batches)
                with self._span("forward", "ForwardPass"):
                    micro_loss = self.deepspeed(inputs, labels)
                    loss += micro_loss.detach()
                with self._span("backward", "BackwardPass"):
                    self.deepspeed.backward(micro_loss)
                with self._span("optimiser", "OptimizerStep"):
                    self.deepspeed.step()
            if self._on_loss is not None:
                self._on_loss(loss)
            loss = self._averaged(loss)
        optimiser = self.deepspeed.optimizer
        return StepResult(
            mean_loss=loss,
            norm=self._norm if self._norm is not None else self.deepspeed.get_global_grad_norm(),
            skipped=bool(getattr(optimiser, "overflow", False)),
            loss_scale=float(getattr(optimiser, "cur_scale", 1.0)),
        )

    def _evaluate(self, batches: Iterator[Batch]) -> torch.Tensor:
        if self.topology.pipeline > 1:
            return self._averaged_over_experts(self.deepspeed.eval_batch(data_iter=batches))
        self.module.eval()
        loss = torch.zeros((), device=self.device)
        for _ in range(self.accumulation):
            inputs, labels = next(batches)
            loss += self.deepspeed(inputs, labels)
        return self._averaged(loss)

    def _averaged_over_experts(self, loss: torch.Tensor) -> torch.Tensor:
        """Average over the expert axis what DeepSpeed averaged over its replicas."""
        if self.topology.expert > 1:
            dist.all_reduce(loss, group=self.topology.expert_group)
            loss = loss / self.topology.expert
        return loss

    def _clip(self, optimiser: torch.optim.Optimizer, *_: object) -> None:
        """Clip before the step, because without ZeRO DeepSpeed miscounts tied and shared gradients."""
        weights = [
            weight
            for group in optimiser.param_groups
            for weight in group["params"]
            if weight.grad is not None
        ]
        own = [weight.grad for weight in weights if self._counts(weight)]
        squares = torch.stack(torch._foreach_norm(own)).square().sum() if own else torch.zeros(())
        squares = squares.to(self.device)
        dist.all_reduce(squares, group=self.topology.grid.get_model_parallel_group())
        self._norm = squares.sqrt()
        limit = self.config.optimisation.clip_grad
        if limit:
            scale = (limit / (self._norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_([weight.grad for weight in weights], scale)

    def _counts(self, weight: nn.Parameter) -> bool:
        """Return whether this rank counts a gradient in the norm; one rank per replica does."""
        if shard_spec_of(weight).experts:
            return True
        if getattr(weight, "ds_pipe_replicated", False) or self.topology.expert_rank > 0:
            return False
        return self.topology.tensor_rank == 0 or shard_spec_of(weight).dimension is not None


def _mean_gradient(weight: nn.Parameter, topology: Topology, gradient: torch.Tensor) -> torch.Tensor:
    """Turn a micro-batch's gradient into that of the mean over the ranks of the expert axis.

    An expert's gradient already includes all ranks' parts. Other gradients are averaged here for each
    micro-batch; they are small compared to the rows that the ranks exchange.
    """
    if shard_spec_of(weight).experts:
        return gradient / topology.expert
    # Sums in 16 bits would lose small values.
    mean = gradient.to(torch.float32, copy=True)
    dist.all_reduce(mean, group=topology.expert_group)
    return (mean / topology.expert).to(gradient.dtype)


def _report_loss(
    loss_fn: Callable[..., Any], on_loss: Callable[[torch.Tensor], None], *arguments: Any
) -> torch.Tensor:
    loss: torch.Tensor = loss_fn(*arguments)
    if torch.is_grad_enabled():
        on_loss(loss)
    return loss


def _import_muon() -> None:
    """Import DeepSpeed's Muon optimiser without torch's compiler, which takes seconds in every process.

    DeepSpeed imports it with any optimiser. The import would compile a function that nobody calls.
    """
    before = os.environ.get("TORCHDYNAMO_DISABLE")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    finally:
        del os.environ["TORCHDYNAMO_DISABLE"]
        if before is not None:
            os.environ["TORCHDYNAMO_DISABLE"] = before


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return this rank's parameters in two groups: with and without weight decay."""
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for weight in model.parameters():
        (decaying if shard_spec_of(weight).decays else others).append(weight)
    return [{"params": decaying}, {"params": others, "weight_decay": 0.0}]


def _clear_padding(weight: Any) -> None:
    """Zero the padding of a weight's last part, because DeepSpeed leaves it uninitialised.

    A NaN in it would count as one of the weight, and the job would end at its next checkpoint.
    """
    part = weight.ds_tensor
    part[max(0, weight.ds_numel - weight.ds_zero_partition_rank * part.numel()) :].zero_()
