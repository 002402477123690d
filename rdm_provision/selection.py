"""Which nodes a ``--limit`` pattern selects: Ansible says."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rdm_provision.errors import InputError

__all__ = ["did_you_mean", "select"]

NAMES_SHOWN = 8
_NO_GROUPS_OF_OURS = ("all", "ungrouped")


def select(limit: str, nodes: Sequence[str], groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the nodes that a pattern selects, in the order of NODES.

    Args:
        limit: a pattern of Ansible, with globs, regular expressions, slices, exclusions and ``@file``.
        nodes: the names of all nodes.
        groups: the hosts of each group, those of the groups in it included.

    Raises:
        InputError: a part of the pattern matches no host (which for Ansible is a warning), or the whole of it
            no node.
    """
    if not limit:
        return tuple(nodes)
    from ansible.errors import AnsibleError
    from ansible.inventory.manager import split_host_pattern

    with _manager(nodes, groups) as manager:
        try:
            for part in split_host_pattern(limit):
                pattern = part.lstrip("!&")
                if pattern and not pattern.startswith("@") and not manager.get_hosts(pattern):
                    known = pattern in groups
                    what = "has no host" if known else "is neither a node nor a group of the inventory"
                    hint = "" if known else did_you_mean(pattern, nodes, groups)
                    raise InputError(f"--limit: {pattern!r} {what}", hint=hint)
            manager.subset(limit)
            selected = {host.name for host in manager.get_hosts("all")}
        except AnsibleError as error:
            raise InputError(f"--limit {limit}: {error.message}".rstrip(". ")) from None
    wanted = tuple(name for name in nodes if name in selected)
    if not wanted:
        raise InputError(f"--limit {limit} leaves no node")
    return wanted


def did_you_mean(name: str, nodes: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str:
    """Return a hint for who wrote a name that is neither a node's nor a group's."""
    known = [*nodes, *(group for group in groups if group not in _NO_GROUPS_OF_OURS)]
    if close := difflib.get_close_matches(name, known, n=3):
        return f"did you mean {' or '.join(close)}?"
    more = f" and {len(nodes) - NAMES_SHOWN} more" if len(nodes) > NAMES_SHOWN else ""
    return f"the nodes are {', '.join(nodes[:NAMES_SHOWN])}{more}"


@contextlib.contextmanager
def _manager(nodes: Sequence[str], groups: Mapping[str, Sequence[str]]) -> Iterator[Any]:
    """Give Ansible's inventory of these hosts. It does not warn of what matches nothing: we refuse that."""
    from ansible import constants
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader

    manager = InventoryManager(DataLoader(), sources=None, parse=False)
    for node in nodes:
        manager.add_host(node)
    for group, hosts in groups.items():
        manager.add_group(group)
        for host in hosts:
            manager.add_host(host, group)
    manager.reconcile_inventory()
    before = constants.HOST_PATTERN_MISMATCH
    constants.HOST_PATTERN_MISMATCH = "ignore"
    try:
        yield manager
    finally:
        constants.HOST_PATTERN_MISMATCH = before
