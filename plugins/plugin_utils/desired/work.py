# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which nodes a run changes, and with which roles: those for which `node_facts` found work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.state import PARTS

ROLES = tuple(PARTS)
"""The roles that change nodes, in order."""

DEPENDENTS: Mapping[str, Sequence[str]] = {
    "images": ("container",),
    "sriov": ("network", "container"),
    "network": ("container",),
}
"""Role -> roles that run after it has work: a container, for one, depends on its image and its network."""

BUNDLED = ("my_ip", "hostfile", "state_file")
"""What the call that runs a node's container can write too; a separate call costs 0.1 CPU s per node."""

Why = dict[str, list[str]]
"""Role -> why it has work, in sentences."""


class Work(NamedTuple):
    """The work of a run.

    Attributes:
        why: node -> its roles with work, in order, and the reasons; nodes without work are left out.
        bundled: node -> what is written together with its container, and not in a separate play.
        plays: role -> the hosts of its play; also `absent` for removals, `state_file` and `verify`.
            Each play ends with one host without work, if there is one: Ansible ends the whole run when all
            hosts of a play have failed.
    """

    why: dict[str, Why]
    bundled: dict[str, list[str]]
    plays: dict[str, list[str]]


def decide(
    found: Mapping[str, Mapping[str, Sequence[str]]],
    wanted: Mapping[str, Sequence[str]],
    absent: Mapping[str, Sequence[str]],
    recheck: bool = False,
    engineless: Sequence[str] = (),
    bundled: Sequence[str] = (),
) -> Work:
    """Decide the work of each node.

    Args:
        found: node -> the work that `node_facts` found, for the nodes that answered.
        wanted: node -> the roles that the node needs.
        absent: node -> the roles whose results are removed there.
        recheck: run every needed role, whatever was found.
        engineless: nodes without an engine in a dry run, where roles after docker_engine cannot check
            anything.
        bundled: what may be written with the container; a run of selected parts needs separate tasks.
    """
    why: dict[str, Why] = {}
    for node, reasons in found.items():
        mine: Why = {role: list(output) for role, output in reasons.items()}
        if recheck:
            for role in wanted[node]:
                mine.setdefault(role, ["all roles check again"])
        for role in ROLES:
            # A container depends on its image even if no role provides it.
            works = role in mine and (role in wanted[node] or role == "images")
            for dependent in DEPENDENTS.get(role, ()) if works else ():
                mine.setdefault(dependent, [f"it follows {role}"])
        roles = ["docker_engine"] if node in engineless else wanted[node]
        if mine := {role: mine[role] for role in ROLES if role in mine and role in roles}:
            why[node] = mine
    run_all = {
        node: [part for part in bundled if part in mine or part == "state_file"]
        for node, mine in why.items()
        if bundled and "container" in mine
    }
    plays = {
        part: [
            node
            for node, mine in why.items()
            if (part in mine or part == "state_file") and part not in run_all.get(node, ())
        ]
        for part in (*ROLES, "state_file")
    }
    plays["absent"] = [node for node in found if absent[node] and node not in engineless]
    plays = {play: _accompanied(nodes, found) for play, nodes in plays.items()}
    return Work(why, run_all, {**plays, "verify": [node for node in found if node not in engineless]})


def _accompanied(nodes: Sequence[str], all_nodes: Mapping[str, object]) -> list[str]:
    """Return the hosts of a play: the nodes, then one without work in it, if there is one."""
    chosen = set(nodes)
    others = (node for node in all_nodes if node not in chosen)
    return [*nodes, *([one] if nodes and (one := next(others, None)) else [])]
