"""Names of the nodes that measure each other."""

from __future__ import annotations


def names(count: int) -> list[str]:
    """Return as many names."""
    return [f"n{number}" for number in range(1, count + 1)]
