"""A Slurm cluster: the hosts' roles, the text of the files, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import Problem
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import changes as slurm_changes
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import conf as slurm_conf
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import plan as slurm_plan
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.conf import Cluster, Host, Partition
from hypothesis import given
from hypothesis import strategies as st

GROUPS = {"all": [], "master": ["n1"], "workers": ["n2", "n3"], "hgx": ["n1"], "gpu2": ["n2", "n3"]}
NODES = ["n1", "n2", "n3"]
PACKAGES = dict.fromkeys(
    ("munge", "client", "slurmd", "slurmctld", "slurmdbd", "slurmrestd", "jwt", "mariadb"), "22.05.8-4"
)
FACTS: dict[str, Any] = {
    "hostname": "n1",
    "systemd": True,
    "manager": "apt",
    "packages": PACKAGES,
    "names": {name: f"deb-{name}" for name in PACKAGES},
    "version": "22.05.8-4",
    "candidate": "",
    "cpus": {"cpus": 128, "sockets": 2, "cores": 32, "threads": 2},
    "memory": 515_000,
    "gpus": [],
    "missing_devices": [],
    "cgroup": {"version": 2, "controllers": ["cpuset", "cpu", "io", "memory", "pids"]},
    "health": {"drivers": [], "ports": []},
    "owner": "",
    "foreign": "",
    "munge_key": "",
    "conf": "",
    "jobs": [],
    "running": [],
}
NVIDIA = [{"driver": "nvidia", "render_node": f"/dev/dri/renderD{128 + n}"} for n in range(8)]
AMD = [{"driver": "amdgpu", "render_node": f"/dev/dri/renderD{128 + n}"} for n in range(8)]


def host(name: str, facts: dict[str, Any] | None = None, **more: Any) -> Host:
    return Host(name, f"10.0.0.{name[1:]}", {**FACTS, "hostname": name, **(facts or {})}, **more)


def cluster(*hosts: Host, **more: Any) -> Cluster:
    given_ = {one.name: one for one in hosts}
    partitions = (Partition("hgx", ("n1",), default=True), Partition("gpu2", ("n2", "n3"), max_time="2-0"))
    all_hosts = {name: given_.get(name) or host(name) for name in NODES}
    return replace(Cluster("c1", "n1", "n1", partitions, all_hosts), **more)


def report(problems: list[Problem]) -> str:
    return "\n".join(f"{problem.node}: {problem.sentence}" for problem in problems)


# --- roles of hosts --------------------------------------------------------------------------------------


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
    assert slurm_conf.controller_of({**GROUPS, **more}, problems) == expected
    assert problems == []


@pytest.mark.parametrize(
    ("hosts", "words"), [(["n1", "n2"], "has 2 hosts (n1, n2)"), ([], "is in the inventory and has no host")]
)
def test_there_is_one_controller(hosts: list[str], words: str) -> None:
    problems: list[Problem] = []
    slurm_conf.controller_of({**GROUPS, "slurm_controller": hosts}, problems)
    assert f"the group slurm_controller {words}" in report(problems)


def partitions(wanted: dict[str, Any]) -> tuple[tuple[Partition, ...], str]:
    problems: list[Problem] = []
    found = slurm_conf.partitions_of(wanted, GROUPS, NODES, problems)
    return found, report(problems)


def test_without_partitions_there_is_one_of_all_nodes() -> None:
    assert partitions({}) == ((Partition("main", tuple(NODES), default=True),), "")


def test_partitions_are_made_of_groups_in_the_order_of_the_nodes() -> None:
    both = {"groups": ["gpu2", "hgx"], "default": True, "max_time": "2-00:00:00"}
    assert partitions({"all": both}) == ((Partition("all", tuple(NODES), True, "2-00:00:00"),), "")


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"hgx": {"groups": ["hgy"]}}, "is of the group 'hgy', which the inventory lacks: did you mean hgx?"),
        ({"hgx": {}}, "names no groups of hosts: write hgx: {groups: [GROUP]}"),
        ({"hgx": {"groups": ["all"]}}, "slurm_partitions: hgx has no nodes"),
        ({"a b": {"groups": ["hgx"]}}, "is no name for a partition"),
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


# --- what is refused -------------------------------------------------------------------------------------


def test_a_sound_cluster_has_no_problems() -> None:
    assert slurm_conf.check(cluster()) == []


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
        (host("n2", options={"Feature": "a\nNodeName=b"}), "Feature has a value that cannot be written"),
    ],
)
def test_hosts_that_cannot_be_nodes_are_refused(changed: Host, words: str) -> None:
    assert words in report(slurm_conf.check(cluster(changed)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clustername": "x"}, "is the role's own"),
        ({"Slurmd Timeout": 3}, "is no name of an option"),
        ({"SlurmdTimeout": "3\nInclude=/x"}, "has a value that cannot be written"),
    ],
)
def test_options_that_break_the_configuration_are_refused(options: dict[str, Any], words: str) -> None:
    assert words in report(slurm_conf.check(cluster(options=options)))


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


# --- the files -------------------------------------------------------------------------------------------


def test_a_node_has_what_was_found_or_what_the_user_says() -> None:
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
    assert slurm_conf.cgroups_work([FACTS, FACTS])
    assert not slurm_conf.cgroups_work([FACTS, {**FACTS, "systemd": False}])
    assert not slurm_conf.cgroups_work([FACTS, {**FACTS, "cgroup": {"version": 2, "controllers": ["cpu"]}}])
    assert report(slurm_conf.check(cluster(host("n2", {"systemd": False}), cgroups=True))) == (
        "n2: has no systemd, which gives slurmd a control group (slurm_cgroups is true): leave slurm_cgroups "
        "at auto, or set it to false"
    )
    assert "ProctrackType=proctrack/cgroup\n" in slurm_conf.slurm_conf(cluster(cgroups=True))
    assert "ProctrackType=proctrack/linuxproc\n" in slurm_conf.slurm_conf(cluster())
    assert "ConstrainDevices=yes\n" in slurm_conf.cgroup_conf(cluster(cgroups=True))


V1 = {"version": 1, "controllers": ["cpu", "cpuacct", "cpuset", "devices", "freezer", "memory"]}


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
    found = slurm_conf.without_cgroups({**FACTS, **changed})
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
    assert slurm_conf.cgroup_plugin({**FACTS, **one} for one in facts) == plugin


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


# --- changes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"options": {"SlurmdTimeout": 9}}, True),
        ({"options": {"MaxArraySize": 9}}, False),
        ({"cgroups": True}, False),
        ({"partitions": (Partition("all", tuple(NODES)),)}, True),
    ],
)
def test_daemons_restart_only_for_what_they_cannot_read_again(changed: dict[str, Any], same: bool) -> None:
    before, after = slurm_conf.digests(cluster()), slurm_conf.digests(cluster(**changed))
    assert (before["restart"] == after["restart"]) is same
    assert before["reload"] != after["reload"] or "cgroups" in changed


JOBS = [{"id": "7", "state": "RUNNING", "partition": "gpu2", "nodes": "n[2-3]"}]


def test_what_would_end_a_job_is_refused_with_its_id() -> None:
    old = slurm_conf.slurm_conf(cluster())
    assert slurm_changes.endangered(old, old, JOBS) == []
    smaller = slurm_conf.slurm_conf(cluster(host("n3", cpus=8)))
    words = report(slurm_changes.endangered(old, smaller, JOBS))
    assert words.startswith("n3: would have another CPUs, Sockets, CoresPerSocket, ThreadsPerCore while")
    assert "scancel 7" in words
    assert slurm_changes.endangered(old, smaller, []) == []
    # Another node may change at the same time.
    assert slurm_changes.endangered(old, slurm_conf.slurm_conf(cluster(host("n1", cpus=8))), JOBS) == []
    gone = slurm_conf.slurm_conf(cluster(partitions=(Partition("hgx", tuple(NODES)),)))
    assert "the partition gpu2 would be removed while job 7 is there" in report(
        slurm_changes.endangered(old, gone, JOBS)
    )
    without = slurm_conf.slurm_conf(cluster(partitions=(Partition("gpu2", ("n1", "n2")),)))
    assert "n3: would leave the cluster while job 7" in report(slurm_changes.endangered(old, without, JOBS))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"options": {"selecttype": "select/linear"}}, "SelectType would be select/linear instead of"),
        ({"cgroups": True}, "ProctrackType would be proctrack/cgroup instead of proctrack/linuxproc"),
        ({"cgroups": True}, "TaskPlugin would be task/cgroup,task/affinity instead of task/affinity"),
    ],
)
def test_settings_that_no_job_outlives_are_not_changed(changed: dict[str, Any], words: str) -> None:
    old, new = slurm_conf.slurm_conf(cluster()), slurm_conf.slurm_conf(cluster(**changed))
    found = report(slurm_changes.endangered(old, new, JOBS))
    assert words in found
    assert "which ends all jobs, while job 7 is there: wait for it, or cancel with scancel 7" in found
    assert slurm_changes.endangered(old, new, []) == []
    assert slurm_changes.endangered("", new, JOBS) == []


def test_another_controller_is_refused_while_the_one_before_runs() -> None:
    hosts = {
        "n1": {"owner": "c1", "jobs": [], "running": ["slurmctld", "slurmd"]},
        "n2": {"owner": "c1", "jobs": [], "running": ["slurmd"]},
        "n3": {"owner": "", "jobs": [], "running": ["slurmctld"]},
    }
    assert slurm_changes.check_controller("c1", "n1", hosts) == []
    words = report(slurm_changes.check_controller("c1", "n2", hosts))
    assert words == (
        "n1: is the controller of c1, whose jobs would end if n2 took its place: "
        "take the cluster away with slurm down first, or put this host into the group slurm_controller"
    )
    stopped: dict[str, Any] = {**hosts, "n1": {"owner": "c1", "jobs": None, "running": ["slurmd"]}}
    assert slurm_changes.check_controller("c1", "n2", stopped) == []
    stopped["n1"]["running"] = ["slurmd", "slurmstepd"]
    assert report(slurm_changes.check_controller("c1", "n2", stopped)) == words


def test_jobs_missing_from_every_queue_are_seen_by_their_steps() -> None:
    dead = {"owner": "c1", "jobs": None, "running": ["slurmd"]}
    node = {"owner": "c1", "jobs": [], "running": ["slurmd", "slurmstepd"]}
    assert slurm_changes.unseen({"n1": dead, "n2": node}) == ["n2"]
    assert slurm_changes.unseen({"n1": {**dead, "jobs": []}, "n2": node}) == []
    assert slurm_changes.unseen({"n1": dead, "n2": {**node, "running": ["slurmd"]}}) == []
    assert slurm_changes.unseen({"n1": dead, "n2": {**node, "owner": ""}}) == []


def test_what_may_end_jobs_missing_from_every_queue_is_refused() -> None:
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


@given(st.sets(st.integers(0, 120), min_size=1), st.integers(1, 4))
def test_lists_of_nodes_name_what_they_were_made_of(numbers: set[int], width: int) -> None:
    names = {f"n{number:0{width}d}" for number in numbers}
    ranges = ",".join(f"{number:0{width}d}" for number in sorted(numbers))
    assert slurm_changes.expanded(f"n[{ranges}],login") == names | {"login"}


def test_ranges_in_lists_of_nodes_keep_their_zeros() -> None:
    assert slurm_changes.expanded("a[08-11]b[1-2],c") == {
        *(f"a{number}b{last}" for number in ("08", "09", "10", "11") for last in (1, 2)),
        "c",
    }
    assert slurm_changes.expanded("") == set()


# --- what each host gets ---------------------------------------------------------------------------------


def planned(made: Cluster) -> dict[str, Any]:
    return slurm_plan.hosts_of(made, "k" * 64, {"physics": ["alice"]}, "#!check\n")


def paths(one: dict[str, Any]) -> set[str]:
    files = (*one["files"], *one["private_files"])
    return {file["path"] for file in files if file.get("state") != "absent"}


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


def test_a_nodes_health_is_what_it_had() -> None:
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
    assert slurm_conf.check(made) == []
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


def test_a_slurmrestd_that_could_not_run_is_refused() -> None:
    words = report(slurm_conf.check(cluster(host("n1", {"systemd": False}), rest="127.0.0.1:6820")))
    assert "n1: slurm_rest needs systemd" in words
    for address in ("6820", "localhost", "localhost:0", "localhost:65536", "a b:1", "host:6820\nUser=root"):
        assert "is no address" in report(slurm_conf.check(cluster(rest=address)))
    mine = cluster(rest="[::1]:6820", options={"AuthAltTypes": "auth/jwt"})
    assert "AuthAltTypes is the role's own" in report(slurm_conf.check(mine))
    assert slurm_conf.check(cluster(options={"AuthAltTypes": "auth/jwt"})) == []


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
