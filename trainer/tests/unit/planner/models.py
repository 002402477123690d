# SPDX-License-Identifier: GPL-3.0-or-later
"""Models of shipped jobs on GPUs with published figures only."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rdm_core import config as configuration
from rdm_planner.job import Job, published_peaks
from rdm_planner.nodes import NodeKind
from rdm_planner.search_space import SearchSpace
from rdm_planner.trainer_model import TrainerModel
from rdm_trainer.engine_step import engine_step

CONFIGS = Path(__file__).parents[3] / "configs"
H100 = NodeKind("H100", gpus=4, inter=400e9, intra=3600e9, memory_gib=79.1)
A10 = NodeKind("A10", gpus=4, inter=40e9, intra=128e9, memory_gib=22.2)
PEAKS = {"H100": 989.4, "A10": 125.0, "H200": 989.4}
LONG = ["engine=native", "model.seq_length=32768", "optimisation.global_batch_size=8"]


def trainer_model(
    name: str, *nodes: NodeKind, overrides: Sequence[str] = (), efficiency: float = 0.5, **options: Any
) -> TrainerModel:
    config = configuration.load(CONFIGS / f"{name}.yaml", overrides)
    times = published_peaks(config, nodes, PEAKS, efficiency)
    return TrainerModel(Job(SearchSpace(config, **options), times, engine_step), nodes)


def moe_model(engine: str, *nodes: NodeKind, **options: Any) -> TrainerModel:
    small = ("layers=3", "experts=8", "moe_router_topk=2", "vocab_size=8000")
    overrides = [*(f"model.{key}" for key in small), "optimisation.global_batch_size=16", f"engine={engine}"]
    return trainer_model("qwen3-30b-a3b", *nodes, overrides=overrides, **options)


def cuts(layers: int, stages: int) -> list[tuple[int, ...]]:
    borders = itertools.combinations(range(1, layers), stages - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *inner, layers))) for inner in borders]
