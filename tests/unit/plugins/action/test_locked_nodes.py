"""`rdm.provision.locked_nodes` as ansible-playbook runs it; this machine is the node."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.state import node_lock
from ansible_collections.rdm.provision.plugins.modules import node_lock as module
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import Leader
from ansible_collections.rdm.provision.plugins.plugin_utils.ssh import cluster_keys

from tests.ansible_playbook import played
from tests.unit.plugins.modules.running import run_module

PLAY = """
- name: Change a cluster
  hosts: "{{ lookup('rdm.provision.cluster_lock', 'all') }}"
  gather_facts: false
  tasks:
    - name: Lock
      rdm.provision.locked_nodes: &options
        cluster: "{{ cluster }}"
        connections: [local]
        config_dir: "{{ inventory_dir }}/rdm"
        keys: keys
      run_once: true
    - name: Gather
      rdm.provision.node_lock:
        lock: {cluster: "{{ cluster }}", run: other, home: other, leader: {}}
    - name: Release
      rdm.provision.locked_nodes:
        <<: *options
        state: free
      run_once: true
"""
CLUSTER = f"test-{os.getpid()}"


def other(**changes: Any) -> dict[str, Any]:
    leader = Leader("rdm-provision up", 7, 1, "eve", "ctl", "", 1764060730.0)._replace(**changes)
    return {"cluster": CLUSTER, "run": "other", "home": "other", "leader": leader._asdict()}


@pytest.fixture(autouse=True)
def free() -> Iterator[None]:
    yield
    node_lock.release(other())


def play(directory: Path, *options: str) -> tuple[int, list[dict[str, Any]]]:
    """Return the exit status, and what each task returned."""
    (directory / "hosts").write_text(
        "here ansible_connection=local ansible_pipelining=true rdm_become=false "
        f"ansible_python_interpreter={sys.executable}\n"
    )
    (directory / "play.yml").write_text(PLAY)
    words = ("--inventory=hosts", "play.yml", "-e", f"cluster={CLUSTER}", *options)
    rc, tasks, _ = played(*words, directory=directory)
    return rc, [task["hosts"]["here"] for task in tasks]


def test_nodes_are_locked_until_they_are_released(tmp_path: Path) -> None:
    rc, (_, locked, _) = play(tmp_path)
    assert rc == 0
    assert locked["holder"]["leader"]["what"] == "ansible-playbook play.yml"
    assert node_lock.holder(CLUSTER) == {}


def test_locked_node_refuses_another_run_and_names_the_holder_and_start(tmp_path: Path) -> None:
    assert run_module(module, {"lock": other()}) == {"changed": False, "holder": {}, "origin": {}}
    rc, results = play(tmp_path)
    assert (rc, len(results)) == (2, 1)
    assert (
        "here: is being changed by rdm-provision up (process 7 of eve on ctl) since 2025-11-25 08:52:10 UTC: "
        "wait for that run to end" in results[0]["msg"]
    )
    assert node_lock.holder(CLUSTER)["run"] == "other"


def test_the_lock_of_a_run_that_was_killed_on_this_machine_is_taken_over(tmp_path: Path) -> None:
    here = Leader.here("rdm-provision up")
    node_lock.take(other(pid=2**22, started=1, host=here.host, space=here.space))
    assert play(tmp_path)[0] == 0


def test_cluster_of_another_inventory_is_refused_unless_it_has_the_same_keys(tmp_path: Path) -> None:
    (tmp_path / "rdm" / "ssh").mkdir(parents=True)
    (tmp_path / "rdm" / "cluster").write_text(f"{CLUSTER}\n")
    theirs = cluster_keys.make(str(tmp_path / "theirs"), CLUSTER)
    known = cluster_keys.of_node(theirs, CLUSTER, "here", "10.0.0.1")["known_hosts"]
    (tmp_path / "rdm" / "ssh" / "known_hosts").write_text(known)
    for options in ((), ("--check",)):
        rc, results = play(tmp_path, *options)
        assert (rc, len(results)) == (2, 1)
        authority = theirs.fingerprints[cluster_keys.AUTHORITY]
        assert (
            f"here: the cluster {CLUSTER} in {tmp_path}/rdm was made from another inventory: its ssh "
            f"authority is {authority}, and this one's is yet to be made" in results[0]["msg"]
        )
        assert node_lock.holder(CLUSTER) == {}
    (tmp_path / "theirs").rename(tmp_path / "keys")
    assert play(tmp_path)[0] == 0
