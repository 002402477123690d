"""The network plugin is quick enough, however many virtual functions there are."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.rdm_sriov.vfs import (
    ETHERNET,
    INFINIBAND,
)

from benchmarks.sriov_plugin import MOST_CPU_MS, latency


@pytest.mark.parametrize("kind", [INFINIBAND, ETHERNET])
@pytest.mark.parametrize("count", [7, 128])
def test_an_endpoint_is_made_and_joined_in_little_time(count: int, kind: int) -> None:
    median, largest, cpu = latency(count, kind, rounds=3)
    assert 0 < median <= largest
    # Its own time; how long it took besides is the machine's.
    assert 0 < cpu <= MOST_CPU_MS
