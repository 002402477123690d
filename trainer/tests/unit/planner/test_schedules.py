# SPDX-License-Identifier: GPL-3.0-or-later
"""A pipeline's step: equal to the reference simulation, and never below its lower bounds."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdm_planner.schedules import BlockingSends, Chosen, OneForwardOneBackward, Schedule
from tests.unit.planner.simulation import simulate

_SECONDS = st.floats(0.001, 1.0) | st.sampled_from([0.1, 0.2])


@given(
    times=st.lists(_SECONDS, min_size=1, max_size=12),
    micro_batches=st.integers(1, 60),
    sends=st.tuples(st.floats(0, 0.5), st.floats(0, 0.5)),
)
@settings(deadline=None)
def test_a_step_ends_when_the_obvious_simulation_says(
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
