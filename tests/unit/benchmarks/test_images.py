"""The curve of docs/images.md comes from a simulation with the product's own schedule."""

from __future__ import annotations

import argparse
import json

import pytest

from benchmarks.images import Outcome, Way, chain_table, job_table, simulated

PIECES = 128


@pytest.mark.parametrize("nodes", [8, 200, 1000])
def test_many_nodes_take_about_as_long_as_one(nodes: int) -> None:
    steps, sent = simulated(nodes, PIECES)
    assert steps <= 1.5 * PIECES
    assert sent == PIECES, "each piece leaves the source once"


def test_hops_and_late_nodes_take_longer() -> None:
    steps, _sent = simulated(8, PIECES)
    assert steps < simulated(8, PIECES, hop=8)[0] <= steps + 8 * 7
    late = simulated(8, PIECES, join=16)[0]
    assert 7 * 16 + PIECES <= late <= 7 * 16 + 1.5 * PIECES


def test_the_cost_of_a_hop_has_a_fixed_part_and_one_of_the_pieces_size() -> None:
    def measured(way: Way) -> Outcome:
        piece_s = way.piece * 8 / 200e6
        lines = [
            json.dumps([number * piece_s + node * (0.1 + 1.5 * piece_s) for number in range(20)])
            for node in (2, 0, 1)
        ]
        return Outcome(1, 0, 0, lines, [])

    table = chain_table(measured, argparse.Namespace(nodes=3, rate=200))
    assert table.endswith("HOP_S, HOP_PIECES = 0.100, 1.50")


def test_a_jobs_steps_are_compared_with_those_before_the_transfer() -> None:
    ways = []

    def measured(way: Way) -> Outcome:
        ways.append(way)
        return Outcome(10, 0, 0, [], [(0.1, 0.05), (0.2, 0.05)])

    table = job_table(measured, argparse.Namespace(nodes=4, rate=200))
    assert [way.bandwidth for way in ways] == [0, 100, 50, 20]
    assert all(way.job for way in ways)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert cells[0] == ["none", "10.0", "2.00", "1.00", "3.00"]
    assert [row[0] for row in cells[1:]] == ["100", "50", "20"]
