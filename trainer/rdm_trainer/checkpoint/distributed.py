# SPDX-License-Identifier: GPL-3.0-or-later
"""Tensors sharded over ranks, in the files of ``torch.distributed.checkpoint``.

Each part is a box of a whole tensor, so every layout can read what another one wrote.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_saver import save

from rdm_trainer.checkpoint import files
from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.partitions import PartitionReader, Partitions
from rdm_trainer.checkpoint.writing import Sink

METADATA = ".metadata"


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
            try:
                yield sink
            finally:
                # What follows a failed write, such as fsync, may fail for another reason.
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
# Megatron-core adds the plans of all ranks.
_PLANS = ("BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType")
# Its own classes only add an attribute.
_MEGATRONS = {"MCoreMetadata": Metadata, "MCoreSavePlan": SavePlan}


def _member(kind: Any, name: str) -> Any:
    """Return an enumeration's member by its name; Python 3.11.0 to 3.11.3 pickle it as ``getattr``."""
    if kind not in (_MEM_FORMAT_ENCODING, WriteItemType) or name not in kind.__members__:
        raise pickle.UnpicklingError(f"attribute {name} of {kind!r} is not read from a checkpoint")
    return kind[name]


class _Unpickler(pickle.Unpickler):
    """An unpickler limited to what torch writes into its metadata."""

    _NAMES = frozenset(
        {
            *(f"torch.distributed.checkpoint.metadata.{name}" for name in _METADATA),
            *(f"torch.distributed.checkpoint.planner.{name}" for name in _PLANS),
            "torch.distributed.checkpoint.filesystem._StorageInfo",
            "torch.Size",
            "pathlib.PosixPath",
            "pathlib._local.PosixPath",
            "torch.serialization._get_layout",
            *(f"torch.{name}" for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if name in _MEGATRONS and module.partition(".")[0] == "megatron":
            return _MEGATRONS[name]
        if (module, name) == ("builtins", "getattr"):
            return _member
        if f"{module}.{name}" not in self._NAMES:
            raise pickle.UnpicklingError(f"{module}.{name} is not read from a checkpoint")
        return super().find_class(module, name)


def read_metadata(directory: Path) -> Metadata:
    """Read the metadata: which file has which parts.

    Raises:
        TrainerError: A file is not below the directory.
    """
    with (directory / METADATA).open("rb") as file:
        found: Metadata = _Unpickler(file).load()
    files.require_below((one.relative_path for one in found.storage_data.values()), directory / METADATA)
    return found


class _LoadPlanner(DefaultLoadPlanner):
    """A plan that reads into boxes."""

    def __init__(self, parts: Sequence[Box]) -> None:
        super().__init__()
        self._parts = {(part.key, part.offsets): part for part in parts}

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self._parts[index.fqn, tuple(index.offset or ())].values


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


class Saved:
    """The tensors in the files of a step.

    Args:
        directory: The step's directory, which needs to have only the files of what is read.
        tensors: What they have: from :func:`read_metadata`, or DeepSpeed's.
    """

    def __init__(self, directory: Path, tensors: Metadata | Partitions) -> None:
        self._tensors = tensors
        self._reader: PartitionReader | FileSystemReader = (
            PartitionReader(directory) if isinstance(tensors, Partitions) else FileSystemReader(directory)
        )

    def _metadata(self, parts: Sequence[Box]) -> Metadata:
        """Return which file has which part of the tensors of some parts."""
        return self._tensors.metadata(parts) if isinstance(self._tensors, Partitions) else self._tensors

    def needed_files(self, parts: Sequence[Box]) -> set[str]:
        """Return the files that contain data of some parts.

        Raises:
            KeyError: The files have no tensor with a part's key.
        """
        metadata = self._metadata(parts)
        return {metadata.storage_data[item.storage_index].relative_path for item in _plan(metadata, parts)}

    def load(self, parts: Sequence[Box]) -> None:
        """Read parts, however the tensors were split when they were written. No rank waits for another.

        Raises:
            KeyError: The files have no tensor with a part's key.
        """
        metadata = self._metadata(parts)
        self._reader.set_up_storage_reader(metadata, is_coordinator=True)
        with torch.no_grad():
            self._reader.read_data(LoadPlan(_plan(metadata, parts)), _LoadPlanner(parts)).wait()

    def whole(self, key: str) -> torch.Tensor:
        """Return a whole tensor.

        Raises:
            KeyError: There is no tensor with this key.
        """
        if isinstance(self._tensors, Partitions):
            values = torch.empty(self._tensors.shape(key))
        else:
            saved = self._tensors.state_dict_metadata[key]
            assert isinstance(saved, TensorStorageMetadata)
            values = torch.empty(saved.size, dtype=saved.properties.dtype)
        self.load([Box(key, tuple(values.shape), (0,) * values.dim(), values)])
        return values
