"""The address plan as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One line of the address plan. ``note`` is ``new``, ``kept``, ``moved``, ``pinned`` or ``removed``."""

    rank: int | None
    node: str
    address: str
    my_ip: str
    slots: int | None
    note: str


@dataclass(frozen=True, slots=True)
class PlanTable:
    """The address plan of a cluster, and how it differs from the plan file.

    Attributes:
        cluster: the cluster's name.
        subnet: the container network, as CIDR.
        gateway: its gateway.
        file: the plan file.
        nodes: the nodes by rank, then removed nodes whose addresses are reserved.
        saved: the plan file has this plan.
        warnings: what is allowed but unwise.
    """

    cluster: str
    subnet: str
    gateway: str
    file: Path
    nodes: tuple[PlannedNode, ...]
    saved: bool
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as ``--json`` prints it."""
        from rdm_provision.results.events import to_json

        keys = ("cluster", "subnet", "gateway", "file", "nodes", "saved", "warnings")
        return {"ok": True, "exit_code": 0, **{key: to_json(getattr(self, key)) for key in keys}}


def planned_nodes(plan: Mapping[str, Any]) -> Iterator[PlannedNode]:
    """Yield the lines of the table: the nodes by rank, then removed nodes with reserved addresses."""
    for name, node in plan["nodes"].items():
        yield PlannedNode(
            int(node["rank"]),
            name,
            str(node["address"]),
            str(node["my_ip"]),
            int(node["slots"]),
            str(node["note"]),
        )
    for name, my_ip in plan["removed"].items():
        yield PlannedNode(None, name, "", str(my_ip), None, "removed")
