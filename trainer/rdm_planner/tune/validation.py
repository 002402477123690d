# SPDX-License-Identifier: GPL-3.0-or-later
"""How good predictions are: which layouts are run, and what comes of comparing them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["chosen", "compared", "rank_correlation"]


def chosen(count: int, best: int) -> list[int]:
    """Return which layouts are run, by their ranks: the best, and as many of the others, evenly spread.

    Args:
        count: Layouts that there are, the fastest first.
        best: How many of the best.
    """
    first = min(best, count)
    others = range(first, count)
    some = min(best, len(others))
    # The slowest is among them: what is alike is hard to put in order.
    return [*range(first), *(others[(number + 1) * len(others) // some - 1] for number in range(some))]


def compared(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how far predictions are from what was measured.

    Args:
        rows: ``predicted`` and ``measured`` seconds of each layout; None where it did not run.

    Returns:
        ``layouts`` that ran; ``mean_absolute_error``, of the measured time, and ``rank_correlation``, None of
        too few.
    """
    ran = [(float(row["predicted"]), float(row["measured"])) for row in rows if row["measured"]]
    predicted, measured = [one for one, _ in ran], [one for _, one in ran]
    errors = [abs(one / other - 1) for one, other in ran]
    return {
        "layouts": len(ran),
        "mean_absolute_error": statistics.mean(errors) if errors else None,
        "rank_correlation": rank_correlation(predicted, measured),
    }


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's correlation, equal values with their mean rank; None of values that have none.

    Args:
        one: Values.
        other: As many.
    """
    try:
        return statistics.correlation(_ranks(one), _ranks(other))
    except statistics.StatisticsError:
        return None


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]
