"""Reading an inventory ends, even if the inventory waits for something."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rdm_provision import environment
from rdm_provision.errors import InventoryError
from rdm_provision.runner import inventory
from trainer.tests.waiting import wait_until

SCRIPT = """#!/bin/sh
sleep 1000 &
echo $! > {file}.new && mv {file}.new {file}
wait
"""


def test_an_inventory_that_waits_for_ever_is_ended_with_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, started = tmp_path / "ansible-inventory", tmp_path / "pid"
    program.write_text(SCRIPT.format(file=started))
    program.chmod(0o755)
    monkeypatch.setattr(environment, "program", lambda _name: str(program))

    def late(self: subprocess.Popen[str], timeout: float) -> None:
        wait_until("its script runs", started.exists)
        raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "communicate", late)
    with pytest.raises(InventoryError, match="ansible-inventory has not ended within 300 s"):
        inventory.read_inventory(tmp_path / "cloud.py")
    gone = Path("/proc", started.read_text().strip())
    wait_until("its script has ended", lambda: not (gone / "exe").exists())
