"""Each driver gets its own options, and nothing it cannot do."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.network_options import driver_options


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({"driver": "sriov", "parent": "ib0"}, {"netdevice": "ib0"}),
        (
            {
                "driver": "sriov",
                "parent": "p1",
                "mode": "passthrough",
                "vlan": 7,
                "privileged": True,
                "prefix": "ib",
            },
            {"netdevice": "p1", "mode": "passthrough", "vlan": "7", "privileged": "1", "prefix": "ib"},
        ),
        ({"driver": "sriov", "parent": "ib0", "pkey": "0xBEEF"}, {"netdevice": "ib0", "pkey": "0xbeef"}),
        ({"driver": "macvlan", "parent": "ib0"}, {"parent": "ib0"}),
        (
            {"driver": "macvlan", "parent": "e", "mode": "private", "vlan": 9},
            {"parent": "e.9", "macvlan_mode": "private"},
        ),
        ({"driver": "ipvlan", "parent": "e", "mode": "l3"}, {"parent": "e", "ipvlan_mode": "l3"}),
        ({"driver": "bridge", "parent": "ib0"}, {}),
        (
            {"driver": "bridge", "extra": {"com.docker.network.driver.mtu": 9000, "x": True}},
            {"com.docker.network.driver.mtu": "9000", "x": "true"},
        ),
        ({"driver": "sriov", "parent": "a", "extra": {"netdevice": "b"}}, {"netdevice": "b"}),
    ],
)
def test_network_options_are_dockers(settings: dict[str, Any], options: dict[str, str]) -> None:
    assert driver_options(**settings) == options


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"driver": "weave"}, "'weave' is none of sriov, macvlan, ipvlan, bridge"),
        ({"driver": "sriov"}, "network_parent is empty"),
        ({"driver": "macvlan", "parent": "e", "mode": "l2"}, "'l2' is no mode of macvlan; choose bridge"),
        ({"driver": "bridge", "mode": "l2"}, "no meaning for the driver bridge"),
        ({"driver": "bridge", "vlan": 2}, "no meaning for the driver bridge"),
        ({"driver": "sriov", "parent": "e", "vlan": 4096}, "not between 0 and 4095"),
        ({"driver": "ipvlan", "parent": "e", "prefix": "ib"}, "for the driver sriov only"),
        ({"driver": "macvlan", "parent": "e", "privileged": True}, "for the driver sriov only"),
        ({"driver": "macvlan", "parent": "e", "pkey": "0x8001"}, "for the driver sriov only"),
        ({"driver": "sriov", "parent": "e", "pkey": "0x1"}, "network_pkey '0x1' is no key of a partition's"),
        ({"driver": "sriov", "parent": "e", "pkey": "0x8001", "vlan": 5}, "not with network_vlan 5"),
        (
            {"driver": "sriov", "parent": "e", "pkey": "0x8001", "mode": "passthrough"},
            "not with network_mode passthrough",
        ),
    ],
)
def test_options_that_a_driver_lacks_are_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        driver_options(**settings)
