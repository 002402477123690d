# SPDX-License-Identifier: GPL-3.0-or-later
"""The records of a log, in a form that can be compared however it was read."""

from __future__ import annotations

from collections.abc import Iterable

from rdm_log.records import RankTimes, Record


def by_kind(found: Iterable[Record]) -> tuple[list[tuple[str, int, float]], list[str]]:
    """Return the timers of ranks, and all other records: a block's timers come before its lines."""
    times: list[tuple[str, int, float]] = []
    others: list[str] = []
    for one in found:
        if isinstance(one, RankTimes):
            times += [(one.name, *pair) for pair in zip(one.ranks, one.milliseconds, strict=True)]
        else:
            others.append(repr(one))
    return times, others
