# SPDX-License-Identifier: GPL-3.0-or-later
"""What the training loop knows of an engine: it takes steps, evaluates, has a learning rate and states."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rdm_core import partition
from rdm_core.config import Config
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.distributed.context_attention import prefers_cudnn
from rdm_trainer.distributed.context_parallel import SequencePart
from rdm_trainer.distributed.parameters import seed_of
from rdm_trainer.distributed.token_counts import Batch, with_counts
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models.moe import MoEEmbedding
from rdm_trainer.models.transformer import Block, Norm

__all__ = ["DTYPES", "Batch", "Engine", "States", "StepResult", "Watcher", "adamw"]

Watcher = Callable[[str, str], contextlib.AbstractContextManager[Any]]
"""(kind, name) of something that a step does → entered when it begins, left when it ends."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepResult:
    """What a step did. The loss stays on the device until it is asked for, so that steps do not wait for it.

    Attributes:
        mean_loss: float32 scalar on the device: the mean over the tokens that count; with experts without
            their load-balancing loss, which an engine's step leaves in it.
        grad_norm: Norm of all gradients before clipping; ``None`` where it is not known.
        skipped: The gradients overflowed, and the weights were left alone. Only fp16 tells; a bf16 step with
            gradients that are not finite is left out as well, and its norm says so.
        loss_scale: fp16's factor on the loss; 1 otherwise.
        balance: The load-balancing loss of a Mixture of Experts on the device, the mean over blocks,
            micro-batches and replicas; None without experts.
    """

    mean_loss: torch.Tensor
    norm: torch.Tensor | float | None
    skipped: bool = False
    loss_scale: float = 1.0
    balance: torch.Tensor | None = None

    @property
    def loss(self) -> float:
        """The mean loss; waits for the device."""
        return float(self.mean_loss)

    @property
    def grad_norm(self) -> float | None:
        """Norm of all gradients before clipping, ``None`` where it is not known; waits for the device."""
        return None if self.norm is None else float(self.norm)


class States(Protocol):
    """An engine's weights and optimiser as files. Every rank calls the methods with the others.

    Attributes:
        files: What this rank wrote last, with its bytes.
        error: Why it could not.
    """

    @property
    def files(self) -> Mapping[Path, int]: ...  # noqa: D102

    @property
    def error(self) -> str | None: ...  # noqa: D102

    def save(self, directory: Path, name: str, state: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
        """Begin to write into an empty directory; in the background, where that is configured.

        Args:
            directory: The checkpoints'.
            name: The step's, in it.
            state: The training's own state.
            extra: What this rank writes besides, by the file's name.
        """

    def wait(self, seconds: float) -> bool:
        """Wait up to so many seconds and tell whether everything is written, or failed."""

    def can_load(self, layout: Mapping[str, Any]) -> bool:
        """Tell whether files of a layout (see ``identity``) are read as they are."""

    def needed_files(self, manifest: Manifest, directory: Path) -> set[str]:
        """Return the files that this rank reads."""

    def load(self, directory: Path, name: str, manifest: Manifest) -> set[str]:
        """Read them, and return the names of those that are damaged."""

    def needed_universal_files(self, manifest: Manifest) -> set[str]:
        """Return the files of a universal copy that this rank reads."""

    def load_universal(self, folder: Path, manifest: Manifest) -> None:
        """Read a universal copy.

        Args:
            folder: The copy, ``global_stepN_universal``.
            manifest: Of the checkpoint: its counters, and what it was saved with.
        """


class Engine(abc.ABC):
    """The model and its optimiser. Every rank makes one and takes every step with the others.

    Args:
        config: The job.
        topology: This rank's place.
        device: Where it computes.

    Attributes:
        work: What ranks with the same work have in common.
        states: The weights and the optimiser, for checkpoints.
        module: The model, or this rank's stage of it.
        optimiser: Of :func:`adamw`.
    """

    work: str
    states: States
    module: nn.Module
    optimiser: torch.optim.Optimizer

    def __init__(self, config: Config, topology: Topology, device: torch.device) -> None:
        # Newer torch renames them, and would say so at each call; older has no other names.
        warnings.filterwarnings(
            "ignore", ".*(all_gather_into_tensor|reduce_scatter_tensor). is deprecated", FutureWarning
        )
        self.config, self.topology, self.device = config, topology, device
        self.accumulation = config.accumulation(topology.batch_ranks)
        self._dropout = max(config.model.hidden_dropout, config.model.attention_dropout) > 0
        self._watchers: list[Watcher] = []
        self._part = SequencePart.of(topology)

    # What engines differ in.

    @abc.abstractmethod
    def _train_step(self, batches: Iterator[Batch]) -> StepResult:
        """Take one step with micro-batches on the device."""

    @abc.abstractmethod
    def _evaluate(self, batches: Iterator[Batch]) -> torch.Tensor:
        """Return the mean loss of micro-batches on the device."""

    @property
    @abc.abstractmethod
    def lr(self) -> float:
        """The learning rate of the next step."""

    @lr.setter
    @abc.abstractmethod
    def lr(self, rate: float) -> None: ...

    @property
    @abc.abstractmethod
    def steps(self) -> int:
        """Steps that were taken, those before a checkpoint included."""

    @abc.abstractmethod
    def optimiser_states(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """Return the optimiser's states, by the tensor that each is of."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of the device's memory."""

    def _whole_shape(self, weight: nn.Parameter) -> torch.Size:
        """Return a weight's shape, also where the replicas share it."""
        return weight.shape

    def _kept_part(self, weight: nn.Parameter) -> torch.Tensor:
        """Return what this rank keeps of a weight between steps."""
        return weight

    # What they have in common.

    def train_step(self, batches: Iterator[Batch]) -> StepResult:
        """Take one step.

        Args:
            batches: Micro-batches on the CPU, of which it takes as many as the accumulation needs. In a
                pipeline only the first and the last stage read it.
        """
        if self._dropout:
            self._seed_dropout()
        with _attention_kernels(self.device):
            return self._with_balance(self._train_step(self._loaded(batches)))

    def evaluate(self, batches: Iterator[Batch]) -> float:
        """Return the mean loss of as many micro-batches as a training step takes, without training."""
        with _attention_kernels(self.device), torch.no_grad():
            return float(self._evaluate(self._loaded(batches)))

    def set_batch(self, samples: int) -> None:
        """Take steps, and evaluate, with so many samples from now on."""
        self.accumulation = samples // (self.config.optimisation.micro_batch_size * self.topology.batch_ranks)

    def set_weight_decay(self, value: float) -> None:
        """Take this weight decay from the next step on, for the weights that decay."""
        for group in self.optimiser.param_groups:
            if group["decays"]:
                group["weight_decay"] = value

    @property
    def blocks(self) -> list[str]:
        """The kinds of the transformer blocks that this rank has."""
        return [type(one).__name__ for one in self.module.modules() if isinstance(one, Block)]

    @property
    def shape(self) -> dict[str, int]:
        """What the model and its ranks have become, whatever was asked for, by the names of the job info."""
        topology = self.topology
        norms = (one.weight for one in self.module.modules() if isinstance(one, Norm))
        widths = [self._whole_shape(weight)[0] for weight in norms]
        return {
            "GLOBAL_BATCH_SIZE": self.config.optimisation.global_batch_size,
            "MICRO_BATCH_SIZE": self.config.optimisation.micro_batch_size,
            "DP_SIZE": dist.get_world_size(topology.data_group) // topology.context,
            "TENSOR_MP_SIZE": dist.get_world_size(topology.tensor_group),
            "PIPELINE_MP_SIZE": dist.get_world_size(topology.pipeline_group),
            # A first stage may have the embedding only.
            **({"HIDDEN_SIZE": widths[0]} if widths else {}),
        }

    def parameter_names(self) -> list[str]:
        """Return the names of this rank's parameters, which are the same in every layout."""
        return [name for name, _ in self.module.named_parameters()]

    @contextlib.contextmanager
    def watched(self, watcher: Watcher) -> Iterator[None]:
        """Let a watcher see what the steps within do; other steps are as fast as without it."""
        self._watchers.append(watcher)
        try:
            yield
        finally:
            self._watchers.remove(watcher)

    @contextlib.contextmanager
    def _span(self, kind: str, name: str) -> Iterator[None]:
        """Show those who watch that something begins, and that it ends."""
        with contextlib.ExitStack() as stack:
            for watcher in self._watchers:
                stack.enter_context(watcher(kind, name))
            yield

    @torch.no_grad()
    def first_not_finite(self) -> str | None:
        """Return the name of something of this rank's state that has a NaN or an infinity; None without.

        It waits for the device.
        """
        named: dict[str, torch.Tensor] = {
            name: self._kept_part(weight) for name, weight in self.module.named_parameters()
        }
        for number, (master, state) in enumerate(self.optimiser_states().items()):
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

    def _work(self, kinds: list[str]) -> str:
        """Return what ranks with the same work have in common; ``kinds`` are those of this stage's layers."""
        place = self.topology
        return partition.work_of(place.pipeline_rank, place.pipeline, kinds if place.pipeline > 1 else [])

    def _loaded(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return a step's micro-batches on the device, with what their losses are divided by."""
        if self._part is not None:
            batches = map(self._own_tokens, batches)
        if self.config.counts_tokens:
            batches = with_counts(batches, self.accumulation, self.topology, self.device)
        return map(self._moved, batches)

    def _own_tokens(self, batch: Batch) -> Batch:
        """Return this rank's part of each sample."""
        assert self._part is not None
        inputs, labels = batch
        own = self._part.own
        inputs = tuple(map(own, inputs)) if isinstance(inputs, tuple) else own(inputs)
        return inputs, tuple(map(own, labels))

    def _moved(self, batch: Batch) -> Batch:
        inputs, labels = batch
        return _to(inputs, self.device), _to(labels, self.device)

    def _with_balance(self, result: StepResult) -> StepResult:
        """Tell a step's load-balancing loss from the rest, and begin a new sum of it."""
        if not self.config.spec.experts:
            return result
        balance = torch.zeros((), device=self.device)
        for module in self.module.modules():
            if isinstance(module, MoEEmbedding) and module.balance is not None:
                balance, module.balance = module.balance, None
        if self.topology.pipeline > 1:
            # The last stage has it.
            dist.all_reduce(balance, group=self.topology.pipeline_group)
        balance = self._averaged(balance)
        rest = result.mean_loss - self.config.spec.aux_loss_coeff * balance
        return dataclasses.replace(result, mean_loss=rest, balance=balance)

    def _averaged(self, loss: torch.Tensor) -> torch.Tensor:
        """Average a sum over this rank's micro-batches over these, and over all replicas."""
        loss = loss / self.accumulation
        if self.topology.data > 1:
            dist.all_reduce(loss, group=self.topology.data_group)
            loss = loss / self.topology.data
        return loss

    def _seed_dropout(self) -> None:
        # From the step, not from the last state: a resumed run drops what an unbroken one would. The ranks of
        # a tensor group share it, because what is whole on each must be dropped alike; with sequence
        # parallelism nothing is.
        topology = self.topology
        shard = (topology.tensor_rank,) if topology.sequence_parallel else ()
        place = (topology.pipeline_rank, topology.data_rank, *shard)
        torch.manual_seed(seed_of(self.config.optimisation.seed, "dropout", self.steps, *place))


def adamw(config: Config, groups: list[dict[str, Any]], device: torch.device) -> torch.optim.AdamW:
    """Make torch's AdamW with a job's settings.

    Args:
        config: The job.
        groups: Of parameters, with what they do otherwise.
        device: Where they are.
    """
    optimisation = config.optimisation
    return torch.optim.AdamW(
        [{**group, "decays": group.get("weight_decay") != 0.0} for group in groups],
        lr=optimisation.lr,
        betas=(optimisation.adam_beta1, optimisation.adam_beta2),
        eps=optimisation.adam_epsilon,
        weight_decay=optimisation.weight_decay,
        fused=device.type in ("cpu", "cuda"),
    )


def _attention_kernels(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Prefer cuDNN's attention where it is the fastest, and right for all lengths."""
    if device.type != "cuda" or torch.version.hip:
        return contextlib.nullcontext()
    if not prefers_cudnn(torch.cuda.get_device_capability(device), torch.backends.cudnn.version() or 0):
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
