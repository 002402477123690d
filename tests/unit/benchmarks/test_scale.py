"""The simulated nodes answer so that the playbook takes them for real ones, and scale.py measures that."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.modules import (
    container,
    fabric_probe,
    image_archive,
    node_facts,
    node_files,
)

from benchmarks.scale import SOME_UNREACHABLE, Cluster, chosen, sizes
from benchmarks.simulated.node import Node

RUN = {"_ansible_check_mode": False, "_ansible_diff": False}
ARCHIVE = {"name": "training:1", "path": "/shared/training.tar"}
CONTAINER = {
    "desired": {"name": "rdm", "cluster": "rdm", "image": "training:1", "env": {"MY_IP": "10.1.0.1"}}
}
FILE = {"path": "/etc/rdm/id", "secret_content": "hush"}


def answer(directory: Path, module: str, **parameters: Any) -> dict[str, Any]:
    """Return what a simulated node answers, each time over a new connection."""
    return Node(directory, "n1", "10.1.0.1").answer(f"rdm.provision.{module}", {**RUN, **parameters})


def test_site_runs_on_simulated_nodes(tmp_path: Path) -> None:
    model = Cluster(tmp_path / "model", 2)
    first = model.playbook()
    assert (first.status, first.changed) == (0, ["n1", "n2"]), first.output
    # What each node's files, container and state file take is one call, beside facts, images, network, probe.
    assert set(first.calls.values()) <= {2, 4}
    assert sum(first.calls.values()) == 2 * 6
    assert first.skipped <= 2 * 3 + 1, first.output

    cluster = Cluster(tmp_path / "cluster", 3)
    cluster.start_after_first_run(model)
    second = cluster.playbook()
    assert (second.status, second.changed, second.skipped) == (0, [], 0), second.output
    assert set(second.calls.values()) == {3}
    assert second.sent / 3 < first.sent / 2
    assert len(second.memory) == 1
    assert second.memory[0] > 20e6
    assert second.cpu > 0.1

    cluster.remove_container("n3")
    cluster.unreachable(["n2"], True)
    third = cluster.playbook()
    assert (third.status, third.changed) == (SOME_UNREACHABLE, ["n3"]), third.output
    assert third.unreachable == ["n2"]
    assert third.calls["rdm.provision.container"] == 1


def test_memory_per_node_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("ANSIBLE_CALLBACK_PLUGINS", str(Path(__file__).with_name("callback")))
    monkeypatch.setenv("ANSIBLE_CALLBACKS_ENABLED", "controller_memory")
    monkeypatch.setenv("CONTROLLER_MEMORY", str(log))
    Cluster(tmp_path / "cluster", 2).playbook("site", "--diff").expect(0)
    found = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    results = {one["task"].rpartition(" : ")[2]: one for one in found if "result" in one}
    # Each of them has the cluster's nodes among its arguments, and the first two have secrets.
    assert results["Run the container"]["arguments"] == {}
    # Ansible keeps the other nodes' results until the last one answers, and then what was registered.
    largest = max(found, key=lambda one: one.get("result", 0))
    assert largest["result"] < 10_500, largest["task"]
    assert found[-1]["registered"] < 16_000


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_five_thousand_nodes_that_are_right_cost_two_calls_each(tmp_path: Path) -> None:
    model = Cluster(tmp_path / "model", 2)
    model.playbook().expect(0)
    cluster = Cluster(tmp_path / "cluster", 5000)
    cluster.start_after_first_run(model)
    second = cluster.up().expect(0)
    print(f"{second.wall:.0f} s, {second.cpu:.0f} CPU s, {second.memory} bytes, {cluster.result_bytes} bytes")
    assert second.calls == {"rdm.provision.node_facts": 5000, "rdm.provision.fabric_probe": 5000}
    nodes = json.loads(cluster.newest_result.read_text(encoding="utf-8"))["nodes"]
    assert list(nodes) == cluster.nodes
    assert {(one["status"], one["changed"]) for one in nodes.values()} == {("ok", 0)}
    # 5 MB at 1,000 nodes is what is promised; nothing of it grows faster than the nodes.
    assert cluster.result_bytes < 5_000 * len(nodes)
    assert max(second.memory) < 600e6


def test_answers_have_all_that_the_modules_document(tmp_path: Path) -> None:
    nodes = "n1 192.169.16.100\nn2 192.169.16.101\n"
    answers = (
        (container, answer(tmp_path, "container", **CONTAINER)),
        (fabric_probe, answer(tmp_path, "fabric_probe", nodes=nodes, ssh_peers=8)),
        (image_archive, answer(tmp_path, "image_archive", **ARCHIVE)),
        (image_archive, answer(tmp_path, "image_archive", **ARCHIVE, state="inspected")),
        (node_facts, answer(tmp_path, "node_facts")),
        (node_files, answer(tmp_path, "node_files", files=[FILE])),
    )
    for module, given in answers:
        for name, value in yaml.safe_load(module.RETURN).items():
            if value["returned"] in ("always", "success", "when measured"):
                assert name in given, module.__name__
        inspected = {
            name for name, one in yaml.safe_load(module.RETURN).items() if "inspected" in one["returned"]
        }
        assert inspected <= set(given) or "problem" not in given
    facts = yaml.safe_load(node_facts.RETURN)["node"]["contains"]
    node = answer(tmp_path, "node_facts")["node"]
    assert set(facts) - set(node) == set()
    assert set(facts["docker"]["contains"]) - set(node["docker"]) == set()


def test_changes_of_one_module_are_seen_by_the_next(tmp_path: Path) -> None:
    assert answer(tmp_path, "image_archive", **ARCHIVE, _ansible_check_mode=True)["changed"]
    assert answer(tmp_path, "image_archive", **ARCHIVE)["changed"]
    assert not answer(tmp_path, "image_archive", **ARCHIVE)["changed"]
    assert answer(tmp_path, "node_facts")["node"]["docker"]["images"][0]["tags"] == ["training:1"]
    written = answer(tmp_path, "node_files", files=[FILE], _ansible_diff=True)
    assert written["paths"] == ["/etc/rdm/id"]
    assert "hush" not in str(written)
    assert answer(tmp_path, "node_files", files=[FILE])["paths"] == []
    assert answer(tmp_path, "node_files", files=[{**FILE, "secret_content": "other"}])["changed"]


def test_state_file_is_valid_until_something_changes(tmp_path: Path) -> None:
    def work(**inputs: str) -> list[str]:
        return sorted(answer(tmp_path, "node_facts", inputs=inputs)["node"]["work"])

    assert work(images="1", my_ip="1") == ["images", "my_ip"]
    answer(tmp_path, "state_file", inputs={"images": "1", "my_ip": "1"}, watch={}, hardware="")
    assert work(images="1", my_ip="1") == []
    assert work(images="1", my_ip="2") == ["my_ip"]
    answer(tmp_path, "image_archive", **ARCHIVE)
    assert work(images="1", my_ip="1") == ["images"]


def test_module_without_an_answer_fails(tmp_path: Path) -> None:
    assert answer(tmp_path, "lab")["msg"] == "a simulated node has no answer for the module rdm.provision.lab"


def test_ways_are_measured_in_their_order() -> None:
    assert chosen("up-again,one,first") == ["first", "one", "up-again"]


@pytest.mark.parametrize(("parse", "text"), [(chosen, "second,last"), (sizes, "8,many"), (sizes, "1")])
def test_bad_options_are_named(parse: Any, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"'(last|many|1)'"):
        parse(text)
