# SPDX-License-Identifier: GPL-3.0-or-later
"""The content of a log, in forms that can be compared however it was read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rdm_log.bulk import Many
from rdm_log.lines import Record, Timer

__all__ = ["are_alike", "by_kind", "one_by_one"]


def one_by_one(found: Iterable[Record | Many]) -> list[Record]:
    """Return records one by one, also those that were read in bulk."""
    records: list[Record] = []
    for one in found:
        records += one.each() if isinstance(one, Many) else [one]
    return records


def by_kind(found: Iterable[Record]) -> dict[str, list[str]]:
    """Return times by their timer, and all other records; within each, the order stays."""
    lines: dict[str, list[str]] = {}
    for one in found:
        key = f"{one.name} {one.rank}" if isinstance(one, Timer) else ""
        lines.setdefault(key, []).append(repr(one))
    return lines


def are_alike(one: Any, other: Any) -> bool:
    """Return whether plain data is the same except for numbers' last digits: sums have another order."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and are_alike([*one.values()], [*other.values()])
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(are_alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or math.isclose(one, other, rel_tol=1e-11) or (one != one and other != other)
    return bool(one == other)
