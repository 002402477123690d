# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks between the keys of a training, and between them and the world. Each problem is one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rdm_core import float8
from rdm_core.config.schema import Config, ParallelConfig
from rdm_core.errors import TrainerError, Unfit, as_far_as_it_fits, divisors

MOST_TRACED = 100
"""The most steps to trace. More would take much memory, and nobody could view so many events."""


def check(config: Config, world_size: int | None = None) -> Iterator[str]:
    """Yield the problems of a training with our own trainer; those with the world only if that is known."""
    checks = [
        _trace,
        _model,
        _attention,
        _experts,
        _context,
        _sequence_parallel,
        _positions,
        _t5,
        _bert,
        _layout,
        memory_budget_problems,
        _offloading,
        unsupported,
        fp8_problems,
        _cuda_graphs,
        _length,
        _warmups,
        _rampup,
        _rates,
        _warmup_within_decay,
        _data,
        _beginning,
    ]
    for one in checks:
        yield from as_far_as_it_fits(one(config))
    if world_size is not None:
        yield from as_far_as_it_fits(_world(config, world_size))


def check_program(config: Config, _world_size: int | None = None) -> Iterator[str]:
    """Yield the problems of a job with another program, which has its own model, batch and data."""
    if not config.launcher.program[0].strip():
        yield "launcher.program begins with nothing; its first part must be a Python file."
    yield from _trace(config)
    if config.traced_steps:
        yield "logging.trace_steps is for our own training, but launcher.program runs another; leave it out."
    if config.launcher.profiler == "torch":
        yield "launcher.profiler torch is for our own training; use nsys or rocprof for launcher.program."


def has_sound_data(config: Config) -> bool:
    """Return whether the data's keys are consistent, so that the data files can be checked."""
    try:
        return not [*_t5(config), *_bert(config), *_data(config)]
    except Unfit:
        return False


def _trace(config: Config) -> Iterator[str]:
    text, traced = config.logging.trace_steps, config.traced_steps
    if text is not None and not traced:
        yield f"logging.trace_steps is {text!r}; give the first and the last step, as 20-22."
    if len(traced) > MOST_TRACED:
        yield f"logging.trace_steps names {len(traced)} steps; at most {MOST_TRACED} are recorded."


def _model(config: Config) -> Iterator[str]:
    model, tensor = config.model, config.parallel.tensor
    if model.kv_channels is None and model.hidden_size % model.attention_heads:
        yield (
            f"model.hidden_size {model.hidden_size} is not divisible by model.attention_heads "
            f"{model.attention_heads}; change one, or give model.kv_channels."
        )
    if model.attention_heads % tensor:
        yield (
            f"model.attention_heads {model.attention_heads} is not divisible by parallel.tensor {tensor}, "
            f"and each rank needs whole heads; take {divisors(model.attention_heads)}."
        )
    if model.experts is None and model.ffn_size % tensor:
        yield (
            f"model.ffn_hidden_size {model.ffn_size} is not divisible by parallel.tensor {tensor}; change "
            "one."
        )


def _attention(config: Config) -> Iterator[str]:
    model, tensor = config.model, config.parallel.tensor
    shared = model.query_groups
    if shared is not None:
        if model.attention_heads % shared:
            yield (
                f"model.attention_heads {model.attention_heads} is not a multiple of model.query_groups "
                f"{shared}, and each of these serves as many query heads."
            )
        if shared % tensor and tensor % shared:
            yield (
                f"parallel.tensor {tensor} neither divides model.query_groups {shared} nor is a multiple of "
                "it: each rank has whole heads of keys and values, or as many share each head; change one."
            )
        elif 2 * model.head_size * shared % tensor:
            yield (
                f"model.kv_channels {model.head_size} is too small for the {tensor // shared} tensor ranks "
                "that share a head of keys and values; take a smaller parallel.tensor."
            )
    if model.qk_norm and model.norm != "rmsnorm":
        yield "model.qk_norm is true, but model.norm is layernorm; set model.norm to rmsnorm."


def _experts(config: Config) -> Iterator[str]:
    model, parallel = config.model, config.parallel
    if model.experts is None:
        if parallel.expert > 1:
            yield f"parallel.expert is {parallel.expert}, but the model has no experts; give model.experts."
        return
    if model.kind != "gpt":
        yield f"model.experts is for a decoder, but model.kind is {model.kind}; leave it out."
    if model.moe_router_topk > model.experts:
        yield f"model.moe_router_topk {model.moe_router_topk} is above model.experts {model.experts}."
    if model.biases == "all":
        yield "model.biases is all, but experts have none; set it to qkv or none."
    sharing = parallel.expert * parallel.tensor
    if model.experts % sharing:
        yield (
            f"model.experts {model.experts} is not divisible by parallel.expert {parallel.expert} x "
            f"parallel.tensor {parallel.tensor} = {sharing}, and each rank has whole experts."
        )
    if parallel.data is not None:
        yield from _sharing_replicas(parallel, parallel.data)


def _context(config: Config) -> Iterator[str]:
    model, parallel = config.model, config.parallel
    ranks = parallel.context
    if ranks == 1:
        return
    for key, length in _lengths(config).items():
        if length % (2 * ranks):
            lower = length // (2 * ranks) * 2 * ranks
            near = " or ".join(str(one) for one in (lower, lower + 2 * ranks) if one)
            yield (
                f"model.{key} {length} is not a multiple of 2 x parallel.context {ranks} = {2 * ranks}, and "
                f"each rank has two parts of a sample, as long as the others; {near} would be."
            )
    if (model.kind != "gpt" or config.data.eod_mask_loss) and not config.counts_tokens:
        yield (
            f"parallel.context {ranks} needs optimisation.calculate_per_token_loss where the loss mask "
            "leaves the parts of a sample different numbers of tokens; set it to true."
        )


def _lengths(config: Config) -> dict[str, int]:
    """Return the lengths of a sample's sequences by their keys."""
    lengths = {"seq_length": config.model.seq_length}
    if config.model.kind == "t5":
        lengths["decoder_seq_length"] = config.model.decoder_length
    return lengths


def _sequence_parallel(config: Config) -> Iterator[str]:
    parallel = config.parallel
    if not parallel.sequence_parallel:
        return
    if parallel.tensor == 1:
        yield (
            "parallel.sequence_parallel shares tokens between tensor ranks, but parallel.tensor is 1; take a "
            "larger one, or set sequence_parallel to false."
        )
    shards, ranks = parallel.token_shards * parallel.context, f"parallel.tensor {parallel.tensor}"
    if parallel.context > 1:
        ranks += f" x parallel.context {parallel.context} = {shards}"
    for key, length in _lengths(config).items():
        if length % shards:
            yield (
                f"model.{key} {length} is not a multiple of {ranks}, and with parallel.sequence_parallel "
                "these ranks have equal parts of the tokens; change one."
            )


def _sharing_replicas(parallel: ParallelConfig, data: int) -> Iterator[str]:
    ranks, context = data * parallel.context, parallel.context
    if ranks % parallel.expert:
        more = f" x parallel.context {context} = {ranks}" if context > 1 else ""
        yield (
            f"{data} data-parallel ranks{more} are not a multiple of parallel.expert {parallel.expert}, and "
            "as many share the experts; change one."
        )


def _positions(config: Config) -> Iterator[str]:
    model = config.model
    if model.position_embedding == "rope":
        if model.head_size % 2:
            yield f"A head of width {model.head_size} cannot be rotated; give model.kv_channels that is even."
        scaling = model.rope_scaling
        if (
            scaling is not None
            and scaling.kind == "llama3"
            and scaling.low_freq_factor >= scaling.high_freq_factor
        ):
            yield (
                f"model.rope_scaling.low_freq_factor {scaling.low_freq_factor:g} is not below "
                f"high_freq_factor {scaling.high_freq_factor:g}."
            )
        return
    if model.rope_scaling is not None:
        yield (
            "model.rope_scaling is for rotary positions, but model.position_embedding is "
            f"{model.position_embedding}; set it to rope, or leave the scaling out."
        )
    if model.position_embedding == "relative":
        yield from _relative(config)
        return
    longest = max(model.seq_length, model.decoder_length)
    if model.positions < longest:
        yield (
            f"model.max_position_embeddings is {model.positions}, fewer than the {longest} tokens of a "
            "sequence."
        )


def _relative(config: Config) -> Iterator[str]:
    model = config.model
    buckets, farthest = model.relative_attention_num_buckets, model.relative_attention_max_distance
    if model.kind != "t5":
        yield f"model.position_embedding relative is for a T5, but model.kind is {model.kind}; take rope."
    if buckets % 2:
        yield (
            f"model.relative_attention_num_buckets is {buckets}; an encoder has as many for either "
            "direction, so that it must be even."
        )
    if farthest <= buckets // 2:
        yield (
            f"model.relative_attention_max_distance {farthest} is not above half of "
            f"relative_attention_num_buckets {buckets}, and as many distances have a bucket of their own."
        )


def _t5(config: Config) -> Iterator[str]:
    model = config.model
    if model.kind != "t5":
        for key, value in (
            ("decoder_layers", model.decoder_layers),
            ("decoder_seq_length", model.decoder_seq_length),
            ("vocab_extra_ids", model.vocab_extra_ids),
            ("scale_logits", model.scale_logits),
            ("lm_head_bias", model.lm_head_bias),
        ):
            if value:
                yield f"model.{key} is for a T5, but model.kind is {model.kind}; leave it out."
        return
    yield from _no_decoder(config)
    for key, value in (
        ("position_embedding: rope", model.position_embedding == "rope"),
        ("query_groups", model.query_groups),
        ("qk_norm", model.qk_norm),
    ):
        if value:
            yield f"model.{key} is not for a T5; leave it out."
    if model.lm_head_bias and not model.tied_embeddings:
        yield "model.lm_head_bias is for tied embeddings, but model.tied_embeddings is false; leave it out."
    tokenizer = config.data.tokenizer
    # A tokenizer.json may have sentinels of its own.
    if model.vocab_extra_ids == 0 and (config.data.mock or tokenizer is None or tokenizer.file is None):
        yield (
            "model.vocab_extra_ids is 0, but a T5 marks masked spans with sentinels of its own; 100 is usual."
        )
    if not config.data.mock and config.data.tokenizer is None:
        yield "data.tokenizer is missing; a T5 takes the ids of its special tokens from it."


def _bert(config: Config) -> Iterator[str]:
    if config.model.kind != "bert":
        return
    yield from _no_decoder(config)
    if config.model.seq_length < 4:
        yield f"model.seq_length is {config.model.seq_length}; a BERT's samples have 4 tokens at least."
    if not config.data.mock and config.data.tokenizer is None:
        yield "data.tokenizer is missing; a BERT takes the ids of its special tokens from it."


def _no_decoder(config: Config) -> Iterator[str]:
    """Yield a problem for each key that is set, but only for a decoder."""
    kind = config.model.kind
    if config.model.sliding_window:
        yield f"model.sliding_window is for a decoder, but model.kind is {kind}; leave it out."
    for key in ("reset_attention_mask", "reset_position_ids", "eod_mask_loss"):
        if getattr(config.data, key):
            yield f"data.{key} is for a decoder, but model.kind is {kind}; leave it out."


def _layout(config: Config) -> Iterator[str]:
    parallel = config.parallel
    recomputed = parallel.activation_checkpointing_blocks
    if recomputed is not None and parallel.activation_checkpointing == "none":
        yield (
            f"parallel.activation_checkpointing_blocks is {recomputed}, but activation_checkpointing is "
            "none; set it to full, or leave the blocks out."
        )
    if parallel.pipeline > 1 and parallel.zero_stage > 1:
        yield (
            f"parallel.zero_stage {parallel.zero_stage} is not combined with parallel.pipeline "
            f"{parallel.pipeline}: ZeRO 2 and 3 would need another reduce-scatter of the gradients for every "
            "micro-batch; use zero_stage 1, or pipeline 1."
        )
    if parallel.virtual_pipeline > 1 and parallel.pipeline == 1:
        yield (
            f"parallel.virtual_pipeline is {parallel.virtual_pipeline}, but parallel.pipeline is 1, in which "
            "no stage waits for another; take virtual_pipeline 1."
        )
        return
    if parallel.eager_forwards and parallel.pipeline == 1:
        yield (
            f"parallel.eager_forwards is {parallel.eager_forwards}, but parallel.pipeline is 1, in which no "
            "stage runs ahead of another; take eager_forwards 0."
        )
    if parallel.eager_forwards and parallel.virtual_pipeline > 1:
        yield (
            f"parallel.eager_forwards {parallel.eager_forwards} is not combined with "
            f"parallel.virtual_pipeline {parallel.virtual_pipeline}, in which the first stage also waits for "
            "the last one; take eager_forwards 0, or virtual_pipeline 1."
        )
    try:
        bounds = config.stage_bounds()
    except TrainerError as error:
        yield str(error)
        return
    is_alone = bounds[1] == 1 and parallel.virtual_pipeline == 1
    if is_alone and config.model.position_embedding == "rope":
        # Then all its weights decay, and its optimiser lacks the second parameter group of the other stages.
        yield (
            f"parallel.partition {parallel.partition} leaves the first stage nothing but the word embedding, "
            "which is not possible with rotary positions; give it a block."
        )


def memory_budget_problems(config: Config) -> Iterator[str]:
    """Yield why blocks cannot keep their activations within a budget."""
    parallel, budget = config.parallel, config.parallel.activation_memory_budget
    if budget == 1:
        return
    key = f"parallel.activation_memory_budget {budget:g}"
    if not config.optimisation.compile:
        yield (
            f"{key} needs optimisation.compile, because the compiler chooses what is computed again; set "
            "compile to true, or the budget to 1."
        )
    if parallel.activation_checkpointing != "none":
        yield (
            f"{key} is not combined with activation_checkpointing {parallel.activation_checkpointing}, which "
            "computes whole blocks again; set that to none, or the budget to 1."
        )
    for name in ("hidden_dropout", "attention_dropout"):
        if (dropout := getattr(config.model, name)) > 0:
            # https://github.com/pytorch/pytorch/issues/190758
            yield (
                f"{key} is not combined with model.{name} {dropout:g}: PyTorch's compiler would drop other "
                "features in the backward pass than in the forward pass; set the dropout to 0, or the budget "
                "to 1."
            )


def _offloading(config: Config) -> Iterator[str]:
    parallel = config.parallel
    if parallel.offload_parameters != "none" and parallel.zero_stage != 3:
        yield (
            f"parallel.offload_parameters {parallel.offload_parameters} needs parallel.zero_stage 3; take 3, "
            "or offload_parameters none."
        )
    if parallel.offload_optimizer == "none":
        return
    if config.zero_stage == 0:
        yield (
            f"parallel.offload_optimizer {parallel.offload_optimizer} needs parallel.zero_stage 1 at least; "
            "take that, or offload_optimizer none."
        )
    if parallel.pipeline > 1:
        yield (
            f"parallel.offload_optimizer {parallel.offload_optimizer} is not combined with parallel.pipeline "
            f"{parallel.pipeline}: in bf16, DeepSpeed would lose gradients; use offload_optimizer none, or "
            "pipeline 1."
        )


def unsupported(config: Config) -> Iterator[str]:
    """Yield the problems of keys that the engine has in no layout."""
    parallel = config.parallel
    if config.engine != "native":
        for key, value, other in (
            ("context", parallel.context, 1),
            ("sequence_parallel", parallel.sequence_parallel, False),
            ("reduce_dtype", parallel.reduce_dtype, "fp32"),
            ("virtual_pipeline", parallel.virtual_pipeline, 1),
            ("eager_forwards", parallel.eager_forwards, 0),
        ):
            if value != other:
                yield (
                    f"parallel.{key} {str(value).lower()} needs the native engine, but engine is "
                    f"{config.engine}; set engine to native, or {key} to {str(other).lower()}."
                )
        return
    if parallel.zero_stage > 1:
        yield (
            f"parallel.zero_stage {parallel.zero_stage} needs DeepSpeed, but engine is native; set engine to "
            "deepspeed, or zero_stage to 1."
        )
    for key in ("offload_optimizer", "offload_parameters"):
        if (value := getattr(parallel, key)) != "none":
            yield (
                f"parallel.{key} {value} needs DeepSpeed, but engine is native; set engine to deepspeed, or "
                f"{key} to none."
            )
    if config.optimisation.precision == "fp16":
        yield (
            "optimisation.precision fp16 needs DeepSpeed, but engine is native; set engine to deepspeed, or "
            "precision to bf16."
        )


def fp8_problems(config: Config) -> Iterator[str]:
    """Yield why a job cannot compute in fp8, or gains nothing from it."""
    recipe = config.optimisation.fp8_recipe
    if recipe == "none":
        return
    key = f"optimisation.fp8_recipe {recipe}"
    if config.engine != "native":
        yield (
            f"{key} needs the native engine, but engine is {config.engine}; set engine to native, or take "
            "fp8_recipe none."
        )
    if config.optimisation.precision != "bf16":
        yield (
            f"{key} needs optimisation.precision bf16, but it is {config.optimisation.precision}; take bf16, "
            "or fp8_recipe none."
        )
    spec, parallel = config.spec, config.parallel
    products = float8.products(spec, parallel.tensor)
    if not any(float8.gains(recipe, *sizes) for sizes in products.values()):
        yield f"{key} gains nothing, because all products of this model are small; take fp8_recipe none."
    for name, (inputs, outputs) in products.items():
        if float8.gains(recipe, inputs, outputs) and (inputs % float8.MULTIPLE or outputs % float8.MULTIPLE):
            yield (
                f"{key} needs multiples of {float8.MULTIPLE}, but {name} has {inputs} inputs and {outputs} "
                f"outputs on each of {parallel.tensor} tensor ranks; change the model's width, or take "
                "fp8_recipe none."
            )
    tokens = float8.tokens(config)
    if tokens % float8.MULTIPLE:
        yield (
            f"{key} needs multiples of {float8.MULTIPLE} tokens, but a product has {tokens}; change "
            "optimisation.micro_batch_size or the sequence length, or take fp8_recipe none."
        )


def _cuda_graphs(config: Config) -> Iterator[str]:
    if not config.optimisation.cuda_graphs:
        return
    parallel, key = config.parallel, "optimisation.cuda_graphs true"
    if config.engine != "native":
        yield (
            f"{key} needs the native engine, but engine is {config.engine}; set engine to native, or "
            "cuda_graphs to false."
        )
    if parallel.pipeline > 1:
        yield (
            f"{key} is not combined with parallel.pipeline {parallel.pipeline}, because a graph cannot wait "
            "for another stage; set cuda_graphs to false, or pipeline to 1."
        )
    if config.spec.experts:
        yield (
            f"{key} is not combined with model.experts {config.spec.experts}, because how many tokens each "
            "gets is known only in a pass; set cuda_graphs to false."
        )
    if parallel.tensor > 1 and parallel.activation_checkpointing != "none":
        yield (
            f"{key} is not combined with parallel.activation_checkpointing "
            f"{parallel.activation_checkpointing} and parallel.tensor {parallel.tensor}, which is untested; "
            "set cuda_graphs to false, or activation_checkpointing to none."
        )
    if config.launcher.backend == "gloo":
        for name in ("tensor", "context"):
            if (ranks := getattr(parallel, name)) > 1:
                yield (
                    f"{key} is not combined with launcher.backend gloo and parallel.{name} {ranks}, because "
                    "Gloo's collectives run on the host, where no graph does; set cuda_graphs to false, or "
                    "backend to auto."
                )
    dropout = config.model.attention_dropout
    if parallel.tensor > 1 and not parallel.sequence_parallel and dropout > 0:
        yield (
            f"{key} is not combined with model.attention_dropout {dropout:g} and parallel.tensor "
            f"{parallel.tensor}: each rank seeds the dropout of its heads, and a graph cannot change the "
            "seed; set cuda_graphs to false, sequence_parallel to true, or attention_dropout to 0."
        )


def _length(config: Config) -> Iterator[str]:
    o = config.optimisation
    if (o.train_iterations is None) == (o.train_samples is None):
        which = "neither" if o.train_iterations is None else "both"
        yield (
            f"optimisation has {which} of train_iterations and train_samples; give exactly one"
            f"{'' if which == 'neither' else ' and set the other to null'}."
        )
    if o.train_iterations is None and o.train_samples is not None and o.train_samples < o.global_batch_size:
        yield (
            f"optimisation.train_samples {o.train_samples} is less than one global batch of "
            f"{o.global_batch_size}."
        )
    if config.parallel.data is not None:
        yield from _batch(config, config.parallel.data)


def _warmups(config: Config) -> Iterator[str]:
    o = config.optimisation
    warmups = [
        name
        for name in ("warmup_fraction", "warmup_iterations", "warmup_samples")
        if getattr(o, name) is not None
    ]
    if len(warmups) > 1:
        yield f"optimisation has {' and '.join(warmups)}; give at most one."
    if o.decay_iterations is not None and o.decay_samples is not None:
        yield "optimisation has decay_iterations and decay_samples; give at most one."


def _rates(config: Config) -> Iterator[str]:
    o = config.optimisation
    if o.min_lr > o.lr:
        yield f"optimisation.min_lr {o.min_lr:g} is above optimisation.lr {o.lr:g}."
    ends = (o.wsd_decay_iterations, o.wsd_decay_samples)
    if o.schedule == "wsd" and sum(end is not None for end in ends) != 1:
        yield (
            "optimisation.schedule is wsd; give exactly one of wsd_decay_iterations and wsd_decay_samples, "
            "the length of the decay at the end."
        )
    if o.schedule != "wsd" and any(end is not None for end in ends):
        yield f"optimisation.wsd_decay_* is for the schedule wsd, but it is {o.schedule}; leave it out."
    bounds = (o.start_weight_decay, o.end_weight_decay)
    if o.weight_decay_incr_style != "constant" and None in bounds:
        yield (
            f"optimisation.weight_decay_incr_style is {o.weight_decay_incr_style}; give start_weight_decay "
            "and end_weight_decay."
        )
    if o.weight_decay_incr_style == "constant" and bounds != (None, None):
        yield (
            "optimisation has start_weight_decay or end_weight_decay, but weight_decay_incr_style is "
            "constant; set it to linear or cosine, or give weight_decay alone."
        )
    if o.loss_scale is not None and o.precision != "fp16":
        yield f"optimisation.loss_scale is for fp16, but the precision is {o.precision}; leave it out."


def _warmup_within_decay(config: Config) -> Iterator[str]:
    o = config.optimisation
    batch = o.global_batch_size
    decay = o.decay_samples or (o.decay_iterations or config.train_iterations) * batch
    warmup = o.warmup_samples or (o.warmup_iterations or 0) * batch
    if warmup and decay and warmup > decay:
        yield (
            f"The warm-up of {warmup} samples is longer than the decay of {decay} samples that contains it; "
            "make it shorter."
        )
    tail = o.wsd_decay_samples or (o.wsd_decay_iterations or 0) * batch
    if tail and decay and warmup + tail > decay:
        yield (
            f"The warm-up of {warmup} samples and the decay of {tail} at the end are longer than the {decay} "
            "samples of the whole schedule; make them shorter."
        )


def _rampup(config: Config) -> Iterator[str]:
    o = config.optimisation
    ramp = o.rampup_batch_size
    if ramp is None:
        return
    if ramp.start >= o.global_batch_size or (o.global_batch_size - ramp.start) % ramp.increment:
        yield (
            f"optimisation.rampup_batch_size begins at {ramp.start} and grows by {ramp.increment}, which "
            f"does not meet global_batch_size {o.global_batch_size}; change one of the three."
        )
    for key in ("train_iterations", "warmup_iterations", "decay_iterations", "wsd_decay_iterations"):
        if getattr(o, key) is not None:
            yield (
                f"optimisation has rampup_batch_size and {key}, but steps of a batch that grows are no "
                f"measure; give {key.replace('iterations', 'samples')}."
            )


def _batch(config: Config, data: int) -> Iterator[str]:
    o, parallel = config.optimisation, config.parallel
    step = o.micro_batch_size * data
    factors = f"micro_batch_size {o.micro_batch_size} x {data} replicas"
    if parallel.virtual_pipeline > 1:
        # A stage takes ``pipeline`` micro-batches through one chunk before it begins the next chunk.
        step *= parallel.pipeline
        factors += f" x {parallel.pipeline} stages (parallel.virtual_pipeline)"
    ramp = o.rampup_batch_size
    if ramp is not None and (ramp.start % step or ramp.increment % step):
        yield (
            f"optimisation.rampup_batch_size has start {ramp.start} and increment {ramp.increment}; both "
            f"must be multiples of {factors} = {step}."
        )
    micro_batches = o.global_batch_size // (o.micro_batch_size * data)
    if parallel.pipeline > 1 and 0 < micro_batches < parallel.eager_forwards:
        noun = "micro-batches" if micro_batches > 1 else "micro-batch"
        yield (
            f"parallel.eager_forwards is {parallel.eager_forwards}, but a step has only {micro_batches} "
            f"{noun}; take {micro_batches} or fewer."
        )
    if o.global_batch_size % step:
        lower, upper = o.global_batch_size // step * step, -(-o.global_batch_size // step) * step
        near = f"{lower} or {upper}" if lower else f"{upper}"
        yield (
            f"optimisation.global_batch_size {o.global_batch_size} is not a multiple of {factors} = {step}; "
            f"{near} would be."
        )


def _data(config: Config) -> Iterator[str]:
    data = config.data
    if data.blend and (data.train or data.valid or data.test):
        yield "data has blend and one of train, valid and test; give blend with split, or the other three."
    elif (data.valid or data.test) and not data.train:
        yield "data has valid or test without train; give train too, or blend with split."
    if data.mock and (data.blend or data.train):
        yield "data.mock is true and data sets are given; give one."
    if not (data.mock or data.blend or data.train):
        yield "data has no data set; give data.blend, data.train, or data.mock: true."
    yield from _split(data.split)
    yield from _tokenizer(config)


def _beginning(config: Config) -> Iterator[str]:
    if config.checkpoint.load and config.checkpoint.init_from:
        yield (
            "checkpoint has load and init_from; give load to go on with another job's training, or init_from "
            "to start a new training with its weights."
        )


def _split(split: str) -> Iterator[str]:
    parts = [part.strip() for part in re.split("[,/]", split)]
    numbers = [float(part) for part in parts if re.fullmatch(r"[0-9]+(\.[0-9]*)?|\.[0-9]+", part)]
    if len(numbers) != len(parts) or len(parts) > 3 or not 0 < sum(numbers) < float("inf"):
        yield (
            f"data.split is {split!r}; it must be one to three proportions for training, validation and "
            "test, as 969,30,1."
        )


def _tokenizer(config: Config) -> Iterator[str]:
    tokenizer = config.data.tokenizer
    if tokenizer is None:
        return
    needed = {"gpt2": ("vocab", "merges"), "wordpiece": ("vocab",), "huggingface": ("file",)}[tokenizer.kind]
    for key in ("vocab", "merges", "file"):
        given = getattr(tokenizer, key) is not None
        if given != (key in needed):
            verb = "does not use" if given else "needs"
            yield f"A tokenizer of kind {tokenizer.kind} {verb} data.tokenizer.{key}."


def _world(config: Config, world: int) -> Iterator[str]:
    parallel = config.parallel
    layout = parallel.ranks_of_replica
    context = f" x context {parallel.context}" if parallel.context > 1 else ""
    axes = f"parallel tensor {parallel.tensor}{context} x pipeline {parallel.pipeline}"
    if parallel.data is not None:
        if layout * parallel.data != world:
            yield f"{axes} x data {parallel.data} = {layout * parallel.data}, but the world is {world}."
    elif world < layout or world % layout:
        yield (
            f"A world of {world} is not a multiple of {axes} = {layout} processes; start as many, or a "
            "multiple of them, or change parallel."
        )
    else:
        yield from _sharing_replicas(parallel, world // layout)
        yield from _batch(config, world // layout)
