"""The real playbook on simulated nodes, queried by one task: failures end as with a task per node."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.filter.gather_arguments import gather_arguments

from benchmarks.scale import SOME_UNREACHABLE, Figures
from tests.conftest import ROOT
from tests.simulated_cluster import Cluster

FAILED = 2
WITHOUT_THREADS = ("-e", json.dumps({"preflight_threaded_connections": []}))
FATAL = re.compile(r"^fatal: \[(\w+)\]: (FAILED|UNREACHABLE)! => (.*?)^(?=\S|\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Two nodes after a first run."""
    made = Cluster(tmp_path_factory.mktemp("model"), 2)
    made.playbook().expect(0)
    return made


@pytest.fixture(scope="module")
def up_to_date(tmp_path_factory: pytest.TempPathFactory, model: Cluster) -> Cluster:
    """Four nodes that need nothing."""
    made = Cluster(tmp_path_factory.mktemp("up-to-date"), 4)
    made.start_after_first_run(model)
    return made


@pytest.fixture
def cluster(tmp_path: Path, up_to_date: Cluster) -> Cluster:
    """Four nodes that need nothing, queried by one task."""
    made = Cluster(tmp_path / "cluster", 4)
    shutil.copytree(up_to_date.state, made.state, dirs_exist_ok=True)
    # The inventory names the directory; nothing that was made from it does.
    others = shutil.ignore_patterns("hosts.yml")
    shutil.copytree(up_to_date.inventory, made.inventory, ignore=others, dirs_exist_ok=True)
    for node in made.nodes:
        made.own_variables(node, preflight_threaded_above=0)
    return made


def lost(figures: Figures) -> dict[str, tuple[str, str]]:
    """Return node -> how it was lost, and the message."""
    found = {}
    for node, how, reason in FATAL.findall(figures.output):
        message = re.search(r"msg: (.*?)(?=\n {4}\w|\Z)", reason, re.DOTALL)
        found[node] = (how, " ".join(message[1].split()) if message else reason)
    return found


def task_output(figures: Figures, task: str) -> str:
    """Return what Ansible printed between the heading of a task and the next heading."""
    return figures.output.split(f" : {task}] ")[1].split("\n\n")[0]


def test_nodes_that_are_right_have_no_task_of_their_own(cluster: Cluster) -> None:
    run = cluster.playbook("site", "--forks", "1").expect(0)
    assert run.calls == {"rdm.provision.node_facts": 4, "rdm.provision.fabric_probe": 4}
    assert "Gather facts of the node]" not in run.output
    assert "Measure how the other containers answer]" not in run.output
    assert run.output.count("[n2]") == run.output.count("n2: ok") == 0
    assert "Every container of this run reaches every other" in run.output


def test_verify_and_check_query_in_the_same_way(cluster: Cluster) -> None:
    verify = cluster.playbook("verify").expect(0)
    assert verify.calls == {"rdm.provision.node_facts": 4, "rdm.provision.fabric_probe": 4}
    assert verify.output.count("[n2]") == 0
    assert "Every container of this run reaches every other" in verify.output
    preflight = cluster.playbook("preflight").expect(0)
    assert preflight.calls["rdm.provision.node_facts"] == 4
    assert preflight.changed == []
    assert "Gather facts of the node]" not in preflight.output
    # Both playbooks gather facts in the same way, so each case of lost nodes is tested with one of them.
    cluster.unreachable(["n2"], True)
    run = cluster.playbook("verify").expect(SOME_UNREACHABLE)
    assert (run.unreachable, run.calls["rdm.provision.node_facts"]) == (["n2"], 3)
    cluster.unreachable(["n2"], False)
    cluster.break_node("n3", "broken")
    message = "n3: could not be queried: n3 is simulated to be broken"
    assert message in cluster.playbook("preflight").expect(FAILED).output


def test_without_threads_the_run_is_the_same(cluster: Cluster) -> None:
    cluster.remove_container("n3")
    run = cluster.playbook("site", *WITHOUT_THREADS).expect(0)
    assert run.calls["rdm.provision.node_facts"] == run.calls["rdm.provision.fabric_probe"] == 4
    assert run.changed == ["n3"]
    assert task_output(run, "Gather facts of the node").count("ok: [") == 4


def test_few_nodes_have_tasks_of_their_own_and_are_in_the_recap(cluster: Cluster) -> None:
    run = cluster.playbook("site", "-e", "preflight_threaded_above=4").expect(0)
    assert run.calls == {"rdm.provision.node_facts": 4, "rdm.provision.fabric_probe": 4}
    assert all(re.search(rf"^{node} +: ok=", run.output, re.MULTILINE) for node in cluster.nodes)


def test_one_node_with_work_is_the_only_one_that_is_worked_on(cluster: Cluster) -> None:
    cluster.remove_container("n3")
    run = cluster.playbook().expect(0)
    assert (run.changed, run.calls["rdm.provision.container"]) == (["n3"], 1)
    assert (run.calls["rdm.provision.node_facts"], run.calls["rdm.provision.fabric_probe"]) == (4, 4)


def test_nodes_that_cannot_be_reached_are_lost_as_ever_and_tried_once(cluster: Cluster) -> None:
    nodes = ["n1", "n4"]  # the first one, which also runs tasks for all
    cluster.unreachable(nodes, True)
    cluster.remove_container("n3")
    run = cluster.playbook().expect(SOME_UNREACHABLE)
    assert (run.unreachable, run.changed) == (nodes, ["n3"])
    assert run.calls["unreachable"] == len(nodes)
    ordinary = cluster.playbook("site", *WITHOUT_THREADS).expect(SOME_UNREACHABLE)
    assert lost(run) == lost(ordinary)
    assert f"{nodes[0]} is simulated to be unreachable" in lost(run)[nodes[0]][1]


def test_run_ends_when_no_node_can_be_reached(cluster: Cluster) -> None:
    cluster.unreachable(cluster.nodes, True)
    run = cluster.playbook().expect(SOME_UNREACHABLE)
    assert run.unreachable == cluster.nodes
    assert "Decide which roles have work" not in run.output


def test_a_node_on_which_the_module_fails_is_reported_by_a_task_of_its_own(cluster: Cluster) -> None:
    cluster.break_node("n2", "broken")
    cluster.remove_container("n3")
    run = cluster.playbook().expect(FAILED)
    assert lost(run)["n2"][0] == "FAILED"
    assert "n2 is simulated to be broken" in lost(run)["n2"][1]
    assert run.changed == [], "a node that answers with an error is for a person to decide about"
    assert (
        "n2: could not be queried: n2 is simulated to be broken: repair it, or leave it out with"
        in run.output
    )
    assert cluster.playbook("site", "--limit", "!n2").expect(0).changed == ["n3"]
    assert run.calls["rdm.provision.node_facts"] == 4 + 2  # that node again, and one extra host


def test_unknown_settings_are_left_to_ansible_to_report(cluster: Cluster) -> None:
    cluster.own_variables("n2", ansible_become_method="wishes")
    cluster.own_variables("n3", ansible_remote_tmp="{{ nobody_knows }}")
    cluster.remove_container("n4")
    run = cluster.playbook().expect(FAILED)
    assert "Invalid become method specified" in lost(run)["n2"][1]
    assert "nobody_knows" in lost(run)["n3"][1]
    assert cluster.playbook("site", "--limit", "!n2,!n3").expect(0).changed == ["n4"]


def test_node_that_never_answers_delays_no_other(cluster: Cluster) -> None:
    cluster.break_node("n2", "hanging")
    cluster.remove_container("n3")
    run = cluster.playbook("site", "-vv", "-e", "preflight_timeout=3", "-e", "verify_deadline=-57").expect(0)
    assert "<n2> left to an ordinary task: it has not answered within 3 s" in run.output
    assert run.changed == ["n3"]


def test_passwords_and_other_variables_are_left_to_ordinary_tasks(cluster: Cluster) -> None:
    cluster.own_variables("n2", ansible_become_password="hush")
    cluster.own_variables("n3", ansible_password="hush")
    cluster.own_variables("n4", verify_tries=5)
    run = cluster.playbook("site", "-vv").expect(0)
    assert "<n2> left to an ordinary task: a password is used" in run.output
    assert "<n3> left to an ordinary task: a password is used" in run.output
    assert "<n4> left to an ordinary task: variables that the arguments depend on differ" in run.output
    assert "hush" not in run.output


def test_limit_check_and_tags_work_the_same_in_threads(cluster: Cluster) -> None:
    cluster.remove_container("n3")
    check = cluster.playbook("site", "--check").expect(0)
    assert check.changed == ["n3"]
    limited = cluster.playbook("site", "--limit", "n2").expect(0)
    assert (limited.changed, limited.calls["rdm.provision.node_facts"]) == ([], 1)
    tagged = cluster.playbook("site", "--tags", "container", "--limit", "n3,n4").expect(0)
    assert (tagged.changed, tagged.calls["rdm.provision.fabric_probe"]) == (["n3"], 0)


@pytest.mark.parametrize("above", [0, 4], ids=["threads", "tasks"])
def test_every_module_gets_its_nodes_engine_socket(tmp_path: Path, above: int) -> None:
    cluster = Cluster(tmp_path / "cluster", 2)
    for node in cluster.nodes:
        cluster.own_variables(node, preflight_threaded_above=above, rdm_docker_socket=f"/run/{node}.sock")
    assert cluster.playbook().expect(0).changed == cluster.nodes
    assert cluster.playbook().expect(0).calls == {
        "rdm.provision.node_facts": 2,
        "rdm.provision.fabric_probe": 2,
    }


def test_arguments_of_all_nodes_are_those_of_each() -> None:
    kept = {
        "config_dir": "~/.rdm",
        "directory": "/x",
        "inputs": {"my_ip": "1"},
        "key_digests": {"id": ""},
        "sriov": {"interfaces": ["ib0"]},
        "addresses": {"ib0": "10.0.0.1"},
        "mirrors": ["http://cache:5000"],
    }
    absent: list[str] = []
    lock = {"run": "x"}
    assert gather_arguments({"a": {**kept, "watch": {}, "absent": ["my_ip"]}}, lock)["a"]["locks"] is True
    assert (
        gather_arguments({"a": {**kept, "watch": {}, "absent": absent}}, lock, locks=True)["a"]["lock"]
        == lock
    )
    assert gather_arguments({"a": {**kept, "watch": {}, "absent": absent}}) == {
        "a": {
            "locks": False,
            "config_dir": "~/.rdm",
            "node": "a",
            "state_file_directory": "/x",
            "inputs": {"my_ip": "1"},
            "key_digests": {"id": ""},
            "sriov": {"interfaces": ["ib0"]},
            "addresses": {"ib0": "10.0.0.1"},
            "mirrors": ["http://cache:5000"],
        }
    }
    (task,) = yaml.safe_load((ROOT / "roles/preflight/tasks/node.yml").read_text(encoding="utf-8"))
    with_lock = gather_arguments({"a": {**kept, "watch": {}, "absent": absent}}, lock)["a"]
    assert with_lock.keys() == task["rdm.provision.node_facts"].keys()


def test_problems_of_the_inventory_and_of_nodes_come_in_one_report(cluster: Cluster) -> None:
    cluster.own_variables("n2", rdm_slots="many", ansible_port="{{ nobody_knows }}")
    cluster.own_variables("n3", network_parent="ib7")
    cluster.unreachable(["n4"], True)
    run = cluster.playbook().expect(FAILED)
    assert "because of 4 problems" in run.output  # the interface, and the network on another one
    assert "n2: rdm_slots 'many'" in run.output
    assert "n3: network_parent ib7 is not an interface of the node" in run.output
    assert "n2: ansible_port cannot be evaluated" in run.output
    assert run.calls == {"rdm.provision.node_facts": 2, "unreachable": 1}
    silent = cluster.playbook("site", *WITHOUT_THREADS).expect(FAILED)
    assert "because of 2 problems:" in silent.output
    assert silent.calls == {}
