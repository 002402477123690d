# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads checkpoints in Megatron's format ``torch``, under any layout."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import pickle
import re
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rdm_core.config import ModelConfig, TokenizerConfig
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer.weights.megatron.arguments import degrees_of, model_of
from rdm_trainer.weights.megatron.names import flat, kind_of, names_in, numbered
from rdm_trainer.weights.megatron.tensors import HEAD_BIAS, Placed, blocks_of, placed

LATEST = "latest_checkpointed_iteration.txt"
FILE = "model_optim_rng.pt"
RELEASE = "release"
"""Megatron's name for weights without an optimiser."""


def is_checkpoint(where: Path) -> bool:
    """Return whether a directory has Megatron's checkpoints; ours have the file of the latest one, too."""
    return (where / LATEST).is_file() and ((where / RELEASE).is_dir() or any(where.glob("iter_[0-9]*")))


def step_directory(where: Path, iteration: int | None = None) -> Path:
    """Return the directory of a step.

    Args:
        where: The directory with ``latest_checkpointed_iteration.txt``.
        iteration: The step; the latest by default.

    Raises:
        TrainerError: The file of the latest step names none.
    """
    name = (where / LATEST).read_text(encoding="utf-8").strip() if iteration is None else str(iteration)
    if name == RELEASE:
        return where / name
    if not name.isdecimal():
        raise TrainerError(f"{where / LATEST} has {name!r}, which is no step.")
    return where / f"iter_{int(name):07d}"


class MegatronSource:
    """The weights of a checkpoint; only what a caller wants is read from its files.

    Attributes:
        tokenizer_type: The training's ``--tokenizer-type``, if its arguments have it.

    Raises:
        TrainerError: It is in another format, or its model has a feature that ours lack.
    """

    tokenizer: TokenizerConfig | None = None

    def __init__(self, where: Path) -> None:
        self.where = where
        names = ("mp_rank_00", "mp_rank_00_000", "mp_rank_00_000_000")
        found = [path for name in names if (path := self.where / name / FILE).is_file()]
        if not found:
            raise TrainerError(
                f"{self.where} has neither mp_rank_00/{FILE} nor .metadata; Megatron's formats torch and "
                "torch_dist are read: convert others with its --ckpt-convert-format torch_dist."
            )
        first = load(found[0])
        arguments = vars(first["args"])
        self.tokenizer_type: str | None = arguments.get("tokenizer_type")
        version = float(first.get("checkpoint_version", 0))
        if version < 2.0:
            raise TrainerError(
                f"{self.where} is of checkpoint_version {version:g}, and 2.0 is the first that is read; load "
                "and save it with a later Megatron-LM."
            )
        chunks = _chunks(first, found[0])
        tensor, pipeline, expert = degrees_of(arguments, str(self.where))
        stages = [f"_{stage:03d}" if pipeline > 1 else "" for stage in range(pipeline)]
        last = self.where / f"mp_rank_00{stages[-1]}{'_000' if expert > 1 else ''}" / FILE
        kind = kind_of(names_in(load(last).get(chunks[-1], {})), self.where)
        self.model = model_of(arguments, str(self.where), kind)
        self.dtype = str(arguments.get("params_dtype", torch.float32)).removeprefix("torch.")
        by_stage = [
            [self._rank(f"mp_rank_{rank:02d}{stage}", expert, chunks) for rank in range(tensor)]
            for stage in stages
        ]
        # The model's order: the first chunk of each stage, then the second.
        self._ranks = [[rank[chunk] for rank in ranks] for chunk in range(len(chunks)) for ranks in by_stage]
        self._labels = [
            f"stage {stage}" if len(chunks) == 1 else f"{chunk} of stage {stage}"
            for chunk in chunks
            for stage in range(pipeline)
        ]
        self._first_blocks = {stack: self._bounds(stack) for stack in blocks_of(self.model)}
        for stack, blocks in blocks_of(self.model).items():
            if self._first_blocks[stack][-1] != blocks:
                raise TrainerError(
                    f"{self.where} has {self._first_blocks[stack][-1]} {stack} layers in its files, and by "
                    f"its arguments {blocks}."
                )
        self._tokens = self.model.vocab_size + self.model.vocab_extra_ids
        if kind == "t5":
            self._require_t5()
        biases = [rank[HEAD_BIAS] for rank in self._ranks[-1] if HEAD_BIAS in rank]
        if biases:
            self.model = with_head_bias(self.model, torch.cat(biases)[: self._tokens], self.where)
        self._by_name = {one.ours: one for one in placed(self.model)}

    def whole(self, name: str) -> torch.Tensor:
        """Return a whole parameter; a vocabulary's without padding."""
        one = self._by_name[name]
        return one.join(self._parts(one), self._tokens)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a whole parameter without reading it."""
        one = self._by_name[name]
        parts = [[torch.empty(part.shape, device="meta") for part in ranks] for ranks in self._parts(one)]
        return tuple(one.join(parts, self._tokens).shape)

    def _parts(self, one: Placed) -> list[list[torch.Tensor]]:
        """Return the tensor ranks' parts of each of a parameter's tensors."""
        if one.block is not None:
            bounds = self._first_blocks[one.stack]
            stage = next(number for number, end in enumerate(bounds[1:]) if one.block < end)
            prefix = f"{one.stack}.layers.{one.block - bounds[stage]}."
        else:
            having = (number for number, ranks in enumerate(self._ranks) if one.theirs in ranks[0])
            stage, prefix = next(having, len(self._ranks) - 1), ""
        try:
            return [[rank[prefix + name] for rank in self._ranks[stage]] for name in one.names]
        except KeyError as error:
            raise TrainerError(
                f"{self.where} lacks {error.args[0]} in {self._labels[stage]}.", exit_code=FAILED
            ) from None

    def _bounds(self, stack: str) -> list[int]:
        """Return the number of each virtual stage's first block in a stack, and the number of all blocks."""
        bounds = [0]
        pattern = re.compile(rf"{stack}\.layers\.(\d+)\.")
        for ranks in self._ranks:
            blocks = {match[1] for name in ranks[0] if (match := pattern.match(name))}
            bounds.append(bounds[-1] + len(blocks))
        return bounds

    def _require_t5(self) -> None:
        """Reject a T5 with token types."""
        types = "embedding.tokentype_embeddings.weight"
        if types in self._ranks[0][0]:
            raise TrainerError(f"{self.where} has {types}, which models here have not.")

    def _rank(self, name: str, experts: int, chunks: list[str]) -> list[dict[str, torch.Tensor]]:
        """Return a tensor rank's weights in each chunk of a stage, with those of all its expert ranks.

        Args:
            name: The directory's name, without the expert rank.
            experts: Expert ranks.
            chunks: Names of the chunks in a file.
        """
        found: list[dict[str, torch.Tensor]] = [{} for _ in chunks]
        for number in range(experts):
            suffix = f"_{number:03d}" if experts > 1 else ""
            path = self.where / f"{name}{suffix}" / FILE
            content = load(path)
            if (has := _chunks(content, path)) != chunks:
                raise TrainerError(
                    f"{path} has {', '.join(has)}, and the first rank's file has {', '.join(chunks)}; the "
                    "two are not of one checkpoint."
                )
            for whole, chunk in zip(found, chunks, strict=True):
                weights = flat(content[chunk], self.model.kind)
                if self.model.experts:
                    own = self.model.experts // experts
                    weights = dict(numbered(weights, number * own, own, self.model.hidden_size))
                whole.update(weights)
        return found


def _chunks(content: Mapping[str, Any], path: Path) -> list[str]:
    """Return the keys of a file's weights: one, or with virtual stages one for each chunk of layers.

    Raises:
        TrainerError: It has no weights.
    """
    if "model" in content:
        return ["model"]
    numbered = (f"model{number}" for number in itertools.count())
    chunks = list(itertools.takewhile(content.__contains__, numbered))
    if not chunks:
        raise TrainerError(f"{path} has no weights: neither model nor model0; save it with Megatron-LM.")
    return chunks


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
        if _is_program(path):
            raise TrainerError(
                f"{path} has a TorchScript program, which is not read; save it with Megatron-LM."
            )
        found = torch.load(path, map_location="cpu", weights_only=False, mmap=True, pickle_module=_DataOnly)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise TrainerError(f"{path} cannot be read: {error}.", exit_code=FAILED) from None
    if not isinstance(found, dict) or not isinstance(found.get("args"), argparse.Namespace):
        raise TrainerError(
            f"{path} does not say what its model is: it has no args; save it with Megatron-LM."
        )
    return found


def _is_program(path: Path) -> bool:
    """Return whether a file has a TorchScript program, whose code ``torch.load`` might run."""
    with path.open("rb") as file:
        return torch.serialization._is_zipfile(file) and (
            "constants.pkl" in torch._C.PyTorchFileReader(file).get_all_records()
        )


def with_head_bias(model: ModelConfig, bias: torch.Tensor, where: Path) -> ModelConfig:
    """Return a model with the bias of its head [tokens], if that was learned; zeros change no logit.

    Raises:
        TrainerError: It was learned, but models here have none.
    """
    if not bias.any():
        return model
    if model.kind != "t5" or not model.tied_embeddings:
        raise TrainerError(f"{where} has a learned {HEAD_BIAS}, which here only a T5 with a tied head has.")
    return dataclasses.replace(model, lm_head_bias=True)
