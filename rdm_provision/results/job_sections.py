"""What the logs of a training job say, in the sections of FASOP's ``get_result.sh``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["LogSection", "merged"]


@dataclass(frozen=True, slots=True)
class LogSection:
    """One section of all nodes.

    Attributes:
        title: as the script writes it.
        lines: what is in it.
        total: how many lines the files have that it shows the ends of; None where it shows no files.
    """

    title: str
    lines: tuple[str, ...]
    total: int | None = None


def merged(told: Iterable[Sequence[Mapping[str, Any]]]) -> tuple[LogSection, ...]:
    """Return the sections of all nodes, from those of each.

    What speaks of the whole job is taken from the first node that says something of it.
    """
    found: dict[str, LogSection] = {}
    for sections in told:
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
