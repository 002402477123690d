# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits that a real slurmdbd sets for jobs, and what it knows of jobs that slurmctld has forgotten."""

from __future__ import annotations

import dataclasses
import functools
import getpass
import os
import re
from collections.abc import Iterator

import pytest

from rdm_job.directory import JobDirectory
from tests.distributed.slurm_accounting import ABOVE, ACCOUNT, AccountedSlurm
from tests.distributed.slurm_cluster import EACH_RELEASE, RANKS, RELEASES, running
from tests.waiting import wait_until

USER = getpass.getuser()
ASSOCIATION = ("user", USER, "where", f"account={ACCOUNT}", "set")
MINE = f"launcher.slurm.account={ACCOUNT}"
MORE = ": request no more, or Slurm lets it wait for ever."
COMPONENTS = ", and the job's 2 components are 2: Slurm would never run it."


@pytest.fixture(scope="module", params=EACH_RELEASE)
def slurm(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AccountedSlurm]:
    cluster = AccountedSlurm(tmp_path_factory.mktemp("slurm"), RELEASES[request.param])
    with running(cluster, "slurmdbd", "mariadbd"):
        yield cluster


LIMITS = [
    (
        ASSOCIATION,
        "maxtres=gres/gpu=4",
        ("nodes=2", "gres=gpu:a10:4"),
        ("nodes=2", "gres=gpu:a10:2"),
        f"The job requests 8 GPUs, and a job of account {ACCOUNT} may have 4 (MaxTRES)",
        "AssocMaxGRESPerJob",
    ),
    (
        ASSOCIATION,
        "maxtresmins=gres/gpu=100",
        ("gres=gpu:a10:2", "time='60'"),
        ("gres=gpu:a10:2", "time='50'"),
        f"The job requests 120 minutes of GPUs, and a job of account {ACCOUNT} may have 100 (MaxTRESMins)",
        "AssocMaxGRESMinutesPerJob",
    ),
]
MORE_LIMITS = [
    (
        ASSOCIATION,
        "maxtrespernode=gres/gpu=2",
        ("gres=gpu:a10:3",),
        ("nodes=2", "gres=gpu:a10:2"),
        f"The job requests 3 GPUs of a node, and a job of account {ACCOUNT} may have 2 (MaxTRESPerNode)",
        "AssocMaxGRESPerNode",
    ),
    # A parent account has the limit.
    (
        ("account", ABOVE, "set"),
        "grptres=cpu=3",
        ("nodes=2", "cpus=2"),
        ("cpus=3",),
        f"The job requests 4 CPUs, and all jobs of account {ABOVE} may have 3 (GrpTRES)",
        "AssocGrpCpuLimit",
    ),
    (
        ("account", ACCOUNT, "set"),
        "grptres=mem=1000M",
        ("nodes=2", "mem=600M"),
        ("nodes=2", "mem=500M"),
        f"The job requests 1200 MiB of memory, and all jobs of account {ACCOUNT} may have 1000 (GrpTRES)",
        "AssocGrpMemLimit",
    ),
    (
        ("qos", "long", "set"),
        "maxtresperuser=gres/gpu=4",
        ("qos=long", "nodes=2", "gres=gpu:a10:4"),
        ("qos=long", "nodes=2", "gres=gpu:a10:2"),
        "The job requests 8 GPUs, and a user of the QOS long may have 4 (MaxTRESPerUser)",
        "QOSMaxGRESPerUser",
    ),
    (
        ("qos", "long", "set"),
        "maxtresperaccount=node=1",
        ("qos=long", "nodes=2"),
        ("qos=long",),
        "The job requests 2 nodes, and an account of the QOS long may have 1 (MaxTRESPerAccount)",
        "MaxNodePerAccount",
    ),
    (
        ("qos", "long", "set"),
        "grptres=node=1",
        ("qos=long", "nodes=2"),
        ("qos=long",),
        "The job requests 2 nodes, and all jobs of the QOS long may have 1 (GrpTRES)",
        "QOSGrpNodeLimit",
    ),
    (
        ("account", ACCOUNT, "set"),
        "grptresrunmins=cpu=100",
        ("cpus=2", "time='60'"),
        ("cpus=2", "time='50'"),
        f"The job requests 120 minutes of CPUs, and all jobs of account {ACCOUNT} "
        "may have 100 (GrpTRESRunMins)",
        "AssocGrpCPURunMinutesLimit",
    ),
    # Past jobs have used a little of the limit.
    (
        ("account", ABOVE, "set"),
        "grptresmins=mem=30000",
        ("mem=600M", "time='60'"),
        ("mem=300M", "time='60'"),
        f"The job requests 36000 minutes of MiB of memory, and all jobs of account {ABOVE} "
        "may have 30000 (GrpTRESMins)",
        "AssocGrpMemMinutes",
    ),
    (
        ("qos", "long", "set"),
        "maxtresmins=node=100",
        ("qos=long", "nodes=2", "time='60'"),
        ("qos=long", "nodes=2", "time='50'"),
        "The job requests 120 minutes of nodes, and a job of the QOS long may have 100 (MaxTRESMins)",
        "QOSMaxNodeMinutesPerJob",
    ),
    (
        ("account", ABOVE, "set"),
        "grpwall=50",
        ("time='60'",),
        ("time='40'",),
        f"launcher.slurm.time 60 is more than the 00:50:00 of all jobs of account {ABOVE} (GrpWall)",
        "AssocGrpWallLimit",
    ),
    # Slurm counts each component, and gives no reason.
    (
        ("account", ABOVE, "set"),
        "grpjobs=1",
        ("nodes={hgx: 1, gpu2: 1}",),
        ("nodes={gpu2: 1}",),
        f"Of all jobs of account {ABOVE}, 1 may run at a time (GrpJobs)",
        "",
    ),
    (
        ("qos", "long", "set"),
        "maxjobsperuser=1",
        ("qos=long", "nodes={hgx: 1, gpu2: 1}"),
        ("qos=long", "nodes={gpu2: 1}"),
        "Of a user of the QOS long, 1 may run at a time (MaxJobsPerUser)",
        "",
    ),
]


@pytest.mark.parametrize(
    ("whose", "limit", "requested", "allowed", "problem", "waits"),
    [*LIMITS, *(pytest.param(*row, marks=pytest.mark.long) for row in MORE_LIMITS)],
    ids=lambda value: value if isinstance(value, str) and "=" in value else "",
)
def test_job_over_an_accounting_limit_is_refused_and_one_within_it_runs(
    slurm: AccountedSlurm,
    whose: tuple[str, ...],
    limit: str,
    requested: tuple[str, ...],
    allowed: tuple[str, ...],
    problem: str,
    waits: str,
) -> None:
    more, less = (
        [MINE, "launcher.slurm.mem=100M", *(f"launcher.slurm.{option}" for option in options)]
        for options in (requested, allowed)
    )
    over, under = (f"{name}-{re.sub('[^a-z0-9]', '-', limit)}" for name in ("over", "under"))
    slurm.sacctmgr("modify", *whose, limit)
    try:
        # slurmctld learns of the limit by itself.
        request = slurm.request(over, *more)
        checked = slurm.run_verb("check", request=request)
        assert checked["problems"] == [problem + (MORE if waits else COMPONENTS)]
        # Slurm accepts the same job, and lets it wait. A later release may reject one of several components.
        answer = slurm.run_verb("start", request={**request, "offer": checked["offer"]})
        assert answer["ok"] or (not waits and "violates" in answer["problems"][0]), answer
        state = wait_until(
            "it waits for the limit",
            lambda: slurm.state(over),
            lambda one: f"({waits})" in one["reason"] or not waits or one["state"] != "queued",
        )
        assert state["state"] == ("queued" if answer["ok"] else "failed"), state
        slurm.submit(under, *less)
        assert slurm.wait_for_state(under, "running", "failed")["state"] == "running"
        assert slurm.state(over)["state"] == state["state"]
    finally:
        slurm.slurm("scancel", f"--user={USER}")
        slurm.sacctmgr("modify", *whose, f"{limit.rpartition('=')[0]}=-1")
        wait_until("all nodes are idle", slurm.idle)


def test_full_queue_is_reported_with_its_limit(slurm: AccountedSlurm) -> None:
    def problems(most: int) -> list[str]:
        slurm.sacctmgr("modify", *ASSOCIATION, f"maxsubmitjobs={most}")
        found: list[str] = slurm.run_verb("check", request=slurm.request("more", MINE))["problems"]
        return found

    try:
        assert problems(0) == [
            f"Of your jobs of account {ACCOUNT}, none may be in the queue (MaxSubmitJobs), and the job "
            "is one: "
            "Slurm would refuse it."
        ]
        assert problems(1) == []
        slurm.submit("only", MINE, RANKS)
        assert problems(1) == [
            "Slurm refuses the job: its user has as many jobs in the queue as the account allows "
            "(AssocMaxSubmitJobLimit)."
        ]
    finally:
        slurm.slurm("scancel", f"--user={USER}")
        slurm.sacctmgr("modify", *ASSOCIATION, "maxsubmitjobs=-1")
        wait_until("all nodes are idle", slurm.idle)


def _is_forgotten_by_slurmctld(slurm: AccountedSlurm, job: str) -> bool:
    return not slurm.is_in_slurmctld(job)


def test_end_of_a_job_that_slurmctld_has_forgotten_comes_from_accounting(slurm: AccountedSlurm) -> None:
    jobs = ("done", "killed")
    for job in jobs:
        slurm.submit(job, MINE, RANKS)
        slurm.wait_for_state(job, "running")
    slurm.let_end("done")
    assert slurm.wait_for_state("done", "finished", "failed")["state"] == "finished"
    slurm.slurm("scancel", slurm.number("killed"))
    for job in jobs:
        wait_until(f"{job} is forgotten", functools.partial(_is_forgotten_by_slurmctld, slurm, job))
        # As if its agents had not reported it.
        known = JobDirectory.of_master(slurm.jobs / job)
        known.write_state(dataclasses.replace(known.read_state(), state="running", ended=None))
        os.utime(slurm.jobs / job / "state.json", (0, 0))
    # The controller reports to the accounting when it can.
    state = slurm.wait_for_state("killed", "stopped", "failed")
    assert (state["state"], state["reason"].split(" (")[0]) == (
        "stopped",
        f"It was cancelled by {USER}, not by rdm-provision stop.",
    )
    # According to the accounting, it has ended well; its agents may still report how.
    state = wait_until("it has ended well", lambda: slurm.state("done"), lambda one: one["reason"])
    assert state["reason"] == "Slurm says that it has ended; what its agents said last is not here yet."
