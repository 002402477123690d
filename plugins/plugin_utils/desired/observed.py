# SPDX-License-Identifier: GPL-3.0-or-later
"""What the tasks of this run have found out about one node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.module_utils.base.facts import Container, Engine, NodeFacts
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import answer


class ObservedState(NodeFacts, total=False):
    """What was gathered from a node: its facts, and the results of image_archive as `archives`."""

    archives: list[dict[str, Any]]


class Observed(NamedTuple):
    """What the tasks of this run have registered for a node; empty where they have not run.

    Attributes:
        node: inventory name.
        variables: the node's unevaluated variables.
    """

    node: str
    variables: Mapping[str, Any]

    def result(self, name: str) -> Mapping[str, Any]:
        """Return the result that was registered under a name."""
        return answer(name, self.node, self.variables) or {}

    @property
    def preflight(self) -> NodeFacts:
        """The node's facts from preflight."""
        return self.result("preflight_facts").get("node") or NodeFacts()

    @property
    def facts(self) -> NodeFacts:
        """The node's facts from the role docker_engine, which may install the engine, or from preflight."""
        return self.result("__docker_engine_gathered").get("node") or self.preflight

    @property
    def engine(self) -> Engine:
        """The facts of the engine."""
        return self.facts.get("docker") or {}

    @property
    def check_mode(self) -> bool:
        """Whether this run only predicts changes."""
        return bool(self.variables.get("ansible_check_mode"))

    @property
    def planned(self) -> bool:
        """Whether the action `plan` has run."""
        return "preflight_plan" in self.variables

    def container(self, name: str) -> Container:
        """Return what preflight found out about a container."""
        found = (self.preflight.get("docker") or {}).get("containers") or ()
        return next((one for one in found if one["name"] == name), Container())
