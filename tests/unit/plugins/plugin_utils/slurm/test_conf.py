"""The text of Slurm's files."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import cluster as slurm_cluster
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import conf as slurm_conf
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.cluster import Partition

from tests.unit.plugins.plugin_utils.slurm.clusters import (
    FACTS,
    NODES,
    NVIDIA,
    cluster,
    host,
    report,
)

AMD = [{"driver": "amdgpu", "render_node": f"/dev/dri/renderD{128 + n}"} for n in range(8)]


def test_node_line_has_gathered_or_configured_values() -> None:
    found = slurm_conf.node_line(host("n2", {"gpus": NVIDIA}, gpu_type="a100", options={"Weight": 10}))
    assert found == (
        "NodeName=n2 NodeHostname=n2 NodeAddr=10.0.0.2 CPUs=128 Sockets=2 CoresPerSocket=32 ThreadsPerCore=2 "
        "RealMemory=499500 Gres=gpu:a100:8 Weight=10"
    )
    given_line = slurm_conf.node_line(host("n2", cpus=16, memory=16000))
    assert given_line == "NodeName=n2 NodeHostname=n2 NodeAddr=10.0.0.2 CPUs=16 RealMemory=16000"


def test_gpus_are_the_device_files_of_those_with_a_driver() -> None:
    nvidia, amd = host("n2", {"gpus": NVIDIA}, gpu_type="a100"), host("n3", {"gpus": AMD})
    lines = slurm_conf.gres_conf(cluster(nvidia, amd)).splitlines()
    assert lines[1:] == [
        "AutoDetect=off",
        "NodeName=n2 Name=gpu Type=a100 File=/dev/nvidia[0-7] Flags=nvidia_gpu_env",
        "NodeName=n3 Name=gpu File=/dev/dri/renderD[128-135] Flags=amd_gpu_env",
    ]
    conf = slurm_conf.slurm_conf(cluster(nvidia, amd))
    assert "GresTypes=gpu\n" in conf
    assert "AccountingStorageTRES=gres/gpu,gres/gpu:a100\n" in conf


def test_without_gpus_there_is_no_gres() -> None:
    conf = slurm_conf.slurm_conf(cluster())
    assert "Gres" not in conf
    assert "AccountingStorageTRES" not in conf


def test_devices_that_are_not_in_a_row_are_listed() -> None:
    assert slurm_conf.device_list(["/dev/nvidia0", "/dev/nvidia2"]) == "/dev/nvidia0,/dev/nvidia2"
    assert slurm_conf.device_list(["/dev/nvidia0"]) == "/dev/nvidia0"


def test_the_users_options_replace_the_roles() -> None:
    conf = slurm_conf.slurm_conf(cluster(options={"returntoservice": 0, "SlurmctldParameters": "x"}))
    assert "ReturnToService=0\n" in conf
    assert "ReturnToService=2" not in conf
    assert "SlurmctldParameters=enable_configless,x\n" in conf


def test_no_users_environment_goes_into_the_database() -> None:
    assert "AccountingStoreFlags=job_comment,job_script\n" in slurm_conf.slurm_conf(cluster())


def test_cgroups_are_used_where_all_nodes_have_them() -> None:
    assert slurm_cluster.cgroups_work([FACTS, FACTS])
    assert not slurm_cluster.cgroups_work([FACTS, {**FACTS, "systemd": False}])
    assert not slurm_cluster.cgroups_work(
        [FACTS, {**FACTS, "cgroup": {"version": 2, "controllers": ["cpu"]}}]
    )
    assert report(slurm_cluster.check(cluster(host("n2", {"systemd": False}), cgroups=True))) == (
        "n2: has no systemd, which gives slurmd a control group (slurm_cgroups is true): leave slurm_cgroups "
        "at auto, or set it to false"
    )
    assert "ProctrackType=proctrack/cgroup\n" in slurm_conf.slurm_conf(cluster(cgroups=True))
    assert "ProctrackType=proctrack/linuxproc\n" in slurm_conf.slurm_conf(cluster())
    assert "ConstrainDevices=yes\n" in slurm_conf.cgroup_conf(cluster(cgroups=True))


def test_cgroup_conf_holds_jobs_to_nothing_where_there_are_no_control_groups() -> None:
    lines = slurm_conf.cgroup_conf(cluster(cgroups=True)).splitlines()[1:]
    assert lines == [
        "CgroupPlugin=cgroup/v2",
        "ConstrainCores=yes",
        "ConstrainDevices=yes",
        "ConstrainRAMSpace=yes",
    ]
    assert "yes" not in slurm_conf.cgroup_conf(cluster())
    assert "CgroupPlugin" not in slurm_conf.cgroup_conf(cluster())


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"options": {"SlurmdTimeout": 9}}, True),
        ({"options": {"MaxArraySize": 9}}, False),
        ({"cgroups": True}, False),
        ({"partitions": (Partition("all", tuple(NODES)),)}, True),
    ],
)
def test_daemons_restart_only_for_settings_that_they_cannot_reload(
    changed: dict[str, Any], same: bool
) -> None:
    before, after = slurm_conf.digests(cluster()), slurm_conf.digests(cluster(**changed))
    assert (before["restart"] == after["restart"]) is same
    assert before["reload"] != after["reload"] or "cgroups" in changed


def test_slurm_and_its_accounting_take_tokens_only_with_slurmrestd() -> None:
    words = ["AuthAltTypes=auth/jwt", "AuthAltParameters=jwt_key=/etc/slurm/rdm/jwt.key"]
    for text in (slurm_conf.slurm_conf, slurm_conf.slurmdbd_conf):
        assert set(words) < set(text(cluster(rest="127.0.0.1:6820")).splitlines())
        assert "AuthAlt" not in text(cluster())
    (hint,) = set(slurm_conf.hints(cluster(rest="10.0.0.1:6820"))) - set(slurm_conf.hints(cluster()))
    assert "TCP 10.0.0.1:6820 (slurmrestd)" in hint


@pytest.mark.parametrize("address", ["127.0.0.1:6820", "127.1.2.3:6820", "[::1]:6820", "localhost:6820"])
def test_a_firewall_has_nothing_to_let_through_for_a_host_itself(address: str) -> None:
    assert slurm_conf.hints(cluster(rest=address)) == slurm_conf.hints(cluster())
    assert slurm_conf.hints(cluster(rest="n1:6820")) != slurm_conf.hints(cluster())
