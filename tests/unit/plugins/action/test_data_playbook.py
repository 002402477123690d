"""The playbook of `rdm-provision data`, on this machine, without changing anything."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from rdm_provision import environment
from tests.ansible_playbook import ansible_playbook
from tests.conftest import ROOT

TASK = "Transfer large files from node to node"


@pytest.mark.parametrize(
    ("group", "chosen", "what"),
    [
        ("master", "peers", "ok"),
        ("master", "", "ok"),  # as it is by default
        ("master", "pears", "fatal"),
        ("login", "peers", "skipping"),  # a cluster of Slurm, whose users become root in another way
    ],
)
def test_data_goes_from_node_to_node_only_where_there_are_nodes(
    tmp_path: Path, group: str, chosen: str, what: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "small").write_bytes(b"small")
    inventory = tmp_path / "hosts.ini"
    inventory.write_text(
        f"[{group}]\nn1 ansible_connection=local\n[all:vars]\nrdm_become=false\n"
        f"ansible_python_interpreter={sys.executable}\n"
    )
    given: dict[str, Any] = {"job_data": str(tmp_path / "data"), "__job_listed": {"directory": str(tmp_path)}}
    if chosen:
        given["images_distribution"] = chosen
    # Without a Docker Engine the directory of the jobs is unknown.
    words = ["--check", "--start-at-task", TASK, "--inventory", str(inventory), "-e", json.dumps(given)]
    env = {**os.environ, **environment.ansible_environment()}
    run = ansible_playbook(*words, ROOT / "playbooks" / "job_data.yml", environment=env)
    task = run.stdout.partition(f"{TASK}]")[2].partition("TASK [")[0]
    assert [word for word in ("ok", "fatal", "skipping") if f"{word}: [n1]" in task] == [what], run.stdout
    refused = "images_distribution has a wrong value 'pears': choose auto, direct, peers, mirror"
    assert (refused in run.stdout) == (what == "fatal"), run.stdout
