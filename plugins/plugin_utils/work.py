# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes a run works on, and with which roles: those where a look found something to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

ROLES = ("docker_engine", "images", "sriov", "network", "my_ip", "container", "hostfile")
"""The roles that change nodes, in their order."""

FOLLOWERS: Mapping[str, Sequence[str]] = {
    "images": ("container",),
    "sriov": ("network", "container"),
    "network": ("container",),
}
"""What has to look again when another role has worked: a container is made of an image, on a network."""

Why = dict[str, list[str]]
"""Role -> why it has something to do, in sentences."""


class Work(NamedTuple):
    """What a run is going to do.

    Attributes:
        why: node -> its roles with work, in their order, and the reasons; nodes without work are left out.
        hosts: the nodes with work, and one more where there is one: when every host of a play has failed,
            Ansible ends the whole run, and the others were not verified.
        inspect: the same for the nodes that may need images.
    """

    why: dict[str, Why]
    hosts: list[str]
    inspect: list[str]


def decide(
    found: Mapping[str, Mapping[str, Sequence[str]]],
    wanted: Mapping[str, Sequence[str]],
    recheck: bool = False,
    engineless: Sequence[str] = (),
) -> Work:
    """Decide who has what to do.

    Args:
        found: node -> what the look at it found, for the nodes that answered.
        wanted: node -> the roles that are wanted there at all.
        recheck: let every wanted role look again, whatever was found.
        engineless: nodes without an engine in a run that changes nothing: what follows the engine cannot even
            be looked at there.
    """
    why: dict[str, Why] = {}
    for node, reasons in found.items():
        mine: Why = {role: list(said) for role, said in reasons.items()}
        if recheck:
            for role in wanted[node]:
                mine.setdefault(role, ["everything is to be looked at again"])
        for role in ROLES:
            for follower in FOLLOWERS.get(role, ()) if role in mine and role in wanted[node] else ():
                mine.setdefault(follower, [f"it follows {role}"])
        roles = [role for role in ROLES if role in mine and role in wanted[node]]
        if node in engineless:
            roles = ["docker_engine"]
        if roles:
            why[node] = {role: mine.get(role, []) for role in roles}
    right = [node for node in found if node not in why and node not in engineless]
    with_images = [node for node in why if "images" in why[node]]
    return Work(why, [*why, *right[:1]] if why else [], [*with_images, *right[:1]] if with_images else [])
