# SPDX-License-Identifier: GPL-3.0-or-later
"""FASOP's model: upstream's own numbers, and every layout as an implementation without any cache had it."""

import dataclasses
import json
import lzma
from pathlib import Path

import pytest

from rdm_core.errors import TrainerError
from rdm_planner.fasop.model import FasopModel, rotations
from rdm_planner.fasop.shapes import A10, A100, CASES, SHAPES
from rdm_planner.layouts import Estimate, Layout
from rdm_planner.nodes import NodeKind

_LAYOUTS = {
    "gpt2XL": 74,
    "gpt2XL-heterogeneous": 592,
    "bert": 89,
    "bert-heterogeneous": 356,
    "T5": 89,
}


def _estimates(case: str, *, with_slips: bool) -> list[Estimate]:
    shape, nodes = CASES[case]
    found = []
    for order in rotations(nodes):
        model = FasopModel(shape, order, with_slips)
        found += [model.estimate(layout) for layout in model.layouts()]
    return sorted(found, key=lambda estimate: estimate.seconds)


@pytest.mark.parametrize(
    ("case", "layout", "first_node", "seconds", "cut"),
    [
        ("gpt2XL", Layout(1, 1, 32, 1), "A10", 1.266343, None),
        ("gpt2XL-heterogeneous", Layout(1, 2, 16, 1), "A10", 1.068223, (4, 3, 3, 3, 2, *[3] * 9, 4, 4)),
        ("bert", Layout(1, 16, 1, 4), "A10", 0.95459, (26,)),
        ("bert-heterogeneous", Layout(1, 4, 4, 8), "A100", 0.819658, (14, 5, 5, 2)),
        ("T5", Layout(1, 4, 8, 2), "A10", 1.01782, (9, 8, 8, 6, 5, 4, 5, 5)),
    ],
)
def test_upstreams_fastest_layout_is_fastest_with_its_time(
    case: str, layout: Layout, first_node: str, seconds: float, cut: tuple[int, ...] | None
) -> None:
    best = next(estimate for estimate in _estimates(case, with_slips=True) if estimate.fits)
    assert best.layout == layout
    assert best.nodes[0] == first_node
    assert best.seconds == pytest.approx(seconds, rel=1e-6)
    assert cut is None or best.cut == cut


@pytest.mark.parametrize(
    ("nodes", "cut", "parts"),
    [
        (
            (A10,) * 8,
            None,
            {"pipeline": 1.11905, "data reduction": 0.049661, "embedding reduction": 0.128658},
        ),
        ((A10,) * 8, (1, 11, 8, 8, 8, 8, 5, 1), {"pipeline": 1.395748, "data reduction": 0.0150771}),
        ((A100, *[A10] * 7), None, {"pipeline": 1.005746, "data reduction": 0.004257}),
    ],
)
def test_parts_of_a_step_are_upstreams(
    nodes: tuple[NodeKind, ...], cut: tuple[int, ...] | None, parts: dict[str, float]
) -> None:
    estimate = FasopModel(SHAPES["gpt2XL"], nodes).estimate(Layout(1, 4, 8, 1), cut)
    assert {name: estimate.parts[name] for name in parts} == pytest.approx(parts, rel=1e-4)


def test_documents_partition_has_upstreams_time() -> None:
    estimate = FasopModel(SHAPES["gpt2XL"], (A10,) * 8).estimate(
        Layout(1, 4, 8, 1), (1, 11, 8, 8, 8, 8, 5, 1)
    )
    assert estimate.seconds == pytest.approx(1.539483, rel=1e-6)


def test_upstream_counts_as_many_layouts_that_fit() -> None:
    assert sum(estimate.fits for estimate in _estimates("gpt2XL", with_slips=True)) == 56


@pytest.mark.parametrize("with_slips", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_every_layout_equals_the_reference_implementation(case: str, with_slips: bool) -> None:
    """``fasop.json.xz`` has each layout's cut, seconds, GiB and whether it runs out of memory.

    It was written by an implementation of the paper's model and its program's slips in loops over scalars,
    ``fasop_reference.py`` in the history of this directory.
    """
    nodes = [node.gpu for node in CASES[case][1]]
    recorded = json.loads(lzma.decompress(Path(__file__).with_name("fasop.json.xz").read_bytes()))
    expected = {}
    for *degrees, first, cut, seconds, memory, is_full in recorded[case][f"slips: {with_slips}"]:
        order = (*nodes[first:], *nodes[:first])
        expected[Layout(*degrees), order] = cut, seconds, memory, is_full
    found = _estimates(case, with_slips=with_slips)
    assert len(found) == len(expected) == _LAYOUTS[case]
    for estimate in found:
        cut, seconds, memory, is_full = expected[estimate.layout, estimate.nodes]
        assert "-".join(map(str, estimate.cut)) == cut
        assert estimate.seconds == pytest.approx(seconds, rel=1e-9)
        assert estimate.memory_gib == pytest.approx(memory, rel=1e-9)
        assert estimate.fits is not is_full


def test_the_slip_of_the_heuristic_changes_a_bert() -> None:
    layout = Layout(1, 2, 8, 4)
    faithful, clean = (FasopModel(*CASES["bert"], with_slips=slips) for slips in (True, False))
    assert faithful.estimate(layout).cut != clean.estimate(layout).cut
    # With the slip, the time is not that of the cut.
    cut = faithful.heuristic(layout)[0]
    assert faithful.estimate(layout).seconds < 0.95 * faithful.estimate(layout, cut).seconds
    assert clean.estimate(layout).seconds == pytest.approx(
        clean.estimate(layout, clean.heuristic(layout)[0]).seconds
    )


@pytest.mark.parametrize("blocks", [2, 7])
def test_a_t5_needs_blocks_for_two_stages(blocks: int) -> None:
    with pytest.raises(TrainerError, match=f"A T5 of {blocks} blocks cannot be cut"):
        dataclasses.replace(SHAPES["T5"], layers=blocks)
