# SPDX-License-Identifier: GPL-3.0-or-later
"""Validation of predictions: which layouts to run, and how the times compare."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def chosen(count: int, best: int) -> list[int]:
    """Return the ranks of the layouts to run: the best ones, and as many of the others, evenly spread."""
    first = min(best, count)
    others = range(first, count)
    some = min(best, len(others))
    # The slowest layout is always included: layouts of similar speed are hard to rank.
    return [*range(first), *(others[(number + 1) * len(others) // some - 1] for number in range(some))]


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how far predictions are from measurements.

    Args:
        rows: ``predicted`` and ``measured`` seconds of each layout; ``measured`` is None if it did not run.

    Returns:
        The number of ``layouts`` that ran; ``mean_absolute_error``, relative to the measured time;
        ``rank_correlation``; and ``winner_excess``, how much longer the step of the one that was predicted
        as the fastest took than the fastest step, relative to that. All but the first are None if too few
        ran.
    """
    ran = [(float(row["predicted"]), float(row["measured"])) for row in rows if row["measured"]]
    predicted, measured = [one for one, _ in ran], [one for _, one in ran]
    errors = [abs(one / other - 1) for one, other in ran]
    return {
        "layouts": len(ran),
        "mean_absolute_error": statistics.mean(errors) if errors else None,
        "rank_correlation": rank_correlation(predicted, measured),
        "winner_excess": min(ran)[1] / min(measured) - 1 if ran else None,
    }


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's correlation, with mean ranks for ties; None where it is undefined."""
    try:
        return statistics.correlation(_ranks(one), _ranks(other))
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]
