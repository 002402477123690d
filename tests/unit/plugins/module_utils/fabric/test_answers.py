# SPDX-License-Identifier: GPL-3.0-or-later
"""The data about the fabric that a node and the controller exchange."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.fabric.answers import (
    packed,
    parse_nodes,
    unpacked,
)
from hypothesis import given
from hypothesis import strategies as st


def test_nodes_are_read_in_the_order_of_ranks() -> None:
    assert parse_nodes("n2 10.0.0.1\n\nn1 10.0.0.2\n") == {"n2": "10.0.0.1", "n1": "10.0.0.2"}
    with pytest.raises(ValueError, match=r"line 2 .* 'n1'"):
        parse_nodes("n2 10.0.0.1\nn1\n")


TIMES = st.one_of(st.none(), st.floats(0.1, 1e7).map(lambda value: round(value, 1)))
NAMES = [f"n{number}" for number in range(9)]


@given(st.dictionaries(st.sampled_from(NAMES), TIMES))
def test_times_are_read_as_they_were_written(medians: dict[str, float | None]) -> None:
    assert unpacked(packed((name, rtt, rtt) for name, rtt in medians.items())) == medians
