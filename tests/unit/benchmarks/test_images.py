"""The curve of docs/images.md comes from a simulation with the product's own schedule."""

from __future__ import annotations

import pytest

from benchmarks.images import simulated

PIECES = 128


@pytest.mark.parametrize("nodes", [8, 200, 1000])
def test_many_nodes_take_about_as_long_as_one(nodes: int) -> None:
    steps, sent = simulated(nodes, PIECES)
    assert steps <= 1.5 * PIECES
    assert sent == PIECES, "each piece leaves the source once"
