"""Desired states of nodes, for tests of the checks."""

from __future__ import annotations

from typing import Any

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import DesiredState, desired_state
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

USUAL = {
    "network_driver": "macvlan",
    "network_parent": "ib0",
    "container_sshd": False,
    "rdm_accelerator": "cpu",
}
ENTRY = PlanEntry(
    "node1",
    subnet="192.169.16.0/24",
    gateway="192.169.16.1",
    my_ip="192.169.16.100",
    master_addr="192.169.16.100",
    address_map="node1 192.169.16.100\n",
    hostfile="192.169.16.100 slots=1\n",
)


def variables(given: dict[str, Any]) -> NodeVariables:
    """Return a node's variables."""
    return NodeVariables(given, given.__getitem__)


def wanted(entry: PlanEntry = ENTRY, **changes: Any) -> DesiredState:
    """Return the desired state of a node.

    Args:
        entry: its part of the plan.
        changes: variables of the inventory, and attributes of the state, which win. Without `plugin`, there
            is no network plugin.
    """
    attributes = {name: changes.pop(name) for name in list(changes) if name in DesiredState._fields}
    attributes = {"plugin": "", **attributes}
    given = {**USUAL, **changes}
    identity = {"cluster": "rdm", "accelerator": given["rdm_accelerator"], "slots": 1, "become": True}
    state = desired_state(variables(given), entry, **identity)
    return state._replace(**attributes)


def digest(role: str, given: NodeVariables, entry: PlanEntry) -> str:
    """Return the digest of a role's part."""
    node = desired_state(given, entry, cluster="rdm", accelerator="cpu", slots=1, become=True)
    return node.digests([role])[role]
