# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node answers about a job that has been started on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rdm_job import verbs
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Offer
from rdm_job.slurm import verbs as slurm
from tests.unit.job.two_nodes import REQUEST, STATE


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDirectory:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    made = JobDirectory(tmp_path / "gpt", "n1")
    made.make(REQUEST)
    made.write_state(dataclasses.replace(STATE, state="finished"))
    return made


def test_a_log_comes_with_how_many_ranks_there_are(job: JobDirectory) -> None:
    assert verbs.logs("gpt", rank=99)["ranks"] == 4


def test_the_ranks_of_a_job_of_slurm_are_known_when_it_has_begun(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its logs have: one that goes on has those of before, one that begins has none yet."""
    monkeypatch.setattr(slurm, "state", lambda *_: STATE)
    job.slurm.touch()
    for lines in ("", "begun\n"):
        job.log("n1", "out").write_text(lines)
        job.make(dataclasses.replace(REQUEST, nodes=(Node("n1", "127.0.0.1", 1),)))
        assert "ranks" not in verbs.logs("gpt", rank=99)
        assert "ranks" not in verbs.logs("gpt", rank=99, offset="n1=0")
        job.make(dataclasses.replace(REQUEST, offer=Offer(4000, 4001, "x")))
        assert verbs.logs("gpt", rank=99)["ranks"] == 4
        assert verbs.logs("gpt", rank=99, offset="n1=0")["ranks"] == 4
