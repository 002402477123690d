# SPDX-License-Identifier: GPL-3.0-or-later
"""The layouts of a job that the search finds."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from rdm_planner.fasop.minmax import minmax
from rdm_planner.layouts import Layout
from rdm_planner.nodes import NodeKind, orders
from rdm_planner.partition import best_cut
from rdm_planner.search import search
from rdm_planner.trainer_model import TrainerModel
from tests.unit.planner.models import A10, H100, cuts, moe_model, trainer_model


def test_the_slower_kind_gets_fewer_blocks() -> None:
    model = trainer_model("gpt2-xl", H100, A10)
    best = next(one for one in search([model], keep=30).best if one.layout.pipeline == 2)
    assert best.cut[0] > 2 * best.cut[1]


def test_the_given_order_stays_where_others_cost_the_same() -> None:
    models = [
        trainer_model("gpt2-xl", *order, overrides=["optimisation.global_batch_size=48"])
        for order in orders((H100, A10, A10))
    ]
    found = search(models, keep=100).best
    without_pipeline = [one for one in found if one.layout.pipeline == 1]
    assert {one.nodes for one in without_pipeline} == {("H100", "A10", "A10")}


def _fastest(model: TrainerModel, degree: str) -> dict[int, float]:
    """Return the seconds of the fastest layout of each degree, of all layouts and cuts."""
    every: dict[int, float] = {}
    for layout in model.layouts():
        problem, value = model.problem(layout), getattr(layout, degree)
        for cut in cuts(problem.layers, layout.pipeline):
            if problem.holds(cut):
                seconds = model.estimate(layout, cut).seconds
                every[value] = min(every.get(value, seconds), seconds)
    return every


def _long(name: str, *sizes: str, **options: Any) -> TrainerModel:
    sizes = ("layers=3", "vocab_size=8000", "seq_length=32768", *sizes)
    overrides = [*(f"model.{size}" for size in sizes), "engine=native", "optimisation.global_batch_size=4"]
    return trainer_model(name, H100, FAST_A10, overrides=overrides, **options)


def _small(**options: Any) -> TrainerModel:
    node = dataclasses.replace(FAST_A10, memory_gib=9.0)
    overrides = ["engine=native", "model.layers=7", "optimisation.global_batch_size=32"]
    return trainer_model("gpt2-xl", node, overrides=overrides, virtual_degrees=[1], **options)


FAST_A10 = NodeKind("A10", gpus=4, inter=100e9, intra=400e9, memory_gib=22.2)
MOE_NODES = dataclasses.replace(H100, memory_gib=16.0), FAST_A10


@pytest.mark.parametrize(
    ("made", "degree", "tried"),
    [
        (functools.partial(moe_model, "native", *MOE_NODES), "expert", {1, 2, 4, 8}),
        (functools.partial(moe_model, "deepspeed", *MOE_NODES), "expert", {1, 2, 4, 8}),
        (functools.partial(_long, "llama3-8b"), "context", {1, 2, 4}),
        (functools.partial(_long, "qwen3-30b-a3b", "experts=4", "moe_router_topk=2"), "context", {1, 2, 4}),
        (_small, "eager_forwards", {0, 1, 2}),
    ],
)
def test_degrees_are_searched_as_by_trying_all(
    made: Callable[..., TrainerModel], degree: str, tried: set[int]
) -> None:
    model = made()
    assert all(one.pipeline > 1 or one.eager_forwards == 0 for one in model.layouts())
    every = _fastest(model, degree)
    assert every.keys() == tried
    found = search([model], keep=len(tried), alike=lambda one: getattr(one, degree))
    assert {getattr(one.layout, degree): one.seconds for one in found.best} == pytest.approx(every)
    for value, fastest in every.items():
        options = {degree: value} if degree == "eager_forwards" else {f"{degree}_degrees": [value]}
        assert search([made(**options)], keep=1).best[0].seconds == pytest.approx(fastest)


def test_context_degrees_are_searched_where_samples_are_long() -> None:
    def degrees(*overrides: str) -> set[int]:
        return {one.context for one in trainer_model("llama3-8b", H100, H100, overrides=overrides).layouts()}

    assert degrees("engine=native") == {1}
    assert degrees("engine=native", "model.seq_length=16384") == {1, 2}
    assert degrees("engine=native", "model.seq_length=131072") == {1, 2, 4, 8}
    assert degrees("model.seq_length=131072") == {1}


def test_zero_and_checkpointing_make_room() -> None:
    small = NodeKind("A10", gpus=4, inter=40e9, intra=128e9, memory_gib=15.0)
    model = trainer_model("gpt2-xl", small)
    found = search([model], keep=100, alike=lambda one: (one.zero_stage, one.checkpointing))
    by_kind = {(one.layout.zero_stage, one.layout.checkpointing): one for one in found.best}
    assert all(one.fits for one in found.best)
    assert {zero for zero, _ in by_kind} == {1, 2, 3}
    # ZeRO 2 and 3 are for a single stage, and each needs less memory than the one before.
    assert by_kind[3, True].layout.pipeline == 1
    held = [model.estimate(Layout(1, 4, 1, 4, True, zero), (50,)).memory_gib for zero in (1, 2, 3)]
    assert held == sorted(held, reverse=True)


def test_a_thousand_nodes_of_a_kind_have_one_order() -> None:
    assert len(list(orders((A10,) * 3000))) == 1


def test_fasops_heuristic_is_never_faster_under_our_model() -> None:
    model = trainer_model("gpt2-xl", H100, A10, A10)
    slower = 0
    for layout in model.layouts():
        if layout.zero_stage != 1 or layout.pipeline == 1:
            continue
        problem = model.problem(layout)
        costs = [[b - a for a, b in itertools.pairwise(sums)] for sums in problem.sums]
        heuristic, _times = minmax(problem.layers, costs, [0.0] * layout.pipeline, with_slips=False)
        best = best_cut(problem, tries=model.tries(layout))
        if problem.holds(heuristic):
            assert best is not None
            assert best.seconds <= problem.seconds(heuristic) * (1 + 1e-9)
            slower += problem.seconds(heuristic) > best.seconds * (1 + 1e-9)
    assert slower > 10
