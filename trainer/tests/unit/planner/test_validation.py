# SPDX-License-Identifier: GPL-3.0-or-later
"""How far predictions are off in steps that were run."""

import pytest

from rdm_planner.tune.validation import chosen, compared, rank_correlation


def test_best_layouts_and_as_many_others_are_run() -> None:
    assert chosen(10, 2) == [0, 1, 5, 9]
    assert chosen(4, 3) == [0, 1, 2, 3]
    assert chosen(1, 3) == [0]


def test_equal_values_share_a_rank() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 40]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # By hand: ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(3 / 10**0.5)
    assert rank_correlation([1], [1]) is None
    found = compared([{"predicted": 1.1, "measured": 1.0}, {"predicted": 1.0, "measured": None}])
    assert found["layouts"] == 1
    assert found["mean_absolute_error"] == pytest.approx(0.1)
    assert found["winner_excess"] == 0
    found = compared([{"predicted": 1.1, "measured": 1.0}, {"predicted": 1.0, "measured": 1.02}])
    assert found["winner_excess"] == pytest.approx(0.02)
    assert compared([{"predicted": 1.0, "measured": None}])["winner_excess"] is None
