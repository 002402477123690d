# SPDX-License-Identifier: GPL-3.0-or-later
"""The cost of an interleaved pipeline, against the passes that the engine executes."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_core.pipeline_schedule import Pass, bubble
from rdm_planner.interleaved import Interleaved, InterleavedProblem, chunk_blocks, degrees, timeline
from rdm_planner.partition import best_cut
from rdm_planner.schedules import BlockingSends
from tests.unit.planner.simulation import by_hand

SIZES = st.tuples(st.integers(2, 4), st.integers(1, 3), st.integers(1, 4))


@settings(max_examples=60, deadline=None)
@given(SIZES, st.data())
def test_step_takes_as_long_as_the_engines_passes(size: tuple[int, int, int], data: st.DataObject) -> None:
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


def _problem(
    interleaved: Interleaved, units: Sequence[tuple[float, float]], sends: float = 0.0
) -> InterleavedProblem:
    """Return the problem of units with the seconds of a forward and of a backward pass on equal stages."""
    stages = interleaved.stages
    both, backward = ([0.0, *itertools.accumulate(column)] for column in zip(*_summed(units), strict=True))
    added = (sends,) * stages
    return InterleavedProblem(
        [both] * stages,
        BlockingSends(interleaved, added),
        lambda _cut, ends: max(ends),
        first=interleaved.chunks + 1,
        interleaved=interleaved,
        sends=added,
        backward=[backward] * stages,
    )


def _summed(units: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(ahead + back, back) for ahead, back in units]


def _cuts(blocks: int, chunks: int) -> Iterator[tuple[int, ...]]:
    """Yield every cut of a model; its last chunk may have no block."""
    for inner in itertools.combinations(range(1, blocks + 1), chunks - 1):
        first, *others = (b - a for a, b in itertools.pairwise((0, *inner, blocks + 1)))
        yield (first + 1, *others)


def _even(blocks: int, chunks: int) -> list[int]:
    cut = chunk_blocks([blocks], chunks)
    cut[0] += 1
    cut[-1] += 1
    return cut


@settings(max_examples=60, deadline=None)
@given(SIZES, st.data())
def test_no_cut_is_faster_than_its_bound(size: tuple[int, int, int], data: st.DataObject) -> None:
    stages, chunks, groups = size
    cut = [data.draw(st.integers(1 + (virtual == 0), 4)) for virtual in range(stages * chunks)]
    seconds = st.tuples(st.floats(0.1, 3.0), st.floats(0.1, 3.0))
    block, embedding, head = (data.draw(seconds) for _ in range(3))
    inner = Interleaved(stages, chunks, groups * stages)
    units = [embedding, *[block] * (sum(cut) - 2), head]
    problem = _problem(inner, units, data.draw(st.floats(0.0, 0.5)))
    assert sum(problem.times(cut)) == pytest.approx(sum(map(sum, units)))
    for stage, own in enumerate(problem.times(cut)):
        for path in problem.schedule.paths(stage):
            assert path.own * own + path.seconds <= problem.seconds(cut) * (1 + 1e-9)


@pytest.mark.parametrize(("stages", "chunks"), [(2, 2), (2, 3), (3, 2)])
def test_the_cut_is_the_best_of_all_or_next_to_it(stages: int, chunks: int) -> None:
    drawn, slower = random.Random(7), []
    for _ in range(25):
        blocks = stages * chunks + drawn.randrange(6)
        block = drawn.uniform(0.5, 1.5), drawn.uniform(0.5, 3.0)
        head = drawn.uniform(0.0, 6.0), drawn.uniform(0.0, 6.0)
        units = [(0.1, 0.2), *[block] * blocks, head]
        problem = _problem(Interleaved(stages, chunks, stages * drawn.randrange(1, 9)), units)
        found = best_cut(problem, tries=[_even(blocks, stages * chunks)])
        assert found is not None
        assert found.bound <= found.seconds
        slower.append(found.seconds / min(map(problem.seconds, _cuts(blocks, stages * chunks))) - 1)
    assert max(slower) < 3e-3
    assert sum(one > 1e-9 for one in slower) <= 1


def test_a_stage_with_a_slow_head_has_blocks_for_its_chunks() -> None:
    # The even cut does not fit, and in balanced ones the last stage has the head alone.
    units = [(0.1, 0.2), *[(1.0, 2.0)] * 6, (10.0, 20.0)]
    problem = replace(
        _problem(Interleaved(2, 2, 4), units),
        fits=lambda stage, begin, end: end - begin <= (7, 3)[stage],
        holds_chunks=lambda stage, chunks: sum(chunks) <= (7, 3)[stage],
    )
    cut = best_cut(problem, tries=[_even(6, 4)])
    assert cut is not None
    fitting = [one for one in _cuts(6, 4) if problem.holds(one)]
    assert cut.seconds == pytest.approx(min(map(problem.seconds, fitting)))


def test_a_head_whose_work_is_in_the_forward_pass_moves_blocks_between_the_chunks_of_a_stage() -> None:
    # GPT-1.3B on two and on four GPUs, ms.
    units = [(0.1, 0.1), *[(3.2, 6.6)] * 24, (16.1, 0.2)]
    for stages, micro_batches, least, most in ((2, 16, 0.970, 0.975), (4, 32, 0.885, 0.900)):
        problem = _problem(Interleaved(stages, 2, micro_batches), units)
        cut = best_cut(problem, tries=[_even(24, 2 * stages)])
        assert cut is not None
        busy = micro_batches * problem.sums[0][-1] / stages
        spread = {2: (8, 6, 6, 6), 4: (5, 3, 3, 3, 3, 3, 3, 3)}[stages]
        assert busy / problem.seconds(spread) < least + 0.005
        assert busy / cut.seconds > most - 0.001


@pytest.mark.parametrize(
    ("stages", "chunks", "micro_batches"), [(2, 2, 2), (4, 2, 8), (4, 3, 120), (8, 4, 64)]
)
def test_chunks_that_are_alike_have_the_bubble_of_the_formula(
    stages: int, chunks: int, micro_batches: int
) -> None:
    step = Interleaved(stages, chunks, micro_batches).ends([1.0] * stages)[0]
    assert 1 - micro_batches / step == pytest.approx(bubble(stages, chunks, micro_batches))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(2, 3), st.integers(1, 40), st.data())
def test_long_step_takes_as_long_as_its_passes(
    stages: int, chunks: int, groups: int, data: st.DataObject
) -> None:
    seconds = st.tuples(st.floats(0.8, 1.2), st.floats(1.6, 2.4))
    work = data.draw(st.lists(seconds, min_size=stages * chunks, max_size=stages * chunks))
    ends = [0.0] * stages
    for one in timeline(work, stages, groups * stages):
        ends[one.stage] = max(ends[one.stage], one.end)
    assert Interleaved(stages, chunks, groups * stages).ends_of_chunks(work) == pytest.approx(ends)


def test_blocks_are_spread_over_a_stages_chunks() -> None:
    assert chunk_blocks([5, 4, 3], 2) == [3, 2, 2, 2, 2, 1]
    assert chunk_blocks([5, 4, 3], 1) == [5, 4, 3]
    # The last chunk has the head.
    assert chunk_blocks([2, 1], 2) == [1, 1, 1, 0]


def test_a_cut_has_a_block_in_each_chunk() -> None:
    problem = _problem(Interleaved(2, 2, 4), [(1.0, 2.0)] * 7)
    assert math.isfinite(problem.seconds([2, 2, 2, 1]))
    assert problem.holds([2, 2, 2, 1])
    for cut in ([1, 2, 2, 2], [3, 0, 2, 2]):
        assert problem.seconds(cut) == math.inf
        assert not problem.holds(cut)


def test_degrees_divide_the_blocks_of_a_stage() -> None:
    assert degrees(32, 4) == [2, 4]
    assert degrees(36, 4) == [2, 3]
    assert degrees(80, 8) == [2]
    assert degrees(30, 1) == degrees(4, 4) == []


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (4, 2), (4, 9)])
def test_the_picture_of_a_pipeline_is_1f1b(stages: int, micro_batches: int) -> None:
    work = [(0.25 * seconds, 0.75 * seconds) for seconds in (1.0 + stage / 8 for stage in range(stages))]
    passes = timeline(work, stages, micro_batches)
    assert len(passes) == 2 * stages * micro_batches
    done = {(one.stage, one.is_forward, one.micro_batch): one for one in passes}
    for (stage, is_forward, number), one in done.items():
        before = done.get((stage - 1 if is_forward else stage + 1, is_forward, number))
        assert before is None or before.end <= one.begin
    for stage in range(stages):
        own = [one for one in passes if one.stage == stage]
        assert all(one.end <= after.begin + 1e-12 for one, after in itertools.pairwise(own))
        held, most = 0, 0
        for one in own:
            held += 1 if one.is_forward else -1
            most = max(most, held)
        assert most == min(stages - stage, micro_batches)
    # Equal stages take (m + p - 1) times.
    even = timeline([(0.25, 0.75)] * stages, stages, micro_batches)
    assert max(one.end for one in even) == pytest.approx(micro_batches + stages - 1)
