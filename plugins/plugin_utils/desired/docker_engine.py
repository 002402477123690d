# SPDX-License-Identifier: GPL-3.0-or-later
"""The desired Docker Engine of a node."""

from __future__ import annotations

from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables


class DesiredEngine(NamedTuple):
    """Desired state of the role docker_engine.

    Attributes:
        socket: the socket that the user set; empty for the default.
        users: who may use the engine.
        packages: the packages to install; none for the distribution's.
    """

    socket: str
    users: list[str]
    packages: list[str]


def desired_docker_engine(variables: NodeVariables, _entry: PlanEntry) -> DesiredEngine:
    """Return the desired engine of a node."""
    return DesiredEngine(
        socket=variables.text("rdm_docker_socket"),
        users=variables.texts("docker_engine_users"),
        packages=variables.texts("docker_engine_packages"),
    )
