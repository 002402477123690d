# SPDX-License-Identifier: GPL-3.0-or-later
"""A member's command ends as a whole."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rdm_job.processes import alive
from rdm_job.rendezvous import command
from tests.waiting import wait_until


def test_command_that_ignores_sigterm_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "TERM_S", 0.2)
    pids = tmp_path / "pids"
    script = f"trap '' TERM; setsid sleep 1000 & echo $! > {pids}.new; mv {pids}.new {pids}; wait"
    lasting = command.Command(["sh", "-c", script], dict(os.environ))
    wait_until("it has started another", pids.exists)
    lasting.stop()
    assert wait_until("it is killed", lasting.poll) == 128 + signal.SIGKILL
    assert not alive(int(pids.read_text()))
    lasting.close()
