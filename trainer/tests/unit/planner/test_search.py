# SPDX-License-Identifier: GPL-3.0-or-later
"""The search: layouts that it skips could not have won."""

import math

import pytest

from rdm_planner.fasop.model import FasopModel
from rdm_planner.fasop.shapes import A10, A100, SHAPES
from rdm_planner.nodes import order_count, orders
from rdm_planner.partition import best_cut
from rdm_planner.search import search


def test_pruned_search_finds_the_fastest_of_all() -> None:
    models = [
        FasopModel(SHAPES["bert"], order, with_slips=False, within_memory=True)
        for order in orders((A100, A10, A10))
    ]
    every: dict[object, float] = {}
    for model in models:
        for layout in model.layouts():
            cut = best_cut(model.problem(layout), tries=model.tries(layout))
            if cut is not None:
                every[layout] = min(every.get(layout, math.inf), cut.seconds)
    found = search(models, keep=5)
    assert [estimate.seconds for estimate in found.best] == pytest.approx(
        sorted(every.values())[:5], rel=1e-9
    )
    assert found.solved < found.layouts
    assert found.bound == pytest.approx(found.best[0].seconds)
    assert all(estimate.fits for estimate in found.best)


def test_orders_are_distinct_and_the_given_comes_first() -> None:
    given = (A10, A100, A10, A100)
    found = list(orders(given))
    assert found[0] == given
    assert len(found) == len(set(found)) == 6 == order_count(given)
