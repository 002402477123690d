# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of whole tensors in the files of DeepSpeed's ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_trainer.checkpoint.boxes import Box
from rdm_trainer.checkpoint.distributed import Saved
from rdm_trainer.checkpoint.fragments import STATES, STEP
from rdm_trainer.checkpoint.partitions import Flat, Partitions, Piece
from rdm_trainer.distributed.parameters import ShardSpec

NAME = "3.mlp.fc1.weight"
BEFORE = 2
"""Elements of another parameter in each file."""


def shard(whole: torch.Tensor, spec: ShardSpec, replicas: int) -> tuple[list[Piece], dict[str, Any]]:
    """Shard a parameter as ZeRO 3 does, and return what the files describe, and their contents by name."""
    pieces, contents = [], {}
    for part in range(spec.parts):
        local = dataclasses.replace(spec, index=part).part(whole).flatten()
        size = -(-local.numel() // replicas)
        padded = torch.cat([local, torch.full((size * replicas - local.numel(),), -1.0)])
        files = tuple(f"{part}-{replica}" for replica in range(replicas))
        for file, own in zip(files, padded.split(size), strict=True):
            flat = torch.cat([torch.full((BEFORE,), -2.0), own])
            contents[file] = {state: flat * factor for factor, state in enumerate(STATES, 1)}
            contents[file][STEP] = torch.tensor(4.0)
        states = {state: Flat(files, (state,), BEFORE) for state in STATES}
        pieces.append(Piece(NAME, part, 0, local.numel(), states, Flat(files, (STEP,))))
    return pieces, contents


@st.composite
def saved_tensors(draw: st.DrawFn) -> tuple[torch.Tensor, Partitions, dict[str, Any]]:
    """A whole tensor, its parts in files, and the files' contents."""
    tensor, dimension = draw(st.integers(1, 3)), draw(st.sampled_from([None, 0, 1]))
    rest = draw(st.lists(st.integers(1, 3), min_size=1 if dimension == 1 else 0, max_size=2))
    shape = [draw(st.integers(1, 6)), *rest]
    if dimension is not None:
        shape[dimension] *= tensor
    padding = draw(st.integers(0, 2)) * tensor if dimension == 0 else 0
    spec = ShardSpec(tuple(shape), dimension, vocabulary=padding > 0)
    whole = torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)
    in_files = torch.cat([whole, torch.full((padding, *shape[1:]), -3.0)])
    layout = {"tensor": tensor, "padded_vocab_size": shape[0] + padding}
    sharded = ShardSpec(tuple(in_files.shape), dimension, parts=1 if dimension is None else tensor)
    pieces, contents = shard(in_files, sharded, draw(st.integers(1, 4)))
    return whole, Partitions(pieces, layout, {NAME: spec}, shape[0]), contents


@given(st.data(), saved_tensors())
@settings(max_examples=50, deadline=None)
def test_any_box_is_read_from_the_files_that_have_its_rows(
    data: st.DataObject, saved: tuple[torch.Tensor, Partitions, dict[str, Any]]
) -> None:
    whole, partitions, contents = saved
    begins = [data.draw(st.integers(0, size - 1)) for size in whole.shape]
    sizes = [data.draw(st.integers(1, size - begin)) for size, begin in zip(whole.shape, begins, strict=True)]
    expected = whole
    for axis, (begin, size) in enumerate(zip(begins, sizes, strict=True)):
        expected = expected.narrow(axis, begin, size)
    parts = [
        Box(f"{state}.{NAME}", tuple(whole.shape), tuple(begins), torch.zeros(sizes)) for state in STATES
    ]
    step = torch.zeros(1)
    parts.append(Box(STEP, (1,), (0,), step))
    reader = Saved(Path("nowhere"), partitions)
    needed = reader.needed_files(parts)
    reader._reader._contents = {file: contents[file] for file in needed}  # type: ignore[union-attr]
    reader.load(parts)
    for factor, part in enumerate(parts[:-1], 1):
        assert torch.equal(part.values, expected * factor)
    assert step.item() == 4


def test_ranges_that_a_rank_does_not_read_are_not_planned() -> None:
    whole = torch.zeros(64, 4)
    pieces, _ = shard(whole, ShardSpec((64, 4), 0, parts=2), 16)
    partitions = Partitions(pieces, {"tensor": 2}, {NAME: ShardSpec((64, 4), 0)}, 0)
    row = Box(f"fp32.{NAME}", (64, 4), (40, 0), torch.zeros(1, 4))
    # The second tensor rank has rows 32 to 63, of which each replica has two.
    found = partitions.metadata([row, Box(STEP, (1,), (0,), torch.zeros(1))]).storage_data
    assert {one.relative_path for one in found.values()} == {"1-4"}
    assert len(found) == 2


def test_ranges_missing_in_the_files_are_refused() -> None:
    pieces, _ = shard(torch.zeros(8, 4), ShardSpec((8, 4), 0, parts=2), 2)
    partitions = Partitions(pieces[:1], {"tensor": 2}, {NAME: ShardSpec((8, 4), 0)}, 0)
    with pytest.raises(ValueError, match=f"the files have 0 of 16 elements of {NAME}"):
        Saved(Path("nowhere"), partitions).whole(f"fp32.{NAME}")
    with pytest.raises(KeyError):
        Saved(Path("nowhere"), partitions).whole("fp32.4.mlp.fc1.weight")
