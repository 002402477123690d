"""What the checks of a node find."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.checks.node import (
    check_node,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import sentences

from tests.unit.plugins.desired_states import ENTRY, wanted
from tests.unit.plugins.node_reports import report

OURS = {"rdm.provision.cluster": "rdm"}
SUBNET = "192.169.16.0/24"
RAILS = ENTRY._replace(rails=("10.1.0.0/24",))


def problems(found: Any, entry: PlanEntry = ENTRY, **changes: Any) -> list[str]:
    return [problem.sentence for problem in check_node(wanted(entry, **changes), found).problems]


def warnings(found: Any, **changes: Any) -> list[str]:
    return sentences(check_node(wanted(**changes), found).warnings)


def with_networks(*networks: dict[str, Any], containers: tuple[Any, ...] = ()) -> Any:
    return report(
        docker_networks=[*report()["docker"]["networks"], *networks], docker_containers=list(containers)
    )


def podman(version: str = "4.3.1", **more: Any) -> dict[str, Any]:
    """A report of a node with Podman."""
    has = {"engine": "podman", "version": version, "network_plugins": ["bridge", "macvlan"], **more}
    found = report()
    return {**found, "docker": {**found["docker"], **has}}


SOCKET = "/run/podman/podman.sock"
