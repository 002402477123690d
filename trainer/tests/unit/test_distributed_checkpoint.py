# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of tensors in the files of torch.distributed.checkpoint."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItemType

from rdm_core.errors import TrainerError
from rdm_trainer.checkpoint import damage, distributed
from rdm_trainer.checkpoint.boxes import boxes

SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(st.data(), SHAPES)
def test_a_range_is_divided_into_boxes_in_its_order(data: st.DataObject, shape: tuple[int, ...]) -> None:
    values = torch.arange(torch.Size(shape).numel()).view(shape)
    begin = data.draw(st.integers(0, values.numel()))
    end = data.draw(st.integers(begin, values.numel()))
    found = []
    parts = list(boxes(shape, begin, end))
    for offsets, sizes in parts:
        box = values
        for axis, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
            box = box.narrow(axis, offset, size)
        found += box.flatten().tolist()
    assert found == list(range(begin, end))
    # Each box is a part of the files, so there are few.
    assert len(parts) <= 2 * len(shape) - 1


class _ByName:
    """An object that is pickled as an attribute of another one."""

    def __init__(self, kind: Any, name: str) -> None:
        self._attribute = kind, name

    def __reduce__(self) -> Any:
        return getattr, self._attribute


@pytest.mark.parametrize("member", [_MEM_FORMAT_ENCODING.TORCH_CHANNELS_LAST, WriteItemType.SHARD])
def test_an_enumeration_is_read_as_early_python_3_11_writes_it(member: Any, tmp_path: Path) -> None:
    written = Metadata({}, planner_data=_ByName(type(member), member.name), storage_data={})
    (tmp_path / distributed.METADATA).write_bytes(pickle.dumps(written))
    assert distributed.read_metadata(tmp_path).planner_data is member


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (os.getcwd, "getcwd"),
        (_ByName(_MEM_FORMAT_ENCODING, "mro"), "attribute mro of <enum '_MEM_FORMAT_ENCODING'>"),
        (_ByName(torch.Size, "numel"), "attribute numel of <class 'torch.Size'>"),
    ],
)
def test_metadata_makes_no_other_objects(value: Any, named: str, tmp_path: Path) -> None:
    (tmp_path / distributed.METADATA).write_bytes(pickle.dumps(value))
    with pytest.raises(pickle.UnpicklingError, match=f"{named} is not read from a checkpoint"):
        distributed.read_metadata(tmp_path)


@pytest.mark.parametrize("file", ["../__0_0.distcp", "/__0_0.distcp", "a/../../__0_0.distcp"])
def test_metadata_names_no_file_elsewhere(file: str, tmp_path: Path) -> None:
    written = Metadata({}, storage_data={MetadataIndex("fp32.0.weight"): _StorageInfo(file, 0, 1)})
    (tmp_path / distributed.METADATA).write_bytes(pickle.dumps(written))
    with pytest.raises(TrainerError, match=f"names the file {file!r}; only files in its own directory"):
        distributed.read_metadata(tmp_path)


def test_file_is_compared_with_its_checksum_file(tmp_path: Path) -> None:
    file = tmp_path / "__0_0.distcp"
    file.write_bytes(b"weights" * 1000)
    checksum_file = damage.note(file)
    assert damage.is_sound(file)
    assert damage.is_sound(checksum_file)
    file.write_bytes(b"weighty" + b"weights" * 999)
    assert not damage.is_sound(file)
