# SPDX-License-Identifier: GPL-3.0-or-later
"""A model as the arguments of a Megatron training, and the other way round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rdm_core.config import ModelConfig, TokenizerConfig
from rdm_core.config.read import from_dict
from rdm_core.errors import TrainerError, divisors
from rdm_trainer.tokenizers.load import is_lower_case
from rdm_trainer.tokenizers.special_tokens import read_wordpieces

_LLAMA3 = {
    "kind": "llama3",
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
"""What ``--use-rope-scaling`` means in Megatron; only ``--rope-scaling-factor`` can be chosen."""

_POSITIONS = {
    "gpt": {"rope": "rope", "learned_absolute": "learned"},
    "t5": {"relative": "relative", "learned_absolute": "learned"},
}
"""What Megatron calls the positions that a model of each kind may have."""


def model_of(found: Mapping[str, Any], source: str, kind: str = "gpt") -> ModelConfig:
    """Return the model section for a training's arguments.

    Args:
        found: The arguments.
        source: Where they are from, for messages.
        kind: ``gpt`` or ``t5``, which the arguments do not say.

    Raises:
        TrainerError: The model has a feature that ours lack.
    """
    unknown = {
        "apply_layernorm_1p": False,
        "rotary_interleaved": False,
        "rotary_percent": 1.0,
        "squared_relu": False,
        "rotary_seq_len_interpolation_factor": None,
        "multi_latent_attention": False,
        "softmax_type": "vanilla",
        "mtp_num_layers": None,
        "no_rope_freq": None,
        "qk_l2_norm": False,
        "quick_geglu": False,
        "attention_output_gate": False,
        "apply_residual_connection_post_layernorm": False,
    }
    _require_values(found, unknown, source)
    positions = found.get("position_embedding_type", "learned_absolute")
    if positions not in _POSITIONS[kind]:
        raise TrainerError(
            f"{source} has position_embedding_type {positions}; {' and '.join(_POSITIONS[kind])} are known."
        )
    scaling = None
    if positions == "rope" and found.get("use_rope_scaling"):
        scaling = {**_LLAMA3, "factor": float(found.get("rope_scaling_factor", 8.0))}
    heads = found["num_attention_heads"]
    biases = "all" if found.get("add_bias_linear", True) else "qkv" if found.get("add_qkv_bias") else "none"
    shape = {
        "layers": found["num_layers"],
        "hidden_size": found["hidden_size"],
        "attention_heads": heads,
        "query_groups": found.get("num_query_groups") if found.get("group_query_attention") else None,
        "kv_channels": found.get("kv_channels"),
        "ffn_hidden_size": found["ffn_hidden_size"],
        "seq_length": found["seq_length"],
        "max_position_embeddings": found.get("max_position_embeddings"),
        "position_embedding": _POSITIONS[kind][positions],
        "rope_theta": float(found.get("rotary_base") or 10000.0),
        "rope_scaling": scaling,
        "sliding_window": _window_of(found, source),
        "norm": "rmsnorm" if found.get("normalization") == "RMSNorm" else "layernorm",
        "qk_norm": bool(found.get("qk_layernorm")),
        "activation": "swiglu" if found.get("swiglu") else "gelu",
        "biases": biases,
        "vocab_size": found.get("vocab_size") or found["padded_vocab_size"],
        "tied_embeddings": not found.get("untie_embeddings_and_output_weights", False),
        "layernorm_epsilon": found.get("norm_epsilon") or found.get("layernorm_epsilon") or 1e-5,
        "init_std": found.get("init_method_std", 0.02),
        "softmax_scale": found.get("softmax_scale"),
        **(_t5_of(found, source) if kind == "t5" else {}),
        **(_experts_of(found, source) if found.get("num_experts") is not None else {}),
    }
    return from_dict({"model": {key: value for key, value in shape.items() if value is not None}}).model


def _t5_of(found: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the keys of the model section that only a T5 has, or that differ from a GPT's."""
    unknown = {
        "num_experts": None,
        "group_query_attention": False,
        "add_qkv_bias": False,
        "qk_layernorm": False,
        "window_size": None,
    }
    _require_values(found, unknown, source)
    return {
        "kind": "t5",
        "layers": found.get("encoder_num_layers") or found["num_layers"],
        "decoder_layers": found.get("decoder_num_layers") or found["num_layers"],
        "seq_length": found.get("encoder_seq_length") or found["seq_length"],
        "decoder_seq_length": found.get("decoder_seq_length"),
        "relative_attention_num_buckets": found.get("relative_attention_num_buckets", 32),
        "relative_attention_max_distance": found.get("relative_attention_max_distance", 128),
        # In a padded vocabulary, nothing says which tokens are the sentinels.
        "vocab_extra_ids": found.get("vocab_extra_ids", 0) if found.get("vocab_size") else 0,
    }


def _require_values(found: Mapping[str, Any], expected: Mapping[str, Any], source: str) -> None:
    """Reject arguments with other values than the expected ones; an argument may be missing."""
    for key, value in expected.items():
        if found.get(key, value) != value:
            raise TrainerError(f"{source} was trained with {key} {found[key]}, which models here have not.")


def _experts_of(found: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the keys of the model section for a Mixture of Experts."""
    count, layers = found["num_experts"], found["num_layers"]
    if not isinstance(count, int):
        raise TrainerError(f"{source} was trained with num_experts {count}, and models here have one number.")
    if found.get("add_bias_linear", True):
        raise TrainerError(
            f"{source} was trained with num_experts {count} and add_bias_linear True, and experts here have "
            "no biases."
        )
    unknown = {
        "moe_layer_freq": [1] * layers if isinstance(found.get("moe_layer_freq"), list) else 1,
        "moe_shared_expert_intermediate_size": None,
        "moe_latent_size": None,
        "moe_mlp_glu_interleave_size": None,
        "moe_apply_probs_on_input": False,
        "moe_input_jitter_eps": None,
        "moe_z_loss_coeff": None,
        "moe_router_score_function": "softmax",
        "moe_router_enable_expert_bias": False,
        "moe_router_topk_scaling_factor": None,
        "moe_router_num_groups": None,
        "moe_router_group_topk": None,
        "moe_router_topk_limited_devices": None,
    }
    _require_values(found, unknown, source)
    # One kind of balancing may be in a list, and so its coefficient.
    balancing, coefficient = (
        value[0] if isinstance(value, list) and len(value) == 1 else value
        for value in (
            found.get("moe_router_load_balancing_type", "aux_loss"),
            found.get("moe_aux_loss_coeff", 0.0),
        )
    )
    if balancing not in ("aux_loss", "none"):
        raise TrainerError(
            f"{source} was trained with moe_router_load_balancing_type {balancing}; aux_loss and none are "
            "known."
        )
    top_k = found.get("moe_router_topk", 2)
    capacity = found.get("moe_expert_capacity_factor")
    return {
        "experts": count,
        "ffn_hidden_size": found.get("moe_ffn_hidden_size") or found["ffn_hidden_size"],
        "moe_router_topk": top_k,
        "moe_norm_topk_prob": not found.get("moe_router_pre_softmax", False),
        "moe_aux_loss_coeff": _rounded(coefficient * layers / top_k) if balancing == "aux_loss" else 0.0,
        # Below zero, Megatron takes it as none.
        "moe_expert_capacity_factor": capacity if capacity is not None and capacity > 0 else None,
    }


def _rounded(coefficient: float) -> float:
    """Return a load-balancing loss's weight without its last digits, which differ after a round trip.

    Megatron sums this loss over the layers, and for even routing each is 1. Here it is the mean over the
    layers, and for even routing it is top-k.
    """
    return float(f"{coefficient:.12g}")


def _window_of(found: Mapping[str, Any], source: str) -> int | None:
    """Return how many tokens a token sees at most, itself included; Megatron counts only those before it."""
    window, skipped = found.get("window_size"), found.get("window_attn_skip_freq")
    if window is None or window[0] < 0:
        return None
    if window[1] != 0 or skipped is not None:
        raise TrainerError(
            f"{source} was trained with window_size {tuple(window)} and window_attn_skip_freq {skipped}; "
            "models here have one window of earlier tokens in all layers: (N, 0) and None."
        )
    return int(window[0]) + 1


def degrees_of(found: Mapping[str, Any], source: str) -> tuple[int, int, int]:
    """Return the tensor, pipeline and expert degrees of a checkpoint in the format ``torch``.

    Raises:
        TrainerError: Its experts, or a T5's encoder, had degrees of their own.
    """
    tensor = int(found["tensor_model_parallel_size"])
    pipeline = int(found["pipeline_model_parallel_size"])
    sharing = found.get("expert_tensor_parallel_size")
    if found.get("num_experts") is not None and sharing not in (None, tensor):
        raise TrainerError(
            f"{source} was trained with expert_tensor_parallel_size {sharing} and tensor_model_parallel_size "
            f"{tensor}, and in its format torch only equal ones are read; save it with --ckpt-format "
            "torch_dist."
        )
    for key in ("encoder_tensor_model_parallel_size", "encoder_pipeline_model_parallel_size"):
        if found.get(key):
            raise TrainerError(
                f"{source} was trained with {key} {found[key]}, and in its format torch only 0 is read; save "
                "it with --ckpt-format torch_dist."
            )
    return tensor, pipeline, int(found.get("expert_model_parallel_size") or 1)


def arguments_of(
    model: ModelConfig, tensor: int, pipeline: int, rows: int, dtype: torch.dtype, virtual: int = 1
) -> dict[str, Any]:
    """Return the arguments of a Megatron training that make such a model.

    Args:
        model: Its section.
        tensor: Tensor ranks.
        pipeline: Stages.
        rows: Rows of the padded vocabulary.
        dtype: Type of the weights.
        virtual: Chunks of layers on each stage.
    """
    return {
        "num_layers": model.layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.attention_heads,
        "group_query_attention": model.query_groups is not None,
        "num_query_groups": model.query_groups or 1,
        "kv_channels": model.head_size,
        "ffn_hidden_size": model.ffn_size,
        "seq_length": model.seq_length,
        "max_position_embeddings": model.positions or model.max_position_embeddings or model.seq_length,
        "position_embedding_type": next(
            theirs for theirs, ours in _POSITIONS[model.kind].items() if ours == model.position_embedding
        ),
        "rotary_base": int(model.rope_theta),
        "rotary_percent": 1.0,
        "use_rope_scaling": model.rope_scaling is not None,
        "rope_scaling_factor": model.rope_scaling.factor if model.rope_scaling else 8.0,
        "window_size": (model.sliding_window - 1, 0) if model.sliding_window else None,
        "window_attn_skip_freq": None,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "norm_epsilon": model.layernorm_epsilon,
        "layernorm_epsilon": model.layernorm_epsilon,
        "qk_layernorm": model.qk_norm,
        "swiglu": model.activation == "swiglu",
        "add_bias_linear": model.biases == "all",
        "add_qkv_bias": model.biases == "qkv",
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
        "vocab_size": model.vocab_size,
        "padded_vocab_size": rows,
        "make_vocab_size_divisible_by": model.make_vocab_size_divisible_by,
        "init_method_std": model.init_std,
        "tensor_model_parallel_size": tensor,
        "pipeline_model_parallel_size": pipeline,
        "virtual_pipeline_model_parallel_size": virtual if virtual > 1 else None,
        "num_layers_per_virtual_pipeline_stage": (
            model.layers // (pipeline * virtual) if virtual > 1 else None
        ),
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
        **_expert_arguments(model),
        **(_t5_arguments(model) if model.kind == "t5" else {}),
    }


def tokenizer_type_of(tokenizer: TokenizerConfig | None) -> str | None:
    """Return the ``--tokenizer-type`` of a Megatron training with a tokenizer; None if it is not known."""
    if tokenizer is None:
        return None
    if tokenizer.kind == "wordpiece":
        if tokenizer.vocab is None or not Path(tokenizer.vocab).is_file():
            return None
        is_lower = is_lower_case(read_wordpieces(Path(tokenizer.vocab)))
        return "BertWordPieceLowerCase" if is_lower else "BertWordPieceCase"
    return "GPT2BPETokenizer" if tokenizer.kind == "gpt2" else "HuggingFaceTokenizer"


def _t5_arguments(model: ModelConfig) -> dict[str, Any]:
    return {
        "encoder_num_layers": model.layers,
        "decoder_num_layers": model.decoder_blocks,
        "encoder_seq_length": model.seq_length,
        "decoder_seq_length": model.decoder_length,
        "vocab_extra_ids": model.vocab_extra_ids,
        "relative_attention_num_buckets": model.relative_attention_num_buckets,
        "relative_attention_max_distance": model.relative_attention_max_distance,
    }


def _expert_arguments(model: ModelConfig) -> dict[str, Any]:
    if not model.experts:
        return {"num_experts": None}
    return {
        "num_experts": model.experts,
        "moe_layer_freq": 1,
        "moe_ffn_hidden_size": model.ffn_size,
        "moe_router_topk": model.moe_router_topk,
        "moe_router_pre_softmax": not model.moe_norm_topk_prob,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": _rounded(model.moe_aux_loss_coeff * model.moe_router_topk / model.layers),
        "moe_expert_capacity_factor": model.moe_expert_capacity_factor,
        "moe_token_drop_policy": "position",
        "moe_grouped_gemm": False,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": None,
    }


def refuse(model: ModelConfig, tensor: int, pipeline: int, virtual: int) -> None:
    """Reject a model or a layout that Megatron does not have."""
    if model.kind not in _POSITIONS:
        raise TrainerError(
            f"model.kind is {model.kind}, and only a gpt or a t5 is written for Megatron; export it for "
            "Hugging Face."
        )
    if model.kind == "t5":
        _refuse_t5(model, pipeline, virtual)
    known = _POSITIONS[model.kind].values()
    if model.position_embedding not in known:
        raise TrainerError(
            f"model.position_embedding {model.position_embedding} of a {model.kind} is not written for "
            f"Megatron; take {' or '.join(known)}."
        )
    if model.activation not in ("gelu", "swiglu") or model.softmax_scale is not None:
        raise TrainerError(
            f"model.activation {model.activation} with softmax_scale {model.softmax_scale} is not written "
            "for Megatron: take gelu or swiglu, and no scale."
        )
    if model.experts and model.moe_router_topk == 1 and model.moe_norm_topk_prob:
        raise TrainerError(
            "model.moe_router_topk 1 with moe_norm_topk_prob true is not written for Megatron, which takes "
            "one expert for a token only with --moe-router-pre-softmax; export for Hugging Face."
        )
    scaling = model.rope_scaling
    if scaling is not None and any(getattr(scaling, key) != value for key, value in _LLAMA3.items()):
        raise TrainerError(
            f"model.rope_scaling of kind {scaling.kind}, original_max_position_embeddings "
            f"{scaling.original_max_position_embeddings}, low_freq_factor {scaling.low_freq_factor:g} and "
            f"high_freq_factor {scaling.high_freq_factor:g} is not written for Megatron, which has llama3 "
            "with 8192, 1 and 4 alone; export for Hugging Face."
        )
    if model.rope_theta % 1:
        raise TrainerError(
            f"model.rope_theta {model.rope_theta} is not written for Megatron, whose --rotary-base is an "
            "integer; export for Hugging Face."
        )
    for name, size in (("attention_heads", model.attention_heads), ("ffn", model.ffn_size)):
        if size % tensor:
            raise TrainerError(
                f"The model's {name} {size} are not divisible by {tensor} tensor ranks; take "
                f"{divisors(math.gcd(model.attention_heads, model.ffn_size))}."
            )
    groups = model.query_groups or model.attention_heads
    if groups % tensor and tensor % groups:
        raise TrainerError(
            f"{tensor} tensor ranks neither divide the model's {groups} query_groups nor are a multiple; "
            f"take {divisors(math.gcd(groups, model.ffn_size))}."
        )
    if virtual > 1 and pipeline == 1:
        raise TrainerError(
            f"{virtual} chunks of layers on each stage need 2 stages or more, and there is 1; set --pipeline "
            "to 2, or leave --virtual-pipeline out."
        )
    if model.layers % (pipeline * virtual):
        parts = f"{pipeline} stages" if virtual == 1 else f"{pipeline} x {virtual} chunks"
        raise TrainerError(
            f"The model's {model.layers} layers are not divisible by {parts}; take {divisors(model.layers)}."
        )


def _refuse_t5(model: ModelConfig, pipeline: int, virtual: int) -> None:
    """Reject a T5 or a pipeline that Megatron does not have."""
    if pipeline > 1 or virtual > 1:
        raise TrainerError(
            "A T5 is written for one stage, because Megatron-core has no pipelines for it; leave --pipeline "
            "and --virtual-pipeline out."
        )
    if model.decoder_blocks != model.layers:
        raise TrainerError(
            f"model.decoder_layers {model.decoder_blocks} with layers {model.layers} is not written for "
            "Megatron, whose T5 has as many in both; export it for Hugging Face."
        )
    if model.lm_head_bias and not model.tied_embeddings:
        raise TrainerError(
            "model.lm_head_bias with tied_embeddings false is not written for Megatron, whose T5 has this "
            "bias only with tied embeddings; train with tied_embeddings true."
        )
    if model.scale_logits or model.biases == "qkv":
        raise TrainerError(
            f"A T5 with model.scale_logits {str(model.scale_logits).lower()} and biases {model.biases} is "
            "not written for Megatron, which has false, and all or none; export it for Hugging Face."
        )
