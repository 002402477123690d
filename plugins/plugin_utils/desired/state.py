# SPDX-License-Identifier: GPL-3.0-or-later
"""What one node should have: for each role a part of its own, made from the node's variables and the plan.

A role's YAML gets its part from the lookup `rdm.provision.desired`, with a plan or without one. The state
file on the node keeps the part's digest. So a role has work where its part is another than at the last good
run, and an edit of the collection that leaves the part as it was makes no work.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.container import (
    absent_container,
    desired_container,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.docker_engine import desired_docker_engine
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.hostfile import (
    absent_hostfile,
    desired_hostfile,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.images import desired_images
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.my_ip import absent_my_ip, desired_my_ip
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.network import desired_network
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.plan_entry import PlanEntry
from ansible_collections.rdm.provision.plugins.plugin_utils.desired.sriov import desired_sriov
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.node_variables import NodeVariables

Make = Callable[[NodeVariables, PlanEntry], Any]


class Part(NamedTuple):
    """How a role's part of the desired state is made.

    Attributes:
        make: makes it; ValueError where the variables make no sense.
        absent: makes what takes it away again, where that is a list of files.
        version: to be raised when the role leaves something else on a node for the same part, as after a
            change of one of its tasks or modules: then every node has work once.
    """

    make: Make
    absent: Make | None = None
    version: int = 1


PARTS: Mapping[str, Part] = {
    "docker_engine": Part(desired_docker_engine),
    "images": Part(desired_images),
    "sriov": Part(desired_sriov),
    "network": Part(desired_network),
    "container": Part(desired_container, absent_container),
    "my_ip": Part(desired_my_ip, absent_my_ip),
    "hostfile": Part(desired_hostfile, absent_hostfile),
}


def desired(role: str, variables: NodeVariables, entry: PlanEntry, absent: bool = False) -> dict[str, Any]:
    """Return a role's part of what a node should have, of plain types.

    Args:
        role: a name in PARTS.
        variables: the node's.
        entry: what the plan says of the node.
        absent: return how the part is taken away instead.

    Raises:
        ValueError: the variables make no sense, or lack what only a plan says.
        AnsibleError: a variable refers to something that is not known.
    """
    part = PARTS[role]
    make = part.absent if absent else part.make
    if make is None:
        raise ValueError(f"what the role {role} leaves is not taken away by a list")
    found: dict[str, Any] = plain(make(variables, entry))
    return found


def digest(role: str, variables: NodeVariables, entry: PlanEntry) -> str:
    """Return the version of a role's part and the part's digest, joined by `-`; see :func:`desired`."""
    text = json.dumps(desired(role, variables, entry.for_digest()), sort_keys=True)
    return f"{PARTS[role].version}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def plain(value: Any) -> Any:
    """Return a value with dictionaries and lists in place of named and other tuples."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]
