# SPDX-License-Identifier: GPL-3.0-or-later
"""A free subnet is private and overlaps nothing."""

from __future__ import annotations

from ipaddress import IPv4Network

from ansible_collections.rdm.provision.plugins.module_utils.network.free_subnet import free_subnet
from hypothesis import given
from hypothesis import strategies as st

NETWORKS = st.builds(
    lambda address, prefix: IPv4Network((address, prefix), strict=False),
    st.one_of(st.integers(0, 2**32 - 1), st.integers(0x0A000000, 0x0AFFFFFF)),
    st.integers(1, 32),
)


@given(used=st.lists(NETWORKS, max_size=30), prefix=st.integers(8, 30))
def test_free_subnet_is_private_and_overlaps_nothing(used: list[IPv4Network], prefix: int) -> None:
    free = free_subnet(used, prefix)
    if free is not None:
        assert free.prefixlen == prefix
        assert free.is_private
        assert not any(free.overlaps(one) for one in used)


def test_free_subnet_says_when_there_is_none() -> None:
    assert free_subnet(["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"], 24) is None
    assert free_subnet(["10.0.0.0/8", "172.16.0.0/12"], 24) == IPv4Network("192.168.0.0/24")
    assert free_subnet(["0.0.0.0/0"], 24) is None
    assert free_subnet([], 7) is None
    assert free_subnet(["fd00::/8", "10.20.0.0/16"], 16) == IPv4Network("10.21.0.0/16")
