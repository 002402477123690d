# SPDX-License-Identifier: GPL-3.0-or-later
"""Durations as text."""

from __future__ import annotations

__all__ = ["duration"]


def duration(seconds: float) -> str:
    """Return a duration as text, in the unit that suits it.

    >>> duration(172802)
    '2.0 days'
    """
    for size, word in ((86400 * 365.25, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {word}"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"
