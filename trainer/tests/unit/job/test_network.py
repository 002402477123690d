# SPDX-License-Identifier: GPL-3.0-or-later
"""The ports of jobs that search at the same time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_job import network

COUNTS = st.integers(1, 32)


@given(number=st.integers(1, 4_000_000), counts=st.lists(COUNTS, min_size=2, max_size=40))
def test_jobs_with_numbers_in_a_row_share_no_port(number: int, counts: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "is_free", lambda *_: True)
        taken = [network.take_free_ports("", count, number + n) or [] for n, count in enumerate(counts)]
    assert [len(ports) for ports in taken] == counts
    assert len({port for ports in taken for port in ports}) == sum(counts)


@given(number=st.integers(1, 4_000_000), count=COUNTS)
def test_job_whose_ports_are_taken_avoids_the_next_jobs_ports(number: int, count: int) -> None:
    def ports(number: int, busy: set[int]) -> set[int]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(network, "is_free", lambda _, port: port not in busy)
            return set(network.take_free_ports("", count, number) or ())

    others = set().union(*(ports(number + next_, set()) for next_ in range(1, 20)))
    found = ports(number, ports(number, set()))
    assert len(found) == count
    assert not found & others


def test_the_last_free_ports_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "is_free", lambda _, port: port in (20320, 20321))
    assert network.take_free_ports("", 2, 7) == [20320, 20321]
    assert network.take_free_ports("", 3, 7) is None
