# SPDX-License-Identifier: GPL-3.0-or-later
"""A checkpoint's identity: the model's shape, which must match, and the layout, which may change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rdm_core.config import Config
from rdm_core.errors import TrainerError
from rdm_core.model_spec import ModelSpec

_BUCKETS = "relative_attention_num_buckets"
# Values missing in checkpoints of earlier releases, which knew one family of models.
_FORMER = {
    "position_embedding": "learned",
    "norm": "layernorm",
    "qk_norm": False,
    "activation": "gelu",
    "biases": "all",
    "sliding_window": None,
    "experts": None,
    "softmax_scale": None,
    "scale_logits": False,
    "lm_head_bias": False,
    _BUCKETS: 32,
    "relative_attention_max_distance": 128,
}


_NORMS = {"layer": "layernorm", "rms": "rmsnorm"}
_GATED = {"silu": "swiglu", "gelu": "geglu"}


def model_of(spec: ModelSpec) -> dict[str, Any]:
    """Return what determines the parameters' names, shapes and meaning in the whole model.

    Checkpoints use the names and values of the configuration's keys.
    """
    return {
        "position_embedding": "learned" if spec.positions else "rope" if spec.is_rotary else "relative",
        "norm": _NORMS[spec.norm],
        "qk_norm": spec.qk_norm,
        "activation": _GATED[spec.activation] if spec.ffn == "gated" else spec.activation,
        "biases": spec.biases,
        "sliding_window": spec.window,
        "experts": spec.experts or None,
        "softmax_scale": spec.softmax_scale,
        "scale_logits": spec.scales_logits,
        # Earlier releases do not know this key.
        **({"lm_head_bias": True} if spec.head_bias else {}),
        _BUCKETS: spec.relative_buckets or _FORMER[_BUCKETS],
        "relative_attention_max_distance": spec.relative_max_distance,
        # These keys change no shape, but the meaning of the weights.
        **(
            {"moe_router_topk": spec.router_top_k, "moe_norm_topk_prob": spec.norm_topk_prob}
            if spec.experts
            else {}
        ),
        "query_groups": spec.key_value_heads,
        "kind": spec.kind,
        "layers": spec.layers,
        "decoder_layers": spec.decoder_layers,
        "hidden_size": spec.hidden_size,
        "attention_heads": spec.heads,
        "kv_channels": spec.head_size,
        "ffn_hidden_size": spec.ffn_size,
        "max_position_embeddings": spec.positions,
        "vocab_size": spec.vocab_size,
        "vocab_extra_ids": spec.vocab_extra_ids,
        "tied_embeddings": spec.tied_embeddings,
    }


def layout_of(config: Config, world_size: int) -> dict[str, Any]:
    """Return what determines which rank holds which part of the model, and in which form."""
    return {
        "tensor": config.parallel.tensor,
        "pipeline": config.parallel.pipeline,
        "data": config.data_parallel(world_size),
        # Earlier releases had no such axes.
        **{axis: size for axis in ("expert", "context") if (size := getattr(config.parallel, axis)) > 1},
        "bounds": config.stage_bounds(),
        "zero_stage": config.zero_stage,
        "precision": config.optimisation.precision,
        "padded_vocab_size": config.padded_vocab_size,
        # DeepSpeed's checkpoints leave it out, as those of earlier releases do.
        **({"engine": config.engine} if config.engine != "deepspeed" else {}),
    }


def describe(layout: Mapping[str, Any]) -> str:
    """Return a layout for messages; the product of TP, CP, PP and DP is the world size."""
    context = f" x CP {layout['context']}" if "context" in layout else ""
    experts = f"EP {layout['expert']}, " if "expert" in layout else ""
    return (
        f"TP {layout['tensor']}{context} x PP {layout['pipeline']} x DP {layout['data']}, {experts}"
        f"ZeRO {layout['zero_stage']}, {layout['precision']}, {layout.get('engine', 'deepspeed')}"
    )


def differences(saved: Mapping[str, Any], config: Config) -> list[str]:
    """Return the differences between a saved model and a job's, as ``model.KEY is X here and Y there``.

    Args:
        saved: The result of :func:`model_of` when it was saved.
        config: The job.
    """
    wanted = {**_FORMER, **model_of(config.spec)}
    saved = {**_FORMER, "query_groups": saved.get("attention_heads"), **saved}
    if saved["position_embedding"] != "relative":
        # Earlier releases wrote the key's value, although such a model has no buckets.
        saved[_BUCKETS] = _FORMER[_BUCKETS]
    return [
        f"model.{key} is {wanted.get(key)} here and {saved.get(key)} there"
        for key in sorted(set(saved) | set(wanted))
        if saved.get(key) != wanted.get(key)
    ]


def require_same_model(saved: Mapping[str, Any], config: Config, where: Path) -> None:
    """Reject a checkpoint of another model in one sentence.

    Raises:
        TrainerError: The shapes differ.
    """
    if found := differences(saved, config):
        raise TrainerError(
            f"The checkpoint {where} is of another model: {', '.join(found)}; configure the model that "
            "was saved, or give the job another name, which starts from scratch."
        )
