"""A node's desired VFs, and what is gathered for them."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.sriov.desired_vfs import DesiredVfs
from ansible_collections.rdm.provision.plugins.modules import node_facts
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state_files import gathered
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.vfs import desired_vfs

from tests.unit.plugins.desired_states import ENTRY, variables
from tests.unit.plugins.desired_states import wanted as desired

SRIOV = {"network_driver": "sriov", "network_parent": "ib0"}
NONE: dict[str, Any] = {
    "interfaces": [],
    "vfs": 0,
    "firmware_vfs": 0,
    "kernel_parameters": False,
    "socket": "",
    "vf_devices": False,
}
PLANNED, OWN = "06:5e:91:06:40:00", "02:00:00:00:10:00"


def made(planned_mac: str = PLANNED, **given: Any) -> DesiredVfs:
    return desired_vfs(variables({**SRIOV, "sriov_vfs": 2, **given}), planned_mac)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"network_driver": "bridge"}, {}),
        ({"network_driver": "macvlan"}, {"interfaces": ["ib0"]}),
        ({"network_driver": "macvlan", "sriov_firmware": True}, {"interfaces": ["ib0"]}),
        ({}, {"interfaces": ["ib0"], "vfs": 1}),
        ({"network_parent": "ib0, ib1"}, {"interfaces": ["ib0", "ib1"], "vfs": 1}),
        ({"container_rails": ["ib0", "ib1"]}, {"interfaces": ["ib0", "ib1"], "vfs": 1}),
        ({"sriov_vf_pfs": ["ib2"]}, {"interfaces": ["ib2"], "vfs": 1}),
        ({"sriov_vfs": "many"}, {"interfaces": ["ib0"], "vfs": 1}),
        ({"sriov_vfs": 4, "sriov_firmware_vfs": 8}, {"interfaces": ["ib0"], "vfs": 4}),
        (
            {"sriov_vfs": 4, "sriov_firmware_vfs": 8, "sriov_firmware": True},
            {"interfaces": ["ib0"], "vfs": 4, "firmware_vfs": 8},
        ),
        (
            {"sriov_vfs": 16, "sriov_firmware": True, "sriov_kernel_parameters": True},
            {"interfaces": ["ib0"], "vfs": 16, "firmware_vfs": 16, "kernel_parameters": True},
        ),
        (
            {"plugin": "rdm-sriov", "sriov_socket": "/x.sock"},
            {"interfaces": ["ib0"], "vfs": 1, "socket": "/x.sock", "vf_devices": True},
        ),
    ],
)
def test_gathered_facts_of_vfs(given: dict[str, Any], expected: dict[str, Any]) -> None:
    found = gathered(desired(**{**SRIOV, **given}))
    assert found == {**NONE, **expected}
    spec: Any = node_facts.ARGUMENT_SPEC["sriov"]
    assert set(found) == set(spec["options"])


def test_the_first_mac_of_the_inventory_wins_over_the_plans() -> None:
    def macs(**given: Any) -> list[str]:
        return list(made(**given).of_pfs()[0].addresses)

    assert macs() == ["06:5e:91:06:40:00", "06:5e:91:06:40:01"]
    assert macs(sriov_vf_first_mac=OWN.upper()) == ["02:00:00:00:10:00", "02:00:00:00:10:01"]
    assert macs(sriov_vf_first_mac="") == [], "they stay as they are"
    pinned = {"ib0": ["02-00-00-00-00-0A", "02-00-00-00-00-0B"]}
    assert macs(sriov_vf_addresses=pinned) == ["02:00:00:00:00:0a", "02:00:00:00:00:0b"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sriov_vf_first_mac": "mine"}, r"^sriov_vf_first_mac mine is no MAC of one station, such as 06:"),
        ({"sriov_vf_first_mac": "01:00:00:00:00:00"}, "is no MAC of one station"),
        ({"sriov_vf_first_mac": "06:5e:91:ff:fe:06:40:00"}, "is no MAC of one station"),
        ({"sriov_vfs": 300}, r"^sriov_vfs 300 is not between 0 and 256$"),
        ({"sriov_vf_pfs": ["ib0", "ib0"]}, "does not name 1 to 16 physical functions, each of them once"),
        ({"sriov_vf_addresses": {"ib0": [OWN]}}, "has no list of 2 addresses for ib0"),
        ({"sriov_vf_addresses": {"ib7": [OWN]}}, "names ib7, which is none of ib0"),
    ],
)
def test_impossible_vfs_are_refused_where_they_are_created(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(**given)
    assert made(**given, sriov_state="absent").pfs, "what removes them does not need right addresses"


def test_the_role_and_the_checks_have_one_form() -> None:
    state = desired(ENTRY._replace(vf_mac=PLANNED), **SRIOV, sriov_vfs=2, plugin="rdm-sriov")
    assert state.vfs is state.parts["sriov"].vfs
    assert state.vfs.first_mac == PLANNED
    assert desired(ENTRY, **SRIOV, sriov_vfs=2).vfs == DesiredVfs(), "no plugin, no VFs"
