# SPDX-License-Identifier: GPL-3.0-or-later
"""One node's part of the plan, from which its desired state is made."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

_OF_ALL = ("subnet", "gateway", "master_addr", "address_map", "hostfile")


class PlanEntry(NamedTuple):
    """One node's part of what `rdm.provision.plan` returns; empty if a role is used without a plan.

    Attributes:
        node: inventory name.
        subnet: of the container network, in CIDR notation.
        gateway: of the container network.
        rails: the subnets of the networks of further rails.
        my_ip: the node's address on the container network.
        master_addr: the master's address there.
        address_map: text of the file with the addresses of all nodes.
        hostfile: text of DeepSpeed's hostfile.
        image: image of the training container.
        vf_mac: first MAC of the node's VFs; empty if the cluster has none.
        archives: path, size and time of the image archives on the controller.
        observed: the node's entry in C(nodes) of the action, which has more once its facts are known.
        engine: the facts of the node's engine.
        keys: text of the node's ssh key files, by file name; `node_facts` compares them.
    """

    node: str
    subnet: str = ""
    gateway: str = ""
    rails: tuple[str, ...] = ()
    my_ip: str = ""
    master_addr: str = ""
    address_map: str = ""
    hostfile: str = ""
    image: str = ""
    vf_mac: str = ""
    archives: tuple[tuple[Any, ...], ...] = ()
    observed: Mapping[str, Any] = {}
    engine: Mapping[str, Any] = {}
    keys: Mapping[str, str] = {}

    @classmethod
    def of(cls, plan: Mapping[str, Any], node: str) -> PlanEntry:
        """Return a node's part of a plan."""
        mine = (plan.get("nodes") or {}).get(node) or {}
        return cls(
            node=node,
            rails=tuple(plan.get("rails") or ()),
            my_ip=mine.get("my_ip", ""),
            image=mine.get("image", ""),
            vf_mac=mine.get("vf_mac", ""),
            observed=mine,
            **{name: plan.get(name, "") for name in _OF_ALL},
        )

    def for_digest(self) -> PlanEntry:
        """Return the entry without facts and keys, and with digests instead of long texts."""
        return self._replace(
            observed={},
            engine={},
            keys={},
            address_map=_digest(self.address_map),
            hostfile=_digest(self.hostfile),
        )


def needed(variable: str, variables: NodeVariables, planned: str) -> str:
    """Return a variable's value, else the planned value.

    Raises:
        ValueError: both are empty.
    """
    value = variables.text(variable) or planned
    if not value:
        raise ValueError(f"set {variable}, or run the role preflight before")
    return value


@functools.lru_cache
def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
