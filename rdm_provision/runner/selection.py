"""Select nodes by a ``--limit`` pattern, with Ansible's own code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rdm_provision.errors import InputError
from rdm_provision.nearest import did_you_mean
from rdm_provision.wording import names

_NO_GROUPS_OF_OURS = ("all", "ungrouped")


def select(limit: str, nodes: Sequence[str], groups: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the nodes that a pattern selects, by rank.

    Args:
        limit: a pattern of Ansible, with globs, regular expressions, slices, exclusions and ``@file``.
        nodes: the names of all nodes, in the order of ranks.
        groups: the hosts of each group, including those of its child groups.

    Raises:
        InputError: a part of the pattern is invalid or matches no host (Ansible warns, or ignores it), or the
            whole pattern matches no node.
    """
    if not limit:
        return tuple(nodes)
    from ansible.errors import AnsibleError

    with _manager(nodes, groups) as manager:
        try:
            # First, because it raises for a missing file.
            manager.subset(limit)
            for pattern in _patterns(limit):
                if not _matches(manager, pattern):
                    known = pattern in groups
                    what = "has no host" if known else "is neither a node nor a group of the inventory"
                    hint = "" if known else nearest_node(pattern, nodes, groups)
                    raise InputError(f"--limit: {pattern!r} {what}", hint=hint)
            selected = {host.name for host in manager.get_hosts("all")}
        except AnsibleError as error:
            raise InputError(f"--limit {limit}: {error.message}".rstrip(". ")) from None
        except (OSError, UnicodeError) as error:
            raise InputError(f"--limit {limit}: the file cannot be read: {error}") from None
    wanted = tuple(name for name in nodes if name in selected)
    if not wanted:
        raise InputError(f"--limit {limit} leaves no node")
    return wanted


def _patterns(limit: str) -> list[str]:
    """Return the patterns of a limit, without ``!`` and ``&``, including those in files.

    Ansible ignores what it does not understand, and if nothing is left of a limit, takes all nodes.

    Raises:
        InputError: there is no pattern, a bracket is not closed, or nothing follows ``!``, ``&`` or ``~``.
    """
    from ansible.inventory.manager import split_host_pattern

    hint = "give nodes or groups, as in node2,node3 or 'workers:!node3'"
    parts: list[str] = split_host_pattern(limit)
    if "," not in limit and _bare("".join(parts)) != _bare(limit):
        raise InputError(f"--limit {limit!r} has a bracket without its other half", hint=hint)
    given: list[str] = []
    for part in parts:
        if part.startswith("@"):
            lines = Path(part[1:]).read_text(encoding="utf-8").split("\n")
            given += filter(None, map(str.strip, lines))
        else:
            given.append(part)
    if not given:
        raise InputError(f"--limit {limit!r} names no node", hint=hint)
    found = []
    for part in given:
        pattern = part[1:] if part[0] in "!&" else part
        if not pattern or pattern == "~" or pattern[0] in "!&":
            raise InputError(f"--limit {limit!r}: {part!r} names no node", hint=hint)
        found.append(pattern)
    return found


def _bare(text: str) -> str:
    """Return a limit without colons and spaces, which may separate its parts."""
    return "".join(text.replace(":", "").split())


def _matches(manager: Any, pattern: str) -> bool:
    """Return whether a single pattern matches a host."""
    from ansible.inventory.manager import split_host_pattern

    # Ansible must not split the pattern. The limit as a whole does not count here.
    return split_host_pattern(pattern) == [pattern] and bool(manager.get_hosts(pattern, ignore_limits=True))


def nearest_node(name: str, nodes: Sequence[str], groups: Mapping[str, Sequence[str]]) -> str:
    """Return a hint for a name that is neither a node's nor a group's."""
    known = [*nodes, *(group for group in groups if group not in _NO_GROUPS_OF_OURS)]
    return did_you_mean(name, known, f"the nodes are {names(nodes)}")


@contextlib.contextmanager
def _manager(nodes: Sequence[str], groups: Mapping[str, Sequence[str]]) -> Iterator[Any]:
    """Yield Ansible's inventory of these hosts, without warnings for patterns that match nothing."""
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
