"""`rdm.provision.python_lock` as ansible-playbook runs it, on hosts that are never reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env import lock as python_lock

from tests.ansible_playbook import played
from tests.conftest import ROOT

PYTHON = "3.11"
PLAY = f"""
- name: Lock
  hosts: all
  gather_facts: false
  tasks:
    - name: Lock
      rdm.provision.python_lock:
        python: "{PYTHON}"
        torch_backend: auto
        gpus: gpus
        # Nothing answers there.
        proxy: http://127.0.0.1:9
      run_once: true
"""


def decision(folder: Path, *flags: str, play: str = PLAY) -> dict[str, Any]:
    """Run it with three nodes of two drivers; return its result."""
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
    (folder / "play.yml").write_text(play)
    (task,) = played("--inventory=hosts.yml", "play.yml", *flags, directory=folder).tasks
    (result,) = task["hosts"].values()
    assert isinstance(result, dict)
    return result


def failure(folder: Path, *flags: str) -> tuple[str, dict[str, str]]:
    """Return the refused stage and the only problem."""
    result = decision(folder, *flags)
    assert "problems" in result, result
    (problem,) = result["problems"]
    return result["rdm_refused"], problem


def test_nodes_whose_drivers_need_other_builds_are_refused_before_anything_is_locked(tmp_path: Path) -> None:
    who, problem = failure(tmp_path)
    assert (who, problem["node"], problem["value"]) == ("nodes", "n3", "torch for cu118")
    assert not (tmp_path / "python_env.lock").exists()


def test_a_few_nodes_do_not_rewrite_the_lock_file_of_all(tmp_path: Path) -> None:
    (tmp_path / "python_env.lock").write_text("# of all\n")
    who, problem = failure(tmp_path, "--limit=n3")
    assert (who, problem["value"]) == ("inventory", "python_env.lock")
    assert (tmp_path / "python_env.lock").read_text() == "# of all\n"


def test_each_node_has_the_lock_file_of_its_own_build_where_allowed(tmp_path: Path) -> None:
    """With existing lock files, since their packages are only in PyTorch's own indexes."""
    for backend in ("cu118", "cu129"):
        first = python_lock.first_line(python_lock.requirements_of(ROOT / "trainer", ""), PYTHON, backend)
        (tmp_path / python_lock.lock_file(backend)).write_text(f"{first}# {backend}\n")
    result = decision(tmp_path, play=PLAY.replace("gpus: gpus", "gpus: gpus\n        per_node: true"))
    assert {node: one["torch_backend"] for node, one in result["nodes"].items()} == {
        "n1": "cu129",
        "n2": "cu129",
        "n3": "cu118",
    }
    assert all(one["lock"].endswith(f"# {one['torch_backend']}\n") for one in result["nodes"].values())
    assert not result["made"]
