# SPDX-License-Identifier: GPL-3.0-or-later
"""Maps Hugging Face's T5 (1.0, 1.1, Flan) to ours and back: its ``config.json`` and its tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from rdm_core.config import ModelConfig
from rdm_core.errors import TrainerError
from rdm_trainer.weights.mapped import Mapped, join_heads, split_heads

_ACTIVATIONS = {"relu": "relu", "gated-gelu": "geglu", "gated-silu": "swiglu"}
_LONGEST = 512
"""Tokens of a sample after an import, as in the published models' training; there is no upper limit."""


def section(found: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the model section for a ``config.json``.

    Raises:
        TrainerError: It has an activation that our models lack.
        KeyError: It lacks a key.
    """
    activation = found.get("feed_forward_proj", "relu")
    if activation not in _ACTIVATIONS:
        raise TrainerError(
            f"{source} has feed_forward_proj {activation!r}, and our models have "
            f"{' or '.join(sorted(_ACTIVATIONS))}."
        )
    # Since its fifth release, transformers calls every T5 tied, even if it has a head of its own; then its
    # logits are not scaled.
    tied = bool(found.get("scale_decoder_outputs", found.get("tie_word_embeddings", True)))
    return {
        "kind": "t5",
        "layers": found["num_layers"],
        "decoder_layers": found.get("num_decoder_layers") or found["num_layers"],
        "hidden_size": found["d_model"],
        "attention_heads": found["num_heads"],
        "kv_channels": found["d_kv"],
        "ffn_hidden_size": found["d_ff"],
        "seq_length": _LONGEST,
        "vocab_size": found["vocab_size"],
        "tied_embeddings": tied,
        "scale_logits": tied,
        "layernorm_epsilon": found.get("layer_norm_epsilon", 1e-6),
        "position_embedding": "relative",
        "relative_attention_num_buckets": found.get("relative_attention_num_buckets", 32),
        "relative_attention_max_distance": found.get("relative_attention_max_distance", 128),
        "softmax_scale": 1.0,
        "norm": "rmsnorm",
        "activation": _ACTIVATIONS[activation],
        "biases": "none",
    }


def is_published(model: ModelConfig) -> bool:
    """Return whether a T5 is like Hugging Face's."""
    return (
        (model.position_embedding, model.norm, model.biases) == ("relative", "rmsnorm", "none")
        and model.activation in _ACTIVATIONS.values()
        and model.softmax_scale == 1.0
        and model.scale_logits == model.tied_embeddings
    )


def config_json(model: ModelConfig) -> dict[str, Any]:
    """Return the keys that only a T5's ``config.json`` has."""
    theirs = {ours: name for name, ours in _ACTIVATIONS.items()}
    return {
        # There, the sentinels are ordinary tokens.
        "vocab_size": model.vocab_size + model.vocab_extra_ids,
        "d_model": model.hidden_size,
        "d_kv": model.head_size,
        "d_ff": model.ffn_size,
        "num_layers": model.layers,
        "num_decoder_layers": model.decoder_blocks,
        "num_heads": model.attention_heads,
        "relative_attention_num_buckets": model.relative_attention_num_buckets,
        "relative_attention_max_distance": model.relative_attention_max_distance,
        "dropout_rate": model.hidden_dropout,
        "layer_norm_epsilon": model.layernorm_epsilon,
        "feed_forward_proj": theirs[model.activation],
        "is_encoder_decoder": True,
    }


def mapping(model: ModelConfig) -> Iterator[Mapped]:
    """Yield each of our parameters with its tensors there, in the model's order."""
    # Embedding, table of the positions, blocks, norm; then the same for the decoder, and the head.
    decoder = 2 + model.layers + 1
    yield Mapped("tied_modules.embed.weight", ("shared.weight",))
    yield from _stack(model, "encoder", 1, model.layers)
    yield from _stack(model, "decoder", decoder + 1, model.decoder_blocks)
    if not model.tied_embeddings:
        yield Mapped(f"{decoder + 2 + model.decoder_blocks + 1}.weight", ("lm_head.weight",))


def _stack(model: ModelConfig, name: str, first: int, blocks: int) -> Iterator[Mapped]:
    """Yield the parameters of encoder or decoder; its table of positions is our layer ``first``."""
    groups, size = model.attention_heads, model.head_size
    heads: dict[str, Any] = {
        "join": partial(join_heads, groups),
        "split": lambda whole: split_heads(groups, size, whole),
    }
    pairs: dict[str, Any] = {**heads, "split": lambda whole: split_heads(groups, size, whole, 2)}
    gated = model.activation != "relu"
    wide: dict[str, Any] = {
        "join": lambda parts: torch.stack(tuple(parts)),
        "split": lambda whole: tuple(whole.unbind()),
    }
    yield Mapped(f"{first}.weight", (f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",))
    for number in range(blocks):
        ours, theirs = f"{first + 1 + number}.", f"{name}.block.{number}.layer."

        def attention(layer: str, letters: str, theirs: str = theirs) -> tuple[str, ...]:
            return tuple(f"{theirs}{layer}.{letter}.weight" for letter in letters)

        yield Mapped(f"{ours}input_layernorm.weight", (f"{theirs}0.layer_norm.weight",))
        own = "0.SelfAttention"
        yield Mapped(f"{ours}self_attention.qkv_proj.weight", attention(own, "qkv"), **heads)
        yield Mapped(f"{ours}self_attention.out_proj.weight", attention(own, "o"))
        last = 1
        if name == "decoder":
            last, other = 2, "1.EncDecAttention"
            yield Mapped(f"{ours}pre_cross_attn_layernorm.weight", (f"{theirs}1.layer_norm.weight",))
            yield Mapped(f"{ours}cross_attention.q_proj.weight", attention(other, "q"))
            yield Mapped(f"{ours}cross_attention.kv_proj.weight", attention(other, "kv"), **pairs)
            yield Mapped(f"{ours}cross_attention.out_proj.weight", attention(other, "o"))
        yield Mapped(f"{ours}pre_mlp_layernorm.weight", (f"{theirs}{last}.layer_norm.weight",))
        dense = f"{theirs}{last}.DenseReluDense."
        if gated:
            yield Mapped(f"{ours}mlp.fc1.weight", (f"{dense}wi_0.weight", f"{dense}wi_1.weight"), **wide)
        else:
            yield Mapped(f"{ours}mlp.fc1.weight", (f"{dense}wi.weight",))
        yield Mapped(f"{ours}mlp.fc2.weight", (f"{dense}wo.weight",))
    yield Mapped(f"{first + 1 + blocks}.weight", (f"{name}.final_layer_norm.weight",))
