# SPDX-License-Identifier: GPL-3.0-or-later
"""What a training does around its work."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rdm_core.errors import TrainerError
from rdm_trainer import process

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_ranks_of_one_training_do_not_refuse_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / ".training.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        # A rank that also took the lock to look at it would be in the way of the first one.
        monkeypatch.setenv("RANK", "1")
        process.require_alone(tmp_path)
        monkeypatch.setenv("RANK", "0")
        with pytest.raises(TrainerError, match="Another training is at work in"):
            process.require_alone(tmp_path)
        holder.communicate("")
    process.require_alone(tmp_path)
