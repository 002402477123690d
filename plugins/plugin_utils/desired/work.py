# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes a run works on, and with which roles: those where `node_facts` found something to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

ROLES = ("docker_engine", "images", "sriov", "network", "my_ip", "container", "hostfile")
"""The roles that change nodes, in their order."""

DEPENDENTS: Mapping[str, Sequence[str]] = {
    "images": ("container",),
    "sriov": ("network", "container"),
    "network": ("container",),
}
"""Which roles check again when another one has worked: a container is made of an image, on a network."""

BUNDLED = ("my_ip", "hostfile", "state_file")
"""What the call that runs a node's container can write in passing; a call of its own is 0.1 CPU s a node."""

Why = dict[str, list[str]]
"""Role -> why it has something to do, in sentences."""


class Work(NamedTuple):
    """What a run is going to do.

    Attributes:
        why: node -> its roles with work, in their order, and the reasons; nodes without work are left out.
        bundled: node -> what is written with its container, and in no play of its own.
        plays: role -> the hosts of its play; also `inspect`, for image archives, `absent`, where something is
            to be taken away, `state_file` and `verify`. After the nodes with work there is one more, where
            there is one: when every host of a play has failed, Ansible ends the whole run, and nobody else's
            work would be done.
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
    """Decide who has what to do.

    Args:
        found: node -> what `node_facts` found, for the nodes that answered.
        wanted: node -> the roles that are wanted there at all.
        absent: node -> the roles whose traces are to be taken away there.
        recheck: let every wanted role check again, whatever was found.
        engineless: nodes without an engine in a run that changes nothing: what follows the engine cannot even
            be looked at there.
        bundled: what may be written with the container. Where a run is to do some parts only, each has to be
            a task of its own.
    """
    why: dict[str, Why] = {}
    for node, reasons in found.items():
        mine: Why = {role: list(output) for role, output in reasons.items()}
        if recheck:
            for role in wanted[node]:
                mine.setdefault(role, ["everything is to be looked at again"])
        for role in ROLES:
            # An image that no role brings is still what the container is made from.
            works = role in mine and (role in wanted[node] or role == "images")
            for follower in DEPENDENTS.get(role, ()) if works else ():
                mine.setdefault(follower, [f"it follows {role}"])
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
    plays["inspect"] = plays["images"]
    plays["absent"] = [node for node in found if absent[node] and node not in engineless]
    plays = {play: _accompanied(nodes, found) for play, nodes in plays.items()}
    return Work(why, run_all, {**plays, "verify": [node for node in found if node not in engineless]})


def _accompanied(nodes: Sequence[str], all_nodes: Mapping[str, object]) -> list[str]:
    """Return the hosts of a play: the nodes, and last one that has nothing to do there."""
    chosen = set(nodes)
    others = (node for node in all_nodes if node not in chosen)
    return [*nodes, *([one] if nodes and (one := next(others, None)) else [])]
