# SPDX-License-Identifier: GPL-3.0-or-later
"""The learning rate: values calculated by hand, and what holds for every schedule."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_core import config as configuration
from rdm_trainer.optim.schedule import LearningRate, WeightDecay


def schedules() -> st.SearchStrategy[LearningRate]:
    return st.builds(
        lambda highest, low, warmup, rest, form: LearningRate(
            highest, low * highest, warmup, warmup + rest, form
        ),
        st.floats(1e-6, 1.0),
        st.floats(0, 1),
        st.integers(0, 10_000),
        st.integers(1, 100_000),
        st.sampled_from(["cosine", "linear", "constant"]),
    )


def test_the_values_of_a_known_run() -> None:
    # Seed 2's log: lr 1.5e-4, warm-up 1 % of 320000 steps of 64 samples; 15, 25 and 35 steps counted.
    rate = LearningRate(1.5e-4, 1e-5, 0.01 * 320000 * 64, 320000 * 64)
    assert [f"{rate.at(steps * 64):.3E}" for steps in (15, 25, 35)] == ["7.031E-07", "1.172E-06", "1.641E-06"]


@pytest.mark.parametrize(
    ("form", "quarter", "half"),
    [
        ("linear", 0.1 + 0.75 * 0.9, 0.1 + 0.5 * 0.9),
        ("cosine", 0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, 0.1 + 0.5 * 0.9),
        ("constant", 1.0, 1.0),
    ],
)
def test_values_by_hand(form: str, quarter: float, half: float) -> None:
    rate = LearningRate(1.0, 0.1, 100, 500, form)  # type: ignore[arg-type]
    assert rate.at(0) == 0.0
    assert rate.at(50) == 0.5
    assert rate.at(100) == 1.0
    assert rate.at(200) == pytest.approx(quarter)
    assert rate.at(300) == pytest.approx(half)
    assert rate.at(500) == (1.0 if form == "constant" else 0.1)
    assert rate.at(10_000) == (1.0 if form == "constant" else 0.1)


@pytest.mark.parametrize(
    ("form", "quarter", "half"),
    [
        ("linear", 0.75, 0.5),
        ("cosine", (1 + math.sqrt(0.5)) / 2, 0.5),
        # 2 * 0.5 ** x - 1
        ("exponential", 2 / 2**0.25 - 1, math.sqrt(2) - 1),
        ("minus_sqrt", 0.5, 1 - math.sqrt(0.5)),
    ],
)
def test_a_stable_rate_decays_at_the_end(form: str, quarter: float, half: float) -> None:
    optimisation: dict[str, Any] = {"train_iterations": 100, "warmup_iterations": 10, "min_lr": 0.1}
    rate = of(**optimisation, schedule="wsd", wsd_decay_style=form, wsd_decay_iterations=40)
    assert rate.after(5, 40) == 0.5
    assert {rate.after(step, 8 * step) for step in range(10, 61)} == {1.0}
    assert rate.after(70, 560) == pytest.approx(0.1 + 0.9 * quarter)
    assert rate.after(80, 640) == pytest.approx(0.1 + 0.9 * half)
    assert [rate.after(step, 8 * step) for step in (100, 120)] == [0.1, 0.1]
    # The same in samples, and after a resume.
    again = of(50, 400, **optimisation, schedule="wsd", wsd_decay_style=form, wsd_decay_samples=320)
    assert [again.after(step, 8 * step) for step in range(50, 110)] == [
        rate.after(step, 8 * step) for step in range(50, 110)
    ]


@pytest.mark.parametrize(("form", "quarter"), [("linear", 0.25), ("cosine", (1 - math.sqrt(0.5)) / 2)])
@pytest.mark.parametrize("length", [{"train_iterations": 100}, {"train_samples": 800}])
def test_the_weight_decay_goes_from_start_to_end(form: str, quarter: float, length: dict[str, int]) -> None:
    keys = {"weight_decay_incr_style": form, "start_weight_decay": 0.0, "end_weight_decay": 0.4}
    decay = WeightDecay.of(
        configuration.from_dict({"optimisation": {"global_batch_size": 8, **length, **keys}})
    )
    found = [decay.after(step, 8 * step) for step in (0, 25, 50, 100, 120)]
    assert found == pytest.approx([0.0, 0.4 * quarter, 0.2, 0.4, 0.4])


@given(schedules(), st.integers(0, 200_000))
def test_learning_rate_stays_between_its_bounds(rate: LearningRate, samples: int) -> None:
    value = rate.at(samples)
    least = 0.0 if samples <= rate.warmup else rate.lowest
    assert least * (1 - 1e-12) <= value <= rate.highest * (1 + 1e-12)


@given(schedules(), st.integers(0, 200_000), st.integers(0, 1000))
def test_learning_rate_rises_and_then_falls(rate: LearningRate, samples: int, more: int) -> None:
    before, after = rate.at(samples), rate.at(samples + more)
    if samples + more <= rate.warmup:
        assert after >= before
    elif samples >= rate.warmup:
        assert after <= before + 1e-15


@given(schedules(), st.integers(0, 200_000))
def test_learning_rate_is_lowest_after_the_decay(rate: LearningRate, more: int) -> None:
    expected = rate.highest if rate.form == "constant" else rate.lowest
    assert rate.at(int(rate.decay) + 1 + more) == expected


def of(steps: int = 0, samples: int = 0, **optimisation: Any) -> LearningRate:
    return LearningRate.of(
        configuration.from_dict({"optimisation": {"global_batch_size": 8, "lr": 1.0, **optimisation}}),
        steps,
        samples,
    )


def test_lengths_come_from_steps_samples_or_the_whole_training() -> None:
    assert of(train_iterations=100).decay == 800
    assert of(train_samples=804).decay == 804
    assert of(train_iterations=100, decay_iterations=50).decay == 400
    assert of(train_iterations=100, decay_samples=444).decay == 444
    assert of(train_iterations=100).warmup == 0
    assert of(train_iterations=100, warmup_iterations=10).warmup == 80
    assert of(train_iterations=100, warmup_samples=11).warmup == 11
    assert of(train_iterations=100, decay_iterations=50, warmup_fraction=0.1).warmup == 40


@pytest.mark.parametrize(
    "mixed",
    [
        {"train_samples": 800, "warmup_samples": 80},
        {"train_samples": 800, "warmup_iterations": 10},
        {"train_iterations": 100, "warmup_samples": 80},
        {"train_iterations": 7, "decay_iterations": 100, "warmup_samples": 80},
        {"train_iterations": 7, "decay_samples": 800, "warmup_iterations": 10},
    ],
)
@pytest.mark.parametrize("resumed", [0, 5, 10, 40])
def test_steps_and_samples_give_the_same_rates(mixed: dict[str, Any], resumed: int) -> None:
    steps = of(train_iterations=100, warmup_iterations=10)
    other = of(resumed, 8 * resumed, **mixed)
    assert [other.after(step, 8 * step) for step in range(120)] == [
        steps.after(step, 8 * step) for step in range(120)
    ]


def test_another_batch_changes_no_steps_rate() -> None:
    lengths: dict[str, Any] = {"train_iterations": 20, "warmup_iterations": 2, "lr": 3e-3, "min_lr": 1e-4}
    before = of(**lengths)
    for batch in (2, 16, 24):
        after = of(10, 80, **lengths, global_batch_size=batch)
        for step in range(10, 21):
            assert after.after(step, 80 + (step - 10) * batch) == pytest.approx(before.after(step, 8 * step))
        assert after.after(20, 80 + 10 * batch) == 1e-4
        # And a second change of the batch size.
        again = of(15, 80 + 5 * batch, **lengths, global_batch_size=8)
        assert again.after(15, 80 + 5 * batch) == pytest.approx(before.after(15, 120))
        assert again.after(20, 80 + 5 * batch + 40) == 1e-4


def test_another_batch_changes_no_rate_by_samples() -> None:
    lengths: dict[str, Any] = {"train_samples": 160, "warmup_samples": 16}
    before, after = of(**lengths), of(10, 80, **lengths, global_batch_size=16)
    for step in range(6):
        assert after.after(10 + step, 80 + 16 * step) == before.at(80 + 16 * step)


def test_a_warm_up_in_another_unit_ends_where_it_ended() -> None:
    # The warm-up was ten steps of 8 samples. Another batch size after it changes nothing; one within it
    # changes the rest.
    assert of(20, 160, train_samples=800, warmup_iterations=10, global_batch_size=16).warmup == 80
    assert of(5, 40, train_samples=800, warmup_iterations=10, global_batch_size=16).warmup == 40 + 5 * 16
    assert of(20, 160, train_iterations=100, warmup_samples=80, global_batch_size=16).warmup == 10 * 16
    assert of(5, 40, train_iterations=100, warmup_samples=80, global_batch_size=16).warmup == 5 * 16 + 40
