"""A Slurm cluster: its hosts and partitions, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import cluster as slurm_cluster
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.cluster import Host, Partition

from tests.unit.plugins.plugin_utils.slurm.clusters import (
    FACTS,
    GROUPS,
    NODES,
    cluster,
    host,
    report,
)


def partitions(wanted: dict[str, Any]) -> tuple[tuple[Partition, ...], str]:
    problems: list[Problem] = []
    found = slurm_cluster.partitions_of(wanted, GROUPS, NODES, problems)
    return found, report(problems)


V1 = {"version": 1, "controllers": ["cpu", "cpuacct", "cpuset", "devices", "freezer", "memory"]}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, ("n1", "n1")),
        ({"login": ["l1"]}, ("l1", "l1")),
        ({"slurm_controller": ["c1"]}, ("c1", "c1")),
        ({"slurm_controller": ["c1"], "login": ["l1"]}, ("c1", "l1")),
    ],
)
def test_the_controller_is_the_one_of_its_group_or_the_login_host_or_the_master(
    more: dict[str, list[str]], expected: tuple[str, str]
) -> None:
    problems: list[Problem] = []
    assert slurm_cluster.controller_of({**GROUPS, **more}, problems) == expected
    assert problems == []


@pytest.mark.parametrize(
    ("hosts", "words"), [(["n1", "n2"], "has 2 hosts (n1, n2)"), ([], "is in the inventory and has no host")]
)
def test_there_is_one_controller(hosts: list[str], words: str) -> None:
    problems: list[Problem] = []
    slurm_cluster.controller_of({**GROUPS, "slurm_controller": hosts}, problems)
    assert f"the group slurm_controller {words}" in report(problems)


def test_without_partitions_there_is_one_of_all_nodes() -> None:
    assert partitions({}) == ((Partition("main", tuple(NODES), default=True),), "")


def test_partitions_are_made_of_groups_in_the_order_of_the_nodes() -> None:
    both = {"groups": ["gpu2", "hgx"], "default": "yes", "max_time": "2-00:00:00"}
    assert partitions({"all": both}) == ((Partition("all", tuple(NODES), True, "2-00:00:00"),), "")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"hgx": {"groups": ["hgy"]}}, "is of the group 'hgy', which the inventory lacks: did you mean hgx?"),
        ({"hgx": {}}, "names no groups of hosts: write hgx: {groups: [GROUP]}"),
        ({"hgx": {"groups": ["all"]}}, "slurm_partitions: hgx has no nodes"),
        ({"hgx": {"groups": ["hgx", ["gpu2"]]}}, "names no groups of hosts: write hgx: {groups: [GROUP]}"),
        ({"a b": {"groups": ["hgx"]}}, "is no name for a partition"),
        ({"DEFAULT": {"groups": ["hgx"]}}, "is no name for a partition"),
        ({"hgx": {"groups": ["hgx", "gpu2"], "max_time": 43200}}, "max_time 43200, which YAML may have read"),
        ({"hgx": {"groups": ["hgx", "gpu2"], "default": "maybe"}}, "has the default 'maybe', which is not"),
        ({"hgx": {"groups": ["hgx"]}}, "n2: is in no partition, so no job could ever run there"),
        ({"hgx": {"groups": ["hgx", "gpu2"], "max_time": "soon"}}, "has the max_time 'soon'"),
        ({"hgx": {"groups": ["hgx", "gpu2"], "time": 3}}, "has time, which is unknown"),
        ({"hgx": {"groups": ["hgx", "gpu2"], "options": {"Nodes": "n9"}}}, "Nodes is the role's own"),
        (
            {name: {"groups": [name], "default": True} for name in ("hgx", "gpu2")},
            "has 2 defaults (hgx, gpu2): leave one of them",
        ),
    ],
)
def test_partitions_that_cannot_be_are_refused(wanted: dict[str, Any], words: str) -> None:
    assert words in partitions(wanted)[1]


def test_a_sound_cluster_has_no_problems() -> None:
    assert slurm_cluster.check(cluster()) == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (host("n2", {"foreign": "/etc/slurm/slurm.conf is there,"}), "n2: /etc/slurm/slurm.conf is there,"),
        (host("n2", {"owner": "c2"}), "n2: its Slurm is of the cluster c2"),
        (
            host("n2", {"version": "24.11.5-4"}),
            "Slurm differs between hosts: 22.05 on n1, n3; 24.11 on n2: give all hosts the same release",
        ),
        (host("n2", {"version": "", "candidate": ""}), "n2: has no package of Slurm and finds none"),
        (host("n2", gpu_type="a10"), "n2: GRES gpu is set, and no GPU with a driver was found"),
        (
            host("n2", {"missing_devices": ["/dev/nvidia0"]}, gpu_devices=["/dev/nvidia0"]),
            "n2: GRES gpu has a device that is not there: /dev/nvidia0",
        ),
        (host("n2", gpu_devices=["/dev/nvidia0 X=1"]), "n2: slurm_gpu_devices has /dev/nvidia0 X=1"),
        (host("n2", options={"Gres": "gpu:9"}), "n2: slurm_node_options: Gres is the role's own"),
        (host("n2", options={"Feature": "a\nNodeName=b"}), "which cannot be written"),
    ],
)
def test_hosts_that_cannot_be_nodes_are_refused(changed: Host, words: str) -> None:
    assert words in report(slurm_cluster.check(cluster(changed)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clustername": "x"}, "is the role's own"),
        ({"Slurmd Timeout": 3}, "is no name of an option"),
        ({"SlurmdTimeout": "3\nInclude=/x"}, r"has the value '3\nInclude=/x', which cannot be written"),
        ({"SlurmdTimeout": "3 ClusterName=x"}, "which cannot be written"),
        (
            {"OverSubscribe": False},
            "is False, and no word of slurm.conf: write one word in quotes",
        ),
        ({"SchedulerParameters": ["a"]}, "is ['a'], and no word of slurm.conf"),
    ],
)
def test_options_that_break_the_configuration_are_refused(options: dict[str, Any], words: str) -> None:
    assert words in report(slurm_cluster.check(cluster(options=options)))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, ""),
        ({"cgroup": V1}, ""),
        ({"cgroup": V1, "version": "20.11.4-1"}, ""),
        ({"version": "20.11.4-1"}, "of version 2, which Slurm knows since 22.05, and Slurm 20.11"),
        ({"version": "", "candidate": "21.08.8"}, "and Slurm 21.08"),
        ({"cgroup": {"version": 0, "controllers": []}}, "has no control groups"),
        (
            {"cgroup": {"version": 1, "controllers": ["cpuset", "memory"]}},
            "has no controller devices, freezer among its control groups (version 1)",
        ),
        ({"cgroup": {"version": 2, "controllers": ["memory"]}}, "has no controller cpuset"),
    ],
)
def test_control_groups_of_both_versions_need_their_controllers_and_slurm(
    changed: dict[str, Any], words: str
) -> None:
    found = slurm_cluster.without_cgroups({**FACTS, **changed})
    assert words in found if words else found == ""


@pytest.mark.parametrize(
    ("facts", "plugin"),
    [
        ([{}, {}], "cgroup/v2"),
        ([{"cgroup": V1}, {"cgroup": V1}], "cgroup/v1"),
        ([{"cgroup": V1}, {}], "autodetect"),
        # It has one plugin, and no such option.
        ([{"cgroup": V1, "version": "20.11.4-1"}], ""),
    ],
)
def test_cgroup_conf_names_the_version_that_all_nodes_have(facts: list[dict[str, Any]], plugin: str) -> None:
    assert slurm_cluster.cgroup_plugin({**FACTS, **one} for one in facts) == plugin


def test_a_slurmrestd_that_could_not_run_is_refused() -> None:
    words = report(slurm_cluster.check(cluster(host("n1", {"systemd": False}), rest="127.0.0.1:6820")))
    assert "n1: slurm_rest needs systemd" in words
    for address in ("6820", "localhost", "localhost:0", "localhost:65536", "a b:1", "host:6820\nUser=root"):
        assert "is no address" in report(slurm_cluster.check(cluster(rest=address)))
    mine = cluster(rest="[::1]:6820", options={"AuthAltTypes": "auth/jwt"})
    assert "AuthAltTypes is the role's own" in report(slurm_cluster.check(mine))
    assert slurm_cluster.check(cluster(options={"AuthAltTypes": "auth/jwt"})) == []
