# SPDX-License-Identifier: GPL-3.0-or-later
"""One process makes an index map, and all wait for it through one function, which has no time limit.

``tests/distributed/test_faults.py`` tests that function between real processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from rdm_trainer.data.index_maps.maker import MapMaker, Progress


@pytest.mark.parametrize("leads", [True, False])
def test_nothing_else_is_called_between_the_beginning_and_the_end_of_a_map(
    tmp_path: Path, leads: bool
) -> None:
    path, go, calls = tmp_path / "map.npy", threading.Event(), list[object]()

    def build(_: Progress) -> Iterator[tuple[Path, np.ndarray]]:
        go.wait()
        yield path, np.arange(5)

    def wait_until(done: Callable[[float], bool]) -> None:
        calls.append(done(0.01))
        go.set()
        while not done(1.0):
            pass
        calls.append(path.exists())

    def first_error(error: str | None) -> str | None:
        calls.append(error)
        return error

    def check() -> None:
        calls.append("checked")

    maps = MapMaker(leads=lambda _: leads, wait_until=wait_until, first_error=first_error)
    maps.make("corpus", [path], build, check)
    # A process that does not make the map does not wait by itself: wait_until does, for all.
    assert calls == ([False, "checked", True, None] if leads else [True, False, None])
