# SPDX-License-Identifier: GPL-3.0-or-later
"""DeepSpeed's files of a step as parts of whole tensors, which any layout and either engine reads.

Earlier releases wrote such files.

ZeRO splits the optimiser's states over the data ranks: stages 1 and 2 as one flat tensor per parameter group,
stage 3 parameter by parameter. Each range that a file has of a parameter is a few boxes of the whole tensor,
which is what ``torch.distributed.checkpoint`` plans with. The files are mapped, so that only planned ranges
are read.

The shapes come from the model's shard specs, and the ranges from the files: each rank reads the descriptions
in some of them (:func:`described_files`, :func:`describe`), and the ranks exchange these.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.files import Manifest
from rdm_trainer.checkpoint.fragments import STATES, STEP, shard_boxes, whole_shape
from rdm_trainer.checkpoint.names import present_name
from rdm_trainer.checkpoint.reading import load_mapped
from rdm_trainer.distributed.parameters import ShardSpec

# Keys of DeepSpeed's files, copied because the native engine reads them without DeepSpeed.
# Source: ``deepspeed/checkpoint/constants.py`` of DeepSpeed 0.19.8.
_BASE_OPTIMIZER_STATE = "base_optimizer_state"
_OPTIMIZER_STATE_DICT = "optimizer_state_dict"
_PARAM_SHAPES = "param_shapes"
_PARAM_SLICE_MAPPINGS = "param_slice_mappings"
_SINGLE_PARTITION = "single_partition_of_fp32_groups"
_OPTIMISER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_FIRST_MODEL = re.compile(r"zero_pp_rank_0_mp_rank_(\d+)_model_states\.pt")


class Range(NamedTuple):
    """Where a box is in the files.

    Attributes:
        relative_path: The file, by the name of this attribute in torch's own metadata.
        keys: The keys of a flat tensor, from the file's content inwards.
        begin: The box's first element in it.
        shape: The box's shape.
    """

    relative_path: str
    keys: tuple[Any, ...]
    begin: int
    shape: tuple[int, ...]


class Flat(NamedTuple):
    """Where a state is: in each of some files, an equal part of it.

    Attributes:
        files: The files, in the order of the parts.
        keys: As for :class:`Range`.
        begin: The first element in each file's flat tensor.
    """

    files: tuple[str, ...]
    keys: tuple[Any, ...]
    begin: int = 0


class Piece(NamedTuple):
    """A range of a parameter's shard.

    Attributes:
        name: The parameter's present name.
        mp_rank: The rank on the pipeline, expert and tensor axes, as DeepSpeed counts them.
        replica: The rank on the data axis; 0 if this is all of the shard.
        size: Number of elements.
        states: Where each state is.
        step: Where the number of updates is.
    """

    name: str
    mp_rank: int
    replica: int
    size: int
    states: Mapping[str, Flat]
    step: Flat


def described_files(manifest: Manifest) -> list[str]:
    """Return the files with the descriptions of which parameters all files have."""
    pattern = {0: _MODEL, 3: _FIRST_MODEL}.get(int(manifest.layout["zero_stage"]), _OPTIMISER)
    return sorted(name for name in manifest.files if pattern.fullmatch(name))


def describe(directory: Path, name: str, manifest: Manifest) -> list[Piece]:
    """Return the pieces that a file describes.

    Args:
        directory: The step's directory.
        name: The file's name, from :func:`described_files`.
        manifest: The step's manifest.
    """
    content = load_mapped(directory / name)
    stage = int(manifest.layout["zero_stage"])
    if stage == 0:
        return list(_replicated(name, content, manifest))
    if stage == 3:
        return list(_partitioned_weights(name, content, manifest))
    return list(_partitioned_optimiser(name, content))


def _partitioned_optimiser(name: str, content: Mapping[str, Any]) -> Iterator[Piece]:
    """ZeRO 1 and 2: one flat tensor per group, split over data ranks regardless of parameters."""
    match = _OPTIMISER.fullmatch(name)
    assert match is not None
    optimiser = (_OPTIMIZER_STATE_DICT,)
    for number, group in enumerate(content[_OPTIMIZER_STATE_DICT][_PARAM_SLICE_MAPPINGS]):
        base = (*optimiser, _BASE_OPTIMIZER_STATE, "state", number)
        flat = {
            STATES[0]: (*optimiser, _SINGLE_PARTITION, number),
            **{state: (*base, state) for state in STATES[1:]},
        }
        for parameter, fragment in group.items():
            yield Piece(
                present_name(parameter),
                int(match[2]),
                int(match[1]),
                int(fragment.numel),
                {state: Flat((name,), found, int(fragment.start)) for state, found in flat.items()},
                Flat((name,), (*base, "step")),
            )


def _partitioned_weights(name: str, content: Mapping[str, Any], manifest: Manifest) -> Iterator[Piece]:
    """ZeRO 3: each parameter split evenly over data ranks, padded at the end."""
    match = _FIRST_MODEL.fullmatch(name)
    assert match is not None
    replicas = int(manifest.layout["data"]) // int(manifest.layout.get("expert", 1))
    files = tuple(f"zero_pp_rank_{replica}_mp_rank_{match[1]}_optim_states.pt" for replica in range(replicas))
    if files[0] not in manifest.files:
        files = tuple(f"bf16_{file}" for file in files)
    optimiser = (_OPTIMIZER_STATE_DICT,)
    for number, group in enumerate(content[_PARAM_SHAPES]):
        base = (*optimiser, _OPTIMIZER_STATE_DICT, "state", number)
        flat = {
            STATES[0]: (*optimiser, "fp32_flat_groups", number),
            **{state: (*base, state) for state in STATES[1:]},
        }
        offset = 0
        for parameter, shape in group.items():
            yield Piece(
                present_name(parameter),
                int(match[1]),
                0,
                shape.numel(),
                {state: Flat(files, found, offset) for state, found in flat.items()},
                Flat(files, (*base, "step")),
            )
            offset += -(-shape.numel() // replicas)


def _replicated(name: str, content: Mapping[str, Any], manifest: Manifest) -> Iterator[Piece]:
    """No ZeRO, fp32 only: the optimiser is torch's, and all replicas have the same states."""
    match = _MODEL.fullmatch(name)
    assert match is not None
    mp_rank = int(match[1])
    layers: dict[str, str] = {}
    for number, layer in content.get("tied_layers", {}).items():
        layers.setdefault(f"tied_modules.{layer}", number)
    optimiser = content["optimizer"]
    for names, group in zip(content["optimizer_parameters"], optimiser["param_groups"], strict=True):
        for parameter, key in zip(names, group["params"], strict=True):
            base = ("optimizer", "state", int(key))
            weight = Flat((name,), ("module", parameter))
            if not isinstance(content.get("module"), dict):
                # A pipeline's layers have files of their own, and names without the layer.
                layer = next((one for one in layers if parameter.startswith(f"{one}.")), None)
                layer = layer or parameter.partition(".")[0]
                number = int(layers.get(layer, layer))
                model = mp_rank % (int(manifest.layout["tensor"]) * int(manifest.layout.get("expert", 1)))
                file = f"layer_{number:02d}-model_{model:02d}-model_states.pt"
                weight = Flat((file,), (parameter.removeprefix(f"{layer}."),))
            moments = optimiser["state"][key]
            yield Piece(
                present_name(parameter),
                mp_rank,
                0,
                moments[STATES[1]].numel(),
                {STATES[0]: weight, **{state: Flat((name,), (*base, state)) for state in STATES[1:]}},
                Flat((name,), (*base, "step")),
            )


class Partitions:
    """The parts of whole tensors that DeepSpeed's files of a step have.

    Args:
        pieces: What the files have of all parameters.
        layout: The layout that wrote them.
        shard_specs: The parameters that may be read, by name; any shard of each.
        vocabulary: Number of tokens, without padding.
    """

    def __init__(
        self,
        pieces: Iterable[Piece],
        layout: Mapping[str, Any],
        shard_specs: Mapping[str, ShardSpec],
        vocabulary: int,
    ) -> None:
        self._layout, self._shard_specs, self._vocabulary = layout, shard_specs, vocabulary
        self._tensor, self._expert = int(layout["tensor"]), int(layout.get("expert", 1))
        # By name, and then by the rank on the pipeline, expert and tensor axes.
        self._pieces: dict[str, dict[int, list[Piece]]] = {}
        for piece in sorted(pieces, key=lambda piece: piece.replica):
            if piece.name in shard_specs:
                self._pieces.setdefault(piece.name, {}).setdefault(piece.mp_rank, []).append(piece)

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the shape of a whole tensor.

        Raises:
            KeyError: There is no tensor with this key.
        """
        if key == STEP:
            return (1,)
        return whole_shape(self._shard_specs[key.partition(".")[2]], self._vocabulary)

    def metadata(self, parts: Iterable[Box]) -> Metadata:
        """Return which files have the rows of some parts, for ``torch.distributed.checkpoint``.

        A rank keeps little of a large model; ranges that it does not read would fill its memory.

        Raises:
            KeyError: There is no tensor with a part's key.
            ValueError: The files do not have all of a parameter.
        """
        wanted: dict[str, list[Box]] = {}
        chunks: dict[str, dict[MetadataIndex, Range]] = {}
        for part in parts:
            chunks[part.key] = {}
            if part.key != STEP:
                wanted.setdefault(part.key.partition(".")[2], []).append(part)
        # All pieces have the same number of updates, so it is read from a file that is read anyway.
        step: tuple[Piece, int] | None = None
        for name, of_name in wanted.items():
            low = min(part.offsets[0] for part in of_name)
            high = max(part.offsets[0] + part.values.shape[0] for part in of_name)
            states = {part.key.partition(".")[0] for part in of_name}
            for piece, number, offsets, sizes, begin in self._ranges(name, low, high):
                step = step or (piece, number)
                for state in states:
                    key, flat = f"{state}.{name}", piece.states[state]
                    chunks[key][MetadataIndex(key, offsets)] = Range(
                        flat.files[number], flat.keys, flat.begin + begin, sizes
                    )
        if STEP in chunks:
            piece, number = step or (self._any(), 0)
            found = Range(piece.step.files[number], piece.step.keys, 0, (1,))
            chunks[STEP] = {MetadataIndex(STEP, (0,)): found}
        tensors: dict[str, Any] = {
            key: TensorStorageMetadata(
                TensorProperties(dtype=torch.float32),
                torch.Size(self.shape(key)),
                [
                    ChunkStorageMetadata(index.offset or torch.Size(), torch.Size(one.shape))
                    for index, one in of_key.items()
                ],
            )
            for key, of_key in chunks.items()
        }
        return Metadata(
            tensors, storage_data={index: one for of_key in chunks.values() for index, one in of_key.items()}
        )

    def _any(self) -> Piece:
        return next(piece for ranks in self._pieces.values() for some in ranks.values() for piece in some)

    def _ranges(
        self, name: str, low: int, high: int
    ) -> Iterator[tuple[Piece, int, tuple[int, ...], tuple[int, ...], int]]:
        """Find the boxes of a parameter with some of its rows.

        Args:
            name: The parameter's name.
            low: The first row.
            high: The row after the last.

        Yields:
            The piece with the box, the number of its file, the box's offsets in the whole tensor, its sizes,
            and its first element in the part that the file has of the piece.
        """
        current, found = self._shard_specs[name], self._pieces.get(name, {})
        model = self._tensor * self._expert
        # Several stages have a tied parameter; the first one's is read.
        stage = min((mp_rank // model for mp_rank in found), default=0)
        parts = 1 if current.dimension is None else model if current.experts else self._tensor
        for part in range(parts):
            saved, own = self._saved(current, parts, part), found.get(stage * model + part, ())
            count, whole = sum(piece.size for piece in own), math.prod(saved.local_shape)
            if count != whole:
                raise ValueError(f"the files have {count} of {whole} elements of {name}")
            row = math.prod(saved.local_shape[1:])
            first = saved.index * saved.local_shape[0] if saved.dimension == 0 else 0
            begin = 0
            for piece in own:
                end = begin + piece.size
                size = -(-piece.size // len(piece.step.files))
                for number in range(len(piece.step.files)):
                    after = min(begin + size, end)
                    if first + begin // row < high and low * row < first * row + after:
                        for offsets, sizes, skipped in shard_boxes(saved, self._vocabulary, begin, after):
                            yield piece, number, offsets, sizes, skipped
                    begin = after

    def _saved(self, shard_spec: ShardSpec, parts: int, part: int) -> ShardSpec:
        """Return the shard spec of one of a parameter's parts in the layout that wrote it."""
        shape = shard_spec.shape
        if shard_spec.vocabulary:
            shape = (int(self._layout["padded_vocab_size"]), *shape[1:])
        return replace(shard_spec, shape=shape, parts=parts, index=part)


class PartitionReader:
    """Reads planned boxes from DeepSpeed's files, as torch's ``FileSystemReader`` does from its own.

    It maps each file once.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._contents: dict[str, Any] = {}
        self._ranges: Mapping[MetadataIndex, Range] = {}

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool) -> None:  # noqa: ARG002  # torch's
        """Take the metadata from :meth:`Partitions.metadata`."""
        self._ranges = metadata.storage_data

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy each planned item to its tensor."""
        for item in plan.items:
            target = planner.resolve_tensor(item).detach()
            target.copy_(self._values(item))
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _values(self, item: ReadItem) -> torch.Tensor:
        found = self._ranges[item.storage_index]
        if found.relative_path not in self._contents:
            path = self._directory / found.relative_path
            self._contents[found.relative_path] = load_mapped(path)
        content = self._contents[found.relative_path]
        for key in found.keys:
            if key == "state" and not content[key]:
                # fp16 has skipped all steps, so that the optimiser has no states yet.
                return torch.zeros(tuple(item.lengths))
            content = content[key]
        values = torch.as_tensor(content).detach().reshape(-1)
        values = values[found.begin :][: math.prod(found.shape)].view(found.shape)
        for axis, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
            values = values.narrow(axis, offset, length)
        return values
