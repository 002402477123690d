# SPDX-License-Identifier: GPL-3.0-or-later
"""A fine-tuning as frozen dataclasses: every key with its type, bounds, default and meaning.

The tables in ``docs/finetune-configuration.md`` are generated from this file. No torch here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rdm_core.bounds import Fraction, Natural, NotNegative, Positive, PositiveFloat
from rdm_core.config.job import FilePath, JobConfig, JobLoggingConfig


@dataclass(frozen=True)
class ModelConfig:
    """The model that is tuned."""

    path: FilePath
    """A directory with `config.json`, weights and tokenizer, or a name on the hub, such as
    `Qwen/Qwen3-8B`."""
    revision: str | None = None
    """Branch, tag or commit of a model on the hub."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """The implementation of attention. `auto` is transformers' default."""


@dataclass(frozen=True)
class DataConfig:
    """What the model learns: rows with a prompt and its completion, or with messages.

    The loss is that of the answers alone. Which of the two a file has follows from its columns.
    """

    train: tuple[FilePath, ...]
    """Files for training: `.jsonl`, `.json` or `.parquet`, all of one kind."""
    valid: tuple[FilePath, ...] = ()
    """Files for evaluation."""
    prompt: str = "prompt"
    """Column of the prompts."""
    completion: str = "completion"
    """Column of the completions."""
    messages: str = "messages"
    """Column of the messages, each with `role` and `content`, which the tokenizer's chat template turns into
    text."""
    chosen: str = "chosen"
    """DPO: column of the better answers."""
    rejected: str = "rejected"
    """DPO: column of the worse answers."""
    chat: bool = False
    """Also put prompts and completions through the chat template, as a user's and an assistant's message."""
    max_length: Positive = 1024
    """Tokens of a sequence; longer ones are truncated."""
    packing: bool = False
    """Pack several rows into one sequence of `max_length`; they do not attend to each other."""


@dataclass(frozen=True)
class LoraConfig:
    """Train a small adapter instead of all weights."""

    rank: Natural = 0
    """Rank of the adapter; 0 trains all weights."""
    alpha: PositiveFloat | None = None
    """Scale of the adapter. Defaults to twice the rank."""
    dropout: Fraction = 0.0
    """Dropout before the adapter."""
    targets: tuple[str, ...] = ("all-linear",)
    """Names of the layers with an adapter, such as `q_proj`; `all-linear` means every linear layer except the
    head."""
    merge: bool = False
    """Also write the model with the adapter merged into it, at the end."""


@dataclass(frozen=True)
class DpoConfig:
    """Of `method: dpo`."""

    beta: PositiveFloat = 0.1
    """How strongly the model is kept near its initial weights."""


@dataclass(frozen=True)
class OptimisationConfig:
    """Batch, length, precision, optimiser and learning-rate schedule."""

    micro_batch_size: Positive = 1
    """Rows of one forward pass on one device."""
    accumulation: Positive | None = None
    """Micro-batches of a step on each device; 1 by default. Not with `global_batch_size`."""
    global_batch_size: Positive | None = None
    """Rows of a step over all devices: `micro_batch_size` x accumulation x devices."""
    epochs: PositiveFloat = 1.0
    """Passes over the data."""
    train_iterations: Positive | None = None
    """Steps to train, instead of `epochs`."""
    precision: Literal["fp32", "bf16"] = "bf16"
    """Of weights and activations."""
    lr: PositiveFloat = 1e-5
    """The highest learning rate."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the rate decays, to 0 at the end."""
    warmup_fraction: Fraction = 0.0
    """Share of the training in which the rate rises from 0."""
    weight_decay: NotNegative = 0.0
    """AdamW's weight decay; not applied to biases and norms."""
    adam_beta1: Fraction = 0.9
    """Decay of the first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of the second moment."""
    adam_epsilon: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    clip_grad: NotNegative = 1.0
    """Maximum norm of all gradients together; 0 does not clip."""
    activation_checkpointing: Literal["none", "full"] = "full"
    """`full` keeps only the input of each block and computes the rest again in the backward pass."""
    seed: Natural = 1234
    """Of the order of the rows, the adapter and dropout."""


@dataclass(frozen=True)
class ZeroConfig:
    """What DeepSpeed shards over the devices."""

    stage: Literal[0, 1, 2, 3] = 2
    """Optimiser states (1), gradients too (2), weights too (3). 0 is torch's own data parallelism."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """Where optimiser states are kept."""
    offload_parameters: Literal["none", "cpu"] = "none"
    """Stage 3 only: where weights are kept."""
    bucket_size: Positive = 200_000_000
    """Elements of one reduction or gather."""
    overlap_comm: bool = True
    """Overlap the reduction of gradients with the backward pass."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, into `checkpoints/` of the job's directory, and when a job ends early."""

    interval: Natural = 1000
    """Steps between checkpoints; 0: only at the end and on a signal."""
    keep: Natural = 10
    """The newest N are kept; 0 keeps all."""
    exit_interval: Positive | None = None
    """Save and end when the step is a multiple of this."""


@dataclass(frozen=True)
class EvaluationConfig:
    """Evaluation on the files of `data.valid`."""

    interval: Natural = 1000
    """Steps between evaluations, and one at the end; 0 is never."""
    samples: Natural = 2
    """Number of these prompts that the model answers in the log, with greedy decoding."""
    sample_tokens: Positive = 64
    """Maximum tokens of such an answer."""


@dataclass(frozen=True)
class LoggingConfig(JobLoggingConfig):
    """Log lines and TensorBoard. Intervals are steps; 0 is never."""

    interval: Natural = 10
    """Between log lines."""
    tensorboard: bool = True
    """Write TensorBoard's event files into the job's directory."""
    trackers: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Also send the numbers to Weights & Biases or MLflow, as in a training."""


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(JobConfig):
    """One fine-tuning."""

    workload: str = "finetune"
    method: Literal["sft", "dpo"] = "sft"
    """Supervised fine-tuning, or direct preference optimisation."""
    model: ModelConfig
    data: DataConfig
    lora: LoraConfig = field(default_factory=LoraConfig)
    dpo: DpoConfig = field(default_factory=DpoConfig)
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)
    zero: ZeroConfig = field(default_factory=ZeroConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)

    def accumulation(self, world_size: int) -> int:
        """Return the micro-batches of a step on each device, given the number of devices."""
        optimisation = self.optimisation
        if optimisation.global_batch_size is None:
            return optimisation.accumulation or 1
        return optimisation.global_batch_size // (optimisation.micro_batch_size * world_size)

    def global_batch_size(self, world_size: int) -> int:
        """Return the rows of a step over all devices, given the number of devices."""
        return self.optimisation.micro_batch_size * self.accumulation(world_size) * world_size


def check(config: FinetuneConfig, world_size: int | None) -> Iterator[str]:
    """Yield the problems between the keys, one sentence each.

    Args:
        config: The configuration, with each key within its bounds.
        world_size: Number of processes, if known.
    """
    optimisation, zero, data = config.optimisation, config.zero, config.data
    if not data.train:
        yield "data.train names no file; give it one at least."
    for key, files in (("data.train", data.train), ("data.valid", data.valid)):
        kinds = {Path(file).suffix for file in files}
        if wrong := sorted(kinds - {".json", ".jsonl", ".parquet"}):
            yield f"{key} has a file {wrong[0] or 'without a suffix'}; known are .jsonl, .json and .parquet."
        elif len({kind.removesuffix("l") for kind in kinds}) > 1:
            yield f"{key} has files of several kinds; give it .parquet or .json and .jsonl alone."
    if optimisation.accumulation is not None and optimisation.global_batch_size is not None:
        yield "optimisation.accumulation and optimisation.global_batch_size are both given; keep one."
    elif optimisation.global_batch_size is not None:
        rows = optimisation.micro_batch_size * (world_size or 1)
        if optimisation.global_batch_size % rows:
            yield (
                f"optimisation.global_batch_size is {optimisation.global_batch_size}; it must be a multiple "
                f"of micro_batch_size x devices, which is {rows}."
            )
    if zero.offload_parameters != "none" and zero.stage != 3:
        yield f"zero.offload_parameters is {zero.offload_parameters}, which needs zero.stage 3."
    if zero.offload_optimizer != "none" and zero.stage == 0:
        yield f"zero.offload_optimizer is {zero.offload_optimizer}, which needs zero.stage 1 at least."
    if config.lora.merge and not config.lora.rank:
        yield "lora.merge is true, but lora.rank is 0, so there is no adapter to merge; give lora.rank."
    if config.method == "dpo" and data.packing:
        yield "data.packing is true, but method is dpo, which packs nothing; leave it out."
    if config.launcher.program:
        yield "launcher.program is for the workload train; leave it out of a fine-tuning."
    if config.launcher.profiler == "torch":
        yield "launcher.profiler torch is for our own training; use nsys or rocprof for a fine-tuning."
