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

BEGUN = dataclasses.replace(REQUEST, offer=Offer(4000, 4001, "x"))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDirectory:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    made = JobDirectory(tmp_path / "gpt", "n1")
    made.make(REQUEST)
    made.write_state(dataclasses.replace(STATE, state="finished"))
    return made


def test_who_wants_a_rank_that_the_job_does_not_have_is_told_how_many_there_are(job: JobDirectory) -> None:
    job.log("n1", "err").write_text("[rank3]: a\n")
    assert verbs.logs("gpt", stream="err", rank=99)["ranks"] == 4
    assert "ranks" not in verbs.logs("gpt", stream="err", rank=2)
    assert "ranks" not in verbs.logs("gpt", stream="err")


@pytest.mark.parametrize("through_slurm", [False, True])
def test_a_rank_of_the_layout_before_is_still_one_of_the_job(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch, through_slurm: bool
) -> None:
    monkeypatch.setattr(slurm, "state", lambda *_: STATE)
    if through_slurm:
        job.slurm.touch()
        job.make(BEGUN)
    job.log("n1", "err").write_text("[rank20]: NCCL is slow\n[rank3]: a\n")
    told = verbs.logs("gpt", stream="err", rank=20)
    assert "ranks" not in told
    assert (told["parts"]["n1"] if through_slurm else told["text"]) == "[rank20]: NCCL is slow\n"
    # Also where it wrote nothing of the kind.
    assert "ranks" not in verbs.logs("gpt", stream="err", rank=20, grep="Error")


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
        job.make(BEGUN)
        assert verbs.logs("gpt", rank=99)["ranks"] == 4
        assert verbs.logs("gpt", rank=99, offset="n1=0")["ranks"] == 4
