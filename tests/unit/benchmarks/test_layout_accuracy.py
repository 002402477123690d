# SPDX-License-Identifier: GPL-3.0-or-later
"""The benchmark of predictions measures enough layouts on each number of devices."""

from __future__ import annotations

import pytest

from benchmarks.layout_accuracy import EIGHT, ON, configuration
from benchmarks.train_throughput import Layout


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_at_least_fifteen_combinations_use_the_devices(devices: int) -> None:
    assert len(set(ON[devices])) == len(ON[devices]) >= 15
    assert {Layout.parse(one.layout).world for one in ON[devices]} <= {1, devices}


def test_those_of_eight_devices_train_the_same_steps() -> None:
    batches = {configuration(one, "native", smoke=False).optimisation.global_batch_size for one in EIGHT}
    assert (batches, {one.layers for one in EIGHT}) == ({64}, {16})
