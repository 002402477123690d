# SPDX-License-Identifier: GPL-3.0-or-later
"""Values added in bulk have the same sums as values added one by one, to the last bit."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from rdm_log.figures import RankSums

TIMES = st.floats(0, 1e9)


@given(
    st.lists(st.sampled_from([(0, 4), (0, 2), (2, 2), (131070, 4)]), max_size=6),
    st.data(),
)
def test_in_bulk_and_one_by_one(parts: list[tuple[int, int]], data: st.DataObject) -> None:
    """Including ranks that the end of a block separates, and ranks that no training has."""
    in_bulk, alone = RankSums(), RankSums()
    for first, count in parts:
        ranks = array("q", range(first, first + count))
        values = array("d", data.draw(st.lists(TIMES, min_size=count, max_size=count)))
        in_bulk.extend(ranks, values)
        for rank, value in zip(ranks, values, strict=True):
            alone.add(rank, value)
    assert in_bulk.by_rank() == alone.by_rank()
