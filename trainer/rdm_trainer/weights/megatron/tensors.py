# SPDX-License-Identifier: GPL-3.0-or-later
"""Where Megatron-core has each parameter of a model: its names, and the axes that tensor ranks shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

from rdm_core.config import ModelConfig
from rdm_trainer.weights.mapped import with_rows

EXPERTS = "mlp.experts.local_experts."
"""What precedes an expert's number in a block; Megatron-core's ``SequentialMLP`` has the name."""

HEAD_BIAS = "output_layer.bias"
"""What the head of a T5 with tied embeddings has there in addition; here it may have it."""

_FUSED = {
    "input_layernorm.": "self_attention.linear_qkv.layer_norm_",
    "pre_mlp_layernorm.": "mlp.linear_fc1.layer_norm_",
}
"""Norms, and their names in Transformer Engine's layers that include them."""

_T5_TWICE = {"output_layer.": "lm_head.output_layer.", "embedding.position": "position"}
"""Megatron-core's T5 has these parts under two names each, and so have its files."""


@dataclass(frozen=True)
class Placed:
    """One of our parameters, and where Megatron has it.

    Attributes:
        ours: Its name in the whole model.
        theirs: Its name there, without the block; a template for the numbers of experts, if it has them.
        block: The number of its block in its stack, if it belongs to one.
        axis: The axis that tensor ranks shard; None: each has all.
        matrices: Its first dimension counts so many matrices; each tensor rank has its part of each. 0: It
            has no such dimension.
        vocabulary: Its rows are tokens, followed by padding.
        experts: It has all experts of a block, and each of them is a tensor there; 0: it is one tensor there.
        stack: Its block's stack there.
    """

    ours: str
    theirs: str
    block: int | None = None
    axis: int | None = None
    matrices: int = 0
    vocabulary: bool = False
    experts: int = 0
    stack: str = "decoder"

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
            whole = with_rows(whole, rows)
        return whole if self.axis is None else whole.chunk(ranks, dim=self.axis)[rank]


def blocks_of(model: ModelConfig) -> dict[str, int]:
    """Return the number of blocks of each stack, by Megatron's names of the stacks."""
    if model.kind == "t5":
        return {"encoder": model.layers, "decoder": model.decoder_blocks}
    return {"decoder": model.layers}


def placed(model: ModelConfig) -> Iterator[Placed]:
    """Yield where Megatron-core has each parameter of a model; norms have their names of unfused layers."""
    is_t5 = model.kind == "t5"
    embedding = "tied_modules.embed" if model.tied_embeddings or is_t5 else "0"
    yield Placed(f"{embedding}.weight", "embedding.word_embeddings.weight", axis=0, vocabulary=True)
    if model.positions:
        positions = "tied_modules.positions" if is_t5 else "1"
        yield Placed(f"{positions}.weight", "embedding.position_embeddings.weight")
    layer = 0
    for stack, blocks in blocks_of(model).items():
        # Embedding and positions come before the blocks, a norm after them.
        if model.position_embedding == "relative":
            yield Placed(f"{layer + 1}.weight", f"{stack}_relative_pos_emb.relative_attention_bias.weight")
        layer += 2
        for number in range(blocks):
            yield from _block(model, f"{layer + number}.", stack, number)
        layer += blocks
        for kind in _norms(model):
            yield Placed(f"{layer}.{kind}", f"{stack}.final_layernorm.{kind}")
        layer += 1
    if model.lm_head_bias:
        yield Placed(f"{layer - 1}.head_bias", HEAD_BIAS, axis=0, vocabulary=True)
    if not model.tied_embeddings:
        yield Placed(f"{layer}.weight", "output_layer.weight", axis=0, vocabulary=True)


def _norms(model: ModelConfig) -> tuple[str, ...]:
    return ("weight", "bias") if model.norm == "layernorm" else ("weight",)


def _inputs(kind: str) -> int | None:
    """Return the axis that tensor ranks shard of a product whose inputs they share; all have its bias."""
    return 1 if kind == "weight" else None


def _block(model: ModelConfig, first: str, stack: str, number: int) -> Iterator[Placed]:
    """Yield the parameters of a block."""
    make = partial(Placed, block=number, stack=stack)
    norms = _norms(model)
    both = ("weight", "bias") if model.biases == "all" else ("weight",)
    matrices = 2 if model.activation == "swiglu" else 0

    def output(name: str) -> Iterator[Placed]:
        for kind in both:
            yield make(f"{first}{name}.out_proj.{kind}", f"{name}.linear_proj.{kind}", axis=_inputs(kind))

    for kind in norms:
        yield make(f"{first}input_layernorm.{kind}", f"input_layernorm.{kind}")
    for kind in ("weight",) if model.biases == "none" else ("weight", "bias"):
        theirs = f"self_attention.linear_qkv.{kind}"
        yield make(f"{first}self_attention.qkv_proj.{kind}", theirs, axis=0)
    if model.qk_norm:
        for name in ("q", "k"):
            theirs = f"self_attention.{name}_layernorm.weight"
            yield make(f"{first}self_attention.{name}_norm.weight", theirs)
    yield from output("self_attention")
    if model.kind == "t5" and stack == "decoder":
        for kind in norms:
            yield make(f"{first}pre_cross_attn_layernorm.{kind}", f"pre_cross_attn_layernorm.{kind}")
        for name in ("q", "kv"):
            for kind in both:
                theirs = f"cross_attention.linear_{name}.{kind}"
                yield make(f"{first}cross_attention.{name}_proj.{kind}", theirs, axis=0)
        yield from output("cross_attention")
    for kind in norms:
        yield make(f"{first}pre_mlp_layernorm.{kind}", f"pre_mlp_layernorm.{kind}")
    if model.experts:
        yield make(f"{first}mlp.router.weight", "mlp.router.weight")
        for name, axis, count in (("fc1", 0, matrices or 1), ("fc2", 1, 0)):
            theirs = f"{EXPERTS}{{}}.linear_{name}.weight"
            ours = f"{first}mlp.experts.{name}"
            yield make(ours, theirs, axis=axis, matrices=count, experts=model.experts)
        return
    for kind in both:
        yield make(f"{first}mlp.fc1.{kind}", f"mlp.linear_fc1.{kind}", axis=0, matrices=matrices)
    for kind in both:
        yield make(f"{first}mlp.fc2.{kind}", f"mlp.linear_fc2.{kind}", axis=_inputs(kind))


def fused(name: str, *, experts: bool = False) -> str:
    """Return a norm's name in Transformer Engine's layers that include it; other names do not change.

    Args:
        name: The name.
        experts: The block has experts, so that its second norm is separate.
    """
    for own, included in _FUSED.items():
        if not (experts and included.startswith("mlp.")):
            name = name.replace(own, included)
    return name


def separate(name: str) -> str:
    """Undo :func:`fused`."""
    for own, included in _FUSED.items():
        name = name.replace(included, own)
    return name


def names_of(model: ModelConfig, name: str) -> list[str]:
    """Return all names that a tensor has in a rank's file: its own, and in a T5 perhaps another one."""
    others = _T5_TWICE.items() if model.kind == "t5" else ()
    return [name, *(f"{other}{name.removeprefix(own)}" for own, other in others if name.startswith(own))]
