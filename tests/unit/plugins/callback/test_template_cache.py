"""The processes of the real ansible-playbook share what they compile."""

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
        msg: >-
          {{ inventory_hostname }} finds
          {{ lookup('ansible.builtin.pipe', 'find . -path */rdm_templates/* | wc -l') }}
"""


def test_the_next_process_finds_what_one_has_compiled(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY, encoding="utf-8")
    env = {**os.environ, **environment.ansible_environment(), "ANSIBLE_LOCAL_TEMP": str(tmp_path / "run")}
    argv = [environment.program("ansible-playbook"), "-f", "1", "-i", "a,b", str(tmp_path / "play.yml")]
    done = subprocess.run(argv, env=env, check=False, text=True, capture_output=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a finds 1" in done.stdout
    assert "b finds 1" in done.stdout, "the second one has compiled more"
    assert list((tmp_path / "run").iterdir()) == [], "it is left behind"
