# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of passes is consistent over all stages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_core.config import Config
from rdm_core.pipeline_schedule import Pass, bubble, most_held, passes
from rdm_planner.schedules import BlockingSends, OneForwardOneBackward
from rdm_trainer.engine_step import engine_step

# Stages, chunks of each, micro-batches.
Shape = tuple[int, int, int]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    stages, chunks = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    count = draw(st.integers(1, 12))
    return stages, chunks, count if chunks == 1 else -(-count // stages) * stages


def times(shape: Shape, forward: int = 100, backward: int = 200, message: int = 0) -> list[int]:
    """Run all stages in their order, each pass when its inputs are there, and return when each stage ends.

    A receive begins just before its pass, and takes as long as a message; sends overlap with the passes. It
    fails if stages deadlock.
    """
    stages, chunks, count = shape
    orders = [passes(stage, *shape) for stage in range(stages)]
    done: dict[tuple[bool, int, int], int] = {}
    now, place = [0] * stages, [0] * stages
    while any(place[stage] < len(orders[stage]) for stage in range(stages)):
        before = list(place)
        for stage, order in enumerate(orders):
            if place[stage] == len(order):
                continue
            one = order[place[stage]]
            virtual = one.chunk * stages + stage
            if one.is_forward:
                needed = (True, virtual - 1, one.micro_batch) if virtual else None
                received = message if virtual else 0
            elif virtual == stages * chunks - 1:
                needed, received = (True, virtual, one.micro_batch), 0
            else:
                needed, received = (False, virtual + 1, one.micro_batch), message
            if needed is None or needed in done:
                begin = max(now[stage], done[needed] if needed else 0) + received
                now[stage] = begin + (forward if one.is_forward else backward)
                done[one.is_forward, virtual, one.micro_batch] = now[stage]
                place[stage] += 1
        assert place != before, f"{shape}: the stages wait for each other at {place}"
    assert len(done) == 2 * stages * chunks * count
    return now


@given(shapes())
def test_each_stage_does_every_pass_once_and_holds_no_more_than_it_may(shape: Shape) -> None:
    stages, chunks, count = shape
    for stage in range(stages):
        every = {Pass(True, chunk, number) for chunk in range(chunks) for number in range(count)}
        held: set[tuple[int, int]] = set()
        most = 0
        for one in passes(stage, *shape):
            key = one.chunk, one.micro_batch
            if one.is_forward:
                assert key not in held
                every.discard(one)
                held.add(key)
            else:
                held.remove(key)
            most = max(most, len(held))
        assert not held
        assert not every
        assert most == most_held(stage, *shape)


@given(shapes())
def test_neighbours_send_in_the_order_in_which_they_receive(shape: Shape) -> None:
    stages, chunks, _ = shape
    for stage in range(stages):
        other = (stage + 1) % stages
        wrapped = stage == stages - 1
        for forward in (True, False):
            # The messages over this border, by the chunk before it.
            here = [
                (one.chunk, one.micro_batch) for one in passes(stage, *shape) if one.is_forward == forward
            ]
            there = [
                (one.chunk - wrapped, one.micro_batch)
                for one in passes(other, *shape)
                if one.is_forward == forward
            ]
            assert [key for key in here if not (wrapped and key[0] == chunks - 1)] == [
                key for key in there if key[0] >= 0
            ]


@given(shapes())
def test_the_stages_never_wait_for_each_other_and_no_longer_than_the_bubble(shape: Shape) -> None:
    stages, chunks, count = shape
    compute = 300 * chunks * count
    assert max(times(shape)) == compute + 300 * (stages - 1)
    assert bubble(*shape) == pytest.approx(1 - compute / max(times(shape)))


@given(st.integers(2, 6), st.integers(1, 12), st.integers(1, 50))
def test_the_planner_counts_what_stages_wait_for_their_receives(
    stages: int, micro_batches: int, message: int
) -> None:
    """A stage receives once per micro-batch at each of its borders, and sends as often."""
    shape = stages, 1, micro_batches
    hidden = engine_step(Config(engine="native")).hidden_sends
    exchanged = [2 * message * ((stage > 0) + (stage < stages - 1)) for stage in range(stages)]
    added = tuple(seconds * (1 - hidden) for seconds in exchanged)
    planned = BlockingSends(OneForwardOneBackward(stages, micro_batches), added).ends([300.0] * stages)
    assert max(planned) == pytest.approx(max(times(shape, message=message)), abs=message)
