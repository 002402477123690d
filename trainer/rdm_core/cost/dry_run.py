# SPDX-License-Identifier: GPL-3.0-or-later
"""The needs of a job before its start: parameters, memory by component, FLOPs, pipeline bubble. No torch.

The memory is an estimate from the shapes, without the allocator's fragmentation. Weights, gradients and
optimiser states are those of DeepSpeed's optimisers; activations are counted as by Korthikanti et al.
("Reducing Activation Recomputation in Large Transformer Models", 2022), for attention that never stores its
probabilities.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rdm_core import float8
from rdm_core.config.schema import Config
from rdm_core.cost import flops
from rdm_core.cost.chunks import chunk_tokens
from rdm_core.cost.flops import Accelerator, LayerSize
from rdm_core.pipeline_schedule import bubble, held, most_held

GIB = 1024**3

# The device context, kernels, and communication buffers of NCCL or RCCL.
RUNTIME_BYTES = int(1.25 * GIB)
# Weights that DeepSpeed's ZeRO 3 keeps gathered beside its share of all, unless one layer has more:
# stage3_max_live_parameters.
_MOST_GATHERED = 1_000_000_000


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank, by component."""

    weights: int
    gradients: int
    optimiser: int
    activations: int
    logits: int
    backward: int
    """Gradients of activations in one backward pass, as far as they exceed the logits' memory."""
    buffers: int

    @property
    def total(self) -> int:
        """The sum of all components."""
        return sum(vars(self).values())


@dataclass(frozen=True)
class Stage:
    """One pipeline stage, from the view of one of its ranks."""

    index: int
    blocks: int
    layers: tuple[str, ...]
    parameters: int
    """Parameters of the stage over all tensor ranks; tied weights count once per stage."""
    in_flight: int
    """Forward passes whose activations it keeps at once; with virtual stages, each is through one chunk."""
    memory: Memory
    host: int
    """Bytes of the host's memory that one of its ranks needs at least for what is offloaded."""


@dataclass(frozen=True)
class Report:
    """The needs of a job."""

    name: str
    kind: str
    world_size: int
    tensor: int
    pipeline: int
    context: int
    data: int
    parameters: int
    active_parameters: int
    """Parameters that a token uses."""
    padded_vocab_size: int
    global_batch_size: int
    micro_batch_size: int
    accumulation: int
    iterations: int
    tokens_per_step: int
    flops_per_step: float
    recomputed_flops_per_step: float
    """The FLOPs that activation checkpointing adds."""
    bubble: float
    """The share of a step in which a stage waits for others."""
    stages: tuple[Stage, ...]

    @property
    def peak(self) -> Stage:
        """The stage that needs the most memory."""
        return max(self.stages, key=lambda stage: stage.memory.total)

    def fits(self, accelerator: Accelerator) -> bool:
        """Return whether every stage fits into the accelerator's memory."""
        return self.peak.memory.total <= accelerator.memory_gib * GIB

    def seconds_per_step(self, accelerator: Accelerator, utilisation: float) -> float:
        """Return the time of a step.

        Args:
            accelerator: The devices.
            utilisation: The share of their peak that they reach outside the bubble, from 0 to 1.
        """
        rate = self.world_size * accelerator.tflops * 1e12 * utilisation * (1.0 - self.bubble)
        return self.flops_per_step / rate

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain data; memory in bytes."""
        plain = dataclasses.asdict(self)
        for stage, given in zip(plain["stages"], self.stages, strict=True):
            stage["memory"]["total"] = given.memory.total
        return plain


def dry_run(config: Config, world_size: int) -> Report:
    """Return the needs of a job.

    Args:
        config: The job's configuration, checked for this number of ranks.
        world_size: Number of ranks.
    """
    parallel, optimisation, spec = config.parallel, config.optimisation, config.spec
    data = config.data_parallel(world_size)
    accumulation = config.accumulation(data)
    sizes = flops.layer_sizes(config.spec)
    bounds = config.stage_bounds()
    blocks = config.stage_blocks()
    stages = []
    virtual = list(itertools.pairwise(bounds))
    for index in range(parallel.pipeline):
        chunks = [sizes[slice(*ends)] for ends in virtual[index :: parallel.pipeline]]
        layers = [*itertools.chain(*chunks)]
        order = (index, parallel.pipeline, len(chunks), accumulation, parallel.eager_forwards)
        stages.append(
            Stage(
                index=index,
                blocks=sum(blocks[index :: parallel.pipeline]),
                layers=tuple(layer.name for layer in layers),
                parameters=sum(layer.total for layer in _held(layers)),
                in_flight=most_held(*order),
                memory=stage_memory(config, chunks, data, held(*order), last=index == parallel.pipeline - 1),
                host=_host_memory(config, layers, data),
            )
        )
    step = flops.flops_per_sample(config.spec) * optimisation.global_batch_size
    recomputed = step / 3.0 * config.recomputed_share
    return Report(
        name=config.name,
        kind=spec.kind,
        world_size=world_size,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        context=parallel.context,
        data=data,
        parameters=flops.parameters(config.spec),
        active_parameters=flops.active_parameters(config.spec),
        padded_vocab_size=config.spec.padded_vocab_size,
        global_batch_size=optimisation.global_batch_size,
        micro_batch_size=optimisation.micro_batch_size,
        accumulation=accumulation,
        iterations=config.train_iterations,
        tokens_per_step=optimisation.global_batch_size * spec.tokens_per_sample,
        flops_per_step=step,
        recomputed_flops_per_step=recomputed,
        bubble=bubble(parallel.pipeline, parallel.virtual_pipeline, accumulation),
        stages=tuple(stages),
    )


def zero_replicas(config: Config, data: int) -> tuple[int, int]:
    """Return the number of replicas over which ZeRO shards states: of ordinary weights, and of experts.

    The ranks of the expert axis differ only in their experts. DeepSpeed does not treat them as replicas.

    Args:
        config: The job's configuration.
        data: Ranks with different tokens.
    """
    experts = data // config.parallel.expert
    return data if config.engine == "native" else experts, experts


def _held(layers: list[LayerSize]) -> list[LayerSize]:
    """Return the layers of a stage by the parameters that it holds: tied weights count once."""
    has_original = any(layer.name == "Embedding" for layer in layers)
    held = []
    for layer in layers:
        if layer.tied and has_original:
            if layer.total > layer.tied:
                held.append(LayerSize(layer.name, split=layer.total - layer.tied))
            continue
        # Without the original, the first of several tied layers has the weights, as a decoder embedding does.
        has_original = has_original or layer.tied > 0
        held.append(layer)
    return held


def stage_memory(
    config: Config,
    chunks: Sequence[Sequence[LayerSize]],
    data: int,
    passes: Collection[tuple[int, Sequence[int]]],
    *,
    last: bool,
) -> Memory:
    """Return the memory of a rank of a pipeline stage.

    Args:
        config: The job's configuration.
        chunks: The layers of each of the stage's chunks.
        data: Number of replicas.
        passes: What it may hold at once, as :func:`rdm_core.pipeline_schedule.held` returns it.
        last: It is the last stage, which computes the loss.
    """
    parallel, layers = config.parallel, [*itertools.chain(*chunks)]
    own, replicas = _own(config, layers), zero_replicas(config, data * parallel.context)
    states = map(_states, (config, config), own, replicas)
    weights, gradients, optimiser = map(sum, zip(*states, strict=True))
    offloads = parallel.offload_parameters != "none"
    if config.zero_stage == 3 and (offloads or max(replicas) > 1):
        largest = max(layer.own(parallel.tensor, parallel.expert) for layer in layers)
        gathered = min(sum(own), max(largest, _MOST_GATHERED)) * _width(config)
        weights = gathered + (0 if offloads else weights)
    activations = _activations(config, chunks, passes)
    logits = _logits(config) if last else 0
    backward = max(0, _activation_gradients(config, layers) - logits)
    counts = collections.Counter(layer.name for layer in layers)
    buffers = RUNTIME_BYTES + sum(count * _fp8_copies(config, name) for name, count in counts.items())
    if parallel.offload_optimizer != "none" and config.zero_stage < 3:
        # DeepSpeed has a buffer for any weight's gradient; the word embedding is taken as the largest weight.
        spec = config.spec
        buffers += spec.padded_vocab_size // parallel.tensor * spec.hidden_size * _width(config)
    return Memory(weights, gradients, optimiser, activations, logits, backward, buffers)


def _own(config: Config, layers: list[LayerSize]) -> tuple[int, int]:
    """Return the parameters of a stage that one of its ranks has: of ordinary weights, and of experts."""
    axes, held = (config.parallel.tensor, config.parallel.expert), _held(layers)
    experts = sum(layer.own_experts(*axes) for layer in held)
    return sum(layer.own(*axes) for layer in held) - experts, experts


def _host_memory(config: Config, layers: list[LayerSize], data: int) -> int:
    """Return the bytes of the host's memory that a rank needs at least for what is offloaded.

    The optimiser has an fp32 copy, its gradient and two moments. ZeRO 3 also has the summed gradients, ZeRO 1
    and 2 the updated weights on their way to the GPU.
    """
    parallel, width = config.parallel, _width(config)
    each = 0
    if parallel.offload_optimizer != "none":
        sums = 4 if config.optimisation.precision == "bf16" else width
        each += 16 + (sums if config.zero_stage == 3 else width)
    each += width if parallel.offload_parameters != "none" else 0
    replicas = zero_replicas(config, data * parallel.context)
    return sum(each * own // count for own, count in zip(_own(config, layers), replicas, strict=True))


def _fp8_copies(config: Config, name: str) -> int:
    """Return the bytes of a layer's weights in fp8: each weight has two copies."""
    if not name.endswith("Block"):
        return 0
    return 2 * sum(
        inputs * outputs
        for product, (inputs, outputs) in float8.products(config.spec, config.parallel.tensor).items()
        if float8.gains(config.optimisation.fp8_recipe, inputs, outputs)
        and not (product.startswith("cross") and name != "DecoderBlock")
    )


def _logits(config: Config) -> int:
    """Return the bytes of the loss, which computes a chunk of logits and their gradients at a time.

    The largest of three moments counts:

    1. a chunk's logits become their gradient, with, unless compiled, fp32 copies and a mask;
    2. the chunk's gradient becomes that of the head, which is summed in fp32 if there are several chunks;
    3. the backward pass scales the head's gradient, and casts it back unless it adds it to a sum.

    The gradient of the head's input exists all the time.
    """
    spec, optimisation = config.spec, config.optimisation
    width = _width(config)
    rows = config.spec.padded_vocab_size // config.parallel.tensor
    tokens = optimisation.micro_batch_size * spec.decoder_length // config.parallel.context
    size = chunk_tokens(tokens, rows, compiled=optimisation.compile)
    head = rows * spec.hidden_size
    summed = 4 if size < tokens else 0
    # In fp32, there is no 16-bit copy.
    copies = 0 if optimisation.compile else 13
    chunk = size * rows * (width + copies) + head * summed
    # In fp32, the product is added to the sum in place.
    head_s = size * rows * width + head * (summed if width == summed else width + summed)
    scaled = head * (summed or width)
    if not _adds_gradients(config):
        scaled += head * (summed + width if width < summed else width)
    states = tokens * spec.hidden_size * width
    return max(chunk + states, head_s + states, scaled + 2 * states)


def _adds_gradients(config: Config) -> bool:
    """Return whether a backward pass adds the head's gradient to a sum, instead of writing it."""
    parallel = config.parallel
    if config.engine == "native":
        return True
    # DeepSpeed's BF16_Optimizer keeps sums; with shared experts, a hook averages each gradient instead.
    has_sums = config.optimisation.precision == "bf16" and config.zero_stage == 1
    return has_sums and parallel.offload_optimizer == "none" and parallel.expert == 1


def _width(config: Config) -> int:
    """Return the bytes of a weight or an activation."""
    return 4 if config.optimisation.precision == "fp32" else 2


def _states(config: Config, own: int, data: int) -> tuple[int, int, int]:
    """Return the bytes of weights, gradients and optimiser states of a rank with ``own`` parameters.

    ZeRO shards optimiser states (1), gradients (2) and weights (3) over the replicas. AdamW has two fp32
    moments. There is an fp32 copy of 16-bit weights, and with DeepSpeed's ZeRO also of fp32 weights.
    Offloaded states are in the host's memory; with ZeRO 3, so are the summed gradients. With ZeRO 1 and 2 in
    bf16, each rank has its share of the sums in fp32 on the GPU, too.

    Source: Rajbhandari et al., "ZeRO", 2020, section 3, and DeepSpeed's optimisers.
    """
    stage, precision = config.zero_stage, config.optimisation.precision
    width = _width(config)
    weights = own * width
    # With bf16, ZeRO 1 keeps only the sum of the gradients, in fp32.
    gradients = own * (4 if precision == "bf16" and stage == 1 else width)
    has_copy = precision != "fp32" or stage > 0
    optimiser = own * (12 if has_copy else 8)
    if precision != "fp32" and not (precision == "bf16" and stage == 1):
        # The fp32 copy of the gradients during the optimiser's step.
        optimiser += own * 4
    if stage >= 1:
        optimiser //= data
    if stage >= 2:
        gradients //= data
    if stage >= 3:
        weights //= data
    if config.parallel.offload_optimizer != "none":
        optimiser = 0
        if stage == 3:
            gradients = 0
        elif precision == "bf16":
            gradients = (gradients if stage == 1 else 0) + own * 4 // data
    return weights, gradients, optimiser


def _activations(
    config: Config, chunks: Sequence[Sequence[LayerSize]], passes: Collection[tuple[int, Sequence[int]]]
) -> int:
    """Return the most bytes that a stage keeps between passes, and during a backward pass."""
    spec, parallel = config.spec, config.parallel
    line = spec.hidden_size * _width(config) // parallel.token_shards
    interval, before = parallel.activation_checkpointing_interval, 0
    kept, added = [], []
    for layers in chunks:
        blocks = [layer.name for layer in layers if layer.name.endswith("Block")]
        whole = {name: _block_activations(config, name) for name in set(blocks)}
        within = {name: _within_budget(config, name) for name in whole}
        recomputed = parallel.recomputed(before + len(blocks)) - parallel.recomputed(before)
        before += len(blocks)
        own = sum(_tokens(config, name) * line for name in blocks[:recomputed:interval])
        own += sum(within[name] for name in blocks[recomputed:])
        for layer in layers:
            if not layer.name.endswith("Block"):
                # The output of an embedding, or the input of a layer norm or the head.
                # A BERT's last norm also keeps the inputs of the layer and the norm after it.
                lines = 4 if layer.name == "FinalNorm" and spec.kind == "bert" else 1
                # The head gathers the tokens of all tensor ranks.
                lines *= parallel.token_shards if layer.name == "Head" else 1
                own += _tokens(config, layer.name) * line * lines
        if layers and len(blocks) == len(layers):
            # Both its input and its output are held for messages, and each block counts only one of its ends.
            # A decoder's input includes the encoder's states.
            own += _tokens(config, "Embedding" if "DecoderBlock" in blocks else blocks[0]) * line
        kept.append(own)
        # The backward pass of a checkpoint computes its blocks' activations again, when those of the blocks
        # after it are freed already.
        again = min(interval, recomputed) * max(whole.values(), default=0)
        done = sum(whole[name] for name in blocks[recomputed:])
        # What exceeds a budget is computed again for one block at a time.
        added.append(max(0, again - done, *(whole[name] - within[name] for name in whole)))
    most: int = max(added[chunk] + sum(map(operator.mul, kept, counts)) for chunk, counts in passes)
    return config.optimisation.micro_batch_size * most


def _activation_gradients(config: Config, layers: Sequence[LayerSize]) -> int:
    """Return the most bytes of gradients that a backward pass has at once besides those of weights.

    That is in a feed-forward layer: the gradients of the block's output and of the activation function's
    input, with gating of both inputs. The gradient of the function's result replaces the result itself.

    With several chunks, a stage also keeps the gradients that it has sent until a message proves that they
    have arrived, see :func:`rdm_core.pipeline_schedule.received_before`. As many are counted as the first of
    several stages with two chunks ever keeps. When a stage holds the most activations, it keeps two at most;
    later it keeps one more for each forward pass that it no longer holds.
    """
    spec, parallel = config.spec, config.parallel
    width = _width(config)
    line = spec.hidden_size * width // parallel.token_shards
    sides = (2 if spec.ffn == "gated" else 1) * spec.ffn_size * width // parallel.tensor
    sent = parallel.pipeline + 1 if parallel.virtual_pipeline > 1 else 0
    own = line * (1 + sent) + sides * (spec.router_top_k if spec.experts else 1)
    tokens = (_tokens(config, layer.name) for layer in layers if layer.name.endswith("Block"))
    return config.optimisation.micro_batch_size * max(tokens, default=0) * own


def _tokens(config: Config, name: str) -> int:
    """Return the tokens of a sample whose states a layer keeps on a rank."""
    spec, context = config.spec, config.parallel.context
    if spec.kind != "t5" or name.startswith("Encoder"):
        return spec.seq_length // context
    if name == "Embedding":
        return spec.tokens_per_sample // context
    return spec.decoder_length // context


def _within_budget(config: Config, name: str) -> int:
    """Return the most bytes that one block keeps for one sample within ``activation_memory_budget``.

    The budget is for what the compiler keeps besides the block's input. Beside it, the compiler keeps the
    results of collectives, and a MoE's experts are not compiled.
    """
    spec, parallel, whole = config.spec, config.parallel, _block_activations(config, name)
    if parallel.activation_memory_budget == 1:
        return whole
    tokens, hidden = _tokens(config, name), spec.hidden_size * _width(config)
    line = tokens * hidden // parallel.token_shards
    outside = line + tokens * _expert_activations(config) if spec.experts else 0
    attentions = 2 if name == "DecoderBlock" else 1
    exchanged = attentions * line if parallel.tensor > 1 else 0
    key_values = 2 * spec.key_value_size * spec.ranks_of_key_value_head(parallel.tensor) // parallel.tensor
    if parallel.context > 1:
        exchanged += tokens * parallel.context * key_values * _width(config)
    if parallel.token_shards > 1:
        # Products are computed again from gathered inputs, unless queries, keys and values are kept.
        heads = (spec.attention_size // parallel.tensor + key_values) * _width(config)
        exchanged += tokens * (attentions * max(hidden, heads) + hidden)
    budget = parallel.activation_memory_budget * (whole - line - outside)
    return min(whole, line + outside + exchanged + int(budget))


def _expert_activations(config: Config) -> int:
    """Return the bytes that a MoE's router and experts keep for a token, besides their input.

    These are the input, both sides of the activation function and the output for each of the token's experts,
    and the router's probabilities of all tokens that a tensor rank routes.
    """
    spec, tensor, width = config.spec, config.parallel.tensor, _width(config)
    sides = (3 if spec.ffn == "gated" else 2) * spec.ffn_size * width + 2 * spec.hidden_size * width
    router = 4 * spec.experts * tensor // config.parallel.token_shards
    return (spec.router_top_k * sides + router) // tensor


def _block_activations(config: Config, name: str) -> int:
    """Return the bytes that one block keeps for one sample, without checkpointing.

    It keeps the inputs of the layer norms and of the matrix products, queries, keys, values, the attention's
    output with one fp32 number per head, and both sides of the activation function; with dropout also a byte
    per element. With sequence parallelism, tensor ranks shard the first two and dropout's bytes as well.
    Values are a view of the product that has queries and keys, too, so that these exist twice if they are
    rotated or normalised. Context ranks gather copies of keys and values, so that only the norms of queries
    and keys, whose input it is, keep the product.
    """
    spec, tensor = config.spec, config.parallel.tensor
    width = _width(config)
    tokens = _tokens(config, name)
    hidden, inner, shared = (
        size * width for size in (spec.hidden_size, spec.attention_size, spec.key_value_size)
    )
    sides = (3 if spec.ffn == "gated" else 2) * spec.ffn_size * width
    hidden //= config.parallel.token_shards
    dropout = (spec.hidden_size if spec.hidden_dropout else 0) // config.parallel.token_shards
    per_head = 4 * spec.heads
    shared *= spec.ranks_of_key_value_head(tensor)
    attention = 2 * hidden + (2 * inner + 2 * shared + per_head) // tensor + dropout
    sides = _expert_activations(config) if spec.experts else sides // tensor
    block = tokens * (attention + 2 * hidden + sides + dropout)
    is_rotary = not spec.positions and not spec.relative_buckets
    if (is_rotary or spec.qk_norm) and config.parallel.context == 1:
        block += tokens * (inner + shared) // tensor
    elif spec.qk_norm:
        block += tokens * (inner + 2 * shared) // tensor
    # The gathered keys and values of the other ranks' tokens.
    length = tokens * config.parallel.context
    block += (length - tokens) * 2 * shared // tensor
    if spec.relative_buckets:
        # The biases of the scores. The encoder's include the padding mask, which differs between samples.
        samples = config.optimisation.micro_batch_size if name == "DecoderBlock" else 1
        if name == "DecoderBlock" and config.parallel.context > 1:
            # Each of the rank's two parts has the biases of the keys up to its end only.
            length = (length + tokens // 2) // 2
        block += spec.heads * tokens * length * width // (tensor * samples)
    if name == "DecoderBlock":
        block += tokens * (2 * hidden + (2 * inner + per_head) // tensor + dropout)
        block += spec.seq_length * 2 * shared // tensor
    return block
