# SPDX-License-Identifier: GPL-3.0-or-later
"""A node's replies about a job that was started on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import psutil
import pytest

from rdm_core.errors import TrainerError
from rdm_job import verbs
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Offer
from rdm_job.slurm import verbs as slurm
from rdm_log.wanted import Wanted
from tests.unit.job.two_nodes import REQUEST, STATE

BEGUN = dataclasses.replace(REQUEST, offer=Offer(4000, 4001, "x"))


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobDirectory:
    monkeypatch.setenv("RDM_JOBS", str(tmp_path))
    made = JobDirectory(tmp_path / "gpt", "n1")
    made.make(REQUEST)
    made.write_resolved("name: gpt\n")
    made.write_state(dataclasses.replace(STATE, state="finished"))
    return made


def test_late_agent_does_not_join(job: JobDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    before = psutil.Process().children()
    monkeypatch.setattr(verbs, "_START_S", -1)
    with pytest.raises(TrainerError, match="The job's agent did not start: it wrote nothing"):
        verbs._start_agent(job, "n1")
    assert set(psutil.Process().children()) <= set(before)


def test_unknown_rank_is_refused_with_the_number_of_ranks(job: JobDirectory) -> None:
    job.log("n1", "err").write_text("[rank3]: a\n")
    assert verbs.logs("gpt", stream="err", rank=99)["ranks"] == 4
    assert "ranks" not in verbs.logs("gpt", stream="err", rank=2)
    assert "ranks" not in verbs.logs("gpt", stream="err")


def test_single_rank_of_a_node_wrote_all_lines_of_its_log(job: JobDirectory) -> None:
    """Except on the master, where a launcher of all nodes writes lines of other nodes."""
    both = (Node("n1", "127.0.0.1", 1), Node("n2", "127.0.0.2", 1))
    job.make(dataclasses.replace(REQUEST, nodes=both))
    job.log("n1", "out").write_text("a\n[rank1]: b\nn1: c\nn2: d\n127.0.0.2: e\n")
    assert verbs.logs("gpt", rank=0)["text"] == "a\nn1: c\n"
    job.make(dataclasses.replace(REQUEST, nodes=both[::-1]))
    assert verbs.logs("gpt", rank=1)["text"] == job.log("n1", "out").read_text()


def test_rank_of_an_unmarked_log_is_refused_with_a_hint(job: JobDirectory) -> None:
    assert "notice" not in verbs.logs("gpt", rank=1), "nothing is written yet"
    job.log("n1", "out").write_text("a line\n")
    assert verbs.logs("gpt", rank=1)["notice"] == (
        "No line on n1 says that rank 1 wrote it. With logging.mark_ranks each line of the next job does; or "
        "the program begins its lines as [rank1]: does, by the variable RANK."
    )
    # This rank's lines are in another node's log.
    assert "notice" not in verbs.logs("gpt", rank=3)
    job.log("n1", "out").write_text("[rank1]: a line\n")
    assert "notice" not in verbs.logs("gpt", rank=1, grep="nothing")


@pytest.mark.parametrize("through_slurm", [False, True])
def test_rank_of_an_earlier_layout_is_accepted(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch, through_slurm: bool
) -> None:
    monkeypatch.setattr(slurm, "state", lambda *_: STATE)
    if through_slurm:
        job.slurm.touch()
        job.make(BEGUN)
    job.log("n1", "err").write_text("[rank20]: NCCL is slow\n[rank3]: a\n")
    reply = verbs.logs("gpt", stream="err", rank=20)
    assert "ranks" not in reply
    assert (reply["parts"]["n1"] if through_slurm else reply["text"]) == "[rank20]: NCCL is slow\n"
    # The same without a matching line.
    assert "ranks" not in verbs.logs("gpt", stream="err", rank=20, grep="Error")


def test_ranks_of_a_slurm_job_are_known_after_its_start(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs do not matter: a resumed job has old ones, and a new job has none yet."""
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


def test_lines_of_deepspeeds_launcher_have_the_nodes_address(job: JobDirectory) -> None:
    job.make(dataclasses.replace(REQUEST, nodes=(Node("n1", "10.0.0.1", 1), Node("n2", "10.0.0.2", 1))))
    job.write_resolved("name: gpt\nlauncher: {kind: deepspeed}\n")
    job.log("n1", "out").write_text("10.0.0.1: plain\n10.0.0.2: [rank1]: hi\n10.0.0.2: plain\n")
    reply = verbs.logs("gpt", rank=1)
    assert reply["text"] == "10.0.0.2: [rank1]: hi\n10.0.0.2: plain\n"
    assert "notice" not in reply


def test_torchruns_local_ranks_are_offset_by_the_nodes_first_rank(job: JobDirectory) -> None:
    job.write_resolved("name: gpt\nlauncher: {kind: torchrun}\n")
    nodes = (Node("n2", "127.0.0.2", 2), Node("n1", "127.0.0.1", 2))
    job.make(dataclasses.replace(REQUEST, nodes=nodes))
    job.log("n1", "out").write_text("[default0]:a\n[default1]:b\n")
    assert verbs.logs("gpt", rank=3)["text"] == "[default1]:b\n"


def test_follower_gets_the_rest_of_a_traceback(job: JobDirectory) -> None:
    log = job.log("n1", "err")
    log.write_text("[Rank 1] Traceback (most recent call last):\n  File\n")
    offset = verbs.logs("gpt", stream="err", rank=1)["offset"]
    with log.open("a") as file:
        file.write("ValueError: no\nanother's\n")
    assert verbs.logs("gpt", stream="err", rank=1, offset=str(offset))["text"] == "ValueError: no\n"


def test_logs_are_searched_again_only_where_nothing_was_found(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "state", lambda *_: STATE)
    job.log("n1", "out").write_text("[rank1]: a\n")
    searched: list[Path] = []

    def is_in(_: Wanted, path: Path) -> bool:
        searched.append(path)
        return False

    monkeypatch.setattr(Wanted, "is_in", is_in)
    for through_slurm in (False, True):
        if through_slurm:
            job.slurm.touch()
            job.make(BEGUN)
        begin = "n1=0" if through_slurm else "0"
        verbs.logs("gpt", rank=1)
        verbs.logs("gpt", rank=1, offset=begin)
        verbs.logs("gpt", rank=1, offset=begin, grep="nothing")
        assert searched == []
        verbs.logs("gpt", rank=1, grep="nothing")
        assert searched
        searched.clear()
