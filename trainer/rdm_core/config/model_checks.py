# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of a training's model. Each problem is one sentence."""

from __future__ import annotations

from collections.abc import Iterator

from rdm_core.config.schema import Config
from rdm_core.errors import divisors


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


def _positions(config: Config) -> Iterator[str]:
    model = config.model
    if model.position_embedding == "rope":
        if model.head_size % 2:
            yield f"A head of width {model.head_size} cannot be rotated; give model.kv_channels that is even."
        scaling = model.rope_scaling
        for kind, low, high in (
            ("llama3", "low_freq_factor", "high_freq_factor"),
            ("yarn", "beta_slow", "beta_fast"),
        ):
            if scaling is None or scaling.kind != kind:
                continue
            below, above = getattr(scaling, low), getattr(scaling, high)
            if below >= above:
                yield f"model.rope_scaling.{low} {below:g} is not below {high} {above:g}; change one."
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


def t5(config: Config) -> Iterator[str]:
    """Yield the problems of a T5, or of its keys with another model."""
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


def bert(config: Config) -> Iterator[str]:
    """Yield the problems of a BERT."""
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


MODEL_CHECKS = (_model, _attention, _positions, t5, bert)
