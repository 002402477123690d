# SPDX-License-Identifier: GPL-3.0-or-later
"""A pipeline's step: equal to the reference simulation, and never below its lower bounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_planner.schedules import (
    BlockingSends,
    Chosen,
    EagerOneForwardOneBackward,
    OneForwardOneBackward,
    Schedule,
)
from tests.unit.planner.simulation import by_hand, simulate

_SECONDS = st.floats(0.001, 1.0) | st.sampled_from([0.1, 0.2])


@given(
    times=st.lists(_SECONDS, min_size=1, max_size=12),
    micro_batches=st.integers(1, 60),
    sends=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
)
@settings(deadline=None)
def test_step_ends_when_the_reference_simulation_ends(
    times: list[float], micro_batches: int, sends: tuple[float, float]
) -> None:
    stages = len(times)
    boundary = [sends[0], *[0.0] * (stages - 3), sends[1]][: stages - 1] if stages > 2 else [sends[0]]
    schedule = OneForwardOneBackward(stages, micro_batches, boundary[0], boundary[-1])
    expected = simulate(times, boundary, micro_batches)
    ends = schedule.ends(times)
    assert ends == pytest.approx(expected, rel=1e-9)
    assert ends[0] == max(ends)
    for stage in range(stages):
        before, after = sum(times[:stage]), sum(times[stage + 1 :])
        for path in schedule.paths(stage):
            assert before + path.own * times[stage] + path.after * after + path.seconds <= ends[0] * (
                1 + 1e-9
            )
    assert _bounds(schedule, times)[-1] <= ends[0] * (1 + 1e-9)


@given(
    times=st.lists(_SECONDS, min_size=1, max_size=8),
    micro_batches=st.integers(1, 60),
    eager=st.integers(0, 4),
    forward=st.floats(0.1, 0.9),
)
@settings(deadline=None)
def test_eager_stages_take_as_long_as_the_engines_passes(
    times: list[float], micro_batches: int, eager: int, forward: float
) -> None:
    stages = len(times)
    schedule = EagerOneForwardOneBackward(stages, micro_batches, forward=forward, eager=eager)
    work = [(time * forward, time * (1 - forward)) for time in times]
    expected = [0.0] * stages
    for (stage, _), end in by_hand(work, stages, micro_batches, eager).items():
        expected[stage] = max(expected[stage], end)
    ends = schedule.ends(times)
    assert ends == pytest.approx(expected, rel=1e-9)
    for stage in range(stages):
        before, after = sum(times[:stage]), sum(times[stage + 1 :])
        for path in schedule.paths(stage):
            bound = path.before * before + path.own * times[stage] + path.after * after + path.seconds
            assert bound <= ends[0] * (1 + 1e-9)
    assert _bounds(schedule, times)[-1] <= ends[0] * (1 + 1e-9)
    if not eager:
        assert ends[0] == pytest.approx(
            OneForwardOneBackward(stages, micro_batches, forward=forward).ends(times)[0]
        )


def test_a_first_stage_that_runs_ahead_never_waits() -> None:
    # GPT-1.3B in two stages of 13 and 11 blocks, with a head as long as 1.4 of them.
    times = [13.0, 12.4]
    steps = [EagerOneForwardOneBackward(2, 32, eager=eager).ends(times)[0] for eager in range(4)]
    assert [25.4 * 32 / 2 / step for step in steps] == pytest.approx([0.950, 0.968, 0.977, 0.977], abs=5e-4)


def _bounds(schedule: Schedule, times: list[float]) -> list[float]:
    """Return the lower bounds when the times of the first stages are known, and the sum of the others'."""
    chosen, found = Chosen(), []
    for stage, time in enumerate(times):
        chosen = schedule.extend(chosen, time, sum(times[stage + 1 :]))
        found.append(chosen.bound)
    return found


def test_equal_stages_take_a_step_for_each_micro_batch_and_stage() -> None:
    # (m + p - 1) slots, the textbook's bubble.
    assert OneForwardOneBackward(4, 16).ends([0.3] * 4)[0] == pytest.approx(19 * 0.3)


def test_the_bounds_of_equal_stages_are_met() -> None:
    schedule = OneForwardOneBackward(4, 16)
    assert _bounds(schedule, [0.3] * 4) == pytest.approx([19 * 0.3] * 4)


@given(
    stages=st.lists(st.tuples(_SECONDS, st.floats(0, 0.3)), min_size=1, max_size=8),
    micro_batches=st.integers(1, 40),
)
@settings(deadline=None)
def test_sends_that_block_a_stage_are_a_part_of_its_time(
    stages: list[tuple[float, float]], micro_batches: int
) -> None:
    times, added = [time for time, _ in stages], tuple(extra for _, extra in stages)
    plain = OneForwardOneBackward(len(stages), micro_batches)
    schedule = BlockingSends(plain, added)
    ends = schedule.ends(times)
    assert ends == plain.ends([sum(stage) for stage in stages])
    for stage in range(len(stages)):
        before, after = sum(times[:stage]), sum(times[stage + 1 :])
        for path in schedule.paths(stage):
            bound = before + path.own * times[stage] + path.after * after + path.seconds
            assert bound <= ends[0] * (1 + 1e-9)
    assert _bounds(schedule, times)[-1] <= ends[0] * (1 + 1e-9)
