# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node should have of its Docker Engine."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


class DesiredEngine(NamedTuple):
    """What the role docker_engine leaves on a node.

    Attributes:
        socket: where the user says that it is; empty for the usual place.
        users: who may use the engine.
        packages: what it is installed from; none for what the distribution has.
    """

    socket: str
    users: list[str]
    packages: list[str]


def desired_docker_engine(variables: NodeVariables, _entry: PlanEntry) -> DesiredEngine:
    """Return what a node should have of its engine."""
    return DesiredEngine(
        socket=variables.text("rdm_docker_socket"),
        users=variables.texts("docker_engine_users"),
        packages=variables.texts("docker_engine_packages"),
    )
