# SPDX-License-Identifier: GPL-3.0-or-later
"""Decide which node sends which files of a directory that nodes have, and to whom."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.rdm.provision.plugins.module_utils.base.wording import names
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem

Files = Mapping[str, Mapping[str, Any]]
"""Node -> path of a file -> its bytes, or its digest."""


def source_nodes(
    chosen: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[Problem]]:
    """Return the nodes that may have the directory, and a problem for each unknown name and empty group."""
    known = groups["all"]
    hint = f"name hosts or groups of the inventory, such as {names(known)}"
    problems = [
        Problem(None, name, "has no hosts" if name in groups else "is not in the inventory", hint)
        for name in chosen
        if name not in known and not groups.get(name)
    ]
    found = [node for name in chosen for node in ([name] if name in known else groups.get(name, ()))]
    return list(dict.fromkeys(found)), problems


def without_directory(
    directory: str, chosen: Collection[str], listed: Mapping[str, Mapping[str, int] | None]
) -> list[Problem]:
    """Return a problem for each node that was named and does not have the directory, or if none has files.

    Args:
        directory: its path.
        chosen: names of hosts or groups.
        listed: node -> its files; None if it does not have the directory.
    """
    hint = "name nodes that have it"
    found = [
        Problem(node, directory, "is no directory on this node", hint)
        for node, files in listed.items()
        if files is None and node in chosen
    ]
    if not found and not any(listed.values()):
        return [Problem(None, directory, f"has no files on {names(listed)}", hint)]
    return found


def holders(listed: Files) -> dict[str, list[str]]:
    """Return the nodes that have each file; the first of them sends it."""
    found: dict[str, list[str]] = {}
    for node, files in listed.items():
        for path in files:
            found.setdefault(path, []).append(node)
    return found


def conflicts(directory: str, values: Files) -> list[Problem]:
    """Return a problem for each file whose bytes, or digests, differ between two nodes."""
    problems = []
    for path, (first, *others) in holders(values).items():
        other = next((node for node in others if values[node][path] != values[first][path]), "")
        if other:
            reason = f"is another file on {other} than on {first}"
            hint = "remove the wrong one, or name only nodes that have the right one"
            problems.append(Problem(None, f"{directory}/{path}", reason, hint))
    return problems


def to_hash(found: Mapping[str, Sequence[str]], present: Files) -> dict[str, list[str]]:
    """Return the files that a source must hash before anything is sent: node -> paths.

    These are files of several sources, and those of which a node has one with the same size.

    Args:
        found: as `holders` returns it.
        present: node -> path -> digest of the file that it has at the destination.
    """
    compared = {path for files in present.values() for path in files}
    hashed: dict[str, list[str]] = {}
    for path, nodes in found.items():
        if len(nodes) > 1 or path in compared:
            for node in nodes:
                hashed.setdefault(node, []).append(path)
    return hashed


def parts(sizes: Mapping[str, int], most: int) -> Iterator[dict[str, list[int]]]:
    """Yield the parts of files that are hashed at a time: path -> offset and bytes.

    The parts of a file are the same whatever the other files are.

    Args:
        sizes: path of each file -> its bytes.
        most: bytes of all parts together.
    """
    found: dict[str, list[int]] = {}
    left = most
    for path, size in sizes.items():
        for begin in range(0, max(size, 1), most):
            length = min(most, size - begin)
            if length > left:
                yield found
                found, left = {}, most
            found[path] = [begin, length]
            left -= length
    if found:
        yield found


def fetched(
    found: Mapping[str, Sequence[str]], needed: Mapping[str, Collection[str]]
) -> dict[str, dict[str, set[str]]]:
    """Return what goes from node to node: source -> node -> paths.

    A source sends its files always as the same archive, so that a later run continues with it.

    Args:
        found: as `holders` returns it.
        needed: node -> paths that it lacks; it copies those of its own directory itself.
    """
    sent: dict[str, dict[str, set[str]]] = {}
    for node, paths in needed.items():
        for path in paths:
            if node not in found[path]:
                sent.setdefault(found[path][0], {}).setdefault(node, set()).add(path)
    return sent
