# SPDX-License-Identifier: GPL-3.0-or-later
"""Translates names of weights in Megatron's files, older and newer, to Megatron-core's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from rdm_core.errors import TrainerError
from rdm_trainer.weights.megatron.tensors import EXPERTS, HEAD_BIAS, separate

_OLDER = (
    (r"\.final_(layer)?norm\.", ".final_layernorm."),
    (r"\.(self_)?attention\.query_key_value\.", ".self_attention.linear_qkv."),
    (r"\.(self_)?attention\.dense\.", ".self_attention.linear_proj."),
    (r"\.post_attention_(layer)?norm\.", ".pre_mlp_layernorm."),
    (r"\.input_norm\.", ".input_layernorm."),
    (r"\.mlp\.dense_h_to_4h\.", ".mlp.linear_fc1."),
    (r"\.mlp\.dense_4h_to_h\.", ".mlp.linear_fc2."),
)
# In a block of a T5's decoder, attention to the encoder follows the first norm after the self-attention.
_OLDER_DECODER = (
    (r"\.post_attention_(layer)?norm\.", ".pre_cross_attn_layernorm."),
    (r"\.inter_attention\.query\.", ".cross_attention.linear_q."),
    (r"\.inter_attention\.key_value\.", ".cross_attention.linear_kv."),
    (r"\.inter_attention\.dense\.", ".cross_attention.linear_proj."),
    (r"\.post_inter_attention_(layer)?norm\.", ".pre_mlp_layernorm."),
    *_OLDER,
)


def names_in(state: Mapping[str, Any]) -> list[str]:
    """Return the names in a rank's weights; an older Megatron's are nested."""
    return [*state, *state.get("language_model", {})]


def kind_of(names: Iterable[str], where: Path) -> str:
    """Return whether a model is a ``gpt`` or a ``t5``.

    Args:
        names: Those of all weights, or of the last stage's: only there do a T5's and a BERT's always differ.
        where: The step's directory.

    Raises:
        TrainerError: The model is a BERT.
    """
    found = list(names)
    if any(".cross_attention." in name or name == "decoder" for name in found):
        return "t5"
    heads = ("encoder.", "lm_head", "binary_head", "pooler")
    others = [name for name in found if name.startswith(heads)]
    if others:
        raise TrainerError(
            f"{where} has {others[0]}, as a BERT has it; of Megatron's models, only a GPT or a T5 is read."
        )
    return "gpt"


def flat(state: Mapping[str, Any], kind: str) -> dict[str, torch.Tensor]:
    """Return a rank's weights by Megatron-core's names, with separate norms.

    Args:
        state: The weights; an older Megatron's are nested.
        kind: That of the model, as :func:`kind_of` returns it.
    """
    found: dict[str, torch.Tensor] = {}
    older = state.get("language_model")
    if older is None:
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and not name.endswith("_extra_state"):
                found[separate(name)] = value
        return found
    for part, weights in older.get("embedding", {}).items():
        found[f"embedding.{part}.weight"] = weights["weight"]
    for name, value in (older.get("encoder") or older.get("transformer") or {}).items():
        stack = "encoder" if kind == "t5" else "decoder"
        found[_renamed(f"{stack}.{name}", _OLDER)] = value
    for name, value in (older.get("decoder") or {}).items():
        found[_renamed(f"decoder.{name}", _OLDER_DECODER)] = value
    if "bias" in state.get("lm_head", {}):
        found[HEAD_BIAS] = state["lm_head"]["bias"]
    if "output_layer" in older:
        found["output_layer.weight"] = older["output_layer"]["weight"]
    return found


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def numbered(
    weights: Mapping[str, torch.Tensor], first: int, count: int, hidden: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield an expert rank's weights with its experts' numbers in the whole model, a tensor for each expert.

    Args:
        weights: The rank's weights, which number its own experts.
        first: The number of its first expert.
        count: How many experts it has.
        hidden: The model's width.
    """
    for name, weight in weights.items():
        before, has_experts, after = name.partition("mlp.experts.")
        prefix = before + EXPERTS
        if not has_experts:
            yield name, weight
        elif match := re.fullmatch(r"local_experts\.(\d+)\.(.+)", after):
            yield f"{prefix}{first + int(match[1])}.{match[2]}", weight
        elif match := re.fullmatch(r"(linear_fc[12]\.weight)(\d+)", after):
            yield f"{prefix}{first + int(match[2])}.{match[1]}", weight
        elif after in ("weight1", "weight2"):
            # GroupedMLP has all its experts in one matrix, each [inputs, outputs].
            shape = (count, hidden, -1) if after == "weight1" else (count, -1, hidden)
            for number, expert in enumerate(weight.view(shape)):
                yield f"{prefix}{first + number}.linear_fc{after[-1]}.weight", expert.t()
        else:
            yield name, weight
