"""The processes of the real ansible-playbook share compiled templates."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ansible.parsing.vault import VaultLib, VaultSecret

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


PRINTED = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.debug:
        msg: >-
          open {{ whole }}
          kept {{ lookup('ansible.builtin.pipe', 'grep -rhao -e open -e se[c]ret run | sort -u') }}.
"""
SECRETS = """
- hosts: all
  connection: local
  gather_facts: false
  vars_files: [vault.yml]
  tasks:
    - ansible.builtin.debug:
        msg: >-
          open {{ whole }} {{ lookup('ansible.builtin.template', 'vault.j2') }}
          kept {{ lookup('ansible.builtin.pipe', 'grep -rhao -e open -e se[c]ret run | sort -u') }}.
"""


SCRIPT = """#!/bin/sh
echo '{"all": {"hosts": ["a", "b"], "vars": {"whole": "secret {{ 1 + 1 }}"}}, "_meta": {"hostvars": {}}}'
"""


def play(folder: Path, *flags: str, inventory: str = "a,b") -> str:
    """Run a directory's play for two hosts, one after the other, and return its output."""
    env = {**os.environ, **environment.ansible_environment(), "ANSIBLE_LOCAL_TEMP": str(folder / "run")}
    argv = [
        environment.program("ansible-playbook"),
        "-f",
        "1",
        "-i",
        inventory,
        str(folder / "play.yml"),
        *flags,
    ]
    done = subprocess.run(argv, env=env, check=False, text=True, capture_output=True, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_templates_with_encrypted_values_are_not_cached(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(SECRETS, encoding="utf-8")
    vault = VaultLib([("default", VaultSecret(b"a password"))])
    (tmp_path / "password").write_text("a password\n", encoding="utf-8")
    for name, text in (("vault.yml", "whole: secret {{ 1 + 1 }}\n"), ("vault.j2", "secret {{ 3 }}")):
        (tmp_path / name).write_bytes(vault.encrypt(text))
    done = play(tmp_path, f"--vault-password-file={tmp_path / 'password'}")
    assert done.count("open secret 2 secret 3 kept open.") == 2, done


def test_output_of_an_inventory_script_is_not_cached(tmp_path: Path) -> None:
    """A script's output comes from no file, and may be secret."""
    (tmp_path / "play.yml").write_text(PRINTED, encoding="utf-8")
    script = tmp_path / "inventory"
    script.write_text(SCRIPT, encoding="utf-8")
    script.chmod(0o755)
    done = play(tmp_path, inventory=str(script))
    assert done.count("open secret 2 kept open.") == 2, done


def test_compiled_templates_are_shared_between_processes(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY, encoding="utf-8")
    output = play(tmp_path)
    assert "a finds 1" in output
    assert "b finds 1" in output, "the second one has compiled more"
    assert list((tmp_path / "run").iterdir()) == [], "it is left behind"
