# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a training's layout, and of what its engine computes in it. Each problem is one sentence."""

from __future__ import annotations

from collections.abc import Iterator

from rdm_core import float8
from rdm_core.config.schema import Config, ParallelConfig
from rdm_core.errors import TrainerError


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
        yield from sharing_replicas(parallel, parallel.data)


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


def sharing_replicas(parallel: ParallelConfig, data: int) -> Iterator[str]:
    """Yield a problem unless the experts' ranks divide those of all replicas."""
    ranks, context = data * parallel.context, parallel.context
    if ranks % parallel.expert:
        more = f" x parallel.context {context} = {ranks}" if context > 1 else ""
        yield (
            f"{data} data-parallel ranks{more} are not a multiple of parallel.expert {parallel.expert}, and "
            "as many share the experts; change one."
        )


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


def recomputed_blocks_problems(config: Config) -> Iterator[str]:
    """Yield a problem if more blocks would compute their activations again than the model has."""
    recomputed = config.parallel.activation_checkpointing_blocks
    if recomputed is not None and recomputed > config.spec.blocks:
        yield (
            f"parallel.activation_checkpointing_blocks is {recomputed}, which must be at most the model's "
            f"number of blocks, {config.spec.blocks}; leave it out for all."
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


LAYOUT_CHECKS = (
    _experts,
    _context,
    _sequence_parallel,
    _layout,
    recomputed_blocks_problems,
    memory_budget_problems,
    _offloading,
    unsupported,
    fp8_problems,
    _cuda_graphs,
)
