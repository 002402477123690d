"""The processes that the real ansible-playbook forks have what it had read out of the collector's sight."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rdm_provision import environment

PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: "{{ 0 | sight }}"
"""
FILTER = """
import gc

def sight(_):
    return f"out of sight: {gc.get_freeze_count() > 10_000}, searched from {gc.get_threshold()[0]} on"

class FilterModule:
    def filters(self):
        return {"sight": sight}
"""


def test_what_a_run_begins_with_is_not_searched_by_its_processes(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "filter_plugins").mkdir()
    (tmp_path / "filter_plugins" / "sight.py").write_text(FILTER)
    done = subprocess.run(
        [environment.program("ansible-playbook"), "-i", "a,", "play.yml"],
        cwd=tmp_path,
        env={**os.environ, **environment.ansible_environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "out of sight: True, searched from 10000 on" in done.stdout
