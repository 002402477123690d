# SPDX-License-Identifier: GPL-3.0-or-later
"""The calls of Slurm's programs, and the behaviour without them. Shell scripts stand in for them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rdm_core import config as configuration
from rdm_core.errors import TrainerError
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Request
from rdm_job.slurm import commands, verbs

StandIn = Callable[[str, str], Path]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Return a function that makes one of Slurm's programs from a shell script, on a host without others."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))

    def make(name: str, script: str) -> Path:
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
        return programs / name

    return make


def test_the_queue_is_read_as_text_where_squeue_knows_no_json(stand_in: StandIn) -> None:
    line = "73|PENDING|gpu2||N/A|12|N/A|Resources"
    stand_in(
        "squeue",
        f'case "$*" in *--json*) echo "squeue: unrecognized option --json" >&2; exit 1;; esac; echo "{line}"',
    )
    (seen,) = commands.queue()
    assert (seen.job, seen.state, seen.reason) == (73, "PENDING", "Resources")


def test_the_records_are_read_as_text_where_sacct_knows_no_json(stand_in: StandIn) -> None:
    stand_in(
        "sacct",
        'case "$*" in *--json*) exit 1;; esac\n'
        'echo "7|CANCELLED by nobody-knows|gpu2|n1|0:0|2026-11-22T04:30:42|2026-11-22T04:31:02"',
    )
    seen = commands.recorded(7)
    assert seen is not None
    assert (seen.state, seen.by) == ("CANCELLED", "nobody-knows")


def test_users_sbatch_variables_do_not_override_the_script(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left_out = {
        "SBATCH_ARRAY_INX": "1-4",
        "SBATCH_PARTITION": "other",
        "SLURM_JOB_ID": "9",
        "MY_IP": "10.0.0.1",
    }
    kept = {"SLURM_CONF": "/etc/slurm/other.conf", "MINE": "1"}
    for name, value in {**left_out, **kept}.items():
        monkeypatch.setenv(name, value)
    stand_in("sbatch", '/usr/bin/env >environment; echo "7;cluster"')
    assert commands.submit(tmp_path, "job.sbatch") == 7
    variables = dict(line.partition("=")[::2] for line in (tmp_path / "environment").read_text().splitlines())
    assert not left_out.keys() & variables.keys()
    assert {name: variables[name] for name in kept} == kept


SETTINGS = """\
Configuration data as of 2026-11-23T08:36:09
AccountingStorageEnforce = associations,limits
AccountingStorageType   = accounting_storage/slurmdbd
ClusterName             = c1
"""


def test_accounting_of_a_user_without_a_passwd_entry(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
    stand_in("scontrol", f"echo '{SETTINGS}'")
    stand_in(
        "sacctmgr",
        f'case "$*" in *associations*cluster=c1*) echo "physics|3999999999|||normal{"|" * 13}";; '
        f'*users*name=3999999999*) echo physics;; *qos*) echo "normal{"|" * 19}";; esac',
    )
    known = commands.accounting()
    assert (known.user, known.cluster, known.accounts) == ("3999999999", "c1", ["physics"])
    assert (known.default_account, list(known.qos)) == ("physics", ["normal"])
    assert known.enforced == {"associations", "limits"}


def test_unreachable_accounting_is_not_taken_for_no_accounts(stand_in: StandIn) -> None:
    stand_in("scontrol", f"echo '{SETTINGS}'")
    stand_in("sacctmgr", 'echo "sacctmgr: error: Problem talking to the database" >&2; exit 1')
    known = commands.accounting()
    assert (known.associations, "associations" in known.enforced) == (None, True)


def test_limit_for_which_slurm_refuses_a_job_is_explained(stand_in: StandIn, tmp_path: Path) -> None:
    # The output of 22.05.
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    words = f"allocation failure: {policy}"
    stand_in("sbatch", f'echo "sbatch: error: AssocMaxSubmitJobLimit" >&2; echo "{words}" >&2; exit 1')
    assert commands.would_run(tmp_path / "job.sbatch") == (
        "its user has as many jobs in the queue as the account allows (AssocMaxSubmitJobLimit)."
    )
    stand_in("sbatch", f'echo "{words}" >&2; exit 1')
    assert commands.would_run(tmp_path / "job.sbatch") == f"{words}."


def test_a_job_may_wait_for_nodes_that_are_drained(stand_in: StandIn, tmp_path: Path) -> None:
    words = "allocation failure: Requested node configuration is not available"
    stand_in("sbatch", f'echo "{words}" >&2; exit 1')
    stand_in("sinfo", "true")
    assert commands.would_run(tmp_path / "job.sbatch") == f"{words}."
    stand_in("sinfo", 'echo "maintenance  root  2026-11-30T05:45:08 n2"')
    assert commands.would_run(tmp_path / "job.sbatch") == ""


def test_without_slurmdbd_there_is_no_accounting_to_query(stand_in: StandIn, tmp_path: Path) -> None:
    none = SETTINGS.replace("accounting_storage/slurmdbd", "accounting_storage/none")
    stand_in("scontrol", f"echo '{none}'")
    stand_in("sacctmgr", f"echo queried >{tmp_path}/queried")
    assert commands.accounting().associations is None
    assert not (tmp_path / "queried").exists()


def test_gpus_are_requested_where_the_default_partition_is_unknown(stand_in: StandIn, tmp_path: Path) -> None:
    lines = (Path(__file__).parent / "records/partitions-22.05.txt").read_text().replace("Default=YES", "")
    (tmp_path / "partitions").write_text(lines)
    stand_in("scontrol", f'while read line; do echo "$line"; done <{tmp_path}/partitions')
    stand_in("sbatch", f"echo 7 >{tmp_path}/submitted")
    config = configuration.from_dict(
        {"launcher": {"kind": "slurm", "devices_per_node": 4, "program": ["/x.py"]}}
    )
    request = Request(
        "gpt",
        "login1",
        (Node("login1", "127.0.0.1", 1),),
        config=json.dumps({"name": "gpt"}),
        accelerator="cuda",
    )
    with pytest.raises(
        TrainerError, match=r"no default partition; give launcher.slurm.partition: hgx or gpu2\."
    ):
        verbs.start(JobDirectory(tmp_path / "jobs" / "gpt", "login1"), request, config)
    assert not (tmp_path / "submitted").exists()
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (
            "srun: error:  mpi/pmix_v4: init: (null) [0]: mpi_pmix.c:195: pmi/pmix: can not load PMIx "
            "library\n"
            "srun: error: Couldn't load specified plugin name for mpi/pmix: Plugin init() callback failed\n"
            "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types\n",
            "can not load PMIx library",
        ),
        (
            "srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files\n"
            "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types\n",
            "Couldn't find the specified plugin name for mpi/pmix looking at all files",
        ),
        (
            "srun: warning: can't honor --ntasks-per-node set to 4\n"
            "srun: error: Couldn't find the specified plugin name for mpi/pmix looking at all files\n"
            "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types\n",
            "Couldn't find the specified plugin name for mpi/pmix looking at all files",
        ),
        # Errors about the allocation do not matter here.
        ("allocation failure: Unable to contact slurm controller (connect failure)\n", ""),
    ],
)
def test_srun_says_why_it_has_no_pmix(stand_in: StandIn, tmp_path: Path, message: str, why: str) -> None:
    (tmp_path / "said").write_text(message)
    stand_in("srun", f'while read -r line; do echo "$line" >&2; done <{tmp_path}/said; exit 1')
    assert commands.without_mpi("pmix") == why


def test_a_host_without_slurm_and_without_the_jobs_program_is_named(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    monkeypatch.setenv("RDM_EXECUTION_ENVIRONMENT", "host")
    config = configuration.from_dict({"launcher": {"kind": "slurm", "program": ["/nowhere/x.py"]}})
    request = Request("gpt", "login1", (Node("login1", "127.0.0.1", 1),), config=json.dumps({"name": "gpt"}))
    assert verbs.check(request, config)["problems"] == [
        "launcher.program /nowhere/x.py is no file on the host.",
        "login1 has no sbatch: put the host that jobs are submitted from into login.",
    ]
