"""MACs and GUIDs are unique and stable."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import (
    addresses,
    first_mac,
    guid_of,
    mac_of,
    normal,
)
from hypothesis import given
from hypothesis import strategies as st

PLACES = st.tuples(st.integers(0, 2**20 - 1), st.integers(0, 15), st.integers(0, 255))


def test_mac_encodes_node_pf_and_vf() -> None:
    # 192.169.16.100 ends in 0x91064 of 20 bits; PF 3, VF 17
    assert first_mac("06:5e", 0xC0A91064) == "06:5e:91:06:40:00"
    assert mac_of("06:5e:91:06:40:00", 3, 17) == "06:5e:91:06:43:11"
    assert guid_of("06:5e:91:06:43:11") == "06:5e:91:ff:fe:06:43:11"


@given(PLACES, PLACES)
def test_two_vfs_never_share_an_address(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    macs = [mac_of(first_mac("06:5e", address), index, number) for address, index, number in (one, other)]
    assert (macs[0] == macs[1]) == (one == other)
    assert (guid_of(macs[0]) == guid_of(macs[1])) == (one == other)


@given(st.binary(min_size=6, max_size=6) | st.binary(min_size=8, max_size=8))
def test_every_notation_of_a_mac_is_accepted(value: bytes) -> None:
    text = value.hex()
    words = ":".join(text[at : at + 4] for at in range(0, len(text), 4))
    assert normal(text) == normal(words.upper()) == normal(value.hex("-")) == value.hex(":")


@pytest.mark.parametrize("text", ["", "06:5e", "06:5e:91:06:40:0g", "00:00:10:29:fe:80:00:00:00:00"])
def test_invalid_mac_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither a MAC \(6 bytes\) nor a GUID"):
        normal(text)


@pytest.mark.parametrize(("index", "number"), [(16, 0), (0, 256), (-1, 0)])
def test_there_is_no_address_beyond_the_last(index: int, number: int) -> None:
    with pytest.raises(ValueError, match="16 physical functions with 256 VFs"):
        mac_of("06:5e:91:06:40:00", index, number)


def test_without_a_first_mac_there_are_none() -> None:
    assert addresses("", 0, 4) == []
    assert addresses("06:5e:91:06:40:00", 1, 2) == ["06:5e:91:06:41:00", "06:5e:91:06:41:01"]
