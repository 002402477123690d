# SPDX-License-Identifier: GPL-3.0-or-later
"""The best cut equals that of brute force, fits in memory, and is never slower than FASOP's."""

import dataclasses
import itertools
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rdm_planner.fasop.model import FasopModel, rotations
from rdm_planner.fasop.shapes import A10, A100, CASES, SHAPES
from rdm_planner.nodes import tried_orders
from rdm_planner.partition import Problem, best_cut
from rdm_planner.schedules import (
    BlockingSends,
    EagerOneForwardOneBackward,
    OneForwardOneBackward,
    Schedule,
)
from rdm_planner.search import floor, search


def _cuts(layers: int, stages: int) -> Iterator[tuple[int, ...]]:
    for ends in itertools.combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *ends, layers)))


@st.composite
def _problems(draw: st.DrawFn) -> Problem:
    stages = draw(st.integers(1, 5))
    layers = draw(st.integers(stages, 9))
    seconds = st.floats(0.01, 1.0) | st.sampled_from([0.1, 0.2])
    kind = st.lists(seconds, min_size=layers, max_size=layers)
    kinds = draw(st.lists(kind, min_size=1, max_size=2))
    running = [[0.0, *itertools.accumulate(times)] for times in kinds]
    held = draw(st.lists(st.integers(1, 5), min_size=layers, max_size=layers))
    limits = draw(st.lists(st.integers(3, 40), min_size=stages, max_size=stages))
    rates = draw(st.lists(st.floats(0, 0.3), min_size=stages, max_size=stages))
    micro_batches = draw(st.integers(1, 12))
    schedule: Schedule = OneForwardOneBackward(
        stages, micro_batches, draw(st.floats(0, 0.2)), draw(st.floats(0, 0.2))
    )
    if draw(st.booleans()):
        schedule = EagerOneForwardOneBackward(
            stages, micro_batches, forward=draw(st.floats(0.2, 0.5)), eager=draw(st.integers(0, 3))
        )
    if sends := draw(st.none() | st.lists(seconds, min_size=stages, max_size=stages)):
        schedule = BlockingSends(schedule, tuple(sends))
    return Problem(
        [running[draw(st.integers(0, len(running) - 1))] for _ in range(stages)],
        schedule,
        total=lambda cut, ends: max(
            end + rate * count for end, rate, count in zip(ends, rates, cut, strict=True)
        ),
        rest=lambda first: rates[0] * first,
        fits=lambda stage, begin, end: sum(held[begin:end]) <= limits[stage],
        first=draw(st.integers(1, min(2, layers - stages + 1))),
    )


@given(problem=_problems())
@settings(deadline=None)
def test_cut_equals_the_best_of_all_that_fit(problem: Problem) -> None:
    stages = len(problem.sums)
    fitting = [cut for cut in _cuts(problem.layers, stages) if problem.holds(cut)]
    best = best_cut(problem)
    if not fitting:
        assert best is None
        return
    fastest = min(problem.seconds(cut) for cut in fitting)
    assert best is not None
    assert best.is_proved
    assert best.seconds == pytest.approx(fastest, rel=1e-9)
    assert problem.holds(best.layers)
    assert problem.seconds(best.layers) == best.seconds
    assert floor(problem) <= fastest * (1 + 1e-9)


@given(problem=_problems(), share=st.floats(0.5, 1.5))
@settings(deadline=None)
def test_cut_no_faster_than_the_known_one_is_not_returned(problem: Problem, share: float) -> None:
    best = best_cut(problem)
    if best is None:
        return
    limited = best_cut(problem, below=best.seconds * share)
    if share > 1 + 1e-6:
        assert limited is not None
        assert limited.seconds == pytest.approx(best.seconds)
    elif share < 1 - 1e-6:
        assert limited is None


@pytest.mark.parametrize("case", ["gpt2XL", "bert", "T5"])
def test_cut_is_never_slower_than_fasops_heuristic(case: str) -> None:
    shape, nodes = CASES[case]
    faster = 0
    for order in rotations(nodes):
        model = FasopModel(shape, order, with_slips=False)
        for layout in model.layouts():
            problem = model.problem(layout)
            heuristic = problem.seconds(model.heuristic(layout)[0])
            best = best_cut(problem, tries=model.tries(layout))
            assert best is not None
            assert best.bound <= best.seconds * (1 + 1e-9) <= heuristic * (1 + 2e-9)
            faster += best.seconds < heuristic * (1 - 1e-9)
    assert faster > 40


@given(
    name=st.sampled_from(sorted(SHAPES)),
    layers=st.sampled_from([8, 12, 24]),
    batch=st.sampled_from([16, 24, 48]),
    counts=st.tuples(st.integers(0, 6), st.integers(1, 8)),
)
@example("bert", 12, 16, (5, 7))  # 792 orders, more than are tried
@settings(deadline=None, max_examples=8)
def test_a_search_is_never_slower_than_fasops(
    name: str, layers: int, batch: int, counts: tuple[int, int]
) -> None:
    shape = dataclasses.replace(SHAPES[name], layers=layers, batch=batch)
    nodes = (*[A100] * counts[0], *[A10] * counts[1])
    heuristic = [
        problem.seconds(model.heuristic(layout)[0])
        for model in (FasopModel(shape, order, with_slips=False) for order in rotations(nodes))
        for layout in model.layouts()
        for problem in [model.problem(layout)]
    ]
    found = search([FasopModel(shape, order, with_slips=False) for order in tried_orders(nodes)], keep=1)
    assert bool(found.best) is bool(heuristic)
    if heuristic:
        assert found.best[0].seconds <= min(heuristic) * (1 + 1e-9)


def test_every_rotation_of_many_nodes_is_tried() -> None:
    nodes = (*[A100] * 30, *[A10] * 60)
    assert {*tried_orders(nodes)} == {*rotations(nodes)}
    assert len(tried_orders((*[A100] * 300, *[A10] * 724))) == 8


def test_stages_of_a_t5_never_have_blocks_of_both_halves() -> None:
    model = FasopModel(SHAPES["T5"], (A10,) * 8)
    for layout in model.layouts():
        best = best_cut(model.problem(layout), tries=model.tries(layout))
        assert best is not None
        assert layout.pipeline == 1 or 25 in itertools.accumulate(best.layers)


def test_memory_moves_layers_to_where_they_fit() -> None:
    nodes = (A100, *[A10] * 3)
    roomy = FasopModel(SHAPES["bert"], nodes, within_memory=False)
    tight = FasopModel(SHAPES["bert"], nodes, within_memory=True)
    moved = 0
    for layout in tight.layouts():
        free, held = best_cut(roomy.problem(layout)), best_cut(tight.problem(layout))
        assert free is not None
        if held is not None:
            assert tight.estimate(layout, held.layers).fits
            moved += not roomy.estimate(layout, free.layers).fits
    assert moved
