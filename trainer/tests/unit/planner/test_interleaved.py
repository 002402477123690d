# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of an interleaved pipeline, against the passes that the engine executes."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core.pipeline_schedule import Pass, bubble
from rdm_planner.interleaved import Interleaved, InterleavedProblem, chunk_blocks, degrees, timeline
from rdm_planner.schedules import BlockingSends
from tests.unit.planner.simulation import by_hand

SIZES = st.tuples(st.integers(2, 4), st.integers(1, 3), st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(SIZES, st.data())
def test_a_step_takes_what_the_engines_passes_take(size: tuple[int, int, int], data: st.DataObject) -> None:
    stages, chunks, groups = size
    eager = data.draw(st.integers(0, 3)) if chunks == 1 else 0
    seconds = st.floats(0.1, 2.0)
    work = data.draw(
        st.lists(st.tuples(seconds, seconds), min_size=stages * chunks, max_size=stages * chunks)
    )
    expected = by_hand(work, stages, groups * stages, eager)
    found = timeline(work, stages, groups * stages, eager)
    ends = {(one.stage, Pass(one.is_forward, one.chunk, one.micro_batch)): one.end for one in found}
    assert ends == pytest.approx(expected)
    assert all(one.begin <= after.begin for one, after in itertools.pairwise(found))


@settings(max_examples=60, deadline=None)
@given(SIZES, st.data())
def test_no_cut_is_faster_than_its_bound(size: tuple[int, int, int], data: st.DataObject) -> None:
    stages, chunks, groups = size
    cut = [data.draw(st.integers(chunks + (stage == 0), 4 * chunks)) for stage in range(stages)]
    block, embedding, head = (data.draw(st.floats(0.1, 3.0)) for _ in range(3))
    units = [embedding, *[block] * (sum(cut) - 2), head]
    sends = tuple(data.draw(st.floats(0.0, 0.5)) for _ in range(stages))
    inner = Interleaved(stages, chunks, groups * stages, data.draw(st.floats(0.2, 0.5)))
    problem = InterleavedProblem(
        [[0.0, *itertools.accumulate(units)]] * stages,
        BlockingSends(inner, sends),
        lambda _cut, ends: max(ends),
        interleaved=inner,
        sends=sends,
    )
    times = problem.times(cut)
    for stage in range(stages):
        before, after = sum(times[:stage]), sum(times[stage + 1 :])
        for path in problem.schedule.paths(stage):
            least = path.before * before + path.own * times[stage] + path.after * after + path.seconds
            assert least <= problem.seconds(cut) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("stages", "chunks", "micro_batches"), [(2, 2, 2), (4, 2, 8), (4, 3, 120), (8, 4, 64)]
)
def test_chunks_that_are_alike_have_the_bubble_of_the_formula(
    stages: int, chunks: int, micro_batches: int
) -> None:
    step = Interleaved(stages, chunks, micro_batches).ends([1.0] * stages)[0]
    assert 1 - micro_batches / step == pytest.approx(bubble(stages, chunks, micro_batches))


def test_a_long_step_goes_on_as_it_began() -> None:
    times = [1.0, 1.2, 0.9, 1.1, 1.0, 1.3, 0.8, 1.6]
    found = Interleaved(4, 2, 64).ends_of_chunks(times)
    work = [(time / 3, 2 * time / 3) for time in times]
    assert found[0] == pytest.approx(max(one.end for one in timeline(work, 4, 64)), rel=5e-3)


def test_blocks_are_spread_over_a_stages_chunks() -> None:
    assert chunk_blocks([5, 4, 3], 2) == [3, 2, 2, 2, 2, 1]
    assert chunk_blocks([5, 4, 3], 1) == [5, 4, 3]
    # The last chunk has the head.
    assert chunk_blocks([2, 1], 2) == [1, 1, 1, 0]


def test_a_cut_has_a_block_in_each_chunk() -> None:
    inner = Interleaved(2, 2, 4)
    sums = [[float(count) for count in range(8)]] * 2
    problem = InterleavedProblem(
        sums, inner, lambda _cut, ends: max(ends), interleaved=inner, sends=(0.0, 0.0), first=3
    )
    assert math.isfinite(problem.seconds([4, 3]))
    assert problem.holds([4, 3])
    for cut in ([2, 5], [6, 1]):
        assert problem.seconds(cut) == math.inf
        assert not problem.holds(cut)


def test_degrees_divide_the_blocks_of_a_stage() -> None:
    assert degrees(32, 4) == [2, 4]
    assert degrees(36, 4) == [2, 3]
    assert degrees(80, 8) == [2]
    assert degrees(30, 1) == degrees(4, 4) == []
