# SPDX-License-Identifier: GPL-3.0-or-later
"""Numbers of bytes as text."""

from __future__ import annotations

__all__ = ["size_text"]

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def size_text(count: float) -> str:
    """Return a number of bytes as text in the largest fitting decimal unit: 812 bytes, 3.4 kB, 16.1 GB."""
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count:.0f} bytes"
