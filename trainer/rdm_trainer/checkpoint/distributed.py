# SPDX-License-Identifier: GPL-3.0-or-later
"""Tensors sharded over ranks, in the files of ``torch.distributed.checkpoint``.

Each part is a box of a whole tensor, so every layout can read what another one wrote.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_saver import save

from rdm_trainer.checkpoint.writing import Sink

__all__ = ["METADATA", "Box", "boxes", "load", "needed_files", "read_metadata", "read_whole", "write"]

METADATA = ".metadata"


@dataclass(frozen=True)
class Box:
    """A part of a whole tensor.

    Attributes:
        key: The whole tensor's name in the files.
        shape: The whole tensor's shape.
        offsets: Where the part begins in the whole tensor.
        values: The part.
    """

    key: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    values: torch.Tensor


def boxes(shape: Sequence[int], begin: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Split a range of a flattened tensor into boxes, and yield their offsets and sizes in order.

    Args:
        shape: The tensor's shape.
        begin: The first element of the range.
        end: The element after its last.
    """
    if begin >= end:
        return
    if len(shape) == 1:
        yield (begin,), (end - begin,)
        return
    row = math.prod(shape[1:])
    # The whole rows. A part of a row may precede and follow them.
    first, last = -(-begin // row), end // row
    rests = [(last, begin - last * row, end - last * row)]
    if first <= last:
        rests = [(first - 1, begin - (first - 1) * row, row), (last, 0, end - last * row)]
    for place, low, high in rests:
        if place == last and first < last:
            yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
        for offsets, sizes in boxes(shape[1:], low, high):
            yield (place, *offsets), (1, *sizes)


class _SavePlanner(DefaultSavePlanner):
    """A plan that writes boxes."""

    def __init__(self, parts: Sequence[Box]) -> None:
        super().__init__(flatten_state_dict=False)
        self._parts = {(part.key, part.offsets): part for part in parts}

    def create_local_plan(self) -> SavePlan:
        return SavePlan([_write_item(part) for part in self._parts.values()])

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return self._parts[write_item.index.fqn, tuple(write_item.index.offset or ())].values


def _write_item(part: Box) -> WriteItem:
    chunk = ChunkStorageMetadata(torch.Size(part.offsets), part.values.shape)
    properties = TensorProperties(dtype=part.values.dtype)
    return WriteItem(
        MetadataIndex(part.key, part.offsets),
        WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk, properties, torch.Size(part.shape)),
    )


class _Files(FileSystem):
    """Files that report why they could not be written."""

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        """Open a file."""
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with Path(path).open("wb", buffering=0) as raw:
            sink = Sink(raw)
            yield sink
            if sink.error is not None:
                raise sink.error


def write(directory: Path, parts: Sequence[Box], group: Any) -> None:
    """Write the parts of all ranks of a group; each rank calls this. It returns once they are on the disk.

    Args:
        directory: One directory for all ranks, or one per node.
        parts: This rank's parts; those of all ranks make up the whole tensors.
        group: The process group for coordination.

    Raises:
        CheckpointException: A rank could not write its parts.
    """
    writer = FileSystemWriter(str(directory))
    writer.fs = _Files()
    save({}, storage_writer=writer, planner=_SavePlanner(parts), process_group=group)


# The classes of torch that its metadata contains.
_METADATA = (
    *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
    *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
)


class _Unpickler(pickle.Unpickler):
    """An unpickler limited to what torch writes into its metadata."""

    _NAMES = frozenset(
        {
            *(f"torch.distributed.checkpoint.metadata.{name}" for name in _METADATA),
            "torch.distributed.checkpoint.filesystem._StorageInfo",
            "torch.Size",
            "pathlib.PosixPath",
            "pathlib._local.PosixPath",
            "torch.serialization._get_layout",
            *(f"torch.{name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if name == "MCoreMetadata" and module.partition(".")[0] == "megatron":
            # Megatron-core's class only adds an attribute.
            return Metadata
        if f"{module}.{name}" not in self._NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} is not read from a checkpoint")
        return super().find_class(module, name)


def read_metadata(directory: Path) -> Metadata:
    """Read the metadata: which file has which parts."""
    with (directory / METADATA).open("rb") as file:
        found: Metadata = _Unpickler(file).load()
    return found


class _LoadPlanner(LoadPlanner):
    """A plan that reads into boxes."""

    def __init__(self, parts: Sequence[Box]) -> None:
        self._parts = {(part.key, part.offsets): part for part in parts}

    def set_up_planner(self, *_: Any, **__: Any) -> None: ...

    def create_local_plan(self) -> LoadPlan:
        raise NotImplementedError

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: Any) -> None:
        raise NotImplementedError

    def resolve_bytes(self, read_item: ReadItem) -> Any:
        raise NotImplementedError

    def resolve_tensor(self, read_item: ReadItem) -> torch.Tensor:
        index = read_item.dest_index
        values = self._parts[index.fqn, tuple(index.offset or ())].values
        for axis, (offset, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            values = values.narrow(axis, offset, length)
        return values

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None: ...


def _plan(metadata: Metadata, parts: Sequence[Box]) -> list[ReadItem]:
    """Return the items to read for some parts."""
    by_key: dict[str, list[ChunkStorageMetadata]] = {}
    for part in parts:
        by_key.setdefault(part.key, []).append(
            ChunkStorageMetadata(torch.Size(part.offsets), part.values.shape)
        )
    items = []
    for key, chunks in by_key.items():
        saved = metadata.state_dict_metadata[key]
        assert isinstance(saved, TensorStorageMetadata)
        items += create_read_items_for_chunk_list(key, saved, chunks)
    return items


def needed_files(metadata: Metadata, parts: Sequence[Box]) -> set[str]:
    """Return the files that contain data of some parts."""
    places: Mapping[MetadataIndex, Any] = metadata.storage_data
    return {places[item.storage_index].relative_path for item in _plan(metadata, parts)}


def load(directory: Path, metadata: Metadata, parts: Sequence[Box]) -> None:
    """Read parts, however the tensors were split when they were written. No rank waits for another.

    Args:
        directory: The directory with the files from :func:`needed_files`.
        metadata: Their metadata.
        parts: The parts to fill.

    Raises:
        KeyError: The files have no tensor with a part's key.
    """
    reader = FileSystemReader(directory)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    reader.read_data(LoadPlan(_plan(metadata, parts)), _LoadPlanner(parts)).wait()


def read_whole(directory: Path, metadata: Metadata, key: str) -> torch.Tensor:
    """Return a whole tensor.

    Raises:
        KeyError: There is no tensor with this key.
    """
    saved = metadata.state_dict_metadata[key]
    assert isinstance(saved, TensorStorageMetadata)
    values = torch.empty(saved.size, dtype=saved.properties.dtype)
    load(directory, metadata, [Box(key, tuple(saved.size), (0,) * len(saved.size), values)])
    return values
