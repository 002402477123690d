"""The real ansible-playbook reuses packed modules of the last run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rdm_provision import environment

PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars: {ansible_python_interpreter: "{{ ansible_playbook_python }}"}
  tasks:
    - rdm.provision.node_files:
"""


def test_run_reuses_modules_packed_by_the_last_one(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY, encoding="utf-8")

    def play() -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **environment.ansible_environment(), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        argv = [environment.program("ansible-playbook"), "-i", "localhost,", str(tmp_path / "play.yml")]
        return subprocess.run(argv, env=env, check=False, text=True, capture_output=True, cwd=tmp_path)

    done = play()
    assert done.returncode == 0, done.stdout + done.stderr
    (packed,) = (tmp_path / "cache" / "rdm-provision" / "modules").glob("*/*")
    assert "rdm.provision.plugins.modules.node_files" in packed.name
    content = packed.read_bytes()
    packed.write_bytes(b"this cannot be loaded")
    assert play().returncode != 0, "it was packed again"
    packed.write_bytes(content)
    assert play().returncode == 0
    packed.write_bytes(b"this cannot be loaded")
    packed.parent.chmod(0o777)
    assert play().returncode == 0, "something was taken from where everybody can write"
