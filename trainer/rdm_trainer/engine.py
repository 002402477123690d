# SPDX-License-Identifier: GPL-3.0-or-later
"""One training step, whatever the layout: the model, its optimiser and DeepSpeed put together."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.checkpoint import constants as universal
from deepspeed.runtime.pipe import schedule
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rdm_core import partition
from rdm_core.config import Config
from rdm_trainer import models
from rdm_trainer.deepspeed_config import deepspeed_json
from rdm_trainer.distributed.parameters import placement_of, seed_of
from rdm_trainer.distributed.pipeline_parallel.pipeline import Fill
from rdm_trainer.distributed.token_counts import Batch, with_counts
from rdm_trainer.distributed.topology import Topology, quiet
from rdm_trainer.models.transformer import Block, Norm
from rdm_trainer.optim.distributed_optimizer import DistributedOptimizer

__all__ = ["Engine", "StepResult", "Watcher"]


Watcher = Callable[[str, str], contextlib.AbstractContextManager[Any]]
"""(kind, name) of something that a step does → entered when it begins, left when it ends."""

INSTRUCTIONS = {
    schedule.LoadMicroBatch: "load",
    schedule.ForwardPass: "forward",
    schedule.BackwardPass: "backward",
    schedule.SendActivation: "send",
    schedule.SendGrad: "send",
    schedule.RecvActivation: "receive",
    schedule.RecvGrad: "receive",
    schedule.ReduceGrads: "reduce",
    schedule.ReduceTiedGrads: "reduce",
    schedule.OptimizerStep: "optimiser",
}
"""The pipeline's instructions, by the kinds of ``rdm_log.timeline``."""

# A parameter of a layer's part, which only blocks have.
_IN_BLOCK = re.compile(r"[0-9]+\.\w+\.")
_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepResult:
    """What a step did. The loss stays on the device until it is asked for, so that steps do not wait for it.

    Attributes:
        mean_loss: float32 scalar on the device: the mean over the tokens that count.
        grad_norm: Norm of all gradients before clipping; ``None`` where it is not known.
        skipped: The gradients overflowed, and the weights were left alone. Only fp16 tells; a bf16 step with
            gradients that are not finite is left out as well, and its norm says so.
        loss_scale: fp16's factor on the loss; 1 otherwise.
    """

    mean_loss: torch.Tensor
    norm: torch.Tensor | float | None
    skipped: bool
    loss_scale: float

    @property
    def loss(self) -> float:
        """The mean loss; waits for the device."""
        return float(self.mean_loss)

    @property
    def grad_norm(self) -> float | None:
        """Norm of all gradients before clipping, ``None`` where it is not known; waits for the device."""
        return None if self.norm is None else float(self.norm)


class Engine:
    """The model, its optimiser and DeepSpeed. Every rank makes one and takes every step with the others.

    Args:
        config: The job.
        topology: This rank's place; the process groups must be initialised.
        checkpoint: DeepSpeed's section ``checkpoint``, as ``{"load_universal": True}``.
        fill: Gives each layer its weights; initial ones by default.
        on_loss: Takes the losses that this rank computes in training, before they are averaged.

    Attributes:
        work: What ranks with the same work have in common.
    """

    def __init__(
        self,
        config: Config,
        topology: Topology,
        *,
        checkpoint: Mapping[str, Any] | None = None,
        fill: Fill | None = None,
        on_loss: Callable[[torch.Tensor], None] | None = None,
    ) -> None:
        self.config = config
        self.topology = topology
        self._on_loss = on_loss
        # Each engine's own messages, per rank and layer, would drown the log lines.
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", "c10d::broadcast_: an autograd kernel was not registered")
        warnings.filterwarnings("ignore", ".*all_gather_into_tensor. is deprecated", FutureWarning)
        self.device = torch.device(get_accelerator().current_device_name())
        self._accumulation = config.accumulation(topology.data)
        clips_itself = config.optimisation.precision == "fp32" and config.zero_stage == 0
        settings = deepspeed_json(config, topology.world_size, clips=not clips_itself, checkpoint=checkpoint)
        dtype = _TYPES[config.optimisation.precision]
        divide = None
        if config.zero_stage == 3 and topology.data > 1:
            divide = functools.partial(
                deepspeed.zero.Init,
                data_parallel_group=topology.data_group,
                config_dict_or_path=settings,
                dtype=dtype,
                mpu=topology.grid,
            )
        with quiet():
            model = models.build(config, topology, device=self.device, dtype=dtype, divide=divide, fill=fill)
        stage: Any = model
        kinds = [layer.kind for layer in stage.local_layers] if topology.pipeline > 1 else []
        self.work = partition.work_of(topology.pipeline_rank, topology.pipeline, kinds)
        if on_loss is not None and topology.pipeline > 1:
            loss_fn: Any = model.loss_fn
            model.loss_fn = functools.partial(_told, loss_fn, on_loss)
        self._dropout = max(config.model.hidden_dropout, config.model.attention_dropout) > 0
        self._norm: torch.Tensor | None = None
        self.optimiser = _optimiser(config, model, self.device)
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
        self._watchers: list[Watcher] = []
        if topology.pipeline > 1:
            self._instructions = {
                **self.deepspeed._INSTRUCTION_MAP,
                schedule.BackwardPass: _backward_at_once,
            }
            self.deepspeed._INSTRUCTION_MAP = self._instructions
        if config.optimisation.precision == "bf16" and config.zero_stage == 1:
            DistributedOptimizer.adopt(
                self.deepspeed, topology, self._counts, compiled=config.optimisation.compile
            )

    @property
    def module(self) -> nn.Module:
        """The model, or this rank's stage of it."""
        module: nn.Module = self.deepspeed.module
        return module

    @property
    def blocks(self) -> list[str]:
        """The kinds of the transformer blocks that this rank has."""
        return [type(one).__name__ for one in self.module.modules() if isinstance(one, Block)]

    @property
    def shape(self) -> dict[str, int]:
        """What DeepSpeed and the model have become, whatever was asked for, by the names of the job info."""
        engine, topology = self.deepspeed, self.topology
        norms = (one.weight for one in self.module.modules() if isinstance(one, Norm))
        widths = [getattr(weight, "ds_shape", weight.shape)[0] for weight in norms]
        return {
            "GLOBAL_BATCH_SIZE": engine.train_batch_size(),
            "MICRO_BATCH_SIZE": engine.train_micro_batch_size_per_gpu(),
            "DP_SIZE": dist.get_world_size(topology.data_group),
            "TENSOR_MP_SIZE": dist.get_world_size(topology.tensor_group),
            "PIPELINE_MP_SIZE": dist.get_world_size(topology.pipeline_group),
            # A first stage may have the embedding only.
            **({"HIDDEN_SIZE": widths[0]} if widths else {}),
        }

    @contextlib.contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Let a watcher see what the steps within do; other steps are as fast as without it."""
        self._watchers.append(watcher)
        self._show_instructions()
        try:
            yield
        finally:
            self._watchers.remove(watcher)
            self._show_instructions()

    def _show_instructions(self) -> None:
        """Hand the pipeline's instructions to those who watch, and only then."""
        if self.topology.pipeline > 1:
            self.deepspeed._INSTRUCTION_MAP = (
                {one: self._shown(one, act) for one, act in self._instructions.items()}
                if self._watchers
                else self._instructions
            )

    def _shown(self, instruction: type, act: Callable[..., None]) -> Callable[..., None]:
        kind, name = INSTRUCTIONS.get(instruction, "other"), instruction.__name__

        def acted(engine: Any, *arguments: Any, **options: Any) -> None:
            with self._span(kind, name):
                act(engine, *arguments, **options)

        return acted

    @contextlib.contextmanager
    def _span(self, kind: str, name: str) -> Iterator[None]:
        """Show those who watch that something begins, and that it ends."""
        with contextlib.ExitStack() as stack:
            for watcher in self._watchers:
                stack.enter_context(watcher(kind, name))
            yield

    def train_step(self, batches: Iterator[Batch]) -> StepResult:
        """Take one step.

        Args:
            batches: Micro-batches on the CPU, of which it takes as many as the accumulation needs. In a
                pipeline only the first and the last stage read it.
        """
        with _attention_kernels(self.device):
            return self._train_step(batches)

    def _train_step(self, batches: Iterator[Batch]) -> StepResult:
        if self._dropout:
            self._seed_dropout()
        moved = self._loaded(batches)
        if self.topology.pipeline > 1:
            loss = self.deepspeed.train_batch(data_iter=moved)
        else:
            self.module.train()
            loss = torch.zeros((), device=self.device)
            for _ in range(self._accumulation):
                with self._span("load", "LoadMicroBatch"):
                    inputs, labels = next(moved)
                with self._span("forward", "ForwardPass"):
                    micro_loss = self.deepspeed(inputs, labels)
                    loss += micro_loss.detach()
                with self._span("backward", "BackwardPass"):
                    self.deepspeed.backward(micro_loss)
                with self._span("optimiser", "OptimizerStep"):
                    self.deepspeed.step()
            if self._on_loss is not None:
                self._on_loss(loss)
            loss = self._averaged(loss, self._accumulation)
        optimiser = self.deepspeed.optimizer
        return StepResult(
            mean_loss=loss,
            norm=self._norm if self._norm is not None else self.deepspeed.get_global_grad_norm(),
            skipped=bool(getattr(optimiser, "overflow", False)),
            loss_scale=float(getattr(optimiser, "cur_scale", 1.0)),
        )

    def eval_step(self, batches: Iterator[Batch]) -> float:
        """Return the mean loss of as many micro-batches as a training step takes, without training."""
        with _attention_kernels(self.device):
            return float(self._eval_step(batches))

    def _eval_step(self, batches: Iterator[Batch]) -> torch.Tensor:
        moved = self._loaded(batches)
        if self.topology.pipeline > 1:
            loss: torch.Tensor = self.deepspeed.eval_batch(data_iter=moved)
        else:
            self.module.eval()
            loss = torch.zeros((), device=self.device)
            with torch.no_grad():
                for _ in range(self._accumulation):
                    inputs, labels = next(moved)
                    loss += self.deepspeed(inputs, labels)
            loss = self._averaged(loss, self._accumulation)
        return loss

    @torch.no_grad()
    def first_not_finite(self) -> str | None:
        """Return the name of something of this rank's state that has a NaN or an infinity; None without.

        It waits for the device.
        """
        named: dict[str, torch.Tensor] = {
            name: getattr(weight, "ds_tensor", weight) for name, weight in self.module.named_parameters()
        }
        wrapped = self.deepspeed.optimizer
        states = getattr(wrapped, "optimizer", wrapped).state
        for number, (master, state) in enumerate(states.items()):
            for name, value in {"weights": master, **state}.items():
                if isinstance(value, torch.Tensor):
                    named[f"part {number} of the optimiser's {name}"] = value
        # The largest value is found without a copy, and is NaN where one is.
        largest = {
            name: torch.linalg.vector_norm(value, torch.inf, dtype=torch.float32).to(self.device)
            for name, value in named.items()
            if value.numel()
        }
        finite = torch.stack(list(largest.values())).isfinite().tolist() if largest else []
        return next((name for name, fine in zip(largest, finite, strict=True) if not fine), None)

    def set_learning_rate(self, rate: float) -> None:
        """Take this learning rate from the next step on."""
        for group in self.deepspeed.optimizer.param_groups:
            group["lr"] = rate

    def parameter_names(self) -> list[str]:
        """Return the names of this rank's parameters, which are the same in every layout."""
        return [name for name, _ in self.module.named_parameters()]

    def universal_checkpoint_info(self) -> dict[str, Any]:
        """Return what DeepSpeed's universal checkpoints need to know to merge tensor-parallel parts.

        Every pattern meets at least one parameter of the whole model: the conversion refuses others.
        """
        whole, rows, vocabulary, tied = [], [], [], []
        for name, placement, shared in self._all_placements():
            pattern = "^" + re.escape(name) + "$"
            if _IN_BLOCK.match(name):
                # One for all blocks. Other layers' names are too alike: an untied embedding's and the last
                # norm's differ in the number alone.
                pattern = re.sub(r"^\^[0-9]+", r"^[0-9]+", pattern)
            if placement.vocabulary:
                vocabulary.append(pattern)
            elif placement.dimension is None:
                whole.append(pattern)
            elif placement.dimension == 1:
                rows.append(pattern)
            if shared:
                tied.append(pattern)
        model = self.config.model
        return {
            universal.UNIVERSAL_CHECKPOINT_VERSION_KEY: universal.UNIVERSAL_CHECKPOINT_VERSION_VALUE,
            universal.ORIGINAL_VOCAB_SIZE: model.vocab_size + model.vocab_extra_ids,
            universal.TP_REPLICATED_PARAMETER_PATTERNS: sorted(set(whole)),
            universal.PARAMETER_WITH_ROW_PARALLELISM_PATTERNS: sorted(set(rows)),
            universal.VOCABULARY_PARAMETER_PATTERNS: sorted(set(vocabulary)),
            universal.PIPELINE_REPLICATED_PARAMETER_PATTERNS: sorted(set(tied)),
        }

    def _all_placements(self) -> Iterator[tuple[str, Any, bool]]:
        """Name every parameter of the whole model, also those of other stages."""
        seen = set()
        for index, layer in enumerate(models.layers(self.config, self.topology)):
            with torch.device("meta"):
                module = layer.make()
            for name, weight in module.named_parameters():
                full = layer.prefix(index) + name
                if full not in seen:
                    seen.add(full)
                    yield full, placement_of(weight), layer.tied is not None

    def _loaded(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return a step's micro-batches on the device, with what their losses are divided by."""
        if self.config.counts_tokens:
            batches = with_counts(batches, self._accumulation, self.topology, self.device)
        return map(self._moved, batches)

    def _moved(self, batch: Batch) -> Batch:
        inputs, labels = batch
        return _to(inputs, self.device), _to(labels, self.device)

    def _averaged(self, loss: torch.Tensor, count: int) -> torch.Tensor:
        loss = loss / count
        if self.topology.data > 1:
            dist.all_reduce(loss, group=self.topology.data_group)
            loss = loss / self.topology.data
        return loss

    def _seed_dropout(self) -> None:
        # From the step, not from the last state: a resumed run drops what an unbroken one would. The ranks of
        # a tensor group share it, because what is whole on each must be dropped alike.
        place = (self.topology.pipeline_rank, self.topology.data_rank)
        torch.manual_seed(
            seed_of(self.config.optimisation.seed, "dropout", self.deepspeed.global_steps, *place)
        )

    def _clip(self, optimiser: torch.optim.Optimizer, *_: object) -> None:
        """Clip before the step: without ZeRO, DeepSpeed would count tied and shared gradients wrongly."""
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
        """Each of the whole model's gradients counts once, on one rank of a replica."""
        if getattr(weight, "ds_pipe_replicated", False):
            return False
        return self.topology.tensor_rank == 0 or placement_of(weight).dimension is not None


def _told(
    loss_fn: Callable[..., Any], on_loss: Callable[[torch.Tensor], None], *arguments: Any
) -> torch.Tensor:
    loss: torch.Tensor = loss_fn(*arguments)
    if torch.is_grad_enabled():
        on_loss(loss)
    return loss


def _backward_at_once(engine: Any, buffer_id: int) -> None:
    """Run a stage's backward pass once, also where its output is several tensors.

    DeepSpeed goes through the stage again for each of them: a stage of a T5 that has the end of the encoder
    and the beginning of the decoder would go through its encoder blocks twice.
    """
    outputs = engine.pipe_buffers["outputs"][buffer_id]
    received = engine.grad_layer
    if not engine.is_last_stage() and isinstance(outputs, tuple) and len(received) > 1:
        states = [output for output in outputs if output.is_floating_point()]
        # One number whose gradients are those that were received.
        joint = torch.stack(
            [(state * gradient).sum() for state, gradient in zip(states, received, strict=True)]
        )
        engine.pipe_buffers["outputs"][buffer_id] = joint
        engine.grad_layer = torch.ones_like(joint)
    PipelineEngine._exec_backward_pass(engine, buffer_id)
    # Its buffers take the next gradients.
    engine.grad_layer = received


def _attention_kernels(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Prefer cuDNN's attention where it is the fastest: on NVIDIA GPUs from Hopper on."""
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < (9, 0):
        return contextlib.nullcontext()
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    return sdpa_kernel(order, set_priority=True)


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        if device.type == "cuda" and value.device.type == "cpu":
            # From pageable memory the copy would wait for all that the device still has to do.
            value = value.pin_memory()
        return value.to(device, non_blocking=True)
    return tuple(_to(part, device) for part in value)


def _import_muon() -> None:
    """Import DeepSpeed's optimiser Muon without torch's compiler, which takes seconds of every process.

    DeepSpeed imports it with any optimiser, and a function in it, which nobody calls, is compiled at that.
    """
    before = os.environ.get("TORCHDYNAMO_DISABLE")
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.muon_optimizer")
    finally:
        del os.environ["TORCHDYNAMO_DISABLE"]
        if before is not None:
            os.environ["TORCHDYNAMO_DISABLE"] = before


def _optimiser(config: Config, model: nn.Module, device: torch.device) -> torch.optim.AdamW:
    """AdamW over this rank's parameters: those that decay and those that do not."""
    optimisation = config.optimisation
    decaying: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for weight in model.parameters():
        (decaying if placement_of(weight).decays else others).append(weight)
    groups: list[dict[str, Any]] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        groups,
        lr=optimisation.lr,
        betas=(optimisation.adam_beta1, optimisation.adam_beta2),
        eps=optimisation.adam_epsilon,
        weight_decay=optimisation.weight_decay,
        fused=device.type in ("cpu", "cuda"),
    )
