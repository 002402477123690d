"""A host's facts for Slurm, read from file trees."""

from __future__ import annotations

import pwd
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.base.programs import ProgramProblem
from ansible_collections.rdm.provision.plugins.module_utils.slurm import daemons, host_facts


def cpu(root: Path, number: int, package: int | None, core: int) -> None:
    directory = root / f"devices/system/cpu/cpu{number}/topology"
    directory.mkdir(parents=True)
    if package is not None:
        (directory / "physical_package_id").write_text(f"{package}\n")
        (directory / "core_id").write_text(f"{core}\n")


def test_the_topology_is_that_of_the_cpus_that_are_online(tmp_path: Path) -> None:
    for number in range(16):
        cpu(tmp_path, number, number % 2, number % 8 // 2)
    cpu(tmp_path, 16, None, 0)
    assert host_facts.topology(str(tmp_path)) == {"cpus": 16, "sockets": 2, "cores": 4, "threads": 2}


def test_memory_is_in_mib() -> None:
    assert host_facts.memory("MemTotal:       24684520 kB\nMemFree: 1 kB\n") == 24105
    assert host_facts.memory("") == 0


def test_cgroups_of_both_versions(tmp_path: Path) -> None:
    assert host_facts.cgroups(str(tmp_path / "none")) == {"version": 0, "controllers": []}
    (tmp_path / "cpu,cpuacct").mkdir()
    (tmp_path / "memory").mkdir()
    assert host_facts.cgroups(str(tmp_path)) == {"version": 1, "controllers": ["cpu", "cpuacct", "memory"]}
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu memory\n")
    assert host_facts.cgroups(str(tmp_path)) == {"version": 2, "controllers": ["cpuset", "cpu", "memory"]}


@pytest.mark.parametrize(
    ("text", "running", "expected"),
    [
        ("", {}, ""),
        ("ClusterName=other\n", {}, "is there,"),
        (f"{host_facts.MARK} for the cluster rdm.\n", {}, ""),
        ("", {"slurmd": [7]}, "slurmd runs,"),
    ],
)
def test_foreign_slurm_is_found(
    text: str, running: dict[str, list[int]], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "slurm.conf"
    if text:
        config.write_text(text)
    monkeypatch.setattr(host_facts, "CONFIG", str(config))
    monkeypatch.setattr(host_facts, "OTHER_CONFIGS", ())
    found = host_facts.foreign(running)
    assert expected in found
    assert bool(found) == bool(expected)


def test_daemons_are_known_by_their_names(tmp_path: Path) -> None:
    for pid, name, message in (
        (1, "init", "/sbin/init"),
        (7, "munged", "/usr/sbin/munged"),
        (8, "slurmd", "/usr/sbin/slurmd"),
        (9, "slurmstepd", "/usr/sbin/slurmstepd\0infinity\0"),
        (10, "slurmstepd", "slurmstepd: [7.batch]\0"),
    ):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(f"{name}\n")
        (tmp_path / str(pid) / "cmdline").write_text(message)
    found = host_facts.processes(str(tmp_path))
    assert {name: pids for name, pids in found.items() if pids} == {
        "munged": [7],
        "slurmd": [8],
        "slurmstepd": [10],
    }


def test_a_queue_that_cannot_be_read_is_not_an_empty_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(argv: list[str], seconds: float) -> str:
        raise ProgramProblem("squeue: error: Unable to contact slurm controller")

    conf = "SlurmctldHost=n1(10.0.0.1)\n"
    monkeypatch.setattr(host_facts, "run_program", lambda *_: "7|RUNNING|gpu2|n[2-3]\n")
    found = [{"id": "7", "state": "RUNNING", "partition": "gpu2", "nodes": "n[2-3]"}]
    assert host_facts.jobs("c1", conf, "n1", {"slurmctld": [7]}) == found
    monkeypatch.setattr(host_facts, "run_program", silent)
    assert host_facts.jobs("c1", conf, "n1", {"slurmctld": [7]}) is None
    assert host_facts.jobs("c1", conf, "n1", {}) is None
    assert host_facts.jobs("c1", conf, "login", {}) == []
    assert host_facts.jobs("c1", "", "n2", {}) == []
    assert host_facts.jobs("", "", "n2", {"slurmctld": [7]}) == []


def node(name: str, state: str, reason: str = "none") -> dict[str, str]:
    return {"node": name, "state": state, "reason": reason}


def test_unavailable_nodes_are_named_with_the_reason() -> None:
    found = [node("n1", "idle"), node("n2", "allocated"), node("n3", "down*", "Not responding")]
    found += [node("n4", "drained", "Prolog error"), node("n5", "mixed"), node("n6", "idle*")]
    assert daemons.unready(["n1", "n2", "n3", "n4", "n5", "n6", "n7"], found) == {
        "n3": "down* (Not responding)",
        "n4": "drained (Prolog error)",
        "n6": "idle*",
        "n7": "slurmctld does not know it",
    }


def test_accounts_that_are_missing_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"cluster": [["c1"]], "association": [["root", ""], ["physics", ""], ["physics", "alice"]]}
    monkeypatch.setattr(daemons, "accounting", lambda what, *_: known[what])
    accounts = {"physics": ["alice", "bob"], "chemistry": []}
    assert daemons.missing_accounts("c1", accounts) == [
        ["user", "bob", "account=physics", "cluster=c1"],
        ["account", "chemistry", "cluster=c1"],
    ]
    assert daemons.missing_accounts("c2", {}) == [["cluster", "c2"]]


def test_check_mode_works_before_the_package_has_created_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown_user(name: str) -> None:
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", unknown_user)
    assert daemons.make_directories(["/var/lib/slurm/slurmd"], True) == ["make /var/lib/slurm/slurmd"]
    with pytest.raises(NodeError, match="the user slurm is missing"):
        daemons.make_directories(["/var/lib/slurm/slurmd"], False)
