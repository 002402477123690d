# SPDX-License-Identifier: GPL-3.0-or-later
"""A training job as frozen dataclasses: every key with its type, bounds, default and meaning.

``docs/training-configuration.md`` is generated from this file: the docstring of a class describes its
section, and the text below a field describes the key. No torch here.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from dataclasses import dataclass, field
from typing import Annotated, Literal, Self

from rdm_core import partition as partitions
from rdm_core.batch_ramp import BatchRamp
from rdm_core.bounds import Bounds, Fraction, Layers, Natural, NotNegative, Positive, PositiveFloat, Samples
from rdm_core.config.job import FilePath, JobConfig, JobLoggingConfig, step_range
from rdm_core.cost import flops
from rdm_core.model_spec import ModelSpec, RopeScaling


@dataclass(frozen=True)
class ModelConfig:
    """The model's shape."""

    kind: Literal["gpt", "t5", "bert"] = "gpt"
    """A decoder (`gpt`: GPT, Llama, Qwen3), an encoder and a decoder (`t5`), or an encoder (`bert`)."""
    layers: Layers = 12
    """Transformer blocks; of a T5 those of the encoder."""
    decoder_layers: Layers | None = None
    """T5 only: blocks of the decoder. As many as `layers` when not given."""
    hidden_size: Positive = 768
    """Width of the model."""
    attention_heads: Positive = 12
    """Heads of each attention; a multiple of `parallel.tensor`."""
    query_groups: Positive | None = None
    """Heads of keys and values, each shared by a group of query heads (GQA); a multiple or a divisor of
    `parallel.tensor`. As many as `attention_heads` when not given."""
    kv_channels: Positive | None = None
    """Width of one head. `hidden_size / attention_heads` when not given."""
    ffn_hidden_size: Positive | None = None
    """Width inside the feed-forward part. `4 * hidden_size` when not given."""
    seq_length: Positive = 1024
    """Tokens of a sample; of a T5 those of the encoder."""
    decoder_seq_length: Positive | None = None
    """T5 only: tokens of the decoder. `seq_length` when not given."""
    max_position_embeddings: Positive | None = None
    """Learned positions. The longest sequence when not given."""
    position_embedding: Literal["learned", "rope", "relative"] = "learned"
    """Learned positions, rotary ones (RoPE), or T5's relative ones: what is added to attention's scores at
    each distance, learned by each head, and shared by the blocks of an encoder or a decoder."""
    rope_theta: PositiveFloat = 10000.0
    """`rope` only: the base of the frequencies."""
    rope_scaling: RopeScaling | None = None
    """`rope` only: for sequences longer than those that the model was first trained on."""
    relative_attention_num_buckets: Annotated[int, Bounds(least=4)] = 32
    """`relative` only: buckets of distances; even. Half hold one distance each, the others ever more."""
    relative_attention_max_distance: Positive = 128
    """`relative` only: from here on, all distances are one."""
    softmax_scale: PositiveFloat | None = None
    """Factor on the attention's scores; T5 has 1. One through the root of `kv_channels` when not given."""
    sliding_window: Positive | None = None
    """GPT only: tokens that a token sees at most, itself included. All before it when not given."""
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    """Layer norm, or RMSNorm, which has no bias and takes no mean off."""
    qk_norm: bool = False
    """Queries and keys of each head are normed (`norm: rmsnorm` only)."""
    activation: Literal["gelu", "relu", "swiglu", "geglu"] = "gelu"
    """Of the feed-forward part. SwiGLU and GEGLU have a third matrix of `ffn_hidden_size`."""
    experts: Positive | None = None
    """Mixture of Experts: feed-forward parts of each block, of width `ffn_hidden_size`. A router gives every
    token to some of them. All tokens share one when not given."""
    moe_router_topk: Positive = 2
    """`experts` only: how many of them a token is given to."""
    moe_norm_topk_prob: bool = True
    """`experts` only: the probabilities of a token's experts are divided by their sum, as Mixtral and
    Qwen3-30B-A3B do it; `false` takes them as the softmax over all experts has them."""
    moe_aux_loss_coeff: NotNegative = 0.001
    """`experts` only: weight of the load-balancing loss, which is logged on its own."""
    moe_expert_capacity_factor: PositiveFloat | None = None
    """`experts` only: an expert takes at most this times its even share of a micro-batch's tokens, and drops
    the rest. No token is dropped when not given."""
    biases: Literal["all", "qkv", "none"] = "all"
    """Matrix products that add a bias: all, those that make queries, keys and values, or none."""
    vocab_size: Positive = 50257
    """The tokenizer's tokens, without padding and sentinels."""
    vocab_extra_ids: Natural = 0
    """T5 only: sentinels, after the tokenizer's tokens."""
    make_vocab_size_divisible_by: Positive = 128
    """The vocabulary is padded to a multiple of this times `parallel.tensor`."""
    tied_embeddings: bool = True
    """The output layer uses the word embedding's weights."""
    scale_logits: bool = False
    """T5 only: the logits are divided by the root of `hidden_size`, as those of T5 1.0 are."""
    lm_head_bias: bool = False
    """T5 only: a bias is added to each token's logit, as Megatron's T5 does it with tied embeddings."""
    init_std: PositiveFloat = 0.02
    """Standard deviation of the initial weights."""
    hidden_dropout: Fraction = 0.0
    """Dropout after the embedding, the attention and the feed-forward part."""
    attention_dropout: Fraction = 0.0
    """Dropout of the attention's probabilities."""
    layernorm_epsilon: PositiveFloat = 1e-5
    """Added to the variance in layer norms, and to the mean square in RMSNorm."""

    @property
    def ffn_size(self) -> int:
        """Inner width of the feed-forward network."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.kv_channels or self.hidden_size // self.attention_heads

    @property
    def attention_size(self) -> int:
        """Width of all attention heads together."""
        return self.head_size * self.attention_heads

    @property
    def decoder_length(self) -> int:
        """Tokens that the model predicts per sample: for a T5 those of the decoder, for a GPT all."""
        return self.decoder_seq_length or self.seq_length

    @property
    def decoder_blocks(self) -> int:
        """Blocks of a T5's decoder; 0 for other models, whose blocks are ``layers``."""
        return (self.decoder_layers or self.layers) if self.kind == "t5" else 0

    @property
    def positions(self) -> int:
        """Rows of the position embedding; 0 if positions are not learned."""
        if self.position_embedding != "learned":
            return 0
        return self.max_position_embeddings or max(self.seq_length, self.decoder_length)


@dataclass(frozen=True)
class ParallelConfig:
    """How the model and the batch are spread over ranks: `tensor * context * pipeline * data` of them."""

    tensor: Positive = 1
    """Ranks that share each layer."""
    sequence_parallel: bool = False
    """Each tensor rank computes norms, dropout and residual sums for its part of the tokens, not for all of
    them: that takes less memory for activations, and sends somewhat more. It needs `engine: native`, and
    `model.seq_length` in multiples of `tensor * context`."""
    pipeline: Positive = 1
    """Stages that the layers are cut into."""
    virtual_pipeline: Positive = 1
    """Chunks of layers on each stage: with 2 or more the schedule is interleaved 1F1B, whose stages wait less
    and send more. It needs `engine: native`, and micro-batches in multiples of `pipeline`."""
    eager_forwards: Natural = 0
    """Forward passes that each stage runs ahead for each later stage, in addition to the one of 1F1B. A first
    stage that takes longer than the others then waits less for them, and holds the activations of more
    micro-batches. It needs `engine: native` and `virtual_pipeline: 1`."""
    expert: Positive = 1
    """Of the `data * context` ranks, so many share the experts of each layer; with `tensor`, which shares
    them as well, a divisor of `model.experts`. DeepSpeed's ZeRO shares the rest over `data / expert`
    replicas."""
    context: Positive = 1
    """Ranks that share the tokens of each sample, for long sequences; attention gathers the keys and values
    of all. It needs `engine: native`, and `model.seq_length` in multiples of `2 * context`."""
    data: Positive | None = None
    """Replicas, each with its part of the batch. What is left of the world when not given."""
    partition: str = "even"
    """Where the pipeline is cut: `even` (blocks), `parameters` (equal sizes, embedding and head counted),
    `type:REGEX` (layers whose name matches: `Block`, `EncoderBlock`, `DecoderBlock`), or the blocks of each
    stage, as `0-11-8-8-8-8-5-0`. With `virtual_pipeline` there is a number for each chunk in the model's
    order: for the first chunk of each stage, then for the second."""
    zero_stage: Annotated[int, Bounds(least=0, most=3)] = 1
    """What the data-parallel ranks share: optimiser states (1), gradients too (2), weights too (3).
    2 and 3 need `pipeline: 1`; bf16 and fp16 need 1 at least, and take it for 0."""
    offload_optimizer: Literal["none", "cpu"] = "none"
    """ZeRO 1 to 3: where optimiser states are kept and updated. `cpu` is the host's memory, which with ZeRO 3
    has the summed gradients too. It needs `engine: deepspeed` and `pipeline: 1`."""
    offload_parameters: Literal["none", "cpu"] = "none"
    """ZeRO 3 only: where weights are kept while no layer uses them. `cpu` needs `engine: deepspeed`."""
    activation_checkpointing: Literal["none", "full"] = "none"
    """`full` keeps only the input of each checkpoint and computes the rest again in the backward pass."""
    activation_checkpointing_interval: Positive = 1
    """Blocks of one checkpoint."""
    activation_checkpointing_blocks: Natural | None = None
    """Blocks of each stage that compute their activations again, its first ones; of a smaller stage all. The
    fewer, the less is computed twice and the more memory is needed. All when not given."""
    activation_memory_budget: Annotated[float, Bounds(above=0, most=1)] = 1.0
    """The share of a block's activations, beside its input, that it may keep for the backward pass: below 1,
    the compiler keeps those that take longest to compute again. It needs `optimisation.compile`, and a model
    without dropout. 0 would be `activation_checkpointing: full`, which it excludes."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """Data type in which gradients are summed over replicas; each replica adds up its micro-batches in fp32.
    `bf16` sends half the bytes, and loses precision with many replicas. It needs `engine: native`."""

    @property
    def ranks_of_replica(self) -> int:
        """The number of ranks of one replica, which process a micro-batch together."""
        return self.tensor * self.context * self.pipeline

    @property
    def token_shards(self) -> int:
        """The number of tensor ranks that shard a sample's tokens outside tensor-parallel layers."""
        return self.tensor if self.sequence_parallel else 1

    def recomputed(self, blocks: int) -> int:
        """Return the number of a stage's blocks whose activations are recomputed."""
        if self.activation_checkpointing == "none":
            return 0
        most = self.activation_checkpointing_blocks
        return blocks if most is None else min(most, blocks)


@dataclass(frozen=True)
class RampupConfig:
    """How the global batch grows at the beginning of a training, in equal steps."""

    start: Positive
    """The first global batch."""
    increment: Positive
    """By which it grows, up to `global_batch_size`."""
    samples: Samples
    """Samples in the course of which it grows."""


@dataclass(frozen=True)
class OptimisationConfig:
    """Batch, precision, optimiser and learning-rate schedule."""

    micro_batch_size: Positive = 1
    """Samples of one forward pass on one replica."""
    global_batch_size: Positive = 8
    """Samples of one step, over all replicas: `micro_batch_size` x accumulation x `data`."""
    rampup_batch_size: RampupConfig | None = None
    """The global batch grows to this; lengths must then be given in samples. Constant when not given."""
    train_iterations: Positive | None = None
    """Steps to train. Exactly one of this and `train_samples`."""
    train_samples: Samples | None = None
    """Samples to train."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Of weights and activations. The optimiser's copy of the weights is always fp32."""
    fp8_recipe: Literal["none", "tensorwise", "rowwise"] = "none"
    """Matrix products of attention and feed-forward networks compute in fp8: one scale for each tensor
    (`tensorwise`, the fastest), or for each row or column. It needs `engine: native`, `precision: bf16`,
    widths and tokens in multiples of 16 on each rank, and NVIDIA GPUs of compute capability 8.9 or higher; a
    CPU emulates it. Products too small to gain, experts, embedding and head stay in bf16. It may change
    between runs of a job."""
    lr: PositiveFloat = 1.5e-4
    """The highest learning rate."""
    min_lr: NotNegative = 0.0
    """The lowest, at the end of the decay."""
    schedule: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """The decay's form. `wsd` (warm-up, stable, decay) stays at `lr` and decays at the end."""
    wsd_decay_style: Literal["exponential", "linear", "cosine", "minus_sqrt"] = "exponential"
    """`wsd` only: the form of the decay at the end."""
    wsd_decay_iterations: Positive | None = None
    """`wsd` only: steps of the decay at the end. Exactly one of this and `wsd_decay_samples`."""
    wsd_decay_samples: Samples | None = None
    """`wsd` only: the same in samples."""
    warmup_fraction: Fraction | None = None
    """Part of the decay's length in which the rate rises from 0. At most one of the three warm-ups."""
    warmup_iterations: Natural | None = None
    """The same in steps."""
    warmup_samples: Annotated[int, Bounds(least=0, most=10**15)] | None = None
    """The same in samples."""
    decay_iterations: Positive | None = None
    """Steps until `min_lr`, warm-up included. The whole training when not given."""
    decay_samples: Samples | None = None
    """The same in samples."""
    weight_decay: NotNegative = 0.01
    """AdamW's; not applied to biases, layer norms and positions."""
    weight_decay_incr_style: Literal["constant", "linear", "cosine"] = "constant"
    """How the weight decay goes from `start_weight_decay` to `end_weight_decay` over the training."""
    start_weight_decay: NotNegative | None = None
    """Unless it is constant: the weight decay at the beginning, instead of `weight_decay`."""
    end_weight_decay: NotNegative | None = None
    """Unless it is constant: the weight decay at the end."""
    adam_beta1: Fraction = 0.9
    """Decay of the first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of the second moment."""
    adam_epsilon: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    calculate_per_token_loss: bool = True
    """Every token of a step counts alike in the loss, also where masks leave micro-batches different numbers
    of them. `false`: the mean of the micro-batches' means, as Megatron does without its flag of this name."""
    clip_grad: NotNegative = 1.0
    """Highest norm of all gradients together; 0 does not clip."""
    loss_scale: PositiveFloat | None = None
    """fp16 only: a fixed loss scale. Dynamic when not given."""
    initial_loss_scale_power: Annotated[int, Bounds(least=0, most=32)] = 16
    """fp16 only: the dynamic scale begins at 2 to the power of this."""
    loss_scale_window: Positive = 1000
    """fp16 only: steps without overflow after which the scale doubles."""
    loss_scale_hysteresis: Positive = 2
    """fp16 only: overflows after which the scale halves."""
    min_loss_scale: PositiveFloat = 1.0
    """fp16 only: the scale never falls below this."""
    compile: bool = False
    """Compile the blocks with `torch.compile`."""
    cuda_graphs: bool = False
    """Replay the passes of a micro-batch as a CUDA graph, for small models and micro-batches, whose kernels
    take less time than the host needs to launch them. It needs `engine: native` and one pipeline stage. It is
    not combined with experts. A CPU ignores it."""
    seed: Annotated[int, Bounds(least=0, most=2**32 - 1)] = 1234
    """Of the initial weights, the order of the data and dropout."""


@dataclass(frozen=True)
class Blend:
    """One data set of a blend. A bare path means weight 1."""

    prefix: FilePath
    """Path of a `.bin` and `.idx` pair without the suffix."""
    weight: PositiveFloat = 1.0
    """Its part of the samples, relative to the others'."""


@dataclass(frozen=True)
class TokenizerConfig:
    """What turned the text into tokens: end-of-document and sentinel ids come from it."""

    kind: Literal["gpt2", "wordpiece", "huggingface"] = "gpt2"
    """GPT-2's byte pairs, BERT's word pieces, or any `tokenizer.json`."""
    vocab: FilePath | None = None
    """`vocab.json` of `gpt2`, `vocab.txt` of `wordpiece`."""
    merges: FilePath | None = None
    """`merges.txt` of `gpt2`."""
    file: FilePath | None = None
    """`tokenizer.json` of `huggingface`."""


@dataclass(frozen=True)
class DataConfig:
    """What the model is trained on."""

    mock: bool = False
    """Train on a fixed pattern of tokens, which needs no file."""
    blend: tuple[Blend, ...] = ()
    """Data sets, split into training, validation and test by `split`."""
    train: tuple[Blend, ...] = ()
    """Instead of `blend`: data sets for training alone."""
    valid: tuple[Blend, ...] = ()
    """With `train`: data sets for validation."""
    test: tuple[Blend, ...] = ()
    """With `train`: data sets for the test."""
    split: str = "969,30,1"
    """Proportions of training, validation and test."""
    index_cache: FilePath | None = None
    """Directory of the index maps. Beside the data when not given."""
    sampler: Literal["single", "cyclic"] = "single"
    """Through the index map once (`single`), or again and again in a new order (`cyclic`)."""
    workers: Annotated[int, Bounds(least=0, most=1024)] = 2
    """Processes that read ahead on each rank."""
    tokenizer: TokenizerConfig | None = None
    """The tokenizer that made the data. A T5 and a BERT need it."""
    reset_attention_mask: bool = False
    """GPT only: no token of a sample sees another document."""
    reset_position_ids: bool = False
    """GPT only: positions start at 0 in each document of a sample."""
    eod_mask_loss: bool = False
    """GPT only: what follows the end of a document is not predicted."""
    mask_probability: Annotated[float, Bounds(above=0, below=1)] = 0.15
    """T5 and BERT: part of the tokens that are masked."""
    mean_span_length: Annotated[float, Bounds(least=1)] = 3.0
    """T5 only: average tokens of a masked span."""
    short_sequence_probability: Annotated[float, Bounds(least=0, most=1)] = 0.1
    """T5 only: part of the samples that are shorter than the sequence length."""


@dataclass(frozen=True)
class LoggingConfig(JobLoggingConfig):
    """Log lines, TensorBoard and evaluation. Intervals are steps; 0 is never."""

    interval: Natural = 10
    """Between log lines."""
    tensorboard: bool = True
    """Write TensorBoard's event files into the job's directory."""
    trackers: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Give the numbers to Weights & Biases or MLflow, too, whose libraries must be installed. Their own
    variables (`WANDB_API_KEY`, `WANDB_PROJECT`, `MLFLOW_TRACKING_URI`…) go into `launcher.env`."""
    eval_interval: Natural = 1000
    """Between evaluations."""
    eval_iterations: Natural = 10
    """Batches of one evaluation."""
    peak_tflops: PositiveFloat | None = None
    """Dense peak of one accelerator, for the MFU. Known ones are looked up by name."""
    names: Literal["plain", "mdx"] = "plain"
    """`mdx`: beside the jobs, `outputs/log`, `outputs/checkpoint` and `outputs/tensorboard` have links to the
    job's own, under the names that the scripts of llm-jp/Megatron-DeepSpeed give them."""
    trace_steps: str | None = None
    """Steps, as `20-22`, in which every rank records what it did when, into `trace/` of the job's directory.
    A report shows it as a timeline."""


@dataclass(frozen=True)
class CheckpointConfig:
    """When checkpoints are written, into `checkpoints/` of the job's directory, and when a job ends early."""

    interval: Natural = 1000
    """Steps between checkpoints; 0: only at the end and on a signal."""
    keep: Natural = 0
    """The newest N are kept; 0 keeps all."""
    asynchronous: bool = False
    """Write in the background."""
    load: FilePath | None = None
    """Another job's directory, or the checkpoints directory in it, to begin from."""
    init_from: FilePath | None = None
    """Begin with the weights of this model alone: a Hugging Face directory with safetensors, another job's
    directory, or Megatron's `--save`; step, learning rate and optimiser start afresh."""
    exit_interval: Positive | None = None
    """Save and end when the step is a multiple of this."""
    exit_duration_minutes: PositiveFloat | None = None
    """Save and end after this time."""


@dataclass(frozen=True, kw_only=True)
class Config(JobConfig):
    """One training job."""

    engine: Literal["deepspeed", "native"] = "deepspeed"
    """What takes the steps: DeepSpeed, or torch alone (ZeRO 1, fp32 and bf16)."""
    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)
    data: DataConfig = field(default_factory=DataConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def resolved(self, world_size: int | None = None) -> Self:
        """Return the configuration with values for derived keys; see :meth:`JobConfig.resolved`."""
        model, parallel = self.model, self.parallel
        is_t5 = model.kind == "t5"
        shape = dataclasses.replace(
            model,
            decoder_layers=model.decoder_blocks if is_t5 else None,
            kv_channels=model.head_size,
            ffn_hidden_size=model.ffn_size,
            decoder_seq_length=model.decoder_length if is_t5 else None,
            max_position_embeddings=model.positions or model.max_position_embeddings,
        )
        if world_size is not None:
            parallel = dataclasses.replace(parallel, data=self.data_parallel(world_size))
        return dataclasses.replace(self, model=shape, parallel=parallel)

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word embedding: tokens and sentinels, padded for even shards on tensor ranks."""
        model = self.model
        step = model.make_vocab_size_divisible_by * self.parallel.tensor
        return -(-(model.vocab_size + model.vocab_extra_ids) // step) * step

    @functools.cached_property
    def spec(self) -> ModelSpec:
        """The description of the model."""
        model = self.model
        return ModelSpec(
            kind=model.kind,
            layers=model.layers,
            decoder_layers=model.decoder_blocks,
            hidden_size=model.hidden_size,
            heads=model.attention_heads,
            key_value_heads=model.query_groups or model.attention_heads,
            head_size=model.head_size,
            ffn_size=model.ffn_size,
            experts=model.experts or 0,
            router_top_k=model.moe_router_topk if model.experts else 0,
            norm_topk_prob=model.moe_norm_topk_prob,
            aux_loss_coeff=model.moe_aux_loss_coeff if model.experts else 0.0,
            capacity_factor=model.moe_expert_capacity_factor,
            ffn="gated" if model.activation in ("swiglu", "geglu") else "mlp",
            activation=_ACTIVATIONS[model.activation],
            norm="rms" if model.norm == "rmsnorm" else "layer",
            norm_epsilon=model.layernorm_epsilon,
            window=model.sliding_window,
            qk_norm=model.qk_norm,
            biases=model.biases,
            softmax_scale=model.softmax_scale,
            positions=model.positions,
            rope_theta=model.rope_theta,
            rope_scaling=model.rope_scaling,
            relative_buckets=(
                model.relative_attention_num_buckets if model.position_embedding == "relative" else 0
            ),
            relative_max_distance=model.relative_attention_max_distance,
            vocab_size=model.vocab_size,
            vocab_extra_ids=model.vocab_extra_ids,
            padded_vocab_size=self.padded_vocab_size,
            tied_embeddings=model.tied_embeddings,
            scales_logits=model.scale_logits,
            head_bias=model.lm_head_bias,
            seq_length=model.seq_length,
            decoder_length=model.decoder_length,
            hidden_dropout=model.hidden_dropout,
            attention_dropout=model.attention_dropout,
            init_std=model.init_std,
        )

    @property
    def traced_steps(self) -> range:
        """The steps of ``logging.trace_steps``."""
        return step_range(self.logging.trace_steps or "")

    @property
    def zero_stage(self) -> int:
        """The effective ZeRO stage, at least 1 with 16-bit weights, whose fp32 copies are always sharded.

        The native engine always shards its optimiser states, too.
        """
        shares = self.optimisation.precision != "fp32" or self.engine == "native"
        return max(self.parallel.zero_stage, int(shares))

    @property
    def knows_documents(self) -> bool:
        """The model gets the beginnings of documents."""
        return self.data.reset_attention_mask or self.data.reset_position_ids

    @property
    def counts_tokens(self) -> bool:
        """The loss weights each token equally, and micro-batches may have different numbers of tokens."""
        differ = self.model.kind != "gpt" or self.data.eod_mask_loss
        return differ and self.optimisation.calculate_per_token_loss

    @property
    def train_iterations(self) -> int:
        """Steps to train, computed if the configuration gives samples."""
        optimisation = self.optimisation
        if optimisation.train_iterations is not None:
            return optimisation.train_iterations
        return self.batches.steps(0, optimisation.train_samples or 0)

    @functools.cached_property
    def batches(self) -> BatchRamp:
        """The global batch of each step."""
        batch, ramp = self.optimisation.global_batch_size, self.optimisation.rampup_batch_size
        if ramp is None:
            return BatchRamp.constant(batch)
        return BatchRamp(ramp.start, ramp.increment, ramp.samples, batch)

    def data_parallel(self, world_size: int) -> int:
        """Return the number of replicas, given the number of ranks."""
        return world_size // self.parallel.ranks_of_replica

    def accumulation(self, data_parallel: int) -> int:
        """Return the micro-batches of each replica per step, given the number of replicas."""
        optimisation = self.optimisation
        return optimisation.global_batch_size // (optimisation.micro_batch_size * data_parallel)

    @property
    def written_world_size(self) -> int:
        """The number of ranks in the configuration; the smallest valid one if it leaves that open."""
        parallel, launcher = self.parallel, self.launcher
        replica = parallel.ranks_of_replica
        smallest = replica * parallel.expert // math.gcd(parallel.expert, parallel.context)
        if parallel.data is not None:
            return replica * parallel.data
        if launcher.nodes is not None and launcher.devices_per_node is not None:
            return launcher.nodes * launcher.devices_per_node
        return smallest

    def stage_bounds(self) -> list[int]:
        """Return where each of the pipeline's virtual stages begins in the list of layers, and the end."""
        spec = self.spec
        weights = flops.layer_parameters(spec) if self.parallel.partition == "parameters" else None
        names = spec.layer_names()
        parallel = self.parallel
        return partitions.stage_bounds(
            names, weights, parallel.partition, parallel.pipeline, parallel.virtual_pipeline
        )

    def stage_blocks(self) -> list[int]:
        """Return the number of transformer blocks of each virtual stage."""
        names, bounds = self.spec.layer_names(), self.stage_bounds()
        return [
            sum(partitions.is_block(name) for name in names[begin:end])
            for begin, end in itertools.pairwise(bounds)
        ]

    @property
    def recomputed_share(self) -> float:
        """The share of all blocks whose activations are recomputed, from 0 to 1."""
        blocks, stages = self.stage_blocks(), self.parallel.pipeline
        recomputed = (self.parallel.recomputed(sum(blocks[stage::stages])) for stage in range(stages))
        return sum(recomputed) / self.spec.blocks


_ACTIVATIONS: dict[str, Literal["gelu", "relu", "silu"]] = {
    "gelu": "gelu",
    "relu": "relu",
    "swiglu": "silu",
    "geglu": "gelu",
}
