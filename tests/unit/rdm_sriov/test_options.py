"""An option of a network means something, or is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.rdm_sriov.options import wanted_network
from ansible_collections.rdm.provision.rdm_sriov.vfs import VfProblem
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "netdevice is missing"),
        ({"netdevice": "ib0", "gateway": "1"}, "there is no option gateway: there are mode, mtu, netdevice"),
        ({"netdevice": "ib0", "pkey": "0x0001"}, "pkey '0x0001' is no key of a partition's full members"),
        ({"netdevice": "ib0", "pkey": "0x8000"}, "from 0x8001 to 0xffff"),
        ({"netdevice": "ib0", "pkey": "0x18001"}, "pkey '0x18001'"),
        ({"netdevice": "ib0", "pkey": "32769"}, "pkey '32769'"),
        ({"netdevice": "ib0", "pkey": "0x8001", "vlan": "5"}, "pkey 0x8001 goes with .*: not with vlan 5"),
        ({"netdevice": "ib0", "pkey": "0x8001", "mode": "passthrough"}, "not with mode passthrough"),
        ({"netdevice": "ib0", "mode": "bridge"}, "mode 'bridge' is neither sriov nor passthrough"),
        ({"netdevice": "ib0;reboot"}, "is no name of an interface"),
        ({"netdevice": "-x"}, "is no name of an interface"),
        ({"netdevice": "ib0,ib0"}, "names an interface twice"),
        ({"netdevice": "ib0", "vlan": "4096"}, "vlan '4096' is no number from 0 to 4095"),
        ({"netdevice": "ib0", "vlan": "-1"}, "vlan '-1'"),
        ({"netdevice": "ib0", "vlan": "one"}, "vlan 'one'"),
        ({"netdevice": "ib0", "mtu": "20"}, "mtu '20' is no number from 68 to 65535"),
        ({"netdevice": "ib0", "prefix": "0"}, "prefix '0' is no beginning"),
        ({"netdevice": "ib0", "prefix": "verylongprefix"}, "prefix"),
        ({"netdevice": "ib0", "privileged": "yes"}, "privileged 'yes' is neither 0 nor 1"),
        ("netdevice", "the options of a network are not 'netdevice'"),
    ],
)
def test_an_option_that_cannot_be_is_named(options: Any, words: str) -> None:
    with pytest.raises(VfProblem, match=words):
        wanted_network(options)


@given(st.integers(0x8001, 0xFFFF))
def test_the_key_of_any_partition_is_taken_in_either_case(key: int) -> None:
    assert {wanted_network({"netdevice": "ib0", "pkey": text}).pkey for text in (hex(key), f"0x{key:X}")} == {
        key
    }


@given(
    st.dictionaries(
        st.sampled_from(["netdevice", "mode", "vlan", "mtu", "pkey", "prefix", "privileged", "other"]),
        st.one_of(st.text(max_size=20), st.integers(), st.booleans(), st.none()),
    )
)
def test_any_options_are_a_network_or_one_sentence(options: dict[str, Any]) -> None:
    message = ""
    try:
        assert wanted_network(options).pfs
    except VfProblem as problem:
        message = str(problem)
    assert "\n" not in message
