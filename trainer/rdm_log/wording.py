# SPDX-License-Identifier: GPL-3.0-or-later
"""How messages write durations, sizes and lists of names."""

from __future__ import annotations

from collections.abc import Iterable

NAMES_SHOWN = 8
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def duration(seconds: float) -> str:
    """Return a duration as text, in the unit that suits it.

    >>> duration(172802)
    '2.0 days'
    """
    for size, word in ((86400 * 365.25, "years"), (86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {word}"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.1f} ms"


def listed(names: Iterable[str], limit: int = NAMES_SHOWN, separator: str = ", ") -> str:
    """Return `a, b, c and 97 more`."""
    every = list(names)
    more = f" and {len(every) - limit} more" if len(every) > limit else ""
    return separator.join(every[:limit]) + more


def size_text(count: float) -> str:
    """Return a number of bytes as text in the largest fitting decimal unit: 812 bytes, 3.4 kB, 16.1 GB."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} bytes"
