# SPDX-License-Identifier: GPL-3.0-or-later
"""Checkpoints of Megatron-core in its format ``torch_dist``, whatever layout wrote them.

The files are those of ``torch.distributed.checkpoint``; ``common.pt`` next to them has the training's
arguments. Tensors are whole and have Megatron-core's names. Each block has its own tensors, or one tensor has
all blocks along its first dimension. A gated product's two matrices are concatenated, or have a tensor each.
A block's experts are along the next dimension, or have a tensor each, whatever kind of expert was trained.
"""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from rdm_core.config import TokenizerConfig
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.distributed import METADATA, Saved, read_metadata
from rdm_trainer.weights.megatron import reading
from rdm_trainer.weights.megatron.arguments import model_of
from rdm_trainer.weights.megatron.names import kind_of
from rdm_trainer.weights.megatron.tensors import HEAD_BIAS, Placed, blocks_of, fused, placed

_COMMON = "common.pt"
_PREFIXES = ("", "module.", "model.")
"""Prefixes of all names; the wrapper of the saved model determines which one."""


def is_checkpoint(step: Path) -> bool:
    """Return whether a step's directory has a checkpoint in this format."""
    return (step / METADATA).is_file()


class _Found(NamedTuple):
    """A tensor in the files: ``block`` of all blocks' tensor, or a whole tensor if ``block`` is None."""

    key: str
    block: int | None


class TorchDistSource:
    """The weights of a checkpoint; only what a caller wants is read from its files.

    Attributes:
        tokenizer_type: The training's ``--tokenizer-type``, if its arguments have it.

    Raises:
        TrainerError: It is not complete, or its model has a feature that ours lack.
    """

    tokenizer: TokenizerConfig | None = None

    def __init__(self, where: Path) -> None:
        self.where = where
        _require_backend(where)
        if not (where / _COMMON).is_file():
            raise TrainerError(
                f"{where} has no {_COMMON}, which says what its model is; save it with Megatron-LM."
            )
        arguments = vars(reading.load(where / _COMMON)["args"])
        self.tokenizer_type: str | None = arguments.get("tokenizer_type")
        self.dtype = str(arguments.get("params_dtype", torch.float32)).removeprefix("torch.")
        try:
            self._metadata = read_metadata(where)
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise TrainerError(f"{where / METADATA} cannot be read: {error}.", exit_code=FAILED) from None
        self._sizes = {
            key: tuple(saved.size)
            for key, saved in self._metadata.state_dict_metadata.items()
            if isinstance(saved, TensorStorageMetadata)
        }
        name = "embedding.word_embeddings.weight"
        self._prefix = next((one for one in _PREFIXES if one + name in self._sizes), "")
        kind = kind_of((key.removeprefix(self._prefix) for key in self._sizes), where)
        self.model = model_of(arguments, str(where), kind)
        self._tokens = self.model.vocab_size + self.model.vocab_extra_ids
        bias = self._prefix + HEAD_BIAS
        if bias in self._sizes:
            values = self._tensor(_Found(bias, None))
            self.model = reading.with_head_bias(self.model, values[: self._tokens], where)
        self._placed = {one.ours: one for one in placed(self.model)}
        self._by_name = {name: self._found(one) for name, one in self._placed.items()}
        self._require_layers()
        self._require_known()

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole parameter; a vocabulary's without padding."""
        return self._joined(name, map(self._tensor, self._by_name[name]))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole parameter without reading it."""
        parts = (torch.empty(self._size(one), device="meta") for one in self._by_name[name])
        return tuple(self._joined(name, parts).shape)

    def _joined(self, name: str, parts: Iterator[torch.Tensor]) -> torch.Tensor:
        """Return a parameter, made from the tensors in the files."""
        one, count = self._placed[name], len(self._by_name[name])
        whole = next(parts)
        if count > 1 or (one.experts and whole.dim() == 2):
            # One at a time: stacking would have all of them in memory twice.
            first, whole = whole, whole.new_empty((count, *whole.shape))
            for row, part in zip(whole, itertools.chain([first], parts), strict=True):
                row.copy_(part)
        if one.experts:
            # A tensor for each expert and matrix, or for each expert, or one.
            if count == one.experts * one.matrices > one.experts:
                whole = whole.unflatten(0, (one.experts, one.matrices))
            elif one.matrices:
                whole = whole.unflatten(1, (one.matrices, -1))
        elif not one.matrices:
            whole = one.join([[whole]], self._tokens)
        elif count == 1:
            whole = whole.unflatten(0, (one.matrices, -1))
        return whole

    def _found(self, one: Placed) -> list[_Found]:
        """Return the tensors in the files that make up a parameter."""
        if one.experts:
            apart = [name.replace("local_experts", "experts") for name in one.names]
            names = [[one.theirs.replace("local_experts.{}", "experts")], apart]
        else:
            names = [[one.theirs], [fused(one.theirs)]]
        prefixes: list[tuple[str, int | None]] = [("", None)]
        if one.block is not None:
            layers = f"{one.stack}.layers."
            prefixes = [(layers, one.block), (f"{layers}{one.block}.", None)]
        for theirs in names:
            for prefix, block in prefixes:
                keys = [f"{self._prefix}{prefix}{name}" for name in theirs]
                halves = [f"{key}_{half}" for key in keys for half in ("w", "v")]
                for found in (keys, halves) if one.matrices == 2 else (keys,):
                    if all(key in self._sizes for key in found):
                        return [_Found(key, block) for key in found]
        raise TrainerError(f"{self.where} lacks {names[0][0]} of its model.", exit_code=FAILED)

    def _size(self, found: _Found) -> tuple[int, ...]:
        size = self._sizes[found.key]
        return size if found.block is None else size[1:]

    def _tensor(self, found: _Found) -> torch.Tensor:
        size = self._sizes[found.key]
        offsets = [0] * len(size)
        part = list(size)
        if found.block is not None:
            offsets[0], part[0] = found.block, 1
        saved = self._metadata.state_dict_metadata[found.key]
        assert isinstance(saved, TensorStorageMetadata)
        values = torch.empty(part, dtype=saved.properties.dtype)
        try:
            Saved(self.where, self._metadata).load([Box(found.key, size, tuple(offsets), values)])
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
            raise TrainerError(
                f"{found.key} of {self.where} cannot be read: {error}.", exit_code=FAILED
            ) from None
        return values if found.block is None else values[0]

    def _require_layers(self) -> None:
        """Reject files with another number of blocks than the arguments say: some would be left out."""
        last = {one.stack: one for one in self._placed.values() if one.theirs == "pre_mlp_layernorm.weight"}
        for stack, blocks in blocks_of(self.model).items():
            norm = self._by_name[last[stack].ours][0]
            if norm.block is None:
                more = norm.key.replace(f".{blocks - 1}.", f".{blocks}.")
                is_other = more in self._sizes
            else:
                is_other = self._sizes[norm.key][0] != blocks
            if is_other:
                raise TrainerError(
                    f"{self.where} has other {stack} layers in its files than the {blocks} of its arguments."
                )

    def _require_known(self) -> None:
        """Reject weights that no parameter here takes: the model is another one."""
        taken = {found.key for parts in self._by_name.values() for found in parts}
        kinds = tuple(f"{self._prefix}{kind}." for kind in ("embedding", "encoder", "decoder", "mtp"))
        for key in self._sizes:
            if key.startswith(kinds) and key not in taken and "_extra_state" not in key:
                raise TrainerError(f"{self.where} has {key}, which models here have not.")


def _require_backend(where: Path) -> None:
    """Reject another format, such as ``zarr``."""
    about = where / "metadata.json"
    try:
        backend = json.loads(about.read_text(encoding="utf-8"))["sharded_backend"]
    except (OSError, ValueError, KeyError, TypeError):
        raise TrainerError(f"{about} does not say which sharded_backend wrote {where}.") from None
    if backend != "torch_dist":
        raise TrainerError(
            f"{about} has sharded_backend {backend!r}, and only torch_dist and torch are read."
        )
