# SPDX-License-Identifier: GPL-3.0-or-later
"""Sums of many values are those of one after the other, to the last bit."""

from __future__ import annotations

import functools
import operator
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log import figures
from rdm_log.figures import RankSums, most, total

TIMES = st.floats(0, 1e9)


@given(
    st.lists(
        st.tuples(st.sampled_from([(0, 4), (0, 2), (2, 2), (131070, 4)]), st.integers(1, 5)), max_size=6
    ),
    st.data(),
)
@pytest.mark.parametrize("many", [0, 10**9])
def test_together_and_one_by_one(
    many: int, parts: list[tuple[tuple[int, int], int]], data: st.DataObject
) -> None:
    """With numpy and without; of ranks that a block cut, and of ranks that no training has."""
    together, alone = RankSums(), RankSums()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "_MANY", many)
        for (first, count), rounds in parts:
            ranks = array("q", range(first, first + count))
            size = count * rounds
            values = array("d", data.draw(st.lists(TIMES, min_size=size, max_size=size)))
            together.extend(ranks, values)
            for place, value in enumerate(values):
                alone.add(ranks[place % count], value)
            assert total(values, 0.1) == functools.reduce(operator.add, values, 0.1)
            assert most(values) == max(values)
    assert together.told() == alone.told()
