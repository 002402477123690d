# SPDX-License-Identifier: GPL-3.0-or-later
"""A training job as frozen dataclasses: every key, its type, its bounds, its default and its meaning.

The reference in ``docs/training-configuration.md`` is written from this file: the first paragraph of a class
describes its section, and the text below a field describes the key. Nothing here needs torch.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from rdm_core import partition as partitions

__all__ = [
    "MOST",
    "Blend",
    "Bounds",
    "CheckpointConfig",
    "Config",
    "DataConfig",
    "LauncherConfig",
    "LoggingConfig",
    "ModelConfig",
    "OptimisationConfig",
    "ParallelConfig",
    "SlurmConfig",
    "TokenizerConfig",
    "step_range",
]


@dataclass(frozen=True)
class Bounds:
    """The numbers that a key takes: ``least <= value <= most``, or ``above < value < below``."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def hold(self, value: float) -> bool:
        """Tell whether a value is inside."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = {"least": "at least", "most": "at most", "above": "above", "below": "below"}
        given = [
            (words[name], value) for name, value in dataclasses.asdict(self).items() if value is not None
        ]
        return " and ".join(f"{word} {value:.15g}" for word, value in given)


class ByPartition:
    """Marks a key with one text for all partitions of a job, kept under the name "", or one for each."""

    def __str__(self) -> str:
        return "or one for each partition"


MOST = 2**31 - 1
"""Of a size or a count: what the 32-bit integers of the data's formats hold."""

Positive = Annotated[int, Bounds(least=1, most=MOST)]
Natural = Annotated[int, Bounds(least=0, most=MOST)]
# A line of the pipeline's layers is made for each: more are a slip of the keyboard.
Layers = Annotated[int, Bounds(least=1, most=4096)]
Samples = Annotated[int, Bounds(least=1, most=10**15)]
PositiveFloat = Annotated[float, Bounds(above=0)]
NotNegative = Annotated[float, Bounds(least=0)]
Fraction = Annotated[float, Bounds(least=0, below=1)]
Port = Annotated[int, Bounds(least=1024, most=65535)]
Each = Annotated[dict[str, str], ByPartition()]


@dataclass(frozen=True)
class ModelConfig:
    """The model's shape."""

    kind: Literal["gpt", "t5"] = "gpt"
    """A decoder with learned positions (`gpt`), or an encoder and a decoder (`t5`)."""
    layers: Layers = 12
    """Transformer blocks; of a T5 those of the encoder."""
    decoder_layers: Layers | None = None
    """T5 only: blocks of the decoder. As many as `layers` when not given."""
    hidden_size: Positive = 768
    """Width of the model."""
    attention_heads: Positive = 12
    """Heads of each attention; a multiple of `parallel.tensor`."""
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
    vocab_size: Positive = 50257
    """The tokenizer's tokens, without padding and sentinels."""
    vocab_extra_ids: Natural = 0
    """T5 only: sentinels, after the tokenizer's tokens."""
    make_vocab_size_divisible_by: Positive = 128
    """The vocabulary is padded to a multiple of this times `parallel.tensor`."""
    tied_embeddings: bool = True
    """The output layer uses the word embedding's weights."""
    init_std: PositiveFloat = 0.02
    """Standard deviation of the initial weights."""
    hidden_dropout: Fraction = 0.0
    """Dropout after the embedding, the attention and the feed-forward part."""
    attention_dropout: Fraction = 0.0
    """Dropout of the attention's probabilities."""
    layernorm_epsilon: PositiveFloat = 1e-5
    """Added to the variance in layer norms."""

    @property
    def ffn_size(self) -> int:
        """Width inside the feed-forward part."""
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
        """Tokens that the model predicts per sample: the decoder's of a T5, all of a GPT."""
        return self.decoder_seq_length or self.seq_length

    @property
    def decoder_blocks(self) -> int:
        """Blocks of a T5's decoder; 0 of a GPT, whose blocks are ``layers``."""
        return 0 if self.kind == "gpt" else self.decoder_layers or self.layers

    @property
    def blocks(self) -> int:
        """All transformer blocks."""
        return self.layers + self.decoder_blocks

    @property
    def positions(self) -> int:
        """Rows of the position embedding."""
        return self.max_position_embeddings or max(self.seq_length, self.decoder_length)

    @property
    def tokens_per_sample(self) -> int:
        """Tokens of a sample that pass through the model, encoder and decoder together."""
        return self.seq_length + (self.decoder_length if self.kind == "t5" else 0)

    def layer_names(self) -> list[str]:
        """The kinds of the model's layers, in the order in which they lie on the pipeline."""
        if self.kind == "gpt":
            return ["Embedding", *["Block"] * self.layers, "FinalNorm", "Head"]
        return [
            "Embedding",
            *["EncoderBlock"] * self.layers,
            "EncoderNorm",
            "DecoderEmbedding",
            *["DecoderBlock"] * self.decoder_blocks,
            "FinalNorm",
            "Head",
        ]


@dataclass(frozen=True)
class ParallelConfig:
    """How the model and the batch are spread over ranks: `tensor * pipeline * data` of them."""

    tensor: Positive = 1
    """Ranks that share each layer."""
    pipeline: Positive = 1
    """Stages that the layers are cut into."""
    data: Positive | None = None
    """Replicas, each with its part of the batch. What is left of the world when not given."""
    partition: str = "even"
    """Where the pipeline is cut: `even` (blocks), `parameters` (equal sizes, embedding and head counted),
    `type:REGEX` (layers whose name matches: `Block`, `EncoderBlock`, `DecoderBlock`), or the blocks of each
    stage, as `0-11-8-8-8-8-5-0`."""
    zero_stage: Annotated[int, Bounds(least=0, most=3)] = 1
    """What the data-parallel ranks share: optimiser states (1), gradients too (2), weights too (3).
    2 and 3 need `pipeline: 1`; bf16 and fp16 need 1 at least, and take it for 0."""
    activation_checkpointing: Literal["none", "full"] = "none"
    """`full` keeps only the input of each checkpoint and computes the rest again in the backward pass."""
    activation_checkpointing_interval: Positive = 1
    """Blocks of one checkpoint."""


@dataclass(frozen=True)
class OptimisationConfig:
    """Batch, precision, optimiser and learning-rate schedule."""

    micro_batch_size: Positive = 1
    """Samples of one forward pass on one replica."""
    global_batch_size: Positive = 8
    """Samples of one step, over all replicas: `micro_batch_size` x accumulation x `data`."""
    train_iterations: Positive | None = None
    """Steps to train. Exactly one of this and `train_samples`."""
    train_samples: Samples | None = None
    """Samples to train."""
    precision: Literal["fp32", "bf16", "fp16"] = "bf16"
    """Of weights and activations. The optimiser's copy of the weights is always fp32."""
    lr: PositiveFloat = 1.5e-4
    """The highest learning rate."""
    min_lr: NotNegative = 0.0
    """The lowest, at the end of the decay."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """The decay's form."""
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
    adam_beta1: Fraction = 0.9
    """Decay of the first moment."""
    adam_beta2: Fraction = 0.999
    """Decay of the second moment."""
    adam_epsilon: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
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
    seed: Annotated[int, Bounds(least=0, most=2**32 - 1)] = 1234
    """Of the initial weights, the order of the data and dropout."""


@dataclass(frozen=True)
class Blend:
    """One data set of a blend. A bare path means weight 1."""

    prefix: str
    """Path of a `.bin` and `.idx` pair without the suffix."""
    weight: PositiveFloat = 1.0
    """Its part of the samples, relative to the others'."""


@dataclass(frozen=True)
class TokenizerConfig:
    """What turned the text into tokens: end-of-document and sentinel ids come from it."""

    kind: Literal["gpt2", "wordpiece", "huggingface"] = "gpt2"
    """GPT-2's byte pairs, BERT's word pieces, or any `tokenizer.json`."""
    vocab: str | None = None
    """`vocab.json` of `gpt2`, `vocab.txt` of `wordpiece`."""
    merges: str | None = None
    """`merges.txt` of `gpt2`."""
    file: str | None = None
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
    index_cache: str | None = None
    """Directory of the index maps. Beside the data when not given."""
    sampler: Literal["single", "cyclic"] = "single"
    """Through the index map once (`single`), or again and again in a new order (`cyclic`)."""
    workers: Annotated[int, Bounds(least=0, most=1024)] = 2
    """Processes that read ahead on each rank."""
    tokenizer: TokenizerConfig | None = None
    """The tokenizer that made the data. A T5 needs it."""
    mask_probability: Annotated[float, Bounds(above=0, below=1)] = 0.15
    """T5 only: part of the tokens that are masked."""
    mean_span_length: Annotated[float, Bounds(least=1)] = 3.0
    """T5 only: average tokens of a masked span."""
    short_sequence_probability: Annotated[float, Bounds(least=0, most=1)] = 0.1
    """T5 only: part of the samples that are shorter than the sequence length."""


@dataclass(frozen=True)
class LoggingConfig:
    """Log lines, TensorBoard and evaluation. Intervals are steps; 0 is never."""

    interval: Natural = 10
    """Between log lines."""
    tensorboard: bool = True
    """Write TensorBoard's event files into the job's directory."""
    trackers: tuple[Literal["wandb", "mlflow"], ...] = ()
    """Give the numbers to Weights & Biases or MLflow, too, whose libraries must be installed. Their own
    variables (`WANDB_API_KEY`, `WANDB_PROJECT`, `MLFLOW_TRACKING_URI`…) go into `launcher.env`."""
    prometheus: bool = False
    """Each node's agent, or in a training that was started by hand its first rank there, writes
    `metrics.<node>.prom` for Prometheus into the job's directory."""
    metrics_port: Port | None = None
    """The same answers Prometheus at `http://MY_IP:PORT/metrics`. Jobs that share a node take one each."""
    eval_interval: Natural = 1000
    """Between evaluations."""
    eval_iterations: Natural = 10
    """Batches of one evaluation."""
    peak_tflops: PositiveFloat | None = None
    """Dense peak of one accelerator, for the MFU. Known ones are looked up by name."""
    names: Literal["plain", "mdx"] = "plain"
    """`mdx`: beside the jobs, `outputs/log`, `outputs/checkpoint` and `outputs/tensorboard` have links to the
    job's own, under the names that the scripts of llm-jp/Megatron-DeepSpeed give them."""
    mark_ranks: bool = False
    """Each line that a rank writes begins with `[rank3]: `, for `rdm-provision logs JOB --rank 3`."""
    rotate_mebibytes: Natural = 256
    """A node's output, or errors, of more become `NODE.out.1`, and that `.2`; 0: they grow as long as it
    writes."""
    rotate_keep: Positive = 8
    """So many of these pieces are kept."""
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
    load: str | None = None
    """Another job's directory, or the checkpoints directory in it, to begin from."""
    exit_interval: Positive | None = None
    """Save and end when the step is a multiple of this."""
    exit_duration_minutes: PositiveFloat | None = None
    """Save and end after this time."""


@dataclass(frozen=True)
class SlurmConfig:
    """What the launcher `slurm` asks Slurm for. A key that is left out is left to Slurm.

    Where a job takes nodes of several partitions, a key can have one text for all, or one for each:
    `gres: {hgx: gpu:hgx:4}`.
    """

    nodes: Each = field(default_factory=dict)
    """How many nodes, or how many of each partition (`{hgx: 1, gpu2: 7}`): one job over all of them, whose
    rank 0 is on the first node of the first partition. `launcher.nodes` when not given."""
    partition: str | None = None
    """The partition, where `nodes` names none. Slurm's default one when not given."""
    gres: Each = field(default_factory=dict)
    """Generic resources of each node, as `gpu:a10:4`. The number of GPUs is how many processes a node
    gets."""
    gpus_per_node: Each = field(default_factory=dict)
    """GPUs of each node, as `4` or `a10:4`, where `gres` has none. When neither says so, as many as
    `launcher.devices_per_node`, if the inventory's `rdm_accelerator` is not `cpu` and Slurm gives GPUs."""
    cpus: Each = field(default_factory=dict)
    """CPUs of each node."""
    mem: Each = field(default_factory=dict)
    """Memory of each node, as `64G`; `0` is all of it."""
    time: str | None = None
    """Time limit in quotes: minutes, `"hours:minutes:seconds"` or `"days-hours:minutes"`. The partition's
    when not given."""
    account: str | None = None
    """Who pays."""
    qos: str | None = None
    """Quality of service."""
    nodelist: Each = field(default_factory=dict)
    """Nodes that must be among the job's, as `n[060-067]`."""
    exclude: Each = field(default_factory=dict)
    """Nodes that the job does not take."""
    constraint: Each = field(default_factory=dict)
    """Features that the nodes must have, as `ib&nvme`."""
    hint: Literal["compute_bound", "memory_bound", "multithread", "nomultithread"] | None = None
    """Slurm's `--hint`: `nomultithread` gives one hardware thread of each core."""
    signal: Natural = 300
    """Seconds before the time limit at which the job saves, and ends or goes on later; Slurm may be a minute
    early. 0: the time limit ends it without."""
    interface: str | None = None
    """Interface of the nodes that the ranks talk over, as `ib0`. When not given, the one with the address
    that the node's name has."""
    step: Literal["agents", "ranks"] = "agents"
    """Who starts the processes: each node's agent by `torchrun` (`agents`), or Slurm itself, a task for each
    (`ranks`)."""
    mpi: Literal["none", "pmix"] = "none"
    """srun's `--mpi` for these tasks."""
    image: str | None = None
    """An image that the processes run in: a squashfs file (`.sqsh`), a Docker archive (`.tar`, `.tar.gz`),
    one of a registry (`docker://nvcr.io/nvidia/pytorch:23.04-py3`), a `.sif` or a directory; or the name of
    one that the inventory's `images_list` has. The paths of the configuration, such as `data.blend`, are then
    those in the image."""
    image_sha256: str | None = None
    """What the digest of a Docker archive must be, in hexadecimal; verified before an image is made of it."""
    container: Literal["auto", "none", "enroot", "pyxis", "apptainer", "charliecloud"] = "auto"
    """What runs the image. `auto` takes pyxis where srun has it, and otherwise what it finds on the nodes."""
    mounts: tuple[str, ...] = ()
    """What of the nodes is in the image, beside the directory of the jobs: `/data`, or
    `/of/the/node:/data`."""
    image_program: str = "rdm-trainer"
    """The trainer's program in the image."""
    rest: str | None = None
    """A slurmrestd through which jobs are submitted instead of `sbatch`: `https://HOST:PORT`,
    `http://HOST:PORT` (what it is told can be read on the way, the token too) or `unix:/PATH`."""
    rest_jwt: str = "~/.slurm.jwt"
    """File with the user's token (JWT) for it, of mode 0600, on the host that jobs are submitted from. The
    environment variable `SLURM_JWT` goes before it. The token itself is no value of a configuration."""
    reload_container: bool = False
    """Begin with the image as it is. Otherwise enroot and pyxis keep a container on each node, with what
    jobs have changed in it."""


@dataclass(frozen=True)
class LauncherConfig:
    """How the processes are started."""

    kind: Literal["no_ssh", "deepspeed", "torchrun", "mpirun", "slurm"] = "no_ssh"
    """One DeepSpeed launcher per node started by the collection (`no_ssh`), DeepSpeed over pdsh and ssh
    (`deepspeed`), `torchrun` with a static rendezvous, Open MPI over ssh (`mpirun`), or a job of Slurm
    (`slurm`)."""
    nodes: Positive | None = None
    """The first N nodes of the hostfile. All when not given. Under Slurm, any N nodes; one when not given."""
    devices_per_node: Positive | None = None
    """Processes on each node. When not given, the hostfile's slots; under Slurm the GPUs that are asked for,
    or one."""
    master_port: Port | None = None
    """Where the ranks meet. A free one when not given."""
    max_restarts: Natural = 0
    """How often a job that failed goes on from its last checkpoint by itself."""
    env: dict[str, str] = field(default_factory=dict)
    """Environment variables for every rank."""
    distributed_timeout_minutes: Annotated[float, Bounds(above=0, most=525_600)] = 10.0
    """A collective operation that takes longer than this fails."""
    backend: Literal["auto", "nccl", "gloo"] = "auto"
    """`auto` is NCCL (RCCL on ROCm) on GPUs and Gloo on CPUs."""
    profiler: Literal["none", "nsys", "rocprof", "torch"] = "none"
    """Runs some ranks under NVIDIA's `nsys`, AMD's `rocprofv3` or torch's own profiler, which write into
    `profile/` of the job's directory."""
    profiler_ranks: tuple[Natural, ...] = (0,)
    """The ranks that are profiled."""
    profiler_steps: str = "10-12"
    """The steps that are profiled."""
    program: tuple[str, ...] = ()
    """Another training program and its arguments instead of rdm_trainer, in the same launchers."""
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    """What is asked of Slurm."""


@dataclass(frozen=True)
class Config:
    """One training job."""

    name: str = "job"
    """Names the job and its directory: letters, digits, `.`, `_` and `-`."""
    model: ModelConfig = field(default_factory=ModelConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    optimisation: OptimisationConfig = field(default_factory=OptimisationConfig)
    data: DataConfig = field(default_factory=DataConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as plain lists and dictionaries, every key present."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        return plain

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word embedding: tokens and sentinels, padded so that tensor ranks share them."""
        model = self.model
        step = model.make_vocab_size_divisible_by * self.parallel.tensor
        return -(-(model.vocab_size + model.vocab_extra_ids) // step) * step

    @property
    def traced_steps(self) -> range:
        """The steps of ``logging.trace_steps``."""
        return step_range(self.logging.trace_steps or "")

    @property
    def profiled_steps(self) -> range:
        """The steps of ``launcher.profiler_steps``, where a profiler is asked for."""
        return step_range(self.launcher.profiler_steps if self.launcher.profiler != "none" else "")

    @property
    def zero_stage(self) -> int:
        """The ZeRO stage that runs: weights of 16 bits have fp32 copies, which are shared in any case."""
        return max(self.parallel.zero_stage, int(self.optimisation.precision != "fp32"))

    @property
    def train_iterations(self) -> int:
        """Steps to train, also when the configuration gives samples."""
        optimisation = self.optimisation
        if optimisation.train_iterations is not None:
            return optimisation.train_iterations
        return (optimisation.train_samples or 0) // optimisation.global_batch_size

    def data_parallel(self, world_size: int) -> int:
        """Return the number of replicas in a world of this size."""
        return world_size // (self.parallel.tensor * self.parallel.pipeline)

    def accumulation(self, data_parallel: int) -> int:
        """Return the micro-batches that each of so many replicas takes per step."""
        optimisation = self.optimisation
        return optimisation.global_batch_size // (optimisation.micro_batch_size * data_parallel)

    @property
    def written_world_size(self) -> int:
        """The world that the configuration speaks of; the smallest valid one when it leaves it open."""
        parallel, launcher = self.parallel, self.launcher
        smallest = parallel.tensor * parallel.pipeline
        if parallel.data is not None:
            return smallest * parallel.data
        if launcher.nodes is not None and launcher.devices_per_node is not None:
            return launcher.nodes * launcher.devices_per_node
        return smallest

    def stage_bounds(self) -> list[int]:
        """Return the bounds of the pipeline's stages in the list of layers, one more than stages."""
        from rdm_core.cost import flops

        weights = flops.layer_parameters(self) if self.parallel.partition == "parameters" else None
        names = self.model.layer_names()
        return partitions.stage_bounds(names, weights, self.parallel.partition, self.parallel.pipeline)

    def stage_blocks(self) -> list[int]:
        """Return the transformer blocks of each pipeline stage."""
        names, bounds = self.model.layer_names(), self.stage_bounds()
        return [
            sum(partitions.is_block(name) for name in names[begin:end])
            for begin, end in itertools.pairwise(bounds)
        ]


def step_range(text: str) -> range:
    """Return the steps that a text names, ``20-22`` or ``20``; none where it names none.

    >>> list(step_range("20-22"))
    [20, 21, 22]
    """
    match = re.fullmatch(r"([1-9]\d{0,11})(?:-([1-9]\d{0,11}))?", text)
    return range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)


def _plain(value: Any) -> Any:
    """Turn tuples into lists, all the way down."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
