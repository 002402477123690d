# SPDX-License-Identifier: GPL-3.0-or-later
"""The order of passes is consistent over all stages."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_core import pipeline_schedule
from rdm_core.config import Config
from rdm_core.pipeline_schedule import Pass, bubble, most_held, passes, received_before
from rdm_planner.schedules import BlockingSends, OneForwardOneBackward
from rdm_trainer.engine_step import engine_step

# Stages, chunks of each, micro-batches, eager forward passes.
Shape = tuple[int, int, int, int]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    stages, chunks = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    count = draw(st.integers(1, 36))
    if chunks > 1:
        return stages, chunks, -(-count // stages) * stages, 0
    return stages, chunks, count, draw(st.integers(0, 5))


def times(
    shape: Shape,
    forward: int = 100,
    backward: int = 200,
    message: int = 0,
    *,
    slower: Sequence[int] = (),
) -> list[int]:
    """Run all stages in their order, each pass when its inputs are there, and return when each stage ends.

    Each pass of stage ``i`` takes ``slower[i]`` longer.

    A receive begins just before its pass, and takes as long as a message; sends overlap with the passes. It
    fails if stages deadlock.
    """
    stages, chunks, count, _ = shape
    orders = [passes(stage, *shape) for stage in range(stages)]
    slower = slower or [0] * stages
    done: dict[tuple[bool, int, int], int] = {}
    now, position = [0] * stages, [0] * stages
    while any(position[stage] < len(orders[stage]) for stage in range(stages)):
        before = list(position)
        for stage, order in enumerate(orders):
            if position[stage] == len(order):
                continue
            one = order[position[stage]]
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
                now[stage] = begin + (forward if one.is_forward else backward) + slower[stage]
                done[one.is_forward, virtual, one.micro_batch] = now[stage]
                position[stage] += 1
        assert position != before, f"{shape}: the stages wait for each other at {position}"
    assert len(done) == 2 * stages * chunks * count
    return now


@given(shapes())
def test_each_stage_does_every_pass_once_and_holds_no_more_than_it_may(shape: Shape) -> None:
    stages, chunks, count, _ = shape
    for stage in range(stages):
        every = {Pass(True, chunk, number) for chunk in range(chunks) for number in range(count)}
        held: set[tuple[int, int]] = set()
        before_backward = set()
        most = 0
        for one in passes(stage, *shape):
            key = one.chunk, one.micro_batch
            if one.is_forward:
                assert key not in held
                every.discard(one)
                held.add(key)
            else:
                counts = collections.Counter(chunk for chunk, _ in held)
                before_backward.add((one.chunk, tuple(counts[chunk] for chunk in range(chunks))))
                held.remove(key)
            most = max(most, len(held))
        assert not held
        assert not every
        assert most == most_held(stage, *shape)
        assert before_backward == pipeline_schedule.held(stage, *shape)


@given(shapes())
def test_neighbours_send_in_the_order_in_which_they_receive(shape: Shape) -> None:
    stages, chunks, _, _ = shape
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
def test_a_received_message_proves_which_sent_ones_have_arrived(shape: Shape) -> None:
    stages, chunks, _, _ = shape
    if stages == 1:
        return
    orders = [passes(stage, *shape) for stage in range(stages)]
    for stage, order in enumerate(orders):
        for forward in (True, False):
            # What the stage receives with activations or gradients, and which of its own prove to be there.
            other = (stage + (-1 if forward else 1)) % stages
            end = (0, 0) if forward else (stages - 1, chunks - 1)
            proofs = received_before(other, forward, *shape)
            receives = [one for one in order if one.is_forward == forward and (stage, one.chunk) != end]
            sends = [one for one in order if one.is_forward != forward and (stage, one.chunk) != end]
            assert len(proofs) == len(receives) == len(sends)
            assert list(proofs) == sorted(proofs)
            wrapped = (stage == 0) if forward else (stage == stages - 1)
            step = (-1 if forward else 1) * wrapped
            for one, proved in zip(receives, proofs, strict=True):
                # The neighbour has begun the passes that need them before the one that sent this message.
                there = orders[other]
                sent = there.index(one._replace(chunk=one.chunk + step))
                for mine in sends[:proved]:
                    assert there.index(mine._replace(chunk=mine.chunk + step)) < sent
                # Before a backward pass, its own activations.
                assert forward or one._replace(is_forward=True) in sends[:proved]


@given(shapes())
def test_the_stages_never_wait_for_each_other_and_no_longer_than_the_bubble(shape: Shape) -> None:
    stages, chunks, count, _ = shape
    compute = 300 * chunks * count
    assert max(times(shape)) == compute + 300 * (stages - 1)
    assert bubble(stages, chunks, count) == pytest.approx(1 - compute / max(times(shape)))


@given(shapes(), st.data())
def test_stages_of_any_speed_complete(shape: Shape, data: st.DataObject) -> None:
    slower = data.draw(st.lists(st.integers(0, 1000), min_size=shape[0], max_size=shape[0]))
    alone = [(300 + 2 * more) * shape[1] * shape[2] for more in slower]
    ends = times(shape, slower=slower)
    assert all(end >= least for end, least in zip(ends, alone, strict=True))


@pytest.mark.parametrize(("eager", "waits"), [(0, 250), (1, 70), (2, 0)])
def test_a_slower_first_stage_waits_less_the_further_it_runs_ahead(eager: int, waits: int) -> None:
    # A micro-batch takes the first stage 290, and the second 270.
    assert times((2, 1, 32, eager), 90, 180, slower=(10, 0))[0] == 32 * 290 + waits


@given(st.integers(2, 6), st.integers(1, 12), st.integers(1, 50))
def test_planner_includes_waiting_for_receives(stages: int, micro_batches: int, message: int) -> None:
    """A stage receives once per micro-batch at each of its borders, and sends as often."""
    shape = stages, 1, micro_batches, 0
    hidden = engine_step(Config(engine="native")).hidden_sends
    exchanged = [2 * message * ((stage > 0) + (stage < stages - 1)) for stage in range(stages)]
    added = tuple(seconds * (1 - hidden) for seconds in exchanged)
    planned = BlockingSends(OneForwardOneBackward(stages, micro_batches), added).ends([300.0] * stages)
    assert max(planned) == pytest.approx(max(times(shape, message=message)), abs=message)
