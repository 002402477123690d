"""Results that stay small with a thousand nodes: what nodes share is listed once, and the rest is cut."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

FEW_NODES = 64
"""Up to this many nodes, each lists everything, even what it shares with others."""
ROOM = 2_000_000
"""Characters of all diffs together."""
_WORTH = 200
"""From this many characters on, a repeated text is listed only once."""
_FILES = re.compile(r"^(?=--- )", re.MULTILINE)


def compact(data: dict[str, Any]) -> dict[str, Any]:
    """Return a result of bounded size.

    With more than 64 nodes, a file's diff or a part of the plan that an earlier node has as well becomes
    ``(as on NODE)``. All diffs together take at most 2 MB: the longest are cut.

    Args:
        data: as :meth:`RunResult.to_json` makes it; changed in place.
    """
    many = len(data["nodes"]) > FEW_NODES
    seen: dict[str, str] = {}
    changes = [(name, change) for name, node in data["nodes"].items() for change in node["changes"]]
    if many:
        for name, change in changes:
            change["diff"] = without_repeats(change["diff"], name, seen)
        for name, node in ((data.get("plan") or {}).get("nodes") or {}).items():
            for key, value in node.items():
                if isinstance(value, (dict, list)):
                    text = json.dumps([key, value])
                    first = seen.setdefault(_digest(text), name)
                    if first != name and len(text) > _WORTH:
                        node[key] = f"(as on {first})"
    longest = _longest([len(change["diff"]) for _name, change in changes])
    for _name, change in changes:
        change["diff"] = _cut(change["diff"], longest)
    return data


def _longest(lengths: list[int]) -> int:
    """Return the longest diff at which all of them fit."""
    room = ROOM
    for before, length in enumerate(sorted(lengths)):
        share = room // (len(lengths) - before)
        if length > share:
            return share
        room -= length
    return ROOM


def without_repeats(diff: str, name: str, seen: dict[str, str]) -> str:
    """Return a node's diff, without the lines of files whose diff an earlier node has as well.

    Args:
        diff: all files of the node.
        name: the node.
        seen: digest of a file's diff -> the first node that has it; grows.
    """
    return "".join(_without_repeats(diff, name, seen))


def _without_repeats(diff: str, name: str, seen: dict[str, str]) -> Iterator[str]:
    """Yield the files of a diff, without the lines of those that an earlier node has as well."""
    for file in _FILES.split(diff):
        first = seen.setdefault(_digest(file), name)
        if first == name or len(file) <= _WORTH:
            yield file
            continue
        yield from (line for line in file.splitlines(keepends=True)[:2] if line.startswith(("--- ", "+++ ")))
        yield f"(as on {first})\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def cut_files(diff: str, length: int) -> str:
    """Return a diff with at most `length` characters of each file, and a note on what is missing."""
    return "".join(_cut(file, length) for file in _FILES.split(diff))


def _cut(diff: str, length: int) -> str:
    """Return a diff of at most that length, and a note on what is missing."""
    if len(diff) <= length:
        return diff
    return diff[: diff.rfind("\n", 0, length) + 1] + "(cut)\n"
