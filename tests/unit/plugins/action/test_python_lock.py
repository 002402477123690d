"""`rdm.provision.python_lock` as ansible-playbook runs it, on hosts that are never reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.conftest import COLLECTIONS, ROOT

PLAY = """
- name: Lock
  hosts: all
  gather_facts: false
  tasks:
    - name: Lock
      rdm.provision.python_lock:
        python: "3.11"
        torch_backend: auto
        gpus: gpus
        # Nothing answers there.
        proxy: http://127.0.0.1:9
      run_once: true
"""


def refusal(folder: Path, *flags: str) -> tuple[str, dict[str, str]]:
    """Run it with three nodes of two drivers; return who refuses, and the one problem."""
    hosts = {
        "n1": {"gpus": {"nvidia": "550.54.15", "amd": []}},
        "n2": {"gpus": {"nvidia": "550.90.07", "amd": []}},
        "n3": {"gpus": {"nvidia": "520.61.05", "amd": []}},
    }
    cluster = {
        "master": {"hosts": {"n1": hosts["n1"]}},
        "workers": {"hosts": {n: hosts[n] for n in ("n2", "n3")}},
    }
    listing = {"all": {"vars": {"rdm_accelerator": "cuda"}, "children": cluster}}
    (folder / "hosts.yml").write_text(yaml.safe_dump(listing, sort_keys=False))
    (folder / "play.yml").write_text(PLAY)
    done = subprocess.run(
        [Path(sys.executable).with_name("ansible-playbook"), "--inventory=hosts.yml", "play.yml", *flags],
        cwd=folder,
        env=os.environ
        | {
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (task,) = json.loads(done.stdout[done.stdout.index("{") :])["plays"][0]["tasks"]
    (result,) = task["hosts"].values()
    assert "problems" in result, done.stdout
    (problem,) = result["problems"]
    return result["rdm_refused"], problem


def test_nodes_whose_drivers_need_other_builds_are_refused_before_anything_is_locked(tmp_path: Path) -> None:
    who, problem = refusal(tmp_path)
    assert (who, problem["node"], problem["value"]) == ("nodes", "n3", "torch for cu118")
    assert not (tmp_path / "python_env.lock").exists()


def test_a_few_nodes_do_not_rewrite_the_lock_file_of_all(tmp_path: Path) -> None:
    (tmp_path / "python_env.lock").write_text("# of all\n")
    who, problem = refusal(tmp_path, "--limit=n3")
    assert (who, problem["value"]) == ("inventory", "python_env.lock")
    assert (tmp_path / "python_env.lock").read_text() == "# of all\n"
