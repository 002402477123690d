# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs in a terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from rdm_provision.cli.render import job_view, view
from rdm_provision.cli.verbs import jobs as jobs_verb
from rdm_provision.results.job_state import JobState, JobUpdate
from tests.unit.rdm_provision.job_reports import (
    FAILED,
    NOW,
    REPORTED,
    SLOW,
    WELL,
    screen,
    state,
)


def test_a_job_that_has_only_begun_has_no_figures() -> None:
    job = JobState.of({"job": "new", "state": "starting"}, "/jobs", NOW)
    assert (job.iteration, job.loss, job.losses, job.seconds, job.remaining) == (0, None, (), None, None)
    assert job_view.figures(job) == []


def test_speed_without_known_tokens_is_in_steps() -> None:
    job = JobState.of(
        {"job": "new", "state": "running", "progress": {"iteration": 7, "step_seconds": 0.5}}, "/jobs", NOW
    )
    assert job_view.figures(job) == ["iteration 7", "0.50 s a step"]
    assert "0.50 s a step" not in job_view.figures(replace(job, tokens_per_second=46800.0))


def test_reason_of_a_queued_job_is_printed_without_a_terminal() -> None:
    console = screen()
    reason = "It waits in partition gpu2, 2nd in the queue: the nodes that it needs are in use (Resources)."
    shown = job_view.JobView(console, "lab")
    shown.handle(JobUpdate(1.0, "n1", state(state="queued", reason=reason)))
    assert reason in " ".join(console.export_text().split())
    verdict = {"verdict": "starting", "reason": reason, "evidence": [reason]}
    job_view.ending(console, state(state="queued", reason=reason, verdict=verdict))
    assert " ".join(console.export_text().split()).count(reason) == 1


def test_the_end_of_a_job_has_curve_paths_and_failures() -> None:
    console = screen()
    job_view.ending(console, JobState.of(FAILED, "/var/lib/rdm/rdm", NOW))
    text = console.export_text()
    assert "loss 10.900 at iteration 10, 8.910 at 30" in text
    assert "┤" in text
    assert "rank 5 on n2  it was killed by SIGKILL" in text
    assert "last words" in text
    assert "/var/lib/rdm/rdm/demo-1/checkpoints on each node, the newest of iteration 20" in text


def test_a_fine_tuning_says_how_long_it_takes_and_where_its_model_is() -> None:
    tuned = {"iteration": 30, "train_iterations": 50, "step_seconds": 1.5}
    assert state(progress=tuned).remaining == 30.0
    console = screen()
    job_view.ending(console, state(state="finished", progress={**tuned, "exported": ["adapter", "model"]}))
    text = console.export_text()
    for name in ("adapter", "model"):
        assert f"/var/lib/rdm/rdm/demo-1/{name} on n1" in text


@pytest.mark.parametrize(
    ("changes", "commands"),
    [
        ({}, ["jobs -i x demo-1 --watch", "logs -i x demo-1", "stop -i x demo-1"]),
        ({"state": "finished"}, ["train -i x --resume demo-1 optimisation.train_iterations=N"]),
        ({"state": "failed"}, ["train -i x --resume demo-1", "logs -i x demo-1 --err"]),
        ({"state": "stopped"}, ["train -i x --resume demo-1", "logs -i x demo-1"]),
    ],
)
def test_what_makes_sense_next_follows_from_the_state(changes: dict[str, Any], commands: list[str]) -> None:
    steps = [command for _, command in job_view.next_steps(state(**changes), " -i x")]
    assert [f"rdm-provision {command}" for command in commands] == steps[: len(commands)]


def test_without_a_terminal_each_step_is_a_line_and_printed_once() -> None:
    console = screen()
    view = job_view.JobView(console, "demo")
    later = {**REPORTED, "progress": {**REPORTED["progress"], "iteration": 40, "loss": 8.0}}
    for record in (REPORTED, REPORTED, later):
        view.handle(JobUpdate(1.0, "n1", JobState.of(record, "/d", NOW)))
    assert console.export_text().splitlines() == [
        "demo-1  running  30/50  loss 8.9100  46.8 k tokens/s",
        "demo-1  running  40/50  loss 8.0000  46.8 k tokens/s",
    ]


def test_a_watch_prints_when_the_verdict_changes_and_not_that_all_is_well() -> None:
    console = screen()
    view = job_view.JobView(console, "demo")
    begins = {**WELL, "verdict": "starting"}
    for verdict in (begins, WELL, WELL, SLOW, {**SLOW, "reason": "Another."}, WELL):
        view.handle(JobUpdate(1.0, "n1", JobState.of({**REPORTED, "verdict": verdict}, "/d", NOW)))
    assert console.export_text().splitlines() == [
        "demo-1  running  30/50  loss 8.9100  46.8 k tokens/s",
        "demo-1  suspect  Rank 5 on n2 is slow.",
        "  GPU 1 of n2 is throttled by heat.",
        "demo-1  healthy  Iteration 30.",
    ]


def test_a_job_and_the_list_of_jobs_show_the_verdict() -> None:
    console = screen()
    state_ = JobState.of({**REPORTED, "verdict": SLOW}, "/d", NOW)
    job_view.ending(console, state_)
    job_view.table(console, [state_, JobState.of(REPORTED, "/d", NOW)], NOW)
    text = console.export_text(clear=False)
    assert "suspect  Rank 5 on n2 is slow.\n  GPU 1 of n2 is throttled by heat." in text
    assert re.search(r"job +state +verdict +iteration", text)
    assert re.search(r"demo-1 +running +suspect +30/50", text)
    assert re.search(r"demo-1 +running +- +30/50", text)
    # Doubts about a finished job's result are shown; its end is shown already.
    done = {**REPORTED, "state": "finished", "ended": NOW}
    for verdict, is_shown in ((SLOW, True), ({**WELL, "verdict": "finished"}, False)):
        console = screen()
        job_view.ending(console, JobState.of({**done, "verdict": verdict}, "/d", NOW))
        assert (str(verdict["reason"]) in console.export_text()) == is_shown


def test_lines_of_many_ranks_are_folded_with_a_count() -> None:
    texts = {
        f"n{node}": "".join(f"[rank{8 * node + n}]: RuntimeError: NCCL error\n" for n in range(8))
        for node in range(1000)
    }
    texts["n7"] += "2026-11-22 10:11:12 once\n"
    first, once = job_view.folded(texts)
    assert first.startswith("[rank0]: RuntimeError: NCCL error  [8000 times, n0, n1, n2")
    assert once == "2026-11-22 10:11:12 once  [n7]"
    assert job_view.folded({"n1": ""}) == []


def test_output_of_a_job_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    title = "\x1b]0;PWNED\x07"
    words = f"{title}\x1b[2Jlast\x9b31m words"
    evaluated = {"verdict": "suspect", "reason": words, "evidence": [words, words], "exit_code": 4}
    failure = {"node": "n2", "rank": 5, "reason": words, "lines": [words]}
    bad = JobState.of({**REPORTED, "state": "failed", "reason": words, "failures": [failure]}, "/d", NOW)
    job_view.lines("n1", f"{words}\rbar\n", ["n1"])
    assert job_view.folded({"n1": words}) == ["last words  [n1]"]
    jobs_verb._verdict(JobState.of({**REPORTED, "verdict": evaluated}, "/d", NOW), as_json=False)
    job_view.ending(view.out(), bad)
    job_view.JobView(view.out(), "demo")._print_verdict(
        JobState.of({**REPORTED, "verdict": evaluated}, "/d", NOW)
    )
    shown = capsys.readouterr().out
    assert shown.startswith("last words\nbar\nsuspect: last words\n  last words\n")
    assert shown.count("last") >= 7
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


def test_on_a_terminal_bar_figures_and_nodes_are_in_place() -> None:
    console = screen(terminal=True)
    view = job_view.JobView(console, "demo")
    view.state = JobState.of({**REPORTED, "restarts": 2}, "/d", NOW)
    console.print(view)
    text = console.export_text()
    assert "demo-1  running  restarted 2 times  60 s" in text.replace("1 min 00 s", "60 s")
    assert "30/50   loss 8.9100   46.8 k tokens/s" in text
    assert "● n1  ● n2" in text
    assert "Ctrl-C stops watching, not the job" in text


def test_many_nodes_are_counted() -> None:
    console = screen(terminal=True)
    view = job_view.JobView(console, "demo")
    nodes = {f"n{rank}": "lost" if rank == 7 else "running" for rank in range(40)}
    view.state = JobState.of({**REPORTED, "nodes": nodes}, "/d", NOW)
    console.print(view)
    assert "39 running, 1 lost" in console.export_text()


@pytest.mark.parametrize(
    ("tokens", "words"),
    [(950.0, "950 tokens/s"), (12_345.0, "12.3 k tokens/s"), (2.5e6, "2.5 M tokens/s"), (None, "")],
)
def test_speeds_are_for_people(tokens: float | None, words: str) -> None:
    assert job_view.rate(tokens) == words
