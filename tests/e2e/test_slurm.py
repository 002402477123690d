# SPDX-License-Identifier: GPL-3.0-or-later
"""A Slurm cluster on lab nodes: jobs, partitions, GPUs, accounting; restarts, refusals and removal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.product import changed, problems
from tests.e2e.slurm_lab import NODES, SlurmLab
from tests.printed_hints import follow
from trainer.tests.waiting import wait_until

SLEEP = "sleep infinity"

pytestmark = pytest.mark.long


def options(slurm: SlurmLab, **more: Any) -> str:
    """Return the lab's slurm_options with further ones, as an argument of -e."""
    own = slurm.variables()["slurm_options"]
    return json.dumps({"slurm_options": {**own, **more}})


def process(slurm: SlurmLab, node: str, name: str) -> str:
    return slurm.on(node, "pidof", "-s", name, check=False).strip()


@pytest.fixture(autouse=True)
def _idle(slurm: SlurmLab) -> None:
    slurm.idle()


def test_jobs_get_nodes_and_gpus_and_are_accounted(slurm: SlurmLab) -> None:
    assert slurm.user("sinfo", "-h", "-o", "%R %D %G").split("\n")[:2] == [
        "hgx 1 gpu:hgx:4",
        "gpu2 2 gpu:a10:4",
    ]
    show = ["sh", "-c", "echo $(hostname) $SLURM_PROCID $CUDA_VISIBLE_DEVICES"]
    gpu2 = slurm.user("srun", "-p", "gpu2", "-N2", "--gres=gpu:a10:2", *show)
    assert sorted(gpu2.splitlines()) == ["n2 0 0,1", "n3 1 0,1"]
    # One job on both partitions, with one order of ranks.
    both = slurm.user("srun", "-phgx", "-N1", *show, ":", "-pgpu2", "-N2", *show)
    assert sorted(line.split()[:2] for line in both.splitlines()) == [["n1", "0"], ["n2", "1"], ["n3", "2"]]
    job = slurm.sbatch("hostname >$SLURM_JOB_ID.txt", "-p", "gpu2")
    slurm.ends(job)
    assert slurm.on("n1", "cat", f"/shared/{job}.txt").strip() in NODES
    slurm.ends(slurm.sbatch("exit 3"), "FAILED")


def test_a_second_run_changes_nothing_and_shows_the_cluster(slurm: SlurmLab) -> None:
    again = slurm.json("slurm", "up")
    assert changed(again) == []
    assert {(one["node"], one["partition"]) for one in again["slurm"]["nodes"]} == {
        ("n1", "hgx"),
        ("n2", "gpu2"),
        ("n3", "gpu2"),
    }
    key = (slurm.inventory / ".rdm/slurm/munge.key").read_text(encoding="ascii")
    assert (slurm.inventory / ".rdm/slurm/munge.key").stat().st_mode & 0o777 == 0o400
    for path in (slurm.inventory / ".rdm/runs").rglob("*"):
        assert not path.is_file() or key not in path.read_text(encoding="utf-8", errors="replace"), path


def test_a_running_job_outlives_every_change_or_the_change_is_refused(slurm: SlurmLab) -> None:
    job = slurm.sbatch(SLEEP, "-p", "gpu2", "-N2")
    slurm.ends(job, "RUNNING")
    before = process(slurm, "n1", "slurmctld")

    predicted = slurm.product.run(
        *("ansible-playbook", "-i", f"inventory/{slurm.name}", "rdm.provision.slurm_up", "--check", "--diff"),
        *("-e", options(slurm, SlurmdTimeout=77)),
    ).stdout
    assert "+SlurmdTimeout=77" in predicted
    assert "have slurmctld and all slurmd read the configuration again" in predicted

    slurm.json("slurm", "up", "-e", options(slurm, SlurmdTimeout=77))
    assert process(slurm, "n1", "slurmctld") == before
    shown = slurm.user("scontrol", "show", "config")
    assert "SlurmdTimeout           = 77 sec" in shown

    slurm.json("slurm", "up", "-e", options(slurm, MaxArraySize=77))
    assert process(slurm, "n1", "slurmctld") not in ("", before)
    assert slurm.state(job) == "RUNNING"

    smaller = slurm.json("slurm", "up", "-e", '{"slurm_cpus": 8}', expect=2)
    assert f"another CPUs while job {job} is there" in problems(smaller)
    partitions = json.dumps({"slurm_partitions": {"all": {"groups": ["master", "workers"]}}})
    gone = slurm.json("slurm", "up", "-e", partitions, expect=2)
    assert f"the partition gpu2 would be removed while job {job} is there" in problems(gone)
    assert f"job {job} is in the queue" in problems(slurm.json("slurm", "down", expect=2))
    assert slurm.state(job) == "RUNNING"
    slurm.idle()
    slurm.json("slurm", "up")


def test_bad_input_is_refused_before_anything_is_changed(slurm: SlurmLab) -> None:
    wanted = json.dumps(
        {
            "slurm_partitions": {"hgx": {"groups": ["hgy"]}, "gpu2": {"groups": ["gpu2"]}},
            "slurm_accounts": {"a b": ["root"]},
        }
    )
    refused = slurm.json("slurm", "up", "-e", wanted, expect=2)
    assert "did you mean hgx?" in problems(refused)
    assert "a b is no name of an account" in problems(refused)
    missing = slurm.json("slurm", "up", "-e", '{"slurm_gpu_devices": ["/dev/nvidia9"]}', expect=2)
    assert "has a device that is not there: /dev/nvidia9" in problems(missing)
    wrong = slurm.json("slurm", "up", "-e", '{"slurm_cpus": "many"}', expect=2)
    assert "slurm_cpus has a wrong value 'many' give a whole number" in problems(wrong)
    slurm.json("slurm", "up", "-e", options(slurm, SlurmdTimeoutt=30), expect=1)
    assert slurm.nodes()  # Slurm's commands read a configuration that is still the former one
    slurm.on("n3", "mv", "/etc/slurm/rdm/cluster", "/etc/slurm/kept")
    try:
        foreign = slurm.json("slurm", "up", expect=2)
    finally:
        slurm.on("n3", "mv", "/etc/slurm/kept", "/etc/slurm/rdm/cluster")
    assert [one["node"] for one in foreign["problems"]] == ["n3"]
    assert "slurmd runs, and is not of rdm-provision" in problems(foreign)


def test_a_node_without_its_gpus_is_drained_before_a_job_runs_there(slurm: SlurmLab) -> None:
    slurm.on("n3", "mv", "/dev/nvidia2", "/dev/kept")
    try:
        job = slurm.sbatch("hostname >$SLURM_JOB_ID.txt", "-w", "n3", "-p", "gpu2")
        wait_until("n3 is drained", slurm.nodes, lambda nodes: nodes.get("n3") == "drained")
        assert "the device /dev/nvidia2 is gone" in slurm.on("n3", "cat", "/var/log/slurm/slurmd.log")
        assert not slurm.there("n1", f"/shared/{job}.txt")
    finally:
        slurm.on("n3", "mv", "/dev/kept", "/dev/nvidia2")
        slurm.on("n1", "scontrol", "update", "nodename=n3", "state=resume")


def test_node_that_was_off_returns(slurm: SlurmLab) -> None:
    slurm.lab("stop", "n2")
    wait_until("n2 is down", slurm.nodes, lambda nodes: nodes.get("n2", "").startswith("down"))
    slurm.lab("start", "n2")
    wait_until("n2 takes jobs", slurm.nodes, lambda nodes: nodes.get("n2") == "idle")


def test_slurm_down_removes_what_up_made(slurm: SlurmLab) -> None:
    slurm.user("srun", "true")
    slurm.json("slurm", "down")
    for node in NODES:
        for name in ("slurmd", "slurmctld", "slurmdbd", "munged", "mariadbd"):
            assert process(slurm, node, name) == "", (node, name)
        for path in ("/etc/slurm/slurm.conf", "/etc/slurm/rdm", "/etc/munge/munge.key"):
            assert not slurm.there(node, path), (node, path)
        assert "conf-server" not in slurm.on(node, "cat", "/etc/default/slurmd")
    assert changed(slurm.json("slurm", "down")) == []
    # As on a host that never had Slurm.
    slurm.on("n1", "mv", "/usr/bin/sinfo", "/usr/bin/kept")
    try:
        reason = slurm.json("slurm", "status", expect=1)["nodes"]["n1"]["why"]
    finally:
        slurm.on("n1", "mv", "/usr/bin/kept", "/usr/bin/sinfo")
    assert changed(follow(reason, "slurm up", slurm.json)) == [*NODES]
    # The accounting continues where it was.
    assert "COMPLETED" in slurm.user("sacct", "-n", "-X", "-S", "now-1days", "-o", "State")
