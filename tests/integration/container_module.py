"""The module rdm.provision.container, with default options."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.container.request import NEEDED
from ansible_collections.rdm.provision.plugins.modules import container

from tests.unit.plugins.modules.running import run_module

UNSET: dict[str, Any] = {
    **{name: [] for name in ("volumes", "devices", "device_requests", "groups", "ulimits", "capabilities")},
    **dict.fromkeys(("plugin_socket", "userns_mode", "shm_size", "reads", "ready_line"), ""),
    **{"rails": {}, "env": {}, "security_opts": [], "rdma": True, "ipc_mode": "private"},
    "restart_policy": "always",
}
"""The parts of the desired container that a test does not set."""


def up(given: dict[str, Any], *, check: bool = False, **other: Any) -> dict[str, Any]:
    """Run the module, with options and parts of the desired container by name."""
    every = {**UNSET, **given, **other}
    options = {name: value for name, value in every.items() if name not in NEEDED}
    desired = {name: value for name, value in every.items() if name in NEEDED}
    return run_module(container, {"desired": desired, **options}, check=check, diff=True)
