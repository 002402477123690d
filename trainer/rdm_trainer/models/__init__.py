# SPDX-License-Identifier: GPL-3.0-or-later
"""GPT, T5 and BERT, each as one list of layers for every layout."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn

from rdm_core.config import Config, ModelConfig
from rdm_trainer.distributed.parameters import ShardSpec, shard_spec_of
from rdm_trainer.distributed.pipeline_parallel.pipeline import BlockGroups, Fill, FlatModel, Layer, bounds
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.models import bert, gpt, t5
from rdm_trainer.tokenizers import special_tokens

PADDING = 0


def layers(
    config: Config, topology: Topology, padding: int = PADDING, device: torch.device | None = None
) -> list[Layer]:
    """Return the layers of the configured model for this tensor rank.

    Args:
        config: The job with the model.
        topology: This rank's place; only its tensor axis matters here.
        padding: The padding token of a T5.
        device: Where the layers will run.
    """
    if config.spec.kind == "gpt":
        return gpt.layers(config, topology, device)
    if config.spec.kind == "bert":
        return bert.layers(config, topology, device)
    return t5.layers(config, topology, padding)


def build(
    config: Config,
    topology: Topology,
    *,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    padding: int | None = None,
    shard: Callable[[nn.Module], object] | None = None,
    fill: Fill | None = None,
) -> FlatModel:
    """Build this rank's part of the model, with its weights.

    Args:
        config: The job.
        topology: This rank's place.
        device: The device of the parameters; the CPU by default.
        dtype: The type of the parameters.
        padding: The padding token of a T5; that of the job's data by default.
        shard: Called with each layer as soon as it has its weights; only without a pipeline.
        fill: Gives each layer its weights; initial ones by default.
    """
    device = device or torch.device("cpu")
    parts = layers(config, topology, padding_of(config) if padding is None else padding, device)
    chunks: list[range] = []
    if topology.pipeline > 1:
        virtual = [range(*ends) for ends in pairwise(bounds(config, parts))]
        chunks = virtual[topology.pipeline_rank :: topology.pipeline]
    groups = BlockGroups.of(config, topology)
    return FlatModel(config, parts, groups, device, dtype, shard, fill, chunks)


def shard_specs(model: ModelConfig) -> dict[str, ShardSpec]:
    """Return the shard spec of each parameter of the whole model, without padding of the vocabulary."""
    job = Config(model=dataclasses.replace(model, make_vocab_size_divisible_by=1))
    found = {}
    for index, layer in enumerate(layers(job, Topology.single())):
        with torch.device("meta"):
            module = layer.make()
        for name, weight in module.named_parameters():
            found[layer.prefix(index) + name] = shard_spec_of(weight)
    return found


def padding_of(config: Config) -> int:
    """Return the padding token of a job's data; only a T5 needs it."""
    return special_tokens.of_job(config).padding if config.spec.kind == "t5" else PADDING
