# SPDX-License-Identifier: GPL-3.0-or-later
"""Where Megatron-core has each parameter of a model: its names, and the axes that tensor ranks shard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rdm_core.config import ModelConfig

__all__ = ["EXPERTS", "Placed", "fused", "placed"]

EXPERTS = "mlp.experts.local_experts."
"""What precedes an expert's number in a block; Megatron-core's ``SequentialMLP`` has the name."""


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
                theirs = f"{EXPERTS}{{}}.linear_{name}.weight"
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


def fused(name: str, *, experts: bool = False) -> str:
    """Return a norm's name in Transformer Engine's layers that include it; other names do not change.

    Args:
        name: The name.
        experts: The block has experts, so that its second norm is separate.
    """
    name = name.replace("input_layernorm.", "self_attention.linear_qkv.layer_norm_")
    return name if experts else name.replace("pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_")
