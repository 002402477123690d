# SPDX-License-Identifier: GPL-3.0-or-later
"""The lock of a peer's process; the process itself is tested with the module that starts it."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_process import held


def test_lock_removed_by_its_holder_is_free(tmp_path: Path) -> None:
    base = str(tmp_path / "a")
    earlier = held(base)
    Path(base + ".lock").unlink()
    later = held(base)
    earlier.close()
    assert later is not None
    assert held(base) is None
    later.close()


def test_a_lock_that_is_removed_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = str(tmp_path / "a")
    flock = fcntl.flock

    def late(file: Any, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        flock(file, how)
        Path(base + ".lock").unlink()

    monkeypatch.setattr(fcntl, "flock", late)
    first = held(base)
    assert held(base) is None, "two would have it"
    first.close()
