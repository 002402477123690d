# SPDX-License-Identifier: GPL-3.0-or-later
"""The times of layers and links from published figures."""

import pytest

from rdm_planner.nodes import NodeKind
from rdm_planner.times import LayerWork, Link, PublishedPeaks, Times

_NODES = {
    "H100": NodeKind("H100", gpus=8, inter=400e9, intra=3600e9, memory_gib=79.1),
    "A10": NodeKind("A10", gpus=4, inter=40e9, intra=128e9, memory_gib=22.2),
}
_TIMES: Times = PublishedPeaks({"Block": LayerWork(1e12, 1e9)}, _NODES, {"H100": 1000.0, "A10": 100.0}, 0.5)


def test_a_layer_takes_its_flops_and_its_sums() -> None:
    assert _TIMES.forward("H100", "Block", 2, 1) == pytest.approx(2 / 500)
    summed = 1.5 * 2e9 / 3600e9
    assert _TIMES.forward("H100", "Block", 2, 4) == pytest.approx(2 / 2000 + summed)
    once = _TIMES.backward("H100", "Block", 2, 4, checkpointed=False)
    assert once == pytest.approx(4 / 2000 + summed)
    again = _TIMES.backward("H100", "Block", 2, 4, checkpointed=True)
    assert again - once == pytest.approx(_TIMES.forward("H100", "Block", 2, 4))


def test_ranks_that_share_a_head_of_keys_and_values_gather_it() -> None:
    work = LayerWork(0.0, 0.0, head_bits=1e9, key_value_heads=2)
    times = PublishedPeaks({"Block": work}, _NODES, {"H100": 1000.0}, 0.5)
    assert times.forward("H100", "Block", 3, 2) == 0.0
    assert times.forward("H100", "Block", 3, 8) == pytest.approx(0.75 * 3e9 / 3600e9)


def test_the_slower_end_of_a_link_decides() -> None:
    assert _TIMES.point_to_point("H100", "A10", across=True) == Link(0.0, 40e9)
    assert _TIMES.all_reduce({"H100", "A10"}, across=True).seconds(80e9) == pytest.approx(2.0)
    assert _TIMES.all_reduce({"H100"}, across=False).bandwidth == 3600e9
