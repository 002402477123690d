# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes weights as a checkpoint in Megatron's format ``torch``, for any tensor and pipeline layout."""

from __future__ import annotations

import argparse
import contextlib
import mmap
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rdm_core.atomic_file import PARTIAL
from rdm_core.config import ModelConfig
from rdm_core.errors import FAILED, TrainerError
from rdm_trainer import models
from rdm_trainer.weights.megatron import tensors
from rdm_trainer.weights.megatron.arguments import arguments_of, refuse, tokenizer_type_of
from rdm_trainer.weights.megatron.reading import FILE, LATEST, RELEASE, load


def write(
    source: Any,
    target: Path,
    *,
    tensor: int = 1,
    pipeline: int = 1,
    virtual: int = 1,
    dtype: str | None = None,
    fused: bool = True,
) -> int:
    """Write weights as Megatron's release checkpoint, from which it starts a training or a fine-tuning.

    Args:
        source: The weights.
        target: A directory that does not exist yet.
        tensor: Tensor ranks.
        pipeline: Stages.
        virtual: Chunks of layers on each stage, with 2 or more for an interleaved pipeline.
        dtype: Type of the tensors, such as ``bfloat16``; the source's by default.
        fused: Name norms as Transformer Engine's layers do, Megatron's default; else as ``--transformer-impl
            local``.

    Returns:
        The bytes of all tensors.

    Raises:
        TrainerError: Megatron has no such model or layout, or the directory cannot be written.
    """
    model: ModelConfig = source.model
    refuse(model, tensor, pipeline, virtual)
    if target.exists():
        raise TrainerError(f"{target} is there already; name a directory that is not, or remove it.")
    kind: torch.dtype = getattr(torch, dtype or source.dtype)
    step = model.make_vocab_size_divisible_by * tensor
    rows = -(-(model.vocab_size + model.vocab_extra_ids) // step) * step
    arguments = argparse.Namespace(**arguments_of(model, tensor, pipeline, rows, kind, virtual))
    tokenizer = getattr(source, "tokenizer_type", None) or tokenizer_type_of(source.tokenizer)
    if tokenizer is not None:
        arguments.tokenizer_type = tokenizer
    unfinished = target.with_name(target.name + PARTIAL)
    shapes = {name: shard_spec.shape for name, shard_spec in models.shard_specs(model).items()}
    total = 0
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, unfinished, ignore_errors=True)
        try:
            for stage in range(pipeline):
                for rank in range(tensor):
                    parts: dict[str, _Part] = {}
                    for chunk in range(virtual):
                        key = f"model{chunk}" if virtual > 1 else "model"
                        number, count = chunk * pipeline + stage, virtual * pipeline
                        parts[key] = partial(_part, model, number, count, rank, tensor, rows, kind, fused)
                    suffix = f"_{stage:03d}" if pipeline > 1 else ""
                    folder = unfinished / RELEASE / f"mp_rank_{rank:02d}{suffix}"
                    folder.mkdir(parents=True)
                    content = {"args": arguments, "checkpoint_version": 3.0, "iteration": 0}
                    total += _write_rank(folder / FILE, content, source.whole, shapes, parts)
            (unfinished / LATEST).write_text(RELEASE, encoding="utf-8")
            unfinished.rename(target)
        except OSError as error:
            raise TrainerError(f"{target} cannot be written: {error.strerror}.", exit_code=FAILED) from error
    return total


_Part = Callable[[Callable[[str], torch.Tensor]], Iterator[tuple[str, torch.Tensor]]]
"""Takes a function from our names to whole weights; yields one rank's weights by Megatron's names."""


def _write_rank(
    path: Path,
    content: Mapping[str, Any],
    whole: Callable[[str], torch.Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    parts: Mapping[str, _Part],
) -> int:
    """Write one rank's file, a weight at a time into the mapped file.

    Args:
        path: The file.
        content: What it has in addition to weights.
        whole: Returns whole weights by our names.
        shapes: Their shapes.
        parts: Where it has weights, and which.

    Returns:
        The bytes of the weights.
    """
    room = {
        key: OrderedDict(
            (name, torch.empty(weight.shape, dtype=weight.dtype))
            for name, weight in part(lambda name: torch.empty(shapes[name], device="meta"))
        )
        for key, part in parts.items()
    }
    # Untouched memory is not allocated.
    with torch.serialization.skip_data():
        torch.save({**content, **room}, path)
    # A full disk raises an error here; in mapped memory it would kill the process.
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        mapped = load(path)
    for key, part in parts.items():
        for name, weight in part(whole):
            mapped[key][name].copy_(weight)
    del mapped
    # Only fsync reports that the disk could not take a page of the mapped file.
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return sum(weight.nbytes for weights in room.values() for weight in weights.values())


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
    """Yield one rank's weights of a virtual stage by Megatron's names.

    Args:
        model: The model's section.
        stage: The virtual stage.
        stages: All virtual stages.
        rank: The tensor rank.
        ranks: Tensor ranks.
        rows: Rows of the padded vocabulary.
        dtype: Type of the weights.
        fuse: Name norms as Transformer Engine's layers do.
        whole: Returns whole weights by our names.
    """
    blocks = tensors.blocks_of(model)
    for one in tensors.placed(model):
        names: list[str] = []
        if one.block is not None:
            each = blocks[one.stack] // stages
            if one.block // each == stage:
                names = [f"{one.stack}.layers.{one.block % each}.{name}" for name in one.names]
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
                theirs = tensors.fused(name, experts=bool(model.experts)) if fuse else name
                for key in tensors.names_of(model, theirs):
                    yield key, weight.to(dtype)
    if model.kind == "t5" and model.tied_embeddings and not model.lm_head_bias:
        # Then its head has a bias there, but none here.
        for name in tensors.names_of(model, tensors.HEAD_BIAS):
            yield name, torch.zeros(rows // ranks, dtype=dtype)
