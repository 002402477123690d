"""What variables say of the interfaces below the network, and of making them ready for VFs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.modules import node_facts
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.node_plan import SriovSettings
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov_settings import sriov_settings


class Reader:
    """Variables of one host."""

    def __init__(self, **variables: Any) -> None:
        self._variables = variables

    def role_value(self, _host: str, name: str) -> Any:
        return self._variables.get(name)

    def text(self, host: str, name: str) -> str:
        value = self.role_value(host, name)
        return "" if value is None else str(value)

    def true(self, host: str, name: str) -> bool:
        return bool(self.role_value(host, name))


SRIOV = {"network_driver": "sriov", "network_parent": "ib0"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"network_driver": "bridge", "network_parent": "ib0"}, SriovSettings()),
        ({"network_driver": "macvlan", "network_parent": "ib0"}, SriovSettings(("ib0",))),
        (SRIOV, SriovSettings(("ib0",), vfs=1)),
        ({**SRIOV, "network_parent": "ib0, ib1"}, SriovSettings(("ib0", "ib1"), vfs=1)),
        ({**SRIOV, "container_rails": ["ib0", "ib1"]}, SriovSettings(("ib0", "ib1"), vfs=1)),
        ({**SRIOV, "sriov_run_as": "unit"}, SriovSettings(("ib0",), vfs=1, run_as="unit")),
        ({**SRIOV, "sriov_vfs": "many"}, SriovSettings(("ib0",), vfs=1)),
        ({**SRIOV, "sriov_vfs": 4, "sriov_firmware_vfs": 8}, SriovSettings(("ib0",), vfs=4)),
        (
            {
                **SRIOV,
                "sriov_vfs": 4,
                "sriov_firmware_vfs": 8,
                "sriov_firmware": True,
                "sriov_reboot_ok": True,
            },
            SriovSettings(("ib0",), vfs=4, firmware_vfs=8, reboot_ok=True),
        ),
        (
            {**SRIOV, "sriov_vfs": 16, "sriov_firmware_vfs": 8, "sriov_firmware": True},
            SriovSettings(("ib0",), vfs=16, firmware_vfs=16),
        ),
    ],
)
def test_settings(variables: dict[str, Any], expected: SriovSettings) -> None:
    reader: Any = Reader(**variables)
    assert sriov_settings(reader, "n1") == expected
    asked: Any = node_facts.ARGUMENT_SPEC["sriov"]
    assert set(expected.look()) == set(asked["options"])
