"""A training job's logs in the sections of FASOP's ``get_result.sh``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LogSection:
    """One section of all nodes.

    Attributes:
        title: as the script writes it.
        lines: its lines.
        total: how many lines the files have whose ends it shows; None if it shows no files.
    """

    title: str
    lines: tuple[str, ...]
    total: int | None = None


def merged(by_node: Iterable[Sequence[Mapping[str, Any]]]) -> tuple[LogSection, ...]:
    """Merge the sections of each node.

    Sections about the whole job come from the first node that has them.
    """
    found: dict[str, LogSection] = {}
    for sections in by_node:
        for one in sections:
            title, lines, total = str(one["title"]), tuple(map(str, one["lines"])), one.get("total")
            known = found.get(title)
            if known is None or (one.get("is_whole") and not known.lines):
                found[title] = LogSection(title, lines, total)
            elif not one.get("is_whole"):
                between = ("",) if known.lines and lines else ()
                found[title] = LogSection(
                    title, (*known.lines, *between, *lines), (known.total or 0) + (total or 0)
                )
    return tuple(found.values())
