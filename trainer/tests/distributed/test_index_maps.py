# SPDX-License-Identifier: GPL-3.0-or-later
"""A map that takes longer than a collective operation may: the other ranks wait for it."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rdm_trainer.data.index_maps.maker import MapMaker, Progress
from rdm_trainer.distributed.collective import Collective
from tests.distributed import processes

LIMIT_S = 15.0
"""A rank that has to wait for a core must not be taken for one that is too late."""


def make(root: str) -> list[int]:
    """Make a map on rank 0 that takes longer than the time limit of the processes' group."""
    collective = Collective(datetime.timedelta(seconds=LIMIT_S))
    path = Path(root) / "map.npy"

    def build(_: Progress) -> Iterator[tuple[Path, np.ndarray]]:
        # What is tested is that time passes.
        time.sleep(1.5 * LIMIT_S)
        yield path, np.arange(5)

    maps = MapMaker(
        is_writer=collective.rank == 0,
        wait_until=collective.wait_until,
        first_error=collective.first_error,
    )
    maps.make("corpus", [path], build, lambda: None)
    found: list[int] = np.load(path).tolist()
    return found


def test_no_time_limit_ends_the_wait_for_a_map(tmp_path: Path) -> None:
    assert processes.run(2, make, str(tmp_path)) == [[0, 1, 2, 3, 4]] * 2
