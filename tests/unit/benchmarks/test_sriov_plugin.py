"""The network plugin is quick enough, however many virtual functions there are."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.rdm_sriov.vfs import ETHERNET

from benchmarks.sriov_plugin import INFINIBAND, MOST_CPU_MS, latency


@pytest.mark.parametrize("kind", [INFINIBAND, ETHERNET])
@pytest.mark.parametrize("count", [7, 128])
def test_endpoint_is_created_and_joined_quickly(count: int, kind: int) -> None:
    median, largest, cpu = latency(count, kind, rounds=3)
    assert 0 < median <= largest
    # CPU time, since the rest of the wall time depends on the machine.
    assert 0 < cpu <= MOST_CPU_MS
