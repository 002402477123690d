# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints of Megatron-LM and Megatron-core in their format ``torch``, under any layout.

``ITERATION/mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt`` has one rank's part: the training's arguments and the
weights. Their names are Megatron-core's, with Transformer Engine's for norms that its layers include, or the
older Megatron-LM's. Queries, keys and values are in the order of the key-value heads, as they are here. A
Mixture of Experts is written as ``SequentialMLP`` names it, and read with any of its three ways of naming
experts. The format ``torch_dist`` shares the names and the arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import pickle
import re
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rdm_core.config import ModelConfig, TokenizerConfig
from rdm_core.config.read import from_dict
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer import models
from rdm_trainer.checkpoint.files import PARTIAL

__all__ = [
    "MegatronSource",
    "Placed",
    "arguments_of",
    "fused",
    "is_checkpoint",
    "load",
    "model_of",
    "placed",
    "step_directory",
    "write",
]

LATEST = "latest_checkpointed_iteration.txt"
_FILE = "model_optim_rng.pt"
_LLAMA3 = {
    "kind": "llama3",
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
"""What ``--use-rope-scaling`` means in Megatron; only ``--rope-scaling-factor`` can be chosen."""
_EXPERTS = "mlp.experts.local_experts."
"""What precedes an expert's number in a block; Megatron-core's ``SequentialMLP`` has the name."""
_RELEASE = "release"
"""Megatron's name for weights without an optimiser."""


@dataclass(frozen=True)
class Placed:
    """One of our parameters, and where Megatron has it.

    Attributes:
        ours: Its name in the whole model.
        theirs: Its name there, without the block; a template for the numbers of experts, if it has them.
        block: The number of its block, if it belongs to one.
        axis: The axis that tensor ranks shard; None: each has all.
        matrices: Its first dimension counts so many matrices; each tensor rank has its part of each. 0: It
            has no such dimension.
        vocabulary: Its rows are tokens, followed by padding.
        experts: It has all experts of a block, and each of them is a tensor there; 0: it is one tensor there.
    """

    ours: str
    theirs: str
    block: int | None = None
    axis: int | None = None
    matrices: int = 0
    vocabulary: bool = False
    experts: int = 0

    @property
    def names(self) -> list[str]:
        """The names of its tensors there, without the block."""
        if not self.experts:
            return [self.theirs]
        return [self.theirs.format(number) for number in range(self.experts)]

    def join(self, parts: list[list[torch.Tensor]], tokens: int) -> torch.Tensor:
        """Join the tensor ranks' parts of each of its tensors."""
        first = self._joined(parts[0], tokens)
        if not self.experts:
            return first
        # One expert at a time: stacking would have all of them in memory twice.
        whole = first.new_empty((self.experts, *first.shape))
        for expert, ranks in zip(whole, parts, strict=True):
            expert.copy_(self._joined(ranks, tokens))
        return whole

    def split(self, whole: torch.Tensor, rank: int, ranks: int, rows: int) -> Iterator[torch.Tensor]:
        """Yield a tensor rank's part of each of its tensors; a vocabulary is padded to ``rows`` rows."""
        for one in whole.unbind() if self.experts else (whole,):
            yield self._part(one, rank, ranks, rows)

    def _joined(self, parts: list[torch.Tensor], tokens: int) -> torch.Tensor:
        if self.matrices:
            chunks = zip(*(one.chunk(self.matrices) for one in parts), strict=True)
            return torch.stack([torch.cat(matrix) for matrix in chunks])
        whole = parts[0] if self.axis is None else torch.cat(parts, dim=self.axis)
        return whole[:tokens] if self.vocabulary else whole

    def _part(self, whole: torch.Tensor, rank: int, ranks: int, rows: int) -> torch.Tensor:
        if self.matrices:
            return torch.cat([one.chunk(ranks)[rank] for one in whole.unbind()])
        if self.vocabulary:
            whole = torch.nn.functional.pad(whole, (0, 0, 0, rows - whole.shape[0]))
        return whole if self.axis is None else whole.chunk(ranks, dim=self.axis)[rank]


def placed(model: ModelConfig) -> Iterator[Placed]:
    """Yield where Megatron-core has each parameter of a model; norms have their names of unfused layers."""
    norms = ("weight", "bias") if model.norm == "layernorm" else ("weight",)
    both = ("weight", "bias") if model.biases == "all" else ("weight",)
    matrices = 2 if model.activation == "swiglu" else 0
    embedding = "tied_modules.embed" if model.tied_embeddings else "0"
    yield Placed(f"{embedding}.weight", "embedding.word_embeddings.weight", axis=0, vocabulary=True)
    if model.positions:
        yield Placed("1.weight", "embedding.position_embeddings.weight")
    for number in range(model.layers):
        first = f"{2 + number}."
        for kind in norms:
            yield Placed(f"{first}input_layernorm.{kind}", f"input_layernorm.{kind}", number)
        for kind in ("weight",) if model.biases == "none" else ("weight", "bias"):
            theirs = f"self_attention.linear_qkv.{kind}"
            yield Placed(f"{first}self_attention.qkv_proj.{kind}", theirs, number, 0)
        if model.qk_norm:
            for name in ("q", "k"):
                theirs = f"self_attention.{name}_layernorm.weight"
                yield Placed(f"{first}self_attention.{name}_norm.weight", theirs, number)
        for kind in both:
            axis = 1 if kind == "weight" else None
            theirs = f"self_attention.linear_proj.{kind}"
            yield Placed(f"{first}self_attention.out_proj.{kind}", theirs, number, axis)
        for kind in norms:
            yield Placed(f"{first}pre_mlp_layernorm.{kind}", f"pre_mlp_layernorm.{kind}", number)
        if model.experts:
            yield Placed(f"{first}mlp.router.weight", "mlp.router.weight", number)
            for name, axis, count in (("fc1", 0, matrices or 1), ("fc2", 1, 0)):
                theirs = f"{_EXPERTS}{{}}.linear_{name}.weight"
                ours = f"{first}mlp.experts.{name}"
                yield Placed(ours, theirs, number, axis, count, experts=model.experts)
            continue
        for kind in both:
            yield Placed(f"{first}mlp.fc1.{kind}", f"mlp.linear_fc1.{kind}", number, 0, matrices)
        for kind in both:
            axis = 1 if kind == "weight" else None
            yield Placed(f"{first}mlp.fc2.{kind}", f"mlp.linear_fc2.{kind}", number, axis)
    last = 2 + model.layers
    for kind in norms:
        yield Placed(f"{last}.{kind}", f"decoder.final_layernorm.{kind}")
    if not model.tied_embeddings:
        yield Placed(f"{last + 1}.weight", "output_layer.weight", axis=0, vocabulary=True)


# Reading.


def is_checkpoint(where: Path) -> bool:
    """Return whether a directory has Megatron's checkpoints; ours have the file of the latest one, too."""
    return (where / LATEST).is_file() and ((where / _RELEASE).is_dir() or any(where.glob("iter_[0-9]*")))


def step_directory(where: Path, iteration: int | None = None) -> Path:
    """Return the directory of a step.

    Args:
        where: The directory with ``latest_checkpointed_iteration.txt``.
        iteration: The step; the latest by default.

    Raises:
        TrainerError: The file of the latest step names none.
    """
    name = (where / LATEST).read_text(encoding="utf-8").strip() if iteration is None else str(iteration)
    if name == _RELEASE:
        return where / name
    if not name.isdecimal():
        raise TrainerError(f"{where / LATEST} has {name!r}, which is no step.")
    return where / f"iter_{int(name):07d}"


class MegatronSource:
    """The weights of a checkpoint; only what a caller wants is read from its files.

    Args:
        where: The step's directory.

    Raises:
        TrainerError: It is in another format, or its model has a feature that ours lack.
    """

    tokenizer: TokenizerConfig | None = None

    def __init__(self, where: Path) -> None:
        self.where = where
        names = ("mp_rank_00", "mp_rank_00_000", "mp_rank_00_000_000")
        found = [path for name in names if (path := self.where / name / _FILE).is_file()]
        if not found:
            raise TrainerError(
                f"{self.where} has neither mp_rank_00/{_FILE} nor .metadata; Megatron's formats torch and "
                "torch_dist are read: convert others with its --ckpt-convert-format torch_dist."
            )
        first = load(found[0])
        arguments = vars(first["args"])
        if float(first.get("checkpoint_version", 0)) < 2.0 or "model" not in first:
            raise TrainerError(
                f"{self.where} is of a checkpoint_version before 2.0, or of an interleaved pipeline, which "
                "are not read; load and save it with a later Megatron-LM, without virtual stages."
            )
        self.model = model_of(arguments, str(self.where))
        self.dtype = str(arguments.get("params_dtype", torch.float32)).removeprefix("torch.")
        tensor = int(arguments["tensor_model_parallel_size"])
        pipeline = int(arguments["pipeline_model_parallel_size"])
        expert = _expert_ranks(arguments, tensor, str(self.where))
        self._ranks: list[list[dict[str, torch.Tensor]]] = []
        self._first_blocks = [0]
        for stage in range(pipeline):
            suffix = f"_{stage:03d}" if pipeline > 1 else ""
            ranks = [self._rank(f"mp_rank_{rank:02d}{suffix}", expert) for rank in range(tensor)]
            blocks = {match[1] for name in ranks[0] if (match := re.match(r"decoder\.layers\.(\d+)\.", name))}
            self._first_blocks.append(self._first_blocks[-1] + len(blocks))
            self._ranks.append(ranks)
        if self._first_blocks[-1] != self.model.layers:
            raise TrainerError(
                f"{self.where} has {self._first_blocks[-1]} layers in its files, and num_layers is "
                f"{self.model.layers}."
            )
        self._by_name = {one.ours: one for one in placed(self.model)}

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole parameter; a vocabulary's without padding."""
        one = self._by_name[name]
        return one.join(self._parts(one), self.model.vocab_size)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole parameter without reading it."""
        one = self._by_name[name]
        parts = [[torch.empty(part.shape, device="meta") for part in ranks] for ranks in self._parts(one)]
        return tuple(one.join(parts, self.model.vocab_size).shape)

    def _parts(self, one: Placed) -> list[list[torch.Tensor]]:
        """Return the tensor ranks' parts of each of a parameter's tensors."""
        stage, prefix = 0, ""
        if one.block is not None:
            stage = next(number for number, end in enumerate(self._first_blocks[1:]) if one.block < end)
            prefix = f"decoder.layers.{one.block - self._first_blocks[stage]}."
        elif one.theirs.startswith(("decoder.final", "output_layer")):
            stage = len(self._ranks) - 1
        try:
            return [[rank[prefix + name] for rank in self._ranks[stage]] for name in one.names]
        except KeyError as error:
            raise TrainerError(
                f"{self.where} lacks {error.args[0]} in stage {stage}.", exit_code=FAILED
            ) from None

    def _rank(self, name: str, experts: int) -> dict[str, torch.Tensor]:
        """Return a tensor rank's weights in one stage, with those of all ``experts`` expert ranks."""
        found: dict[str, torch.Tensor] = {}
        for number in range(experts):
            suffix = f"_{number:03d}" if experts > 1 else ""
            weights = _flat(load(self.where / f"{name}{suffix}" / _FILE)["model"])
            if self.model.experts:
                own = self.model.experts // experts
                weights = dict(_numbered(weights, number * own, own, self.model.hidden_size))
            found |= weights
        return found


class _Foreign:
    """Replaces objects of classes that are not needed here; none of their code runs."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __setstate__(self, _state: object) -> None: ...

    def __setitem__(self, _key: object, _value: object) -> None: ...

    def append(self, _value: object) -> None:
        """Drop a value that would go into a list of another class."""

    def extend(self, _values: object) -> None:
        """Drop several values."""


_ALLOWED = {
    ("collections", "OrderedDict"): OrderedDict,
    ("argparse", "Namespace"): argparse.Namespace,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch", "Size"): torch.Size,
}


class _DataOnly:
    """Stands in for the module ``pickle`` in ``torch.load``: it makes only tensors and plain values."""

    class Unpickler(pickle.Unpickler):
        """Replaces every other class by :class:`_Foreign`."""

        def find_class(self, module: str, name: str) -> Any:
            """Return the class or function of a name."""
            found = getattr(torch, name, None) if module == "torch" else None
            if isinstance(found, torch.dtype) or (isinstance(found, type) and name.endswith("Storage")):
                return found
            return _ALLOWED.get((module, name), _Foreign)


def load(path: Path) -> dict[str, Any]:
    """Read a file that has a training's arguments, as plain values and tensors only.

    Raises:
        TrainerError: It cannot be read, or has no arguments.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=False, mmap=True, pickle_module=_DataOnly)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise TrainerError(f"{path} cannot be read: {error}.", exit_code=FAILED) from None
    if not isinstance(found, dict) or not isinstance(found.get("args"), argparse.Namespace):
        raise TrainerError(
            f"{path} does not say what its model is: it has no args; save it with Megatron-LM."
        )
    return found


_OLDER = (
    (r"^layers\.", "decoder.layers."),
    (r"^final_(layer)?norm\.", "decoder.final_layernorm."),
    (r"\.(self_)?attention\.query_key_value\.", ".self_attention.linear_qkv."),
    (r"\.(self_)?attention\.dense\.", ".self_attention.linear_proj."),
    (r"\.post_attention_(layer)?norm\.", ".pre_mlp_layernorm."),
    (r"\.input_norm\.", ".input_layernorm."),
    (r"\.mlp\.dense_h_to_4h\.", ".mlp.linear_fc1."),
    (r"\.mlp\.dense_4h_to_h\.", ".mlp.linear_fc2."),
)
_FUSED = (
    (r"\.self_attention\.linear_qkv\.layer_norm_", ".input_layernorm."),
    (r"\.mlp\.linear_fc1\.layer_norm_", ".pre_mlp_layernorm."),
)


def fused(name: str, *, experts: bool = False) -> str:
    """Return a norm's name in Transformer Engine's layers that include it; other names do not change.

    Args:
        name: The name.
        experts: The block has experts, so that its second norm is separate.
    """
    name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
    return name if experts else name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")


def _flat(state: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a rank's weights by Megatron-core's names, with separate norms."""
    found: dict[str, torch.Tensor] = {}
    older = state.get("language_model")
    if older is None:
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and not name.endswith("_extra_state"):
                found[_renamed(name, _FUSED)] = value
        return found
    for kind in ("word_embeddings", "position_embeddings"):
        if kind in older.get("embedding", {}):
            found[f"embedding.{kind}.weight"] = older["embedding"][kind]["weight"]
    for name, value in (older.get("encoder") or older.get("transformer") or {}).items():
        found[_renamed(name, _OLDER)] = value
    if "output_layer" in older:
        found["output_layer.weight"] = older["output_layer"]["weight"]
    return found


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _numbered(
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
        prefix = before + _EXPERTS
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


def _expert_ranks(found: Mapping[str, Any], tensor: int, source: str) -> int:
    """Return how many ranks share the experts of a training."""
    sharing = found.get("expert_tensor_parallel_size")
    if found.get("num_experts") is not None and sharing not in (None, tensor):
        raise TrainerError(
            f"{source} was trained with expert_tensor_parallel_size {sharing} and tensor_model_parallel_size "
            f"{tensor}, and in its format torch only equal ones are read; save it with --ckpt-format "
            "torch_dist."
        )
    return int(found.get("expert_model_parallel_size") or 1)


def model_of(found: Mapping[str, Any], source: str) -> ModelConfig:
    """Return the model section for a training's arguments.

    Args:
        found: The arguments.
        source: Where they are from, for messages.

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
    kind = found.get("position_embedding_type", "learned_absolute")
    if kind not in ("rope", "learned_absolute"):
        raise TrainerError(
            f"{source} has position_embedding_type {kind}; rope and learned_absolute are known."
        )
    scaling = None
    if kind == "rope" and found.get("use_rope_scaling"):
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
        "position_embedding": "rope" if kind == "rope" else "learned",
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
        **(_experts_of(found, source) if found.get("num_experts") is not None else {}),
    }
    return from_dict({"model": {key: value for key, value in shape.items() if value is not None}}).model


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


# Writing.


def arguments_of(
    model: ModelConfig, tensor: int, pipeline: int, rows: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Return the arguments of a Megatron training that make such a model.

    Args:
        model: Its section.
        tensor: Tensor ranks.
        pipeline: Stages.
        rows: Rows of the padded vocabulary.
        dtype: Type of the weights.
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
        "position_embedding_type": "rope" if model.position_embedding == "rope" else "learned_absolute",
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
        "params_dtype": dtype,
        "bf16": dtype == torch.bfloat16,
        "fp16": dtype == torch.float16,
        "consumed_train_samples": 0,
        "consumed_valid_samples": 0,
        **_expert_arguments(model),
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


def _refuse(model: ModelConfig, tensor: int, pipeline: int) -> None:
    """Reject a model or a layout that Megatron does not have."""
    if model.kind != "gpt":
        raise TrainerError(f"model.kind is {model.kind}; a gpt can be written for Megatron.")
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
    for name, size in (("attention_heads", model.attention_heads), ("ffn", model.ffn_size)):
        if size % tensor:
            raise TrainerError(f"The model's {name} {size} are not divisible by {tensor} tensor ranks.")
    groups = model.query_groups or model.attention_heads
    if groups % tensor and tensor % groups:
        raise TrainerError(
            f"{tensor} tensor ranks neither divide the model's {groups} query_groups nor are a multiple."
        )
    if model.layers % pipeline:
        raise TrainerError(f"The model's {model.layers} layers are not divisible by {pipeline} stages.")


def write(
    source: Any,
    target: Path,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    dtype: str | None = None,
    fused: bool = True,
) -> int:
    """Write weights as Megatron's release checkpoint, from which it starts a training or a fine-tuning.

    Args:
        source: The weights.
        target: A directory that does not exist yet.
        tensor: Tensor ranks.
        pipeline: Stages.
        dtype: Type of the tensors, such as ``bfloat16``; the source's by default.
        fused: Name norms as Transformer Engine's layers do, Megatron's default; else as ``--transformer-impl
            local``.

    Returns:
        The bytes of all tensors.

    Raises:
        TrainerError: Megatron has no such model or layout, or the directory cannot be written.
    """
    model: ModelConfig = source.model
    _refuse(model, tensor, pipeline)
    if target.exists():
        raise TrainerError(f"{target} is there already; name a directory that is not, or remove it.")
    kind: torch.dtype = getattr(torch, dtype or source.dtype)
    step = model.make_vocab_size_divisible_by * tensor
    rows = -(-model.vocab_size // step) * step
    arguments = argparse.Namespace(**arguments_of(model, tensor, pipeline, rows, kind))
    unfinished = target.with_name(target.name + PARTIAL)
    total = 0
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, unfinished, ignore_errors=True)
        try:
            for stage in range(pipeline):
                for rank in range(tensor):
                    part = partial(_part, model, stage, pipeline, rank, tensor, rows, kind, fused)
                    suffix = f"_{stage:03d}" if pipeline > 1 else ""
                    folder = unfinished / _RELEASE / f"mp_rank_{rank:02d}{suffix}"
                    folder.mkdir(parents=True)
                    content = {"args": arguments, "checkpoint_version": 3.0, "iteration": 0}
                    total += _write_rank(folder / _FILE, content, source, part)
            (unfinished / LATEST).write_text(_RELEASE, encoding="utf-8")
            unfinished.rename(target)
        except OSError as error:
            raise TrainerError(f"{target} cannot be written: {error.strerror}.", exit_code=FAILED) from error
    return total


Part = Callable[[Callable[[str], torch.Tensor]], Iterator[tuple[str, torch.Tensor]]]
"""Takes a function from our names to whole weights; yields one rank's weights by Megatron's names."""


def _write_rank(path: Path, content: Mapping[str, Any], source: Any, part: Part) -> int:
    """Write one rank's file, a weight at a time into the mapped file, and return the weights' bytes."""
    shapes = models.parameter_shapes(source.model)
    room = {
        name: torch.empty(weight.shape, dtype=weight.dtype)
        for name, weight in part(lambda name: torch.empty(shapes[name], device="meta"))
    }
    # Untouched memory is not allocated.
    with torch.serialization.skip_data():
        torch.save({**content, "model": OrderedDict(room)}, path)
    # A full disk raises an error here; in mapped memory it would kill the process.
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        mapped = load(path)["model"]
    for name, weight in part(source.whole):
        mapped[name].copy_(weight)
    del mapped
    # Only fsync reports that the disk could not take a page of the mapped file.
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return sum(weight.nbytes for weight in room.values())


def _part(
    model: ModelConfig,
    stage: int,
    stages: int,
    rank: int,
    ranks: int,
    rows: int,
    dtype: torch.dtype,
    fuse: bool,
    whole: Callable[[str], torch.Tensor],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield one rank's weights by Megatron's names; ``whole`` returns whole weights by our names."""
    each = model.layers // stages
    for one in placed(model):
        names: list[str] = []
        if one.block is not None:
            if one.block // each == stage:
                names = [f"decoder.layers.{one.block % each}.{name}" for name in one.names]
        elif one.theirs.startswith("embedding."):
            if stage == 0:
                names = one.names
            # The last stage's head has a copy of the tied embedding.
            elif one.vocabulary and model.tied_embeddings and stage == stages - 1:
                names = ["output_layer.weight"]
        elif stage == stages - 1:
            names = one.names
        if names:
            for name, weight in zip(names, one.split(whole(one.ours), rank, ranks, rows), strict=True):
                yield fused(name, experts=bool(model.experts)) if fuse else name, weight.to(dtype)
