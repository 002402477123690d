# SPDX-License-Identifier: GPL-3.0-or-later
"""How messages write sizes and lists of names."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["NAMES_SHOWN", "listed", "size_text"]

NAMES_SHOWN = 8
_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


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
