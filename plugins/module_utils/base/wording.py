# SPDX-License-Identifier: GPL-3.0-or-later
"""How messages write sizes and lists of names.

This runs on the controller and on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

from typing import Iterable

NAMES_SHOWN = 8
_UNITS = ("KiB", "MiB", "GiB", "TiB")


def names(items: Iterable[str], limit: int = NAMES_SHOWN) -> str:
    """Return `a, b, c and 97 more`."""
    listed = list(items)
    shown = ", ".join(listed[:limit])
    return shown if len(listed) <= limit else "{0} and {1} more".format(shown, len(listed) - limit)


def size_text(count: int) -> str:
    """Return a number of bytes as `1.5 GiB`."""
    power = min((max(count, 1).bit_length() - 1) // 10, len(_UNITS))
    return "{0:.1f} {1}".format(count / 1024**power, _UNITS[power - 1]) if power else "{0} B".format(count)
