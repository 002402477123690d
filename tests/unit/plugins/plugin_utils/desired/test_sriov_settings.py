"""Settings of the networks' interfaces, and of their preparation for VFs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.modules import node_facts
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import (
    SriovSettings,
    sriov_settings,
)

from tests.unit.plugins.desired_states import variables

SRIOV = {"network_driver": "sriov", "network_parent": "ib0"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"network_driver": "bridge", "network_parent": "ib0"}, SriovSettings()),
        ({"network_driver": "macvlan", "network_parent": "ib0"}, SriovSettings(("ib0",))),
        (SRIOV, SriovSettings(("ib0",), vfs=1, run_as="auto")),
        ({**SRIOV, "network_parent": "ib0, ib1"}, SriovSettings(("ib0", "ib1"), vfs=1, run_as="auto")),
        ({**SRIOV, "container_rails": ["ib0", "ib1"]}, SriovSettings(("ib0", "ib1"), vfs=1, run_as="auto")),
        ({**SRIOV, "sriov_run_as": "unit"}, SriovSettings(("ib0",), vfs=1, run_as="unit")),
        ({**SRIOV, "sriov_vfs": "many"}, SriovSettings(("ib0",), vfs=1, run_as="auto")),
        ({**SRIOV, "sriov_vfs": 4, "sriov_firmware_vfs": 8}, SriovSettings(("ib0",), vfs=4, run_as="auto")),
        (
            {
                **SRIOV,
                "sriov_vfs": 4,
                "sriov_firmware_vfs": 8,
                "sriov_firmware": True,
                "sriov_reboot_ok": True,
            },
            SriovSettings(("ib0",), vfs=4, firmware_vfs=8, reboot_ok=True, run_as="auto"),
        ),
        (
            {**SRIOV, "sriov_vfs": 16, "sriov_firmware_vfs": 8, "sriov_firmware": True},
            SriovSettings(("ib0",), vfs=16, firmware_vfs=16, run_as="auto"),
        ),
    ],
)
def test_settings(given: dict[str, Any], expected: SriovSettings) -> None:
    assert sriov_settings(variables(given)) == expected
    spec: Any = node_facts.ARGUMENT_SPEC["sriov"]
    assert set(expected.gathered()) == set(spec["options"])
