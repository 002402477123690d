# SPDX-License-Identifier: GPL-3.0-or-later
"""The ssh keys of the planned cluster: read from the controller, or made with the plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ansible_collections.rdm.provision.plugins.plugin_utils.addresses.address_plan import AddressPlan
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.host_variables import HostVariables
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys


class Origin(NamedTuple):
    """What this inventory knows of the cluster, to compare with what a node has of a cluster of that name.

    Attributes:
        authority: fingerprint of the key that signs its containers' host keys; empty before it is made.
        new_keys: whether the user wants new keys.
        planned: whether there was an address plan before this run.
        before: the node's address in that plan; empty for a new node.
        replaced: fingerprints of the cluster's former authorities.
    """

    authority: str
    new_keys: bool
    planned: bool
    before: str
    replaced: tuple[str, ...]


def key_problems(reader: HostVariables, previous: AddressPlan | None, plan_file: str) -> list[Problem]:
    """Return why the controller's keys are not those of the cluster; nothing if new ones are wanted."""
    directories = {host: _directory(reader, host) for host in reader.hosts}
    first = next(iter(directories.values()))
    for host, directory in directories.items():
        if directory != first:
            reason = f"is not {first}, as of other nodes"
            return [Problem(host, f"container_ssh_key_dir {directory}", reason, "give all nodes the same")]
    if _wants_new(reader):
        return []
    try:
        keys = cluster_keys.read(first)
    except PreconditionFailed as refused:
        return refused.problems
    return cluster_keys.problems(first, keys, previous.keys if previous else {}, plan_file)


def keys_of(reader: HostVariables, cluster: str, writes: bool) -> cluster_keys.Keys | None:
    """Return the cluster's keys; make them if they are missing or new ones are wanted.

    Args:
        reader: the variables.
        cluster: name of the cluster.
        writes: whether to make keys; if not, None is returned instead.

    Raises:
        PreconditionFailed: they cannot be made.
    """
    directory = _directory(reader, reader.hosts[0])
    renewed = _wants_new(reader)
    keys = None if renewed else cluster_keys.read(directory)
    if keys or not writes:
        return keys
    try:
        return cluster_keys.make(directory, cluster, renewed)
    except OSError as error:
        reason = f"cannot be written: {error.strerror}"
        problem = Problem(None, f"container_ssh_key_dir {directory}", reason, "let this user write there")
        raise PreconditionFailed([problem]) from None


def origins(reader: HostVariables, previous: AddressPlan | None) -> dict[str, Origin]:
    """Return what this inventory knows of the cluster, for each node.

    Raises:
        PreconditionFailed: an existing key cannot be used.
    """
    renewed = _wants_new(reader)
    keys = None if renewed else cluster_keys.read(_directory(reader, reader.hosts[0]))
    authority = keys.fingerprints[cluster_keys.AUTHORITY] if keys else ""
    before = {**previous.removed, **previous.nodes} if previous else {}
    replaced = previous.replaced if previous else ()
    return {
        host: Origin(authority, renewed, previous is not None, before.get(host, ""), replaced)
        for host in reader.hosts
    }


def replaced_authorities(
    reader: HostVariables, previous: AddressPlan | None, keys: cluster_keys.Keys, carried: Iterable[str]
) -> tuple[str, ...]:
    """Return the fingerprints of the cluster's former authorities, the oldest first.

    Args:
        reader: the variables.
        previous: the address plan in the plan file.
        keys: the cluster's keys.
        carried: fingerprints of the authorities that nodes have now; they count if new keys are wanted.
    """
    found = list(previous.replaced) if previous else []
    found.append(previous.keys.get(cluster_keys.AUTHORITY, "") if previous else "")
    if _wants_new(reader):
        found += sorted(carried)
    ours = keys.fingerprints[cluster_keys.AUTHORITY]
    return tuple(dict.fromkeys(one for one in found if one and one != ours))


def _directory(reader: HostVariables, host: str) -> str:
    inventory = str(reader.written(host).get("inventory_dir") or "")
    return cluster_keys.directory_of(reader.node(host).text("container_ssh_key_dir"), inventory)


def _wants_new(reader: HostVariables) -> bool:
    return reader.node(reader.hosts[0]).true("preflight_new_ssh_keys")
