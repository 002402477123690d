"""What each host of a Slurm cluster gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import changes as slurm_changes
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import cluster as slurm_cluster
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import conf as slurm_conf
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import plan as slurm_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.cluster import Cluster, Partition

from tests.unit.plugins.plugin_utils.slurm.clusters import (
    JOBS,
    NODES,
    NVIDIA,
    PACKAGES,
    cluster,
    host,
    report,
)


def planned(made: Cluster) -> dict[str, Any]:
    return slurm_plan.hosts_of(made, "k" * 64, {"physics": ["alice"]}, "#!check\n")


def paths(one: dict[str, Any]) -> set[str]:
    files = (*one["files"], *one["private_files"])
    return {file["path"] for file in files if file.get("state") != "absent"}


def test_the_key_of_a_cluster_that_exists_is_not_replaced() -> None:
    facts = {
        "n1": {"owner": "c1", "munge_key": "aa", "running": ["munged"]},
        "n2": {"owner": "", "munge_key": "bb", "running": []},
    }
    assert slurm_plan.check_key("aa", facts, "k") == []
    for mine, words in (("", "is not there"), ("cc", "is another")):
        assert f"munge's key k {words} than that of the cluster, on n1" in report(
            slurm_plan.check_key(mine, facts, "k")
        )


def test_a_key_that_another_program_uses_is_not_replaced() -> None:
    facts = {"n2": {"owner": "", "munge_key": "bb", "running": ["munged"]}}
    assert slurm_plan.check_key("bb", facts, "k") == []
    for mine in ("", "aa"):
        assert report(slurm_plan.check_key(mine, facts, "k")) == (
            "n2: munge runs here for another program, with a key of its own that Slurm's would replace: "
            "stop munge if nothing needs it, or take the host out of the inventory"
        )


def test_changes_that_may_end_jobs_outside_every_queue_are_refused() -> None:
    old, same = slurm_conf.slurm_conf(cluster()), slurm_conf.slurm_conf(cluster(options={"SlurmdTimeout": 9}))
    assert slurm_changes.endangered(old, same, [], ["n2"]) == []
    one = (Partition("hgx", ("n1", "n2")),)
    words = report(slurm_changes.endangered(old, slurm_conf.slurm_conf(cluster(partitions=one)), [], ["n2"]))
    why = f"while jobs run on n2 and the queue cannot be read: {slurm_changes.HINT}"
    assert f"n3: would leave the cluster {why}" in words
    assert f"the partition gpu2 would be removed {why}" in words
    held = slurm_conf.slurm_conf(cluster(cgroups=True))
    assert why in report(slurm_changes.endangered(old, held, [], ["n2"]))
    assert report(slurm_plan.check_queue([], ["n2"])) == (
        f"None: the queue cannot be read, and jobs run on n2: {slurm_changes.HINT}"
    )


def test_the_controller_has_the_configuration_and_the_others_fetch_it() -> None:
    hosts = planned(cluster())
    assert {*hosts["n1"]["daemons"]} == {"munge", "mariadb", "slurmdbd", "slurmctld", "slurmd"}
    assert {*hosts["n2"]["daemons"]} == {"munge", "slurmd"}
    assert "/etc/slurm/slurm.conf" in paths(hosts["n1"])
    assert "/etc/slurm/slurm.conf" not in paths(hosts["n2"])
    assert hosts["n2"]["blocks"] == [
        {
            "path": "/etc/default/slurmd",
            "name": "slurmd",
            "content": 'SLURMD_OPTIONS="--conf-server 10.0.0.1:6817"\n',
        }
    ]
    # Debian's unit requires a file that a configless node does not have.
    assert "/etc/systemd/system/slurmd.service.d/rdm-provision.conf" in paths(hosts["n2"])
    (dbd,) = hosts["n1"]["private_files"]
    assert dbd["mode"] == "0600"
    assert hosts["n1"]["accounts"] == {"physics": ["alice"]}


def test_a_login_host_has_commands_and_configuration_but_no_daemon_of_slurm() -> None:
    made = cluster(login="l1")
    made = replace(made, hosts={**made.hosts, "l1": host("l1")})
    login = planned(made)["l1"]
    assert {*login["daemons"]} == {"munge"}
    assert paths(login) == {"/etc/slurm/slurm.conf"}


def test_health_check_expects_the_nodes_earlier_devices() -> None:
    health = {"drivers": ["nvidia"], "ports": ["mlx5_0/1"]}
    settings = slurm_plan.health_settings(host("n2", {"gpus": NVIDIA[:1], "health": health}, health_disk=500))
    assert settings == {
        "devices": ["/dev/nvidia0"],
        "drivers": ["nvidia"],
        "ports": ["mlx5_0/1"],
        "disks": {"/var/lib/slurm/slurmd": 500},
    }
    # Device files that the user names may have another driver, or none.
    named = host("n2", {"health": health}, gpu_devices=["/dev/x0"])
    assert (slurm_plan.health_settings(named)["drivers"], slurm_plan.health_settings(named)["disks"]) == (
        [],
        {},
    )


def test_a_port_that_is_down_on_purpose_is_left_out() -> None:
    health = {"drivers": [], "ports": ["mlx5_0/1", "mlx5_1/1"]}
    node = host("n2", {"health": health}, health_ignored_ports=["mlx5_1/1", "mlx5_7/1"])
    assert slurm_plan.health_settings(node)["ports"] == ["mlx5_0/1"]


def test_without_the_health_check_nothing_of_it_stays() -> None:
    made = cluster(login="l1")
    made = replace(made, hosts={**made.hosts, "l1": host("l1")})

    def gone(health: str, name: str) -> list[str]:
        files = slurm_plan.hosts_of(made, "k" * 64, {}, health)[name]["files"]
        return [
            file["path"] for file in files if file.get("state") == "absent" and "rest" not in file["path"]
        ]

    program = "prolog.d/00-rdm-health-check"
    assert [path for path in gone("", "n2") if path.endswith((program, "health.json"))] == [
        f"/etc/slurm/{program}",
        "/etc/slurm/rdm/health.json",
    ], "the program goes before what it cannot be without"
    assert not any("health" in path for path in (*gone("#!check\n", "n2"), *gone("", "l1")))


def test_only_packages_that_are_missing_are_installed() -> None:
    bare = {"packages": dict.fromkeys(PACKAGES, ""), "version": "", "candidate": "22.05.8-4"}
    hosts = planned(cluster(host("n2", bare)))
    assert hosts["n1"]["packages"] == []
    assert hosts["n2"]["packages"] == ["deb-munge", "deb-client", "deb-slurmd"]
    # The package creates its user, which then owns the existing key.
    assert (hosts["n1"]["munge_owner"], hosts["n2"]["munge_owner"]) == ("munge", "")


def test_slurmrestd_runs_on_the_controller_without_rights_and_takes_tokens_only() -> None:
    bare = {"packages": {}, "version": "", "candidate": "22.05.8-4"}
    made = cluster(host("n1", bare), rest="127.0.0.1:6820")
    assert slurm_cluster.check(made) == []
    hosts = planned(made)
    (unit,) = (file for file in hosts["n1"]["files"] if "slurmrestd.service.d" in file["path"])
    lines = unit["content"].splitlines()
    assert lines[1:] == [
        "[Service]",
        "DynamicUser=yes",
        "Environment=SLURM_JWT=daemon",
        "ExecStart=",
        "ExecStart=/usr/sbin/slurmrestd -a rest_auth/jwt 127.0.0.1:6820",
        "Restart=on-failure",
        "RestartSec=5",
    ]
    assert hosts["n1"]["daemons"]["slurmrestd"]["address"] == "127.0.0.1:6820"
    assert {"deb-jwt", "deb-slurmrestd"} < set(hosts["n1"]["packages"])
    assert [name for name in NODES if "slurmrestd" in hosts[name]["daemons"]] == ["n1"]
    assert [hosts[name]["token_key"] for name in NODES] == ["/etc/slurm/rdm/jwt.key", "", ""]


def test_without_slurmrestd_no_host_keeps_the_key_that_signs_tokens() -> None:
    def gone(one: dict[str, Any], key: str) -> list[str]:
        return [entry["path"] for entry in one[key] if entry.get("state") == "absent"]

    drop_in = "/etc/systemd/system/slurmrestd.service.d"
    after, during = planned(cluster()), planned(cluster(rest="127.0.0.1:6820"))
    assert gone(during["n1"], "files") == gone(during["n1"], "folders") == []
    for one in (after["n1"], after["n2"], during["n2"]):
        assert gone(one, "files") == [f"{drop_in}/rdm-provision.conf", "/etc/slurm/rdm/jwt.key"]
        assert gone(one, "folders") == [drop_in]


def test_all_that_is_written_is_removed_in_the_end() -> None:
    without_systemd = {"systemd": False, "gpus": NVIDIA}
    made = planned(cluster(host("n2", without_systemd), host("n3"), rest="127.0.0.1:6820"))
    written = {path for one in made.values() for path in (*paths(one), one["token_key"]) if path}
    removed = slurm_plan.removed()
    assert written < {one["path"] for one in removed["files"]}
    blocks = {one["path"] for host_ in made.values() for one in host_["blocks"]}
    assert blocks <= {one["path"] for one in removed["blocks"]}
    folders = {one["path"] for host_ in made.values() for one in host_["folders"]}
    assert folders <= {one["path"] for one in removed["folders"]}


@pytest.mark.parametrize("jobs", [[], JOBS, [*JOBS, {"id": "8", "nodes": ""}]])
def test_a_cluster_with_jobs_is_not_taken_away(jobs: list[dict[str, str]]) -> None:
    words = report(slurm_plan.check_queue(jobs))
    assert words.count("scancel") == bool(jobs)
    for job in jobs:
        assert job["id"] in words
