"""What a change of slurm.conf would do to jobs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import changes as slurm_changes
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm import conf as slurm_conf
from ansible_collections.rdm.provision.plugins.plugin_utils.slurm.cluster import Partition
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.plugins.plugin_utils.slurm.clusters import (
    JOBS,
    NODES,
    cluster,
    host,
    report,
)


def test_change_that_would_end_a_job_is_refused_with_its_id() -> None:
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
