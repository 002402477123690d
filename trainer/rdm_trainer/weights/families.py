# SPDX-License-Identifier: GPL-3.0-or-later
"""Maps Hugging Face's model families to ours: ``config.json`` to model section, tensors to parameters.

Both sides name whole tensors; what tensor ranks and stages hold follows from our names. Pure, and without
transformers. The families are GPT-2, Llama, Mistral, Qwen2, Qwen3, Mixtral, Qwen3-MoE and T5; MegatronBert is
only written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from rdm_core.config import ModelConfig
from rdm_core.config.read import from_dict
from rdm_core.errors import TrainerError
from rdm_core.model_spec import RopeScaling
from rdm_trainer.weights import bert, t5
from rdm_trainer.weights.mapped import Mapped, Tensors, join_heads, split_heads

# The model's section.

_MOE = ("mixtral", "qwen3_moe")
_LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", *_MOE)
_WITHOUT_BIASES = ("qwen3", *_MOE)
_ACTIVATIONS = {"gelu_new", "gelu_pytorch_tanh"}


def model_config(found: Mapping[str, Any], source: str) -> ModelConfig:
    """Return the model section for a ``config.json``.

    Raises:
        TrainerError: The family is another one, or has a feature that our models lack.
    """
    kind = found.get("model_type")
    try:
        if kind == "gpt2":
            _refuse_others(
                found,
                source,
                {
                    "activation_function": _ACTIVATIONS,
                    "scale_attn_weights": {True},
                    "scale_attn_by_inverse_layer_idx": {False},
                },
            )
            shape = _gpt2(found)
        elif kind in _LLAMA_LIKE:
            _refuse_others(found, source, {"hidden_act": {"silu"}})
            if found.get("use_sliding_window"):
                raise TrainerError(
                    f"{source} has use_sliding_window, which some of its layers have; here all have, or none."
                )
            shape = _llama(found, source)
            if kind in _MOE:
                shape |= _experts(found, source)
        elif kind == "t5":
            shape = t5.section(found, source)
        else:
            raise TrainerError(
                f"{source} is of a {kind!r}; gpt2, {', '.join(_LLAMA_LIKE)}, t5 can be read, with their "
                "architectures as published."
            )
    except KeyError as error:
        raise TrainerError(f"{source} lacks {error}, so it is no {kind}'s config.json.") from None
    except (AttributeError, TypeError, ValueError) as error:
        raise TrainerError(f"{source} has a value of another type than a {kind}'s: {error}.") from None
    return from_dict({"model": {key: value for key, value in shape.items() if value is not None}}).model


def quantization(found: Mapping[str, Any]) -> str:
    """Return how messages name a ``config.json``'s quantisation; empty if it has none."""
    quantized = found.get("quantization_config")
    if not quantized:
        return ""
    method = quantized.get("quant_method") if isinstance(quantized, Mapping) else None
    return "a quantization_config" + (f" of quant_method {method}" if isinstance(method, str) else "")


def _refuse_others(found: Mapping[str, Any], source: str, allowed: Mapping[str, set[Any]]) -> None:
    for key, values in allowed.items():
        if key in found and found[key] not in values:
            known = " or ".join(sorted(map(str, values)))
            raise TrainerError(f"{source} has {key} {found[key]!r}, and our models have {known}.")


def _gpt2(found: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "layers": found["n_layer"],
        "hidden_size": found["n_embd"],
        "attention_heads": found["n_head"],
        "ffn_hidden_size": found.get("n_inner"),
        "seq_length": found["n_positions"],
        "max_position_embeddings": found["n_positions"],
        "vocab_size": found["vocab_size"],
        "tied_embeddings": found.get("tie_word_embeddings", True),
        "layernorm_epsilon": found.get("layer_norm_epsilon", 1e-5),
    }


_LONGEST = 4096
"""Most tokens of a sample after an import: as many as published models can take would fit few devices."""


def _llama(found: Mapping[str, Any], source: str) -> dict[str, Any]:
    kind, positions = found["model_type"], found["max_position_embeddings"]
    rope = _rope(found, source)
    biases = "qkv" if kind == "qwen2" else "all" if found.get("attention_bias") else "none"
    if (kind in _WITHOUT_BIASES and biases != "none") or (kind == "llama" and _other_biases(found)):
        raise TrainerError(f"{source} has biases in some of its products; ours have all, or none.")
    return {
        "layers": found["num_hidden_layers"],
        "hidden_size": found["hidden_size"],
        "attention_heads": found["num_attention_heads"],
        "query_groups": found.get("num_key_value_heads"),
        "kv_channels": found.get("head_dim"),
        "ffn_hidden_size": found["intermediate_size"],
        "seq_length": min(positions, _LONGEST),
        "max_position_embeddings": positions,
        "sliding_window": found.get("sliding_window") if kind in ("mistral", "mixtral") else None,
        "vocab_size": found["vocab_size"],
        "tied_embeddings": found.get("tie_word_embeddings", False),
        "layernorm_epsilon": found["rms_norm_eps"],
        "position_embedding": "rope",
        "rope_theta": float(rope["rope_theta"]),
        "rope_scaling": _scaling(rope, positions, source),
        "norm": "rmsnorm",
        "activation": "swiglu",
        "biases": biases,
        "qk_norm": kind in ("qwen3", "qwen3_moe"),
    }


def _experts(found: Mapping[str, Any], source: str) -> dict[str, Any]:
    if found.get("mlp_only_layers") or found.get("decoder_sparse_step", 1) != 1:
        raise TrainerError(f"{source} has experts in some of its layers; ours have them in all, or in none.")
    if found.get("router_jitter_noise"):
        raise TrainerError(f"{source} has router_jitter_noise, which the router here has not.")
    is_qwen = found["model_type"] == "qwen3_moe"
    return {
        # Since its fifth release, transformers writes both families' number under one name.
        "experts": found["num_experts" if "num_experts" in found else "num_local_experts"],
        "ffn_hidden_size": found["moe_intermediate_size" if is_qwen else "intermediate_size"],
        "moe_router_topk": found["num_experts_per_tok"],
        "moe_norm_topk_prob": bool(found["norm_topk_prob"]) if is_qwen else True,
        "moe_aux_loss_coeff": found.get("router_aux_loss_coef", 0.001),
    }


def _other_biases(found: Mapping[str, Any]) -> bool:
    return bool(found.get("attention_bias")) != bool(found.get("mlp_bias"))


def _rope(found: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return the rotary positions as transformers has them since its fifth release, in one object."""
    before, now = found.get("rope_scaling") or {}, found.get("rope_parameters") or {}
    # Of both, transformers takes rope_scaling, and loses the other one's base.
    if now and not before.items() <= now.items():
        raise TrainerError(f"{source} has rope_scaling beside other rope_parameters; leave one of them out.")
    rope = {"rope_theta": 1e6 if found["model_type"] == "mixtral" else 1e4}
    if found.get("rope_theta"):
        rope["rope_theta"] = found["rope_theta"]
    length = "original_max_position_embeddings"
    # It takes the base inside first, and this length outside.
    return rope | (now or before) | ({length: found[length]} if found.get(length) else {})


def _scaling(rope: Mapping[str, Any], positions: int, source: str) -> dict[str, Any] | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise TrainerError(f"{source} scales its positions by {kind!r}; linear, llama3 and yarn are known.")
    for key in ("mscale", "mscale_all_dim"):
        if rope.get(key):
            raise TrainerError(f"{source} has {key}, which YaRN here has not.")
    _refuse_others(rope, source, {"truncate": {True}})
    known = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor")
    return {
        "kind": kind,
        "factor": float(rope["factor"]),
        "original_max_position_embeddings": int(rope.get("original_max_position_embeddings") or positions),
        **{key: float(rope[key]) for key in known if rope.get(key) is not None},
    }


def config_json(model: ModelConfig, *, dtype: str, end_of_text: int | None = None) -> dict[str, Any]:
    """Return the ``config.json`` of a model.

    Args:
        model: Its section.
        dtype: Type of the tensors, such as ``bfloat16``.
        end_of_text: The token that ends a text, if it is known.

    Raises:
        TrainerError: No family of Hugging Face's is like it.
    """
    family = _family_of(model)
    common = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": model.vocab_size,
        "initializer_range": model.init_std,
        "tie_word_embeddings": model.tied_embeddings,
        "torch_dtype": dtype,
        "bos_token_id": end_of_text if family == "gpt2" else None,
        "eos_token_id": end_of_text,
        "use_cache": True,
    }
    if family == "t5":
        # As T5's tokenizers have them.
        ends = {"pad_token_id": 0, "decoder_start_token_id": 0}
        return common | ends | t5.config_json(model)
    if family == bert.FAMILY:
        return common | bert.config_json(model)
    if family == "gpt2":
        return common | {
            "activation_function": "gelu_new",
            "n_layer": model.layers,
            "n_embd": model.hidden_size,
            "n_head": model.attention_heads,
            "n_inner": model.ffn_size,
            "n_positions": model.positions,
            "layer_norm_epsilon": model.layernorm_epsilon,
            "attn_pdrop": model.attention_dropout,
            "embd_pdrop": model.hidden_dropout,
            "resid_pdrop": model.hidden_dropout,
        }
    made = common | {
        "hidden_act": "silu",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.attention_heads,
        "num_key_value_heads": model.query_groups or model.attention_heads,
        "head_dim": model.head_size,
        "intermediate_size": model.ffn_size,
        "max_position_embeddings": model.max_position_embeddings or model.seq_length,
        "rms_norm_eps": model.layernorm_epsilon,
        "rope_theta": model.rope_theta,
        "rope_scaling": _their_scaling(model.rope_scaling),
        "attention_dropout": model.attention_dropout,
    }
    if family in ("mistral", "mixtral"):
        made["sliding_window"] = model.sliding_window
    if family in ("llama", "qwen3", "qwen3_moe"):
        made["attention_bias"] = model.biases == "all"
    if family in _MOE:
        made |= {
            "num_experts_per_tok": model.moe_router_topk,
            "router_aux_loss_coef": model.moe_aux_loss_coeff,
            "num_local_experts" if family == "mixtral" else "num_experts": model.experts,
        }
    if family == "qwen3_moe":
        made |= {
            "moe_intermediate_size": model.ffn_size,
            "norm_topk_prob": model.moe_norm_topk_prob,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    if family == "llama":
        made["mlp_bias"] = model.biases == "all"
    return made


_ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "t5": "T5ForConditionalGeneration",
    bert.FAMILY: "MegatronBertForMaskedLM",
}


def _family_of(model: ModelConfig) -> str:
    """Return the family whose tensors a model has."""
    if model.kind == "t5":
        if t5.is_published(model):
            return "t5"
        raise TrainerError(
            "model.kind is t5, and Hugging Face's T5 has position_embedding relative, norm rmsnorm, biases "
            "none, activation relu, geglu or swiglu, softmax_scale 1, and scale_logits where embeddings are "
            "tied; docs/models.md says how Megatron's differs."
        )
    if model.kind == "bert":
        if bert.is_published(model):
            return bert.FAMILY
        raise TrainerError(
            "model.kind is bert, and Hugging Face's MegatronBert has learned positions, layer norm, GELU, "
            "biases in all products, as many keys as queries, and the head tied to the embedding."
        )
    if model.softmax_scale is not None:
        raise TrainerError("model.softmax_scale is for a T5 at Hugging Face; leave it out.")
    style = (model.position_embedding, model.norm, model.activation)
    if model.experts:
        if style == ("rope", "rmsnorm", "swiglu") and model.biases == "none":
            if model.qk_norm and not model.sliding_window:
                return "qwen3_moe"
            if not model.qk_norm and model.moe_norm_topk_prob:
                return "mixtral"
    elif style == ("learned", "layernorm", "gelu"):
        alike = model.head_size * model.attention_heads == model.hidden_size
        if model.biases == "all" and not model.query_groups and alike and not model.sliding_window:
            return "gpt2"
    elif style == ("rope", "rmsnorm", "swiglu") and model.sliding_window:
        if not model.qk_norm and model.biases == "none":
            return "mistral"
    elif style == ("rope", "rmsnorm", "swiglu"):
        if model.qk_norm and model.biases == "none":
            return "qwen3"
        if not model.qk_norm:
            return "qwen2" if model.biases == "qkv" else "llama"
    raise TrainerError(
        f"No family of Hugging Face's has position_embedding {model.position_embedding}, norm {model.norm}, "
        f"activation {model.activation}, biases {model.biases}, qk_norm {str(model.qk_norm).lower()}, "
        f"sliding_window {model.sliding_window} and {model.experts or 'no'} experts with these heads "
        "together; docs/models.md says what the families are."
    )


def _their_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    if scaling is None:
        return None
    made: dict[str, Any] = {
        "rope_type": scaling.kind,
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_max_position_embeddings,
    }
    if scaling.kind == "llama3":
        made |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        made |= {"beta_fast": scaling.beta_fast, "beta_slow": scaling.beta_slow}
        if scaling.attention_factor is not None:
            made["attention_factor"] = scaling.attention_factor
    return made


# The tensors.


def mapping(model: ModelConfig) -> Iterator[Mapped]:
    """Yield each of our parameters with its tensors there, in the model's order.

    Raises:
        TrainerError: No family of Hugging Face's is like it.
    """
    family = _family_of(model)
    if family == "t5":
        yield from t5.mapping(model)
        return
    if family == bert.FAMILY:
        yield from bert.mapping(model)
        return
    names = _GPT2_NAMES if family == "gpt2" else _LLAMA_NAMES
    outer, inner = names
    embedding = "tied_modules.embed" if model.tied_embeddings else "0"
    yield Mapped(f"{embedding}.weight", (outer["embedding"],))
    if family == "gpt2":
        yield Mapped("1.weight", (outer["positions"],))
    for number in range(model.layers):
        for one in _block(model, family, inner):
            theirs = tuple(outer["block"].format(number) + name for name in one.theirs)
            yield Mapped(f"{2 + number}.{one.ours}", theirs, one.join, one.split)
    last = 2 + model.layers
    for kind in ("weight", "bias") if model.norm == "layernorm" else ("weight",):
        yield Mapped(f"{last}.{kind}", (f"{outer['norm']}.{kind}",))
    if not model.tied_embeddings:
        yield Mapped(f"{last + 1}.weight", ("lm_head.weight",))


def is_copy(name: str, model: ModelConfig) -> bool:
    """Return whether a tensor that no parameter needs is the embedding under another name."""
    t5_names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight") if model.kind == "t5" else ()
    return name in t5_names or (model.tied_embeddings and name == "lm_head.weight")


def is_unused(name: str) -> bool:
    """Return whether published models have a tensor that their code ignores: masks, frequencies."""
    return bool(_UNUSED.search(name))


_UNUSED = re.compile(
    r"rotary_emb\.inv_freq$|\battn\.(masked_)?bias$|EncDecAttention\.relative_attention_bias\.weight$"
)


def zeros(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the family's tensors that the model lacks; they are zero there."""
    return bert.zeros(model) if model.kind == "bert" else {}


_LLAMA_NAMES = (
    {"embedding": "model.embed_tokens.weight", "block": "model.layers.{}.", "norm": "model.norm"},
    {
        "input_layernorm": ("input_layernorm",),
        "self_attention.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "self_attention.q_norm": ("self_attn.q_norm",),
        "self_attention.k_norm": ("self_attn.k_norm",),
        "self_attention.out_proj": ("self_attn.o_proj",),
        "pre_mlp_layernorm": ("post_attention_layernorm",),
        "mlp.fc1": ("mlp.gate_proj", "mlp.up_proj"),
        "mlp.fc2": ("mlp.down_proj",),
    },
)
# The names of the router, of the experts (before their numbers), and of an expert's matrices.
_MOE_NAMES = {
    "mixtral": ("block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3"), "w2"),
    "qwen3_moe": ("mlp.gate", "mlp.experts", ("gate_proj", "up_proj"), "down_proj"),
}
_GPT2_NAMES = (
    {
        "embedding": "transformer.wte.weight",
        "positions": "transformer.wpe.weight",
        "block": "transformer.h.{}.",
        "norm": "transformer.ln_f",
    },
    {
        "input_layernorm": ("ln_1",),
        "self_attention.qkv_proj": ("attn.c_attn",),
        "self_attention.out_proj": ("attn.c_proj",),
        "pre_mlp_layernorm": ("ln_2",),
        "mlp.fc1": ("mlp.c_fc",),
        "mlp.fc2": ("mlp.c_proj",),
    },
)


def _block(model: ModelConfig, family: str, names: Mapping[str, tuple[str, ...]]) -> Iterator[Mapped]:
    """Yield the parameters of one block, by their names in it."""
    has_bias = {
        "input_layernorm": model.norm == "layernorm",
        "self_attention.qkv_proj": model.biases != "none",
        "self_attention.out_proj": model.biases == "all",
        "pre_mlp_layernorm": model.norm == "layernorm",
        "mlp.fc1": model.biases == "all",
        "mlp.fc2": model.biases == "all",
    }
    for ours, theirs in names.items():
        if model.experts and ours.startswith("mlp."):
            continue
        if ours.endswith(("q_norm", "k_norm")) and not model.qk_norm:
            continue
        for kind in ("weight", "bias") if has_bias.get(ours) else ("weight",):
            join, split = _pair(model, family, ours, kind)
            yield Mapped(f"{ours}.{kind}", tuple(f"{name}.{kind}" for name in theirs), join, split)
    if model.experts:
        yield from _expert_parameters(model.experts, family)


def _expert_parameters(count: int, family: str) -> Iterator[Mapped]:
    """Yield a block's router and its experts' two matrices; each of these has all experts in one."""
    router, experts, into, out = _MOE_NAMES[family]
    yield Mapped("mlp.router.weight", (f"{router}.weight",))
    yield Mapped(
        "mlp.experts.fc1",
        tuple(f"{experts}.{number}.{name}.weight" for number in range(count) for name in into),
        lambda parts: torch.stack(tuple(parts)).unflatten(0, (count, len(into))),
        lambda whole: tuple(whole.flatten(0, 1).unbind()),
    )
    yield Mapped(
        "mlp.experts.fc2",
        tuple(f"{experts}.{number}.{out}.weight" for number in range(count)),
        lambda parts: torch.stack(tuple(parts)),
        lambda whole: tuple(whole.unbind()),
    )


def _pair(
    model: ModelConfig, family: str, ours: str, kind: str
) -> tuple[Callable[[Tensors], torch.Tensor], Callable[[torch.Tensor], Tensors]]:
    """Return how to make one of a block's parameters from theirs, and theirs from ours."""
    is_qkv, groups = ours.endswith("qkv_proj"), model.query_groups or model.attention_heads
    if family == "gpt2":
        # Its matrices are [inputs, outputs], and one has its queries, keys and values.
        turned = kind == "weight" and "layernorm" not in ours
        width = model.attention_size

        def join(parts: Tensors) -> torch.Tensor:
            whole = parts[0].t() if turned else parts[0]
            return join_heads(groups, whole.split(width)) if is_qkv else whole

        def split(whole: torch.Tensor) -> Tensors:
            if is_qkv:
                whole = torch.cat(tuple(split_heads(groups, model.head_size, whole)))
            return (whole.t() if turned else whole,)

        return join, split
    if is_qkv:
        return (
            lambda parts: join_heads(groups, parts),
            lambda whole: split_heads(groups, model.head_size, whole),
        )
    if ours == "mlp.fc1":
        return lambda parts: torch.stack(tuple(parts)), lambda whole: tuple(whole.unbind())
    return lambda parts: parts[0], lambda whole: (whole,)
