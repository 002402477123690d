# SPDX-License-Identifier: GPL-3.0-or-later
"""BERT as Hugging Face's MegatronBert: its ``config.json`` and the names of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rdm_core.config import ModelConfig
from rdm_trainer.weights.mapped import Mapped, join_heads, split_heads

FAMILY = "megatron-bert"

_TOKEN_TYPES = 2


def is_published(model: ModelConfig) -> bool:
    """Return whether a BERT is like Megatron's."""
    style = (model.position_embedding, model.norm, model.activation, model.biases)
    return (
        style == ("learned", "layernorm", "gelu", "all")
        and not model.query_groups
        and model.softmax_scale is None
        and model.head_size * model.attention_heads == model.hidden_size
        and model.tied_embeddings
    )


def config_json(model: ModelConfig) -> dict[str, Any]:
    """Return the keys that only its ``config.json`` has."""
    return {
        "hidden_act": "gelu_new",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.attention_heads,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": model.positions,
        "type_vocab_size": _TOKEN_TYPES,
        "layer_norm_eps": model.layernorm_epsilon,
        "hidden_dropout_prob": model.hidden_dropout,
        "attention_probs_dropout_prob": model.attention_dropout,
    }


def zeros(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of its tensors that a BERT here lacks: token types, and the logits' bias."""
    return {
        "bert.embeddings.token_type_embeddings.weight": (_TOKEN_TYPES, model.hidden_size),
        "cls.predictions.bias": (model.vocab_size,),
    }


def mapping(model: ModelConfig) -> Iterator[Mapped]:
    """Yield each of our parameters with its tensors there, in the model's order."""
    heads, size = model.attention_heads, model.head_size
    yield Mapped("tied_modules.embed.weight", ("bert.embeddings.word_embeddings.weight",))
    yield Mapped("1.weight", ("bert.embeddings.position_embeddings.weight",))
    for number in range(model.layers):
        theirs = f"bert.encoder.layer.{number}."
        for kind in ("weight", "bias"):
            for ours, name in (
                ("input_layernorm", "attention.ln"),
                ("self_attention.out_proj", "attention.output.dense"),
                ("pre_mlp_layernorm", "ln"),
                ("mlp.fc1", "intermediate.dense"),
                ("mlp.fc2", "output.dense"),
            ):
                yield Mapped(f"{2 + number}.{ours}.{kind}", (f"{theirs}{name}.{kind}",))
            yield Mapped(
                f"{2 + number}.self_attention.qkv_proj.{kind}",
                tuple(f"{theirs}attention.self.{name}.{kind}" for name in ("query", "key", "value")),
                lambda parts: join_heads(heads, parts),
                lambda whole: split_heads(heads, size, whole),
            )
    last = 2 + model.layers
    for kind in ("weight", "bias"):
        yield Mapped(f"{last}.{kind}", (f"bert.encoder.ln.{kind}",))
        yield Mapped(f"{last}.dense.{kind}", (f"cls.predictions.transform.dense.{kind}",))
        yield Mapped(f"{last}.norm.{kind}", (f"cls.predictions.transform.LayerNorm.{kind}",))
