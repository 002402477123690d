# SPDX-License-Identifier: GPL-3.0-or-later
"""What Slurm's programs are given, and what is done where one is not there. Stand-ins print for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rdm_job.protocol import Node, Request
from rdm_job.slurm import commands, verbs
from rdm_trainer import config as configuration

StandIn = Callable[[str, str], Path]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Makes a program of Slurm's of a shell script, on a host that has no other."""
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


def test_nothing_of_the_users_own_goes_over_the_options_of_the_script(
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
    stand_in("sbatch", '/usr/bin/env >told; echo "7;cluster"')
    assert commands.submit(tmp_path, "job.sbatch") == 7
    told = dict(line.partition("=")[::2] for line in (tmp_path / "told").read_text().splitlines())
    assert not left_out.keys() & told.keys()
    assert {name: told[name] for name in kept} == kept


def test_a_host_without_slurm_and_without_the_jobs_program_is_named(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    monkeypatch.setenv("RDM_PLACE", "host")
    config = configuration.from_dict({"launcher": {"kind": "slurm", "program": ["/nowhere/x.py"]}})
    request = Request("gpt", "login1", (Node("login1", "127.0.0.1", 1),), config=json.dumps({"name": "gpt"}))
    assert verbs.check(request, config)["problems"] == [
        "launcher.program /nowhere/x.py is no file on the host.",
        "login1 has no sbatch: put the host that jobs are submitted from into login.",
    ]
