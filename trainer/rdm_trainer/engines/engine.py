# SPDX-License-Identifier: GPL-3.0-or-later
"""The training loop's view of an engine: it takes steps, evaluates, and has a learning rate and states."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rdm_core import partition
from rdm_core.config import Config
from rdm_trainer.distributed.context_attention import prefers_cudnn
from rdm_trainer.distributed.context_parallel import SequencePart
from rdm_trainer.distributed.parameters import seed_of
from rdm_trainer.distributed.token_counts import Batch, with_counts
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.states import States
from rdm_trainer.models.moe import MoEEmbedding
from rdm_trainer.models.transformer import Block, Norm

Observer = Callable[[str, str], contextlib.AbstractContextManager[Any]]
"""(kind, name) of an operation in a step → a context entered when it begins and left when it ends."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class StepResult:
    """The result of a step. The loss stays on the device until it is read, so that steps do not wait for it.

    Attributes:
        mean_loss: float32 scalar on the device: the mean over the tokens that count. With experts it excludes
            the load-balancing loss; the engines' own result still includes that.
        grad_norm: Norm of all gradients before clipping; ``None`` if it is not known.
        skipped: The gradients overflowed, so the weights were not updated. fp16 reports this, and so do
            DeepSpeed's ZeRO 2 and 3 and offloaded states. Other bf16 steps with gradients that are not finite
            are skipped, too; their norm shows it.
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
        """Norm of all gradients before clipping, ``None`` if it is not known; waits for the device."""
        return None if self.norm is None else float(self.norm)


class Engine(abc.ABC):
    """The model and its optimiser. Every rank creates one, and all ranks take every step together.

    Args:
        config: The job.
        topology: This rank's place.
        device: Where it computes.

    Attributes:
        work: A label shared by ranks with the same work.
        states: The weights and the optimiser, for checkpoints.
        module: The model, or this rank's stage of it.
        optimiser: The optimiser, from :func:`adamw`.
    """

    work: str
    states: States
    module: nn.Module
    optimiser: torch.optim.Optimizer

    def __init__(self, config: Config, topology: Topology, device: torch.device) -> None:
        # Newer torch renames them and would warn at each call; older torch lacks the new names.
        warnings.filterwarnings(
            "ignore", ".*(all_gather_into_tensor|reduce_scatter_tensor). is deprecated", FutureWarning
        )
        self.config, self.topology, self.device = config, topology, device
        self.accumulation = config.accumulation(topology.batch_ranks)
        self._dropout = max(config.spec.hidden_dropout, config.spec.attention_dropout) > 0
        self._observers: list[Observer] = []
        self._part = SequencePart.of(topology)
        self._tokens = attended_tokens(config)

    # Implemented by each engine.

    @abc.abstractmethod
    def _train_step(self, batches: Iterator[Batch]) -> StepResult:
        """Take one step with micro-batches on the device."""

    @abc.abstractmethod
    def _evaluate(self, batches: Iterator[Batch]) -> torch.Tensor:
        """Return the mean loss of micro-batches on the device."""

    @property
    @abc.abstractmethod
    def steps(self) -> int:
        """Number of steps taken, including those before a checkpoint."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free the device's memory."""

    def _whole_shape(self, weight: nn.Parameter) -> torch.Size:
        """Return a weight's whole shape, even if the replicas shard it."""
        return weight.shape

    def _kept_part(self, weight: nn.Parameter) -> torch.Tensor:
        """Return the part of a weight that this rank keeps between steps."""
        return weight

    # Common to all engines.

    def train_step(self, batches: Iterator[Batch]) -> StepResult:
        """Take one step.

        Args:
            batches: Micro-batches on the CPU; a step takes as many as the accumulation needs. In a pipeline,
                only the first and the last stage read them.
        """
        if self._dropout:
            self._seed_dropout()
        with attention_kernels(self.device, self._tokens):
            return self._with_balance(self._train_step(self._loaded(batches)))

    def evaluate(self, batches: Iterator[Batch]) -> float:
        """Return the mean loss over as many micro-batches as a step takes, without training."""
        with attention_kernels(self.device, self._tokens), torch.no_grad():
            return float(self._evaluate(self._loaded(batches)))

    def set_batch(self, samples: int) -> None:
        """Use this number of samples for steps and evaluations from now on."""
        self.accumulation = samples // (self.config.optimisation.micro_batch_size * self.topology.batch_ranks)

    def set_lr(self, rate: float) -> None:
        """Use this learning rate from the next step on."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def set_weight_decay(self, value: float) -> None:
        """Use this weight decay from the next step on, for the weights that decay."""
        for group in self.optimiser.param_groups:
            if group["decays"]:
                group["weight_decay"] = value

    @property
    def blocks(self) -> list[str]:
        """The kinds of the transformer blocks that this rank has."""
        return [type(one).__name__ for one in self.module.modules() if isinstance(one, Block)]

    @property
    def shape(self) -> dict[str, int]:
        """The actual sizes of the model and its axes, by their names in the job info."""
        topology = self.topology
        norms = (one.weight for one in self.module.modules() if isinstance(one, Norm))
        widths = [self._whole_shape(weight)[0] for weight in norms]
        return {
            "GLOBAL_BATCH_SIZE": self.config.optimisation.global_batch_size,
            "MICRO_BATCH_SIZE": self.config.optimisation.micro_batch_size,
            "DP_SIZE": dist.get_world_size(topology.data_group) // topology.context,
            "TENSOR_MP_SIZE": dist.get_world_size(topology.tensor_group),
            "PIPELINE_MP_SIZE": dist.get_world_size(topology.pipeline_group),
            # A first stage may have only the embedding.
            **({"HIDDEN_SIZE": widths[0]} if widths else {}),
        }

    @contextlib.contextmanager
    def observed(self, observer: Observer) -> Iterator[None]:
        """Let an observer see the steps within this context; other steps cost nothing extra."""
        self._observers.append(observer)
        try:
            yield
        finally:
            self._observers.remove(observer)

    @contextlib.contextmanager
    def _span(self, kind: str, name: str) -> Iterator[None]:
        """Report the start and the end of an operation to the observers."""
        with contextlib.ExitStack() as stack:
            for observer in self._observers:
                stack.enter_context(observer(kind, name))
            yield

    @torch.no_grad()
    def first_not_finite(self) -> str | None:
        """Return the name of a part of this rank's state with a NaN or an infinity; None if all is finite.

        It waits for the device.
        """
        named: dict[str, torch.Tensor] = {
            name: self._kept_part(weight) for name, weight in self.module.named_parameters()
        }
        for number, (master, state) in enumerate(self.optimiser.state.items()):
            for name, value in {"weights": master, **state}.items():
                if isinstance(value, torch.Tensor):
                    named[f"part {number} of the optimiser's {name}"] = value
        # The maximum norm needs no copy, and is NaN if any value is.
        largest = {
            name: torch.linalg.vector_norm(value, torch.inf, dtype=torch.float32).to(self.device)
            for name, value in named.items()
            if value.numel()
        }
        finite = torch.stack(list(largest.values())).isfinite().tolist() if largest else []
        return next((name for name, fine in zip(largest, finite, strict=True) if not fine), None)

    def _work(self, kinds: list[str]) -> str:
        """Return a label shared by ranks with the same work; ``kinds`` are those of this stage's layers."""
        place = self.topology
        return partition.work_of(place.pipeline_rank, place.pipeline, kinds if place.pipeline > 1 else [])

    def _loaded(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Return a step's micro-batches on the device, with the divisors of their losses."""
        if self._part is not None:
            batches = map(self._own_tokens, batches)
        if self.config.counts_tokens:
            batches = with_counts(batches, self.accumulation, self.topology, self.device)
        return map(self._on_device, batches)

    def _own_tokens(self, batch: Batch) -> Batch:
        """Return this rank's part of each sample."""
        assert self._part is not None
        inputs, labels = batch
        own = self._part.own
        inputs = tuple(map(own, inputs)) if isinstance(inputs, tuple) else own(inputs)
        return inputs, tuple(map(own, labels))

    def _on_device(self, batch: Batch) -> Batch:
        inputs, labels = batch
        return _to(inputs, self.device), _to(labels, self.device)

    def _with_balance(self, result: StepResult) -> StepResult:
        """Separate a step's load-balancing loss from the rest, and reset its sum."""
        if not self.config.spec.experts:
            return result
        balance = torch.zeros((), device=self.device)
        for module in self.module.modules():
            if isinstance(module, MoEEmbedding) and module.balance is not None:
                balance, module.balance = module.balance, None
        if self.topology.pipeline > 1:
            # Only the last stage has it.
            dist.all_reduce(balance, group=self.topology.pipeline_group)
        balance = self._averaged(balance)
        rest = result.mean_loss - self.config.spec.aux_loss_coeff * balance
        return dataclasses.replace(result, mean_loss=rest, balance=balance)

    def _averaged(self, loss: torch.Tensor) -> torch.Tensor:
        """Turn a sum over this rank's micro-batches into the mean over them and over all replicas."""
        loss = loss / self.accumulation
        if self.topology.data > 1:
            dist.all_reduce(loss, group=self.topology.data_group)
            loss = loss / self.topology.data
        return loss

    def _seed_dropout(self) -> None:
        # The seed depends on the step, so that a resumed run drops the same features as an uninterrupted one.
        # Ranks of a tensor group share it, because replicated states must be dropped alike; with sequence
        # parallelism no states are replicated.
        topology = self.topology
        shard = (topology.tensor_rank,) if topology.sequence_parallel else ()
        place = (topology.pipeline_rank, topology.data_rank, *shard)
        torch.manual_seed(seed_of(self.config.optimisation.seed, "dropout", self.steps, *place))


def adamw(config: Config, groups: list[dict[str, Any]], device: torch.device) -> torch.optim.AdamW:
    """Create torch's AdamW with a job's settings.

    Args:
        config: The job.
        groups: Parameter groups, with settings that differ from the job's.
        device: Where the parameters are.
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


def attended_tokens(config: Config) -> int:
    """Return a number that divides the queries and the keys of each call of attention."""
    tokens, context = math.gcd(config.spec.seq_length, config.spec.decoder_length), config.parallel.context
    # A context rank may attend with either of its two parts of a sample alone.
    return tokens if context == 1 else tokens // (2 * context)


@contextlib.contextmanager
def attention_kernels(device: torch.device, tokens: int) -> Iterator[None]:
    """Prefer cuDNN's attention where it is the fastest, and right.

    Args:
        device: The rank's device.
        tokens: The result of :func:`attended_tokens`.
    """
    if device.type != "cuda" or torch.version.hip:
        yield
        return
    capability, cudnn = torch.cuda.get_device_capability(device), torch.backends.cudnn.version() or 0
    if not prefers_cudnn(capability, cudnn, tokens):
        yield
        return
    order = [
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    # A compiled graph keeps its kernel, but the key in PyTorch's cache lacks the preference.
    tag = f"{torch.compiler.config.cache_key_tag} cuDNN's attention"
    compiler: Any = torch.compiler.config
    with compiler.patch(cache_key_tag=tag), sdpa_kernel(order, set_priority=True):
        yield


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, torch.Tensor):
        if device.type == "cuda" and value.device.type == "cpu":
            # A copy from pageable memory would wait for all work queued on the device.
            value = value.pin_memory()
        return value.to(device, non_blocking=True)
    return tuple(_to(part, device) for part in value)
