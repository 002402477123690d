# SPDX-License-Identifier: GPL-3.0-or-later
"""A batch that grows: values calculated by hand, and steps counted one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rdm_core.batch_ramp import BatchRamp
from rdm_core.config import check, from_dict


def test_the_batches_of_a_known_ramp() -> None:
    # Megatron's example: from 16 by 8 to 256 over 6,000,000 samples, 200,000 for each of 30 increments.
    ramp = BatchRamp(16, 8, 6_000_000, 256)
    assert [ramp.at(samples) for samples in (0, 199_999, 200_000, 399_999, 400_000)] == [16, 16, 24, 24, 32]
    assert [ramp.at(samples) for samples in (5_999_999, 6_000_000, 10**9)] == [248, 256, 256]
    assert BatchRamp.constant(8).at(0) == 8


@given(
    start=st.integers(1, 8),
    increment=st.integers(1, 8),
    levels=st.integers(0, 5),
    samples=st.integers(0, 300),
    begin=st.integers(0, 400),
    length=st.integers(0, 400),
)
def test_counted_steps_are_the_steps_taken(
    start: int, increment: int, levels: int, samples: int, begin: int, length: int
) -> None:
    ramp = BatchRamp(start, increment, samples, start + levels * increment)
    taken, consumed = 0, begin
    while consumed + ramp.at(consumed) <= begin + length:
        consumed += ramp.at(consumed)
        taken += 1
    assert ramp.steps(begin, begin + length) == taken


def test_a_ramp_that_does_not_fit_is_one_sentence() -> None:
    def problems(**changes: object) -> str:
        optimisation = {"global_batch_size": 32, "micro_batch_size": 2, "train_samples": 1000, **changes}
        return " ".join(check(from_dict({"optimisation": optimisation, "data": {"mock": True}}), 2))

    assert problems(rampup_batch_size={"start": 8, "increment": 8, "samples": 100}) == ""
    assert "does not meet global_batch_size 32" in problems(
        rampup_batch_size={"start": 8, "increment": 16, "samples": 100}
    )
    assert "must be multiples of micro_batch_size 2 x 2 replicas = 4" in problems(
        rampup_batch_size={"start": 2, "increment": 6, "samples": 100}
    )
    found = problems(rampup_batch_size={"start": 8, "increment": 8, "samples": 100}, warmup_iterations=3)
    assert "give warmup_samples" in found
