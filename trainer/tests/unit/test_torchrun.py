# SPDX-License-Identifier: GPL-3.0-or-later
"""How torch's launcher ends: in one sentence."""

from __future__ import annotations

import datetime
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rdm_core.errors import FAILED, TrainerError
from rdm_trainer import process

TORCHRUN = [sys.executable, "-m", "rdm_trainer.torchrun", "--master-addr=127.0.0.1"]


@pytest.fixture
def port() -> Iterator[int]:
    """Return a port that is in use."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_in_use_is_named(port: int, tmp_path: Path) -> None:
    command = [*TORCHRUN, f"--master-port={port}", f"--log-dir={tmp_path}", "-m", "this"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == FAILED
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1] == (
        f"Port {port} is in use on this host, perhaps by another job; choose another launcher.master_port, "
        "or leave it out to take a free one."
    )


def test_a_rank_names_it_as_well(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in given.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(TrainerError, match=f"^MASTER_PORT {port} is in use on this host") as caught:
        process.join("gloo", datetime.timedelta(seconds=5))
    assert caught.value.exit_code == FAILED


def test_a_signal_ends_it_in_a_sentence(tmp_path: Path) -> None:
    script = tmp_path / "wait.py"
    script.write_text("import pathlib, time\npathlib.Path('began').touch()\ntime.sleep(600)\n")
    command = [*TORCHRUN, "--master-port=0", f"--log-dir={tmp_path}", str(script)]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as run:
        while run.poll() is None and not (tmp_path / "began").exists():
            time.sleep(0.05)
        run.terminate()
        _, errors = run.communicate()
    assert run.returncode == 128 + signal.SIGTERM
    assert "Traceback" not in errors
    assert errors.splitlines()[-1] == "torchrun was ended by SIGTERM, and has ended its processes."
