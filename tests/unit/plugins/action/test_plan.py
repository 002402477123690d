"""`rdm.provision.plan` as ansible-playbook runs it, against inventories whose hosts are never reached."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.vault import VaultLib, VaultSecret
from ansible_collections.rdm.provision.plugins.module_utils.sriov.identity import guid_of
from ansible_collections.rdm.provision.plugins.module_utils.sriov.observed_vfs import Pf, Vf, to_fact
from ansible_collections.rdm.provision.plugins.plugin_utils.addresses import address_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import (
    Leader,
    brief_lock,
    having,
    state_folder,
)

from tests.ansible_playbook import played
from tests.unit.plugins.node_reports import report
from trainer.tests.waiting import wait_until

PLAY = """
- name: Plan
  hosts: master:workers
  gather_facts: false
  tasks:
    - name: Plan
      rdm.provision.plan:
        stage: "{{ stage }}"
        facts: known_facts
        inspection: known_inspection
        release: "{{ release | default([]) }}"
        keys: "{{ keys | default(false) }}"
        state_files: "{{ state_files | default(false) }}"
        write: true
      register: planned
      run_once: true
    - name: Every host has the plan
      ansible.builtin.debug:
        msg: "{{ planned.nodes[inventory_hostname].my_ip }}"
"""

PLAY_WITHOUT_FILE = """
- name: Plan
  hosts: localhost
  gather_facts: false
  tasks:
    - name: Plan
      rdm.provision.plan:
        stage: "{{ stage }}"
      run_once: true
  pre_tasks:
    - name: Add a host
      ansible.builtin.add_host:
        name: a
        groups: [master]
        rdm_accelerator: cpu
        network_driver: macvlan
        container_image: training:1
"""


IMAGE = {"name": "training:1", "source": "registry"}


class Cluster:
    """An inventory in its own directory, with a playbook."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "inventory"
        self.home.mkdir()
        self.play = directory / "play.yml"
        self.play.write_text(PLAY)
        self.plan_file = self.home / "address_plan.cfg"

    def write(
        self, master: dict[str, Any], workers: dict[str, Any], variables: dict[str, Any] | None = None
    ) -> None:
        """Write the inventory; nothing listens at its hosts' addresses."""
        groups = {"master": {"hosts": master}, "workers": {"hosts": workers}}
        common = {"network_driver": "macvlan", "images_list": [IMAGE], **(variables or {})}
        inventory = {"all": {"vars": common, "children": groups}}
        (self.home / "hosts.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))

    def run(self, *options: str, stage: str = "inventory", inventory: str = "") -> tuple[int, Any, str]:
        """Return the exit status, the result of the plan task and all output as text."""
        source = inventory or str(self.home)
        rc, tasks, output = played("-i", source, self.play, "-e", f"stage={stage}", *options)
        results = next(task["hosts"] for task in tasks if task["task"]["name"] == "Plan")
        assert len(results) == 1, "the plan is made once"
        return rc, next(iter(results.values())), output


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


CPU = {"rdm_accelerator": "cpu"}
BASE = ("address", "my_ip", "note", "rank", "slots", "accelerator", "image", "vf_mac")


def test_every_problem_of_the_inventory_is_in_one_report_and_nothing_is_written(cluster: Cluster) -> None:
    cluster.write(
        {"a": {"ansible_host": "10.0.0.1"}, "b": {"my_ip": "192.169.16.300", "rdm_accelerator": "tpu"}},
        {
            "c": {"ansible_host": "10.0.0.1", "my_ip": "192.169.16.20", "network_driver": "token-ring"},
            "d": {
                "my_ip": "192.169.16.20",
                "rdm_slots": "$(reboot)",
                "network_vlan": 5000,
                "container_shm_size": "x",
            },
            "e": {"container_env": {"MY_IP": "x", "A=B": ""}, "container_volumes": ["/a:/jobs", "/b"]},
            "f": {"images_list": [{"name": "a:1", "source": "archive"}], "verify_patience": "soon"},
            "g(x)": {},
        },
        {**CPU, "network_nmae": "x", "rdm_gateway": "{{ not_there }}"},
    )
    rc, result, output = cluster.run()
    assert rc == 2
    assert result["rdm_refused"] == "inventory"
    assert result["changed"] is False
    found = [f"{problem['node']}: {problem['value']}" for problem in result["problems"]]
    assert {
        "None: the group master",
        "b: my_ip 192.169.16.300",
        "b: rdm_accelerator 'tpu'",
        "c: 10.0.0.1:22",
        "c: network_driver",
        "d: my_ip 192.169.16.20",
        "d: rdm_slots '$(reboot)'",
        "d: container_shm_size x",
        "a: rdm_gateway",
        "e: container_env MY_IP",
        "e: container_env 'A=B'",
        "e: container_volumes '/a:/jobs'",
        "e: container_volumes '/b'",
        "f: a:1 in images_list",
        "f: verify_timeout",
    } <= set(found)
    assert {one for one in found if "g(x)" in one} == {"None: the host name 'g(x)'", "g(x): rdm_gateway"}
    assert any("network_vlan 5000" in problem["reason"] for problem in result["problems"])
    head, *lines = result["msg"].splitlines()
    assert head == f"Refused before anything was changed, because of {len(lines)} problems:"
    assert "choose rocm, cuda or cpu" in result["msg"]
    assert not cluster.plan_file.exists()
    assert "Traceback" not in output


def test_plan_is_written_once_and_known_to_every_host(cluster: Cluster) -> None:
    cluster.write({"a": {}}, {"b": {"rdm_slots": 4}, "c": {}}, CPU)
    rc, result, output = cluster.run("--check", "--diff")
    assert (rc, result["changed"]) == (0, True)
    assert "b = 192.169.16.101" in result["diff"]["after"]
    assert not cluster.plan_file.exists()

    rc, result, output = cluster.run()
    assert (rc, result["changed"]) == (0, True)
    assert "b = 192.169.16.101\n" in cluster.plan_file.read_text()
    assert (result["cluster"], result["subnet"], result["prefixlen"]) == ("rdm", "192.169.16.0/24", 24)
    assert (result["gateway"], result["master"], result["master_addr"]) == (
        "192.169.16.1",
        "a",
        "192.169.16.100",
    )
    assert result["nodes"]["b"] == {
        "address": "b",
        "my_ip": "192.169.16.101",
        "note": "new",
        "rank": 1,
        "slots": 4,
        "accelerator": "cpu",
        "image": "training:1",
        "vf_mac": "",
    }
    assert result["hostfile"] == "192.169.16.100 slots=8\n192.169.16.101 slots=4\n192.169.16.102 slots=8\n"
    assert result["address_map"] == "a 192.169.16.100\nb 192.169.16.101\nc 192.169.16.102\n"
    assert '"msg": "192.169.16.102"' in output

    rc, result, output = cluster.run("--diff")
    assert (rc, result["changed"], "diff" in result) == (0, False, False)


def test_release_comes_before_the_plan_and_nothing_is_written_when_it_fails(cluster: Cluster) -> None:
    full = {**CPU, "rdm_subnet": "10.9.0.0/29"}
    masters: dict[str, Any] = {"a": {}}
    workers: dict[str, Any] = {"b": {}, "c": {}, "d": {}, "e": {}}
    cluster.write(masters, workers, full)
    assert cluster.run()[0] == 0
    was = cluster.plan_file.read_text()
    cluster.write({"a": {}}, {"b": {}, "c": {}, "d": {}, "new": {}}, full)
    rc, result, _ = cluster.run()
    [problem] = result["problems"]
    assert (rc, problem["reason"].partition("of which ")[2]) == (2, "removed nodes hold 1 (e)")
    assert problem["hint"].endswith("(rdm-provision plan --release e)")
    for name, reason in (("x", "has no reserved address"), ("d", "is still in the inventory")):
        rc, result, _ = cluster.run("-e", f"release={name}")
        assert (rc, result["rdm_refused"]) == (2, "inventory")
        assert (name, reason) in [(one["value"], one["reason"]) for one in result["problems"]]
    assert cluster.plan_file.read_text() == was
    rc, result, _ = cluster.run("-e", "release=e")
    assert (rc, result["removed"], result["saved"]) == (0, {}, True)
    assert {name: node["note"] for name, node in result["nodes"].items()} == {
        **dict.fromkeys("abcd", "kept"),
        "new": "new",
    }
    assert "new = " in cluster.plan_file.read_text()
    assert "e = " not in cluster.plan_file.read_text()


def test_every_warning_is_in_one_report(cluster: Cluster) -> None:
    variables = {
        "contaner_image": "x",
        "container_env": {"ARGS": '{"key": "s3cret"}'},
        "network_driver": "bridge",
        "network_drivr": "bridge",
        "network_mine": 1,
        "rdm_sluts": 8,
        "verify_patience": 7,
    }
    cluster.write({"a": {}}, {"b": {}}, CPU | variables)
    rc, result, output = cluster.run()
    assert rc == 0
    found = sorted(result["warnings"])
    assert [text for text in found if "means nothing" in text] == [
        "The variable contaner_image means nothing here. Did you mean container_image?",
        "The variable network_drivr means nothing here. Did you mean network_driver?",
        "The variable rdm_sluts means nothing here. Did you mean rdm_slots?",
    ]
    begins = (
        "The subnet",
        "The variable verify_patience is called",
        "a, b: container_env ARGS",
        "a, b: network_driver bridge",
    )
    others = [text for text in found if "means nothing" not in text]
    assert [text[: len(begin)] for text, begin in zip(others, begins, strict=True)] == list(begins)
    assert "s3cret" not in output
    cluster.write({"a": {}}, {}, {**CPU, "network_driver": "bridge"})
    _, result, _ = cluster.run()
    assert "bridge" not in str(result.get("warnings"))


def test_bare_hosts_with_amd_gpus_or_a_token_in_an_address_are_refused(cluster: Cluster) -> None:
    bare = {"rdm_runtime": "host", "rdm_become": False, "rdm_subnet": "10.2.72.0/24"}
    rocm = {**bare, "rdm_accelerator": "rocm"}
    host = {"a": {"my_ip": "10.2.72.135"}}
    secret = {"python_env_megatron_repository": "https://s3cret@example.org/Megatron"}
    cluster.write(host, {}, {**rocm, **secret, "python_env_torch_backend": ""})
    rc, result, _ = cluster.run("-e", "write=true")
    assert rc != 0
    (problem, other) = result["problems"]
    assert (problem["node"], problem["value"]) == ("a", "an empty python_env_torch_backend")
    assert "such as rocm6.4" in problem["hint"]
    assert other["value"] == "python_env_megatron_repository"
    assert "s3cret" not in str(result)
    assert not cluster.plan_file.exists()
    for variables in ({"python_env_torch_backend": "rocm6.4"}, {"python_env_torch": "torch==2.13.0+rocm6.4"}):
        cluster.write(host, {}, {**rocm, **variables})
        assert cluster.run()[0] == 0
    for accelerator in ("cuda", "rocm"):
        cluster.write(host, {}, {**bare, "rdm_accelerator": accelerator})
        assert cluster.run()[0] == 0


def test_variables_may_refer_to_others_and_to_facts(cluster: Cluster) -> None:
    templates = {"my_ip": "192.169.16.{{ number }}", "rdm_slots": "{{ 2 * 2 }}", "rdm_cluster": "{{ site }}"}
    host = {"number": 7, "ansible_host": "{{ site }}.example.org"}
    images = {
        "images_distribution": "mirror",
        "images_mirror": ["{{ ansible_facts.mirror }}"],
        "images_min_free_bytes": "100e9",  # as YAML reads it
    }
    cluster.write({"a": host}, {}, {**CPU, **templates, **images, "site": "north"})
    rc, result, _ = cluster.run()
    assert (rc, result["cluster"]) == (0, "north")
    node = result["nodes"]["a"]
    assert (node["my_ip"], node["slots"], node["address"]) == ("192.169.16.7", 4, "north.example.org")


def test_inventory_without_a_file_is_refused(cluster: Cluster) -> None:
    cluster.play.write_text(PLAY_WITHOUT_FILE)
    rc, result, _ = cluster.run(inventory="localhost,")
    assert rc == 2
    [problem] = result["problems"]
    assert problem["reason"] == "is not a file, so there is no place for address_plan.cfg beside it"


def test_damaged_plan_file_is_refused_and_kept(cluster: Cluster) -> None:
    cluster.write({"a": {}}, {}, CPU)
    cluster.plan_file.write_text("[network]\nsubnet = 10.0.0.0/24\n")
    rc, result, _ = cluster.run()
    assert rc == 2
    [problem] = result["problems"]
    assert problem["value"] == str(cluster.plan_file)
    assert "gateway" in problem["reason"]
    assert cluster.plan_file.read_text() == "[network]\nsubnet = 10.0.0.0/24\n"


def test_changed_subnet_needs_a_report_of_every_node(cluster: Cluster) -> None:
    cluster.write({"a": {}}, {"b": {}}, CPU)
    cluster.run()
    moved = {**CPU, "rdm_subnet": "10.9.0.0/24"}
    cluster.write({"a": {"network_replace": True}}, {"b": {}}, moved)
    rc, result, _ = cluster.run()
    assert (rc, result["problems"][0]["value"]) == (2, "rdm_subnet 10.9.0.0/24")
    cluster.write({"a": {}}, {"b": {}}, {**moved, "network_replace": True})
    rc, result, _ = cluster.run()
    assert (rc, result["master_addr"]) == (0, "10.9.0.100")


def test_a_privileged_image_by_tag_alone_is_refused_where_it_is_used(cluster: Cluster) -> None:
    sriov = {"network_driver": "sriov", "sriov_plugin": "upstream"}
    pinned = {"sriov_image": f"mine@sha256:{64 * 'a'}"}
    cluster.write(
        {"a": sriov},
        {
            "b": {**sriov, "sriov_allow_tag": True},
            "c": {**sriov, **pinned},
            "d": {**sriov, "sriov_enabled": False},
            "f": {"sriov_enabled": True, "sriov_image": "other:1", "sriov_plugin": "upstream"},
            "g": {},
            "h": {"network_driver": "sriov"},
        },
        CPU,
    )
    rc, result, _ = cluster.run()
    assert (rc, result["rdm_refused"]) == (2, "inventory")
    assert [(one["node"], one["value"]) for one in result["problems"]] == [
        ("a", "sriov_image rdma/sriov-plugin:latest"),
        ("f", "sriov_image other:1"),
    ]


def test_image_of_each_node_is_the_first_of_its_list_unless_another_is_chosen(cluster: Cluster) -> None:
    other = {"name": "other:1", "source": "registry"}
    archive = {"name": "a:1", "source": "archive"}
    cluster.write(
        {"a": {}},
        {
            "b": {"images_list": [IMAGE, other], "container_image": "docker.io/library/other:1"},
            "c": {"images_list": [], "rdm_accelerator": "cuda"},
            "d": {"images_list": [], "container_image": "mine:1"},
            "e": {"images_list": [{**other, "name": "{{ 'templated' }}:{{ 3 - 1 }}"}]},
            "f": {"images_list": [IMAGE, {**archive, "path": "{{ known_facts.node.architecture }}.tar"}]},
        },
        CPU,
    )
    rc, result, _ = cluster.run()
    assert rc == 0
    assert {name: node["image"] for name, node in result["nodes"].items()} == {
        "a": "training:1",
        "b": "docker.io/library/other:1",
        "c": "nvcr.io/nvidia/pytorch:25.06-py3",
        "d": "mine:1",
        "e": "templated:2",
        "f": "",  # known with the node's facts
    }


def facts(**changes: Any) -> dict[str, Any]:
    """Return a host's variables with facts, as if they had been gathered."""
    return {"known_facts": {"changed": False, "node": report(**changes)}}


def test_nodes_are_checked_and_unreached_ones_left_out(cluster: Cluster) -> None:
    cluster.write({"a": facts()}, {"b": {}, "c": {"known_facts": {"unreachable": True, "msg": "no"}}}, CPU)
    rc, result, _ = cluster.run(stage="nodes")
    assert rc == 0
    assert result["nodes"]["a"]["container"]["ulimits"] == ["memlock:-1:-1"]
    assert result["nodes"]["a"]["config_dir"] == "/etc/rdm"
    assert set(result["nodes"]["b"]) == set(result["nodes"]["c"]) == set(BASE)
    assert cluster.plan_file.exists()


def test_rails_share_the_offsets_of_the_plan_which_stays_as_it_is(cluster: Cluster) -> None:
    cluster.write({"a": facts()}, {"b": {**facts(), "container_rails": ["ib0", "ib3"]}}, CPU)
    assert cluster.run(stage="nodes")[1]["problems"][0]["value"] == "container_rails"
    common = {**CPU, "container_rails": ["ib0", "ib1"], "network_driver": "sriov", "sriov_allow_tag": True}
    two: list[dict[str, Any]] = [{"name": name, "addresses": []} for name in ("ib0", "ib1")]
    cluster.write({"a": facts(interfaces=two)}, {"b": {"container_rails": ["ib0", "ib3"]}}, common)
    rc, result, output = cluster.run(stage="nodes")
    assert rc == 0, output
    assert result["rails"] == ["192.169.17.0/24"]
    assert result["nodes"]["a"]["rails"] == [
        {
            "parent": "ib1",
            "network": "ibnet-1",
            "subnet": "192.169.17.0/24",
            "gateway": "192.169.17.1",
            "my_ip": "192.169.17.100",
            "options": {"netdevice": "ib1", "prefix": "eth1r"},
        }
    ]
    assert "192.169.17" not in cluster.plan_file.read_text()
    # A rail's interface and the collisions of its subnet are checked like the first rail's.
    taken = [*two, {"name": "eth0", "addresses": ["192.169.17.9/24"]}]
    cluster.write({"a": facts(interfaces=taken[::2])}, {}, common)
    refused = cluster.run(stage="nodes")[1]
    assert [problem["value"] for problem in refused["problems"]] == ["192.169.17.0/24", "container_rails ib1"]
    assert "container_rail_subnets" in refused["problems"][0]["hint"]


def test_rdma_devices_of_a_container_come_from_plan_or_inventory(cluster: Cluster) -> None:
    first, last = "/dev/infiniband/uverbs0", "/dev/infiniband/uverbs9"
    # A node's variables, and the devices that its container gets besides those of its VF.
    cases: dict[str, tuple[dict[str, Any], list[str]]] = {
        "nothing": ({}, []),
        "every": ({"container_rdma": "all"}, [first, last]),
        "devices": ({"container_devices": ["/dev/zero"]}, [first]),
        "requests": ({"container_device_requests": []}, []),
        "upstream": ({"sriov_plugin": "upstream"}, [first]),
        "disabled": ({"sriov_enabled": False}, [first]),
        "macvlan": ({"network_driver": "macvlan"}, [first]),
    }
    devices = [
        {"name": f"mlx5_{number}", "netdevs": [name], "char_devices": [f"/dev/infiniband/uverbs{number}"]}
        for number, name in ((0, "ib0"), (9, "ib9"))
    ]
    found = facts(
        infiniband=[{**one, "pci": "", "virtual": False, "ports": []} for one in devices],
        docker_min_api_version="1.12",  # needed by the upstream plugin
    )
    common = {**CPU, "network_driver": "sriov", "sriov_plugin": "rdm-sriov", "sriov_allow_tag": True}
    hosts = {name: {**found, **given} for name, (given, _) in cases.items()}
    cluster.write({"nothing": hosts.pop("nothing")}, hosts, common)
    rc, result, output = cluster.run(stage="nodes")
    assert rc == 0, output
    for name, (_, paths) in cases.items():
        node = result["nodes"][name]
        assert [one.partition(":")[0] for one in node["container"]["devices"]] == paths, name
        assert ("IPC_LOCK" in node["container"]["capabilities"]) == bool(paths), name


def test_directory_of_another_cluster_is_refused(cluster: Cluster) -> None:
    cluster.write({"a": facts(config_owner="A")}, {"b": facts(config_owner="b")}, {**CPU, "rdm_cluster": "b"})
    rc, result, _ = cluster.run(stage="nodes")
    assert (rc, result["rdm_refused"]) == (2, "nodes")
    hint = "set rdm_config_dir to another directory, for example /etc/rdm-b"
    assert result["msg"].endswith(f"a: /etc/rdm belongs to the cluster A: {hint}")


def test_a_cluster_of_the_same_name_from_another_inventory_is_refused(cluster: Cluster) -> None:
    """Following the hint resolves each problem."""

    def carries(my_ip: str, authority: str = "") -> dict[str, Any]:
        return facts(config_owner="rdm", origin={"authority": authority, "my_ip": my_ip})

    def keyed(*options: str) -> tuple[int, str]:
        rc, result, _ = cluster.run("-e", "keys=true", *options, stage="nodes")
        return rc, result.get("msg", "")

    # Another inventory, with b and c, has made both.
    cluster.write({"b": carries("192.169.16.101", "SHA256:x")}, {"c": carries("192.169.16.102")}, CPU)
    rc, msg = keyed()
    assert (rc, cluster.plan_file.exists()) == (2, False)
    assert (
        "b: the cluster rdm in /etc/rdm was made from another inventory: its ssh authority is SHA256:x, and "
        "this one's is yet to be made: work with that one" in msg
    )
    assert (
        "c: the cluster rdm in /etc/rdm gave this node 192.169.16.102, and this inventory, which has no "
        "address_plan.cfg, would give it 192.169.16.101: copy address_plan.cfg" in msg
    )
    pin = {"my_ip": "192.169.16.102"}
    cluster.write(
        {"b": carries("192.169.16.100", "SHA256:x")}, {"c": {**carries("192.169.16.102"), **pin}}, CPU
    )
    assert keyed()[0] == 2
    assert keyed("-e", "preflight_new_ssh_keys=true") == (0, "")
    # b was down when the keys were made, and d belongs to another cluster.
    workers = {"c": {**carries("192.169.16.102"), **pin}}
    cluster.write({"b": carries("192.169.16.100", "SHA256:x")}, workers, CPU)
    assert keyed() == (0, "")
    cluster.write(
        {"b": carries("192.169.16.100", "SHA256:x")},
        {**workers, "d": carries("192.169.16.101", "SHA256:x")},
        CPU,
    )
    rc, msg = keyed()
    assert rc == 2
    assert "\n- d: the cluster rdm in /etc/rdm was made from another inventory" in msg
    assert "\n- b" not in msg


def test_an_address_that_both_plans_give_a_node_makes_them_no_one_cluster(cluster: Cluster) -> None:
    theirs = {"authority": "SHA256:x", "my_ip": "192.169.16.100"}
    cluster.write({"b": facts(config_owner="rdm", origin=theirs)}, {"c": facts()}, CPU)
    assert cluster.run("-e", "keys=true")[0] == 0
    assert address_plan.parse_plan(cluster.plan_file.read_text()).nodes["b"] == theirs["my_ip"]
    rc, result, _ = cluster.run("-e", "keys=true", stage="nodes")
    assert rc == 2
    assert "b: the cluster rdm in /etc/rdm was made from another inventory" in result["msg"]


def test_killed_run_on_this_machine_blocks_no_later_run(cluster: Cluster) -> None:
    killed = Leader.here("rdm-provision up")._replace(pid=2**22, started=1)
    for leader, counts in ((killed, False), (killed._replace(host="ctl"), True)):
        cluster.write({"a": facts(lock={"run": "other", "leader": leader._asdict()})}, {}, CPU)
        for options in ((), ("--check",)):
            rc, _, output = cluster.run(*options, stage="nodes")
            assert rc == (2 if counts and not options else 0), output
            assert ("is being changed by rdm-provision up" in output) is counts


def inspected(**more: Any) -> dict[str, Any]:
    """A host's variables with the inspection of one archive, as a loop registers it."""
    one = {"path": "/srv/a.tar", "problem": "", "hint": "", "unpacked": 0, "new_layers": {}, **more}
    return {"known_inspection": {"changed": False, "results": [one]}}


def test_every_problem_of_every_node_is_in_one_report_and_nothing_is_written(cluster: Cluster) -> None:
    short = inspected(problem="/srv/a.tar is truncated (it ends in the middle)", hint="copy it there again")
    large = inspected(unpacked=200 * 2**30, new_layers={"sha256:1": 2**30})
    skipped = {"known_inspection": {"changed": False, "results": [{"skipped": True}]}}
    cluster.write(
        {"a": {**facts(), **short}},
        {
            "b": {**facts(interfaces=[{"name": "ib0", "addresses": ["192.169.16.5/24"]}]), **short},
            "c": {**facts(docker_image_store="classic"), **large},
            "d": {**facts(), **skipped},
            "e": {**facts(), "images_list": [], "container_image": "mine:1"},
            "f": facts(docker=None, docker_state="absent", docker_error="no Docker Engine answers"),
            "g": {**facts(memlock={"hard": 8388608, "raise_allowed": False}), "network_parent": "ib7"},
        },
        {**CPU, "network_parent": "ib0"},
    )
    rc, result, _ = cluster.run(stage="nodes")
    assert (rc, result["rdm_refused"]) == (2, "nodes")
    assert [(problem["node"], problem["value"]) for problem in result["problems"]] == [
        ("a", "/srv/a.tar"),
        ("b", "192.169.16.0/24"),
        ("b", "/srv/a.tar"),
        ("c", "/var/lib/docker"),
        ("e", "container_image mine:1"),
        ("f", ""),
        ("g", "network_parent ib7"),
        ("g", ""),
    ]
    assert "- a, b: /srv/a.tar is truncated (it ends in the middle): copy it there again\n" in result["msg"]
    assert "has 100.0 GiB free, and loading the image archives needs 201.0 GiB" in result["msg"]
    assert not cluster.plan_file.exists()


def test_concurrent_plans_assign_no_address_twice(cluster: Cluster) -> None:
    cluster.write({"a": CPU}, {"b": CPU})
    hosts = (cluster.home / "hosts.yml").read_text()
    (cluster.home / "hosts.yml").unlink()
    names = ("c", "d")
    inventories = {name: cluster.home / f"with-{name}.yml" for name in names}
    for name, inventory in inventories.items():
        inventory.write_text(hosts.replace("b:", f"{name}:"))
    lock = state_folder(cluster.home) / "lock.plan"
    with ThreadPoolExecutor() as pool:
        with brief_lock(lock, 1), lock.open() as file:
            runs = [
                pool.submit(cluster.run, inventory=str(cluster.home / f"with-{name}.yml")) for name in names
            ]
            wait_until("both wait", lambda: having(file.fileno(), locked=False), lambda them: len(them) > 1)
            assert not cluster.plan_file.exists()
        results = [run.result()[1] for run in runs]
    given = [result["nodes"][name]["my_ip"] for result, name in zip(results, names, strict=True)]
    assert given[0] != given[1]


def test_a_plan_file_that_is_a_link_stays_one(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write({"a": CPU}, {"b": CPU})
    real = tmp_path / "kept" / "plan.cfg"
    real.parent.mkdir()
    cluster.plan_file.symlink_to(real)
    assert cluster.run()[0] == 0
    assert cluster.plan_file.is_symlink()
    assert "a = " in real.read_text()


def test_two_inventories_in_one_directory_do_not_share_a_plan(cluster: Cluster) -> None:
    cluster.write({"a": {}}, {"b": {}}, CPU)
    cluster.run()
    before = cluster.plan_file.read_bytes()
    (cluster.home / "hosts.yml").rename(cluster.home / "first.yml")
    cluster.write({"c": {}}, {"d": {}}, CPU | {"rdm_subnet": "10.1.0.0/24"})
    rc, result, _ = cluster.run(inventory=str(cluster.home / "hosts.yml"))
    assert (rc, result["rdm_refused"]) == (2, "inventory")
    [problem] = result["problems"]
    assert (problem["value"], "(a, b)" in problem["reason"]) == (str(cluster.plan_file), True)
    assert cluster.plan_file.read_bytes() == before


def test_every_encrypted_variable_that_cannot_be_read_is_named(cluster: Cluster, tmp_path: Path) -> None:
    cluster.write({"a": {}}, {"b": {}}, CPU)
    encrypted = VaultLib([("default", VaultSecret(b"right"))]).encrypt("x").decode()
    text = yaml.safe_dump({"container_env": {"T": encrypted}, "rdm_gateway": encrypted, "mine": [encrypted]})
    variables = cluster.home / "group_vars" / "all.yml"
    variables.parent.mkdir()
    variables.write_text(text.replace("'$ANSIBLE", "!vault '$ANSIBLE"))
    password = tmp_path / "password"
    password.write_text("wrong")
    for options in ([], ["--vault-password-file", str(password)]):
        _, result, output = cluster.run(*options)
        named = {(problem["node"], problem["value"]) for problem in result.get("problems", ())}
        names = ("container_env", "rdm_gateway", "mine")
        assert named == {(node, name) for node in "ab" for name in names}, output
    password.write_text("right")
    _, result, _ = cluster.run("--vault-password-file", str(password), "-e", "rdm_gateway=192.169.16.1")
    assert result["cluster"] == "rdm"


def test_a_role_cannot_contradict_the_plan(cluster: Cluster) -> None:
    other = {"network_subnet": "10.9.0.0/24", "network_gateway": "10.9.0.1", "container_my_ip": "10.9.0.7"}
    cluster.write({"a": {}}, {"b": {}}, {**CPU, "rdm_subnet": "10.8.0.0/24", **other})
    rc, result, _ = cluster.run()
    assert (rc, result["rdm_refused"]) == (2, "inventory")
    assert [problem["value"] for problem in result["problems"]] == [
        f"{name} {value}" for _ in "ab" for name, value in other.items()
    ]
    assert (
        "network_subnet 10.9.0.0/24 is not what is planned, 10.8.0.0/24: set rdm_subnet instead"
        in result["msg"]
    )
    cluster.write({"a": {}}, {"b": {}}, {**CPU, "rdm_subnet": "10.8.0.0/24", "network_subnet": "10.8.0.0/24"})
    assert cluster.run()[0] == 0


# --- variables of the playbook ------------------------------------------------------------------------------


def test_vars_files_of_the_play_are_planned_with_in_ansibles_order(cluster: Cluster) -> None:
    cluster.write({"a": {}}, {"b": {}}, {**CPU, "rdm_subnet": "10.1.0.0/24"})
    home = cluster.play.parent
    (home / "all.yml").write_text("{rdm_subnet: 10.2.0.0/24, rdm_slots: 3, rdm_cluster: ours}")
    (home / "of-b.yml").write_text("my_ip: 10.2.0.77")
    (home / "of-a.yml").write_text("{}")
    play = yaml.safe_load(PLAY)
    play[0] |= {"vars": {"rdm_slots": 2}, "vars_files": ["all.yml", "of-{{ inventory_hostname }}.yml"]}
    cluster.play.write_text(yaml.safe_dump(play))
    _, result, output = cluster.run("-e", "rdm_cluster=theirs")
    assert (result.get("subnet"), result.get("cluster")) == ("10.2.0.0/24", "theirs"), output
    assert {name: (node["my_ip"], node["slots"]) for name, node in result["nodes"].items()} == {
        "a": ("10.2.0.100", 3),
        "b": ("10.2.0.77", 3),
    }


def test_a_variable_that_one_role_is_given_is_refused_by_name(cluster: Cluster) -> None:
    def network(way: str) -> dict[str, Any]:
        return {f"ansible.builtin.{way}_role": {"name": "rdm.provision.network"}, "when": False}

    cluster.write({"a": {}}, {"b": {}}, {**CPU, "container_name": "seen"})
    play = yaml.safe_load(PLAY)[0]
    plan = {"block": play.pop("tasks"), "vars": {"network_driver": "ipvlan"}}
    role = {"role": "rdm.provision.network", "when": False, "network_name": "x"}
    play["roles"] = [role | {"vars": {"network_parent": "x"}}]
    play["pre_tasks"] = [plan]
    play["tasks"] = [
        {**network("import"), "vars": {"network_mode": "x", "container_name": "seen", "mine": 1}},
        {"block": [network("import")], "vars": {"network_vlan": 3}},
        {**network("include"), "vars": {"network_options": {}}},
        {"block": [{"block": [network("include")]}], "vars": {"network_replace": True}},
    ]
    cluster.play.write_text(yaml.safe_dump([play]))
    _, result, output = cluster.run()
    named = [problem["value"] for problem in result.get("problems", ())]
    assert named == [
        "network_driver",
        "network_mode",
        "network_name",
        "network_options",
        "network_parent",
        "network_replace",
        "network_vlan",
    ], output
    assert "vars_files of the play" in result["msg"]
    assert not cluster.plan_file.exists()


def keys_of(cluster: Cluster) -> dict[str, bytes]:
    return {name: (cluster.home / ".rdm" / "ssh" / name).read_bytes() for name in ("id_ed25519", "host_ca")}


def test_keys_are_made_with_the_plan_which_keeps_their_fingerprints(cluster: Cluster) -> None:
    cluster.write({"a": {**CPU, **facts()}}, {})
    checked = ("-e", "keys=true")
    rc, result, _ = cluster.run(*checked, "--check", stage="nodes")
    assert (rc, (cluster.home / ".rdm" / "ssh").exists()) == (0, False)
    assert cluster.run(*checked, stage="nodes")[0] == 0
    assert "[ssh keys]\nid_ed25519 = SHA256:" in cluster.plan_file.read_text()
    made = keys_of(cluster)
    rc, result, _ = cluster.run(*checked, stage="nodes")
    assert (rc, result["changed"], keys_of(cluster)) == (0, False, made)
    # A run that only reads the plan does not need them.
    (cluster.home / ".rdm" / "ssh" / "host_ca").unlink()
    rc, result, _ = cluster.run()
    assert (rc, result["changed"]) == (0, False)


def test_a_plan_file_without_fingerprints_gets_those_of_the_keys_that_are_there(cluster: Cluster) -> None:
    cluster.write({"a": {**CPU, **facts()}}, {})
    assert cluster.run("-e", "keys=true", stage="nodes")[0] == 0
    kept, made = cluster.plan_file.read_text(), keys_of(cluster)
    cluster.plan_file.write_text(re.sub(r"(?s)# Who changes.*?\n\n", "", kept))
    assert "SHA256" not in cluster.plan_file.read_text()
    assert cluster.run("-e", "keys=true", stage="nodes")[0] == 0
    assert (cluster.plan_file.read_text(), keys_of(cluster)) == (kept, made)


def test_a_clone_without_the_keys_is_refused_until_it_has_them_or_wants_new_ones(cluster: Cluster) -> None:
    cluster.write({"a": {**CPU, **facts()}}, {})
    assert cluster.run("-e", "keys=true", stage="nodes")[0] == 0
    kept, made = cluster.plan_file.read_text(), keys_of(cluster)
    shutil.rmtree(cluster.home / ".rdm")
    for option in ((), ("--check",)):
        rc, result, _ = cluster.run("-e", "keys=true", *option, stage="nodes")
        assert (rc, result["rdm_refused"], len(result["problems"])) == (2, "inventory", 1)
        assert f"lacks keys that {cluster.plan_file} knows by their fingerprints" in result["msg"]
        assert cluster.plan_file.read_text() == kept
        assert not (cluster.home / ".rdm" / "ssh").exists()
    assert cluster.run("-e", "keys=true", "-e", "preflight_new_ssh_keys=true", stage="nodes")[0] == 0
    new = keys_of(cluster)
    assert cluster.plan_file.read_text() != kept
    (cluster.home / ".rdm" / "ssh" / "host_ca").write_bytes(made["host_ca"])
    rc, result, _ = cluster.run("-e", "keys=true")
    assert rc == 2
    assert "has other keys than those" in result["msg"]
    (cluster.home / ".rdm" / "ssh" / "host_ca").write_bytes(new["host_ca"])
    assert cluster.run("-e", "keys=true")[0] == 0


def test_nodes_with_directories_of_their_own_for_the_keys_are_refused(cluster: Cluster) -> None:
    cluster.write({"a": CPU}, {"b": {**CPU, "container_ssh_key_dir": "/elsewhere"}})
    rc, result, _ = cluster.run("-e", "keys=true")
    assert rc == 2
    assert "b: container_ssh_key_dir /elsewhere is not " in result["msg"]


def test_vfs_of_a_cluster_are_planned_once_and_kept(cluster: Cluster) -> None:
    sriov = {**CPU, "network_driver": "sriov", "sriov_allow_tag": True}
    cluster.write({"a": {}}, {"b": {}}, sriov)
    _, result, _ = cluster.run()
    assert result["nodes"]["a"]["vf_mac"] == ""
    assert "vf_prefix" not in cluster.plan_file.read_text()
    cluster.write({"a": {}}, {"b": {}}, {**sriov, "sriov_vfs": 8})
    rc, result, output = cluster.run()
    assert rc == 0, output
    macs = [result["nodes"][node]["vf_mac"] for node in ("a", "b")]
    assert macs == [f"{macs[0][:5]}:91:06:40:00", f"{macs[0][:5]}:91:06:50:00"]
    assert f"vf_prefix = {macs[0][:5]}\n" in cluster.plan_file.read_text()
    cluster.write({"b": {}}, {"a": {}}, {**sriov, "sriov_vfs": 4})
    _, result, _ = cluster.run()
    assert [result["nodes"][node]["vf_mac"] for node in ("a", "b")] == macs


def test_vfs_with_the_first_mac_of_the_inventory_are_right_though_a_container_has_one(
    cluster: Cluster,
) -> None:
    mine = "02:00:00:00:10:00"
    guid = guid_of(mine)
    vf = Vf(0, "0000:41:00.1", driver="mlx5_core", address=guid, port=guid, policy="Follow")
    card = Pf("ib0", "0000:41:00.0", "mlx5_core", True, 8, 1, False, "", (vf,))
    found = facts(sriov=[to_fact(card)])
    common = {**CPU, "network_driver": "sriov", "sriov_vfs": 1}
    cluster.write({"a": {**found, "sriov_vf_first_mac": mine}}, {}, common)
    rc, result, output = cluster.run(stage="nodes")
    assert rc == 0, output
    cluster.write({"a": found}, {}, common)
    rc, result, _ = cluster.run(stage="nodes")
    assert rc == 2
    assert "a: ib0 cannot be changed (VF 0 has node GUID 02:00:00:ff:fe:00:10:00, not " in result["msg"]


VLAN = {"sriov_vf_vlan": 7, "network_vlan": 7}


def test_vf_settings_are_inputs_and_their_state_is_checked(cluster: Cluster) -> None:
    sriov = {**CPU, "network_driver": "sriov", "sriov_allow_tag": True}
    found = []
    for more in ({}, {"sriov_vfs": 4}, {"sriov_vfs": 4}, {"sriov_vfs": 4, **VLAN}):
        cluster.write({"a": {}}, {}, {**sriov, **more})
        _, result, output = cluster.run("-e", '{"state_files": true}')
        assert "state_files" in result, output
        found.append(result["state_files"]["a"])
    inputs = [one["inputs"]["sriov"] for one in found]
    assert all(inputs)
    assert inputs[1] == inputs[2]
    assert len(set(inputs)) == 3
    assert [one["watch"]["vfs"] for one in found] == [
        [],
        [["ib0", ["address", "policy"]]],
        [["ib0", ["address", "policy"]]],
        [["ib0", ["address", "policy", "vlan"]]],
    ]
    assert {one["sriov"]["socket"] for one in found} == {"/run/docker/plugins/sriov.sock"}
    assert not any("rdm-sriov/vfs.json" in path for path in found[0]["watch"]["paths"]["sriov"])
    assert any("rdm-sriov/vfs.json" in path for path in found[1]["watch"]["paths"]["sriov"])


def test_the_directory_of_jobs_that_is_watched_is_the_containers(cluster: Cluster) -> None:
    cluster.write({"a": {}}, {}, {**CPU, "rdm_become": False, "container_config_dir": "/files"})
    _, result, output = cluster.run("-e", '{"state_files": true}')
    assert "state_files" in result, output
    assert result["state_files"]["a"]["watch"]["job_directory"] == "/files/jobs"


TWICE = """
- name: Plan
  hosts: master:workers
  gather_facts: false
  tasks:
    - name: Plan the inventory
      rdm.provision.plan: {stage: inventory, state_files: true}
      run_once: true
    - name: Another process saves a plan
      ansible.builtin.copy: {content: "{{ other }}", dest: "{{ inventory_dir }}/address_plan.cfg"}
      delegate_to: localhost
      run_once: true
      when: other is defined
    - name: Plan
      rdm.provision.plan: {stage: nodes, state_files: true, write: true}
      register: planned
      run_once: true
"""


def test_a_run_evaluates_the_inventory_once_unless_the_plan_file_changes_meanwhile(cluster: Cluster) -> None:
    evaluated = cluster.home.parent / "evaluated"
    slots = f"{{{{ lookup('ansible.builtin.pipe', 'echo >>{evaluated}; echo 4') }}}}"
    cluster.write({"a": {}}, {}, {**CPU, "rdm_slots": slots})
    cluster.run("-e", '{"state_files": true}')
    once = len(evaluated.read_text())
    evaluated.unlink()
    cluster.play.write_text(TWICE)
    _, result, output = cluster.run()
    assert result["hostfile"] == "192.169.16.100 slots=4\n", output
    assert result["state_files"]["a"]["inputs"]
    assert len(evaluated.read_text()) == once
    saved = cluster.plan_file.read_text().replace(".100", ".107")
    cluster.plan_file.unlink()
    _, result, output = cluster.run("-e", json.dumps({"other": saved}))
    assert result["nodes"]["a"]["my_ip"] == "192.169.16.107", output


def test_each_interface_is_queried_for_the_address_that_is_planned_on_its_wire(cluster: Cluster) -> None:
    sriov = {"network_driver": "sriov", "sriov_allow_tag": True, "network_parent": "ib0,ib1"}
    workers = {
        "b": {"network_vlan": 5},
        "c": sriov,
        "d": {**sriov, "network_vlan": 5},
        "e": {"network_driver": "bridge"},
    }
    cluster.write({"a": {}}, workers, CPU)
    _, result, output = cluster.run("-e", '{"state_files": true}')
    assert {node: one["addresses"] for node, one in result["state_files"].items()} == {
        "a": {"ib0": "192.169.16.100"},
        "b": {"ib0.5": "192.169.16.101"},
        "c": {"ib0": "192.169.16.102"},
        "d": {},
        "e": {},
    }, output
    cluster.write({"a": {"container_rails": ["ib0", "ib1"]}}, {}, CPU)
    _, result, output = cluster.run("-e", '{"state_files": true}')
    assert result["state_files"]["a"]["addresses"] == {"ib0": "192.169.16.100", "ib1": "192.169.17.100"}, (
        output
    )


def test_settings_that_the_plugin_would_override_are_refused_unless_equal(cluster: Cluster) -> None:
    sriov = {**CPU, "network_driver": "sriov", "sriov_allow_tag": True, "sriov_vfs": 2}
    right = {
        "a": {**VLAN},
        "b": {"sriov_vf_trust": True, "sriov_vf_spoof_check": False, "network_privileged": True},
        "c": {"sriov_vf_vlan": 7, "network_mode": "passthrough"},
        "d": {"sriov_vf_vlan": 7, "sriov_plugin": "upstream"},
    }
    cluster.write({"a": right.pop("a")}, right, sriov)
    rc, result, output = cluster.run()
    assert rc == 0, (result, output)
    wrong = {
        "a": {"sriov_vf_vlan": 7},
        "b": {"sriov_vf_vlan": 0, "network_options": {"vlan": 9}},
        "c": {"sriov_vf_trust": True},
        "d": {"sriov_vf_spoof_check": True, "network_privileged": True},
    }
    cluster.write({"a": wrong.pop("a")}, wrong, sriov)
    rc, result, _ = cluster.run()
    assert rc == 2
    then = "from which rdm-sriov sets it to {} at each start of a container: leave sriov_vf_{} out"
    assert {one["node"]: f"{one['reason']}: {one['hint']}" for one in result["problems"]} == {
        "a": "sriov_vf_vlan 7 contradicts network_vlan 0, " + then.format(0, "vlan"),
        "b": "sriov_vf_vlan 0 contradicts network_vlan 9, " + then.format(9, "vlan"),
        "c": "sriov_vf_trust true contradicts network_privileged false, " + then.format("false", "trust"),
        "d": "sriov_vf_spoof_check true contradicts network_privileged true, "
        + then.format("false", "spoof_check"),
    }


def test_impossible_vfs_are_refused_at_once(cluster: Cluster) -> None:
    sriov = {**CPU, "network_driver": "sriov", "sriov_allow_tag": True, "sriov_vfs": 2}
    pins = {"ib0": ["06:00:00:00:00:01", "06:00:00:00:00:02"]}
    cluster.write(
        {"a": {"sriov_vfs": 1000}},
        {
            "b": {"sriov_vf_pfs": ["ib0", "ib0"]},
            "c": {"sriov_vf_addresses": {"ib7": []}},
            "d": {"sriov_vf_addresses": {"ib0": ["mine", "yours"]}},
            "e": {"sriov_vf_addresses": pins},
            "f": {"sriov_vf_addresses": pins},
            "g": {"sriov_vf_policy": "Sideways"},
        },
        sriov,
    )
    rc, result, output = cluster.run()
    assert rc == 2
    reasons = {problem["node"]: f"{problem['value']} {problem['reason']}" for problem in result["problems"]}
    assert "sriov_vfs 1000 is not between 0 and 256" in reasons["a"]
    assert "does not name 1 to 16 physical functions, each of them once" in reasons["b"]
    assert "sriov_vf_addresses names ib7, which is none of ib0" in reasons["c"]
    assert "mine of ib0 is neither a MAC" in reasons["d"]
    assert "of VF 1 of ib0 is that of VF 1 of ib0 of e" in reasons["f"]
    assert "sriov_vf_policy" in reasons["g"]
    assert "Traceback" not in output
    assert not cluster.plan_file.exists()
