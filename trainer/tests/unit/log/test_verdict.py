# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a job: each fault is named, and a healthy job is healthy."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log.errors import findings
from rdm_log.observe import check_state, observe, of_json, to_json
from rdm_log.records import Step
from rdm_log.runs import runs
from rdm_log.signs import Sign
from rdm_log.summary import plain, summarise
from rdm_log.verdict import EXIT_CODES, Observed, evaluate

SAMPLE = Path(__file__).parent / "corpus/sample.txt"


COUNT = 60


def run(
    losses: list[float] | None = None, times: list[float] | None = None, more: dict[str, float] | None = None
) -> dict[str, Any]:
    """Return a run with a line every ten steps."""
    losses = losses or [10 - 4 * n / COUNT for n in range(COUNT)]
    times = times or [5000.0, *[1400.0] * (len(losses) - 1)]
    steps = [
        Step(10 * n, 5000, {"lm loss": loss, "elapsed time per iteration (ms)": time, **(more or {})})
        for n, (loss, time) in enumerate(zip(losses, times, strict=True), 1)
    ]
    (found,) = runs(steps)
    return plain(found)


HEALTHY = Observed(
    state="running",
    runs=(run(),),
    requested={"NNODES": "8", "PARTITION": "0-11-8-8-8-8-5-0"},
    reported={"n2": {"NNODES": "8", "PARTITION": "0-11-8-8-8-8-5-0", "PROFILE": "false"}},
    versions={"n1": {"torch": "2.11"}, "n2": {"torch": "2.11"}},
    gpu_processes={"n1": 16, "n2": 16},
    seconds_running=3000,
    seconds_since_step=14,
    vocabulary=50304,
)


def test_healthy() -> None:
    verdict = evaluate(HEALTHY)
    assert (verdict.word, verdict.exit_code) == ("healthy", 0)
    assert verdict.reason == "Iteration 600 of 5000, 1.40 s a step, lm loss 6.0667."


@pytest.mark.parametrize(
    ("change", "word", "words"),
    [
        ({"state": "failed", "reason": "Rank 3 on n2 is gone."}, "failed", "Rank 3 on n2 is gone."),
        ({"state": "OUT_OF_MEMORY"}, "failed", "Its state is OUT_OF_MEMORY."),
        ({"state": "CANCELLED by 1000"}, "finished", "It was stopped."),
        ({"state": "COMPLETED"}, "suspect", "It ended at iteration 600 of 5000, and does not say why."),
        ({"state": "OUT_OF_ME+"}, "failed", "Its state is OUT_OF_ME+."),
        (
            {"state": "REQUEUE_HOLD"},
            "starting",
            "It waits in the queue again; its logs go to iteration 600.",
        ),
        ({"state": "PENDING"}, "starting", "in the queue again; its logs go to iteration 600."),
        ({"state": "restarting"}, "starting", "It restarts; its logs go to iteration 600."),
        ({"state": "COMPLETED\n FAILED\nRUNNING\n"}, "failed", "Its state is FAILED."),
        ({"state": "COMPLETED\nRUNNING\nPENDING"}, "healthy", ""),
        ({"state": "COMPLETED\nPENDING"}, "starting", ""),
        ({"state": "COMPLETED\nCANCELLED by 1000"}, "finished", "It was stopped."),
        ({"state": "PENDING", "runs": ()}, "starting", "not come to a step"),
        ({"state": "restarting", "seconds_since_step": 900}, "starting", ""),
        ({"runs": (), "seconds_running": 60}, "starting", ""),
        ({"runs": (), "seconds_running": 3600}, "stalled", "not come to a step in 3600 s"),
        ({"gpu_processes": {"n1": 0, "n2": 0}}, "stalled", "no process is on its GPUs"),
        ({"gpu_processes": {"n1": 0, "n2": 0}, "seconds_running": 30}, "healthy", ""),
        ({"gpu_processes": {"n1": 0}, "seconds_running": 600, "runs": ()}, "starting", ""),
        ({"gpu_processes": {"n1": 0}, "seconds_running": 1000, "runs": ()}, "stalled", "no process is on"),
        (
            {"gpu_processes": {**dict.fromkeys(map(str, range(99)), 8), "n7": 0}},
            "suspect",
            "No process is on the GPUs of n7.",
        ),
        (
            {"gpu_processes": {**dict.fromkeys(map(str, range(63))), "n7": 0}},
            "suspect",
            "No process is on the GPUs of n7.",
        ),
        ({"gpu_processes": {"n1": None, "n2": None}}, "healthy", ""),
        ({"seconds_since_step": 75}, "stalled", "No step for 75 s after iteration 600"),
        ({"seconds_since_step": 75, "phase": "saving"}, "healthy", ""),
        ({"seconds_since_step": 7200, "phase": "saving"}, "stalled", "No step for 7200 s"),
        (
            {"reported": {"": {"PARTITION": "6-6-6-6"}}},
            "suspect",
            "PARTITION is 6-6-6-6, and 0-11-8-8-8-8-5-0 was requested",
        ),
        (
            {"versions": {"n1": {"torch": "2.11"}, "n2": {"torch": "2.11"}, "n3": {"torch": "2.9"}}},
            "suspect",
            "n3 has torch 2.9, others have 2.11.",
        ),
        (
            {"runs": (run([*[9.0] * 30, math.nan]),)},
            "suspect",
            "a number 1 time, first at iteration 310.",
        ),
        ({"runs": (run(more={"number of nan iterations": 1.0}),)}, "suspect", "not a number 60 times."),
        (
            {"runs": (run([*[9 - n / 10 for n in range(40)], *[11.0] * 20]),)},
            "suspect",
            "diverges: it was 5.100",
        ),
        ({"runs": (run([10.83] * 40),)}, "suspect", "stays at 10.830, the logarithm of the vocabulary"),
        (
            {"runs": (run(more={"number of skipped iterations": 8.0}),)},
            "suspect",
            "480 of 591 steps were skipped",
        ),
    ],
)
def test_each_fault_is_named(change: dict[str, Any], word: str, words: str) -> None:
    verdict = evaluate(replace(HEALTHY, **change))
    assert verdict.word == word, verdict
    assert words in verdict.reason
    assert verdict.evidence[0] == verdict.reason
    assert verdict.exit_code == EXIT_CODES[verdict.word]


def test_times_that_are_no_numbers_are_left_out() -> None:
    odd = run(times=[math.nan] * COUNT, more={"number of nan iterations": math.nan})
    assert evaluate(replace(HEALTHY, runs=(odd,))).word in ("healthy", "starting")


def test_slower_steps_are_noted_and_make_no_job_suspect() -> None:
    verdict = evaluate(replace(HEALTHY, runs=(run(times=[*[400.0] * 50, *[1000.0] * 10]),)))
    assert verdict.word == "healthy"
    assert "took 2.5 times as long" in verdict.evidence[1]


def test_notes_of_a_thousand_nodes_are_few() -> None:
    notes = [
        Sign("memory", f"The memory of GPU 0 of n{n} is full.", f"n{n}", is_note=True) for n in range(1000)
    ]
    verdict = evaluate(replace(HEALTHY, signs=notes))
    assert verdict.word == "healthy"
    assert verdict.evidence[1:] == (
        *(note.text for note in notes[:8]),
        "992 more notes are about memory.",
    )


def test_errors_are_evidence_and_warnings_are_not() -> None:
    warned = ["a.py:1: UserWarning: x", "  warnings.warn(", "n1:1:2 [0] NCCL WARN x"]
    assert evaluate(replace(HEALTHY, findings=findings(warned))).word == "healthy"
    full = ["[rank3]: OSError: [Errno 28] No space left on device"] * 2
    verdict = evaluate(replace(HEALTHY, findings=findings([*warned, *full])))
    assert verdict.word == "suspect"
    assert verdict.reason.startswith("A disk or a quota is full, 2 times (rank 3: OSError: [Errno 28]")
    # A stalled job with an error reports both.
    verdict = evaluate(replace(HEALTHY, findings=findings(full), seconds_since_step=500))
    assert (verdict.word, len(verdict.evidence)) == ("stalled", 2)
    # A failed job reports the error.
    failed = replace(HEALTHY, state="failed", findings=findings(full))
    assert "quota is full" in evaluate(failed).reason


HARMLESS = [
    line.partition(" | ")[2]
    for line in (SAMPLE.parent / "stderr.txt").read_text().splitlines()
    if line.startswith(("warning ", "noise "))
]


@pytest.mark.parametrize("state", ["running", ""])
def test_a_job_with_only_harmless_lines_is_healthy(state: str, tmp_path: Path) -> None:
    assert any("libpng16" in line for line in HARMLESS)
    assert evaluate(replace(HEALTHY, state=state, findings=findings(HARMLESS))).word == "healthy"
    # The same from a directory; and one real error among them is not lost.
    step = "elapsed time per iteration (ms): 9.0 | lm loss: 9.0 |"
    (tmp_path / "n1.out").write_text("".join(f" iteration {n:8}/ 50 | {step}\n" for n in range(1, 25)))
    errors = tmp_path / "n1.err"
    errors.write_text("".join(f"{line}\n" for line in HARMLESS))
    now = errors.stat().st_mtime
    assert evaluate(replace(observe(tmp_path, now=now), state=state)).word == "healthy"
    with errors.open("a") as file:
        file.write("mpirun noticed that process rank 1 with PID 9 on node n2 exited on signal 9 (Killed).\n")
    verdict = evaluate(replace(observe(tmp_path, now=now), state=state))
    assert verdict.word == ("suspect" if state else "failed")
    assert "A process of the training ended with an error" in verdict.reason


DONE = {"after training is done": "2026-11-22 10:11:12"}


ENDED = replace(HEALTHY, state="COMPLETED", gpu_processes={}, seconds_since_step=None)


def ended(losses: list[float] | None = None, *, last: int = 600, **more: Any) -> dict[str, Any]:
    """Return a run that came to its end, or to another iteration."""
    losses = losses or [10 - 4 * n / COUNT for n in range(last // 10)]
    return {**run(losses), "train_iterations": 600, **more}


@pytest.mark.parametrize("state", ["COMPLETED", "finished", ""])
@pytest.mark.parametrize(
    ("one", "word", "evidence"),
    [
        (ended(), "finished", ["It reached iteration 600."]),
        # The last line's interval did not end with the last step.
        (
            ended(train_iterations=605, milestones=DONE),
            "finished",
            ["It reached iteration 600 of 605."],
        ),
        (
            ended([*[9.0] * 57, *[math.nan] * 3]),
            "suspect",
            [
                "The loss was not a number 3 times, first at iteration 580.",
                "It reached iteration 600.",
            ],
        ),
        (
            ended([10.83] * 60),
            "suspect",
            [
                "The lm loss stays at 10.830, the logarithm of the vocabulary of 50304: nothing is learnt.",
                "It reached iteration 600.",
            ],
        ),
        # Megatron and our trainer report that they end early as configured.
        (
            ended(last=300, milestones={"exiting program at iteration 300": ""}),
            "finished",
            ["It reached iteration 300 of 600: exiting program at iteration 300."],
        ),
        (ended(last=300, milestones=DONE), "finished", ["It reached iteration 300 of 600."]),
    ],
)
def test_a_job_that_is_done_is_evaluated_by_its_result(
    state: str, one: dict[str, Any], word: str, evidence: list[str]
) -> None:
    verdict = evaluate(replace(ENDED, state=state, runs=(one,)))
    assert (verdict.word, [*verdict.evidence]) == (word, evidence)
    assert verdict.exit_code == EXIT_CODES[verdict.word]


def test_a_job_that_is_done_before_its_last_step_reports_why() -> None:
    short = replace(ENDED, runs=(ended([*[9.0] * 28, math.nan, 9.0]),))
    verdict = evaluate(short)
    assert (verdict.word, verdict.evidence) == (
        "suspect",
        (
            "It ended at iteration 300 of 600, and does not say why.",
            "The loss was not a number 1 time, first at iteration 290.",
        ),
    )
    # The steps of an incomplete last interval have no line.
    assert evaluate(replace(ENDED, runs=(ended(train_iterations=609),))).word == "finished"
    # If nothing says that it has ended, it may go on.
    assert evaluate(replace(short, state="", runs=(ended(last=300),))).word == "healthy"


def test_the_requested_configuration_counts_also_when_a_job_is_done() -> None:
    done = replace(ENDED, runs=(ended(),))
    assert evaluate(done).word == "finished"
    # A slow node, or an error that did not keep it from its end, does not affect the result.
    slow = Sign("slow", "Rank 3 on n2 is slow.", "n2", 3)
    broken = findings(["ValueError: no"])
    finished = evaluate(replace(done, signs=[slow], findings=broken))
    assert (finished.word, len(finished.evidence)) == ("finished", 2)
    other = evaluate(replace(done, reported={"": {"PARTITION": "6-6-6-6"}}, findings=broken))
    assert (other.word, other.reason) == (
        "suspect",
        "PARTITION is 6-6-6-6, and 0-11-8-8-8-8-5-0 was requested.",
    )
    assert len(other.evidence) == 3
    first = Sign("nan", "The loss of rank 3 on n2 was not a number first, at iteration 9.", "n2", 3)
    assert [one.rank for one in evaluate(replace(done, signs=[first])).culprits] == [3]
    # The observer that watched it before this report had not considered that.
    watched = evaluate(done)
    again = evaluate(replace(done, watched=watched, reported={"": {"PARTITION": "6-6-6-6"}}))
    assert (again.word, again.evidence[1:]) == ("suspect", watched.evidence)


def test_a_launcher_that_was_ended_because_another_node_failed_is_no_evidence() -> None:
    failed = evaluate(Observed(state="failed", failure=Sign("failure", "n2 failed.", "n2")))
    (stopped,) = findings(["torchrun was ended by SIGTERM, and has ended its processes."])
    for node, count in (("n1", 1), ("n2", 2)):
        seen = Observed("failed", "n2 failed.", findings=[replace(stopped, node=node)], watched=failed)
        assert len(evaluate(seen).evidence) == count


def test_a_job_whose_training_is_done_may_take_its_time_to_end() -> None:
    done = replace(HEALTHY, state="RUNNING", runs=(ended(milestones=DONE),), seconds_since_step=480)
    found = evaluate(done)
    assert (found.word, found.evidence[1:]) == (
        "healthy",
        ("Its training is done, and its program has yet to end.",),
    )
    late = evaluate(replace(done, seconds_since_step=4000))
    assert (late.word, late.evidence) == (
        "stalled",
        ("Its training is done, and its program has not ended for 66.7 minutes.",),
    )
    assert evaluate(replace(done, seconds_since_step=172802)).reason.endswith(" has not ended for 2.0 days.")


@pytest.mark.parametrize(
    "state",
    [
        *("RUNNING", "running", "CANCELLED by 1000", "CANCELLED+", "  OUT_OF_ME+ ", ""),
        "COMPLETED\n\nCANCELLED by 1000\n",
    ],
)
def test_states_of_slurm_and_of_launchers_are_known(state: str) -> None:
    check_state(state)


def test_logs_alone() -> None:
    sample = summarise([SAMPLE]).runs
    assert evaluate(Observed(runs=sample)).word == "finished"
    broken = findings(["ValueError: no"])
    assert evaluate(Observed(runs=(run(),), findings=broken)).word == "failed"
    assert evaluate(Observed(runs=sample, findings=broken)).word == "finished"
    assert evaluate(Observed()).word == "starting"


@given(
    st.lists(st.floats(-0.3, 0.3), min_size=25, max_size=200),
    st.lists(st.floats(0.8, 1.4), min_size=25, max_size=200),
    st.integers(1, 100),
)
def test_a_job_that_learns_at_an_even_speed_is_healthy(
    noise: list[float], factors: list[float], outlier: int
) -> None:
    count = min(len(noise), len(factors))
    losses = [3.0 + 7.5 * math.exp(-n / 20) + noise[n] for n in range(count)]
    times = [1000.0 * factors[n] for n in range(count)]
    times[outlier % count] = 60000.0
    assert evaluate(replace(HEALTHY, runs=(run(losses, times),))).word == "healthy"


def test_idle_ranks_are_named_once_and_no_node_if_all_are_idle() -> None:
    late = replace(HEALTHY, seconds_since_step=75, gpu_processes={"n1": 8, "n2": 0, "n3": 0})
    found = evaluate(late)
    assert found.word == "stalled"
    assert [(one.kind, one.node) for one in found.culprits] == [("idle", "n2"), ("idle", "n3")]
    all_idle = evaluate(replace(late, gpu_processes={"n1": 0, "n2": 0}))
    assert (all_idle.reason, all_idle.culprits) == ("It runs, but no process is on its GPUs.", ())


def test_report_of_an_older_trainer_is_understood() -> None:
    plain = to_json(HEALTHY)
    former = {{"requested": "asked", "reported": "told"}.get(key, key): value for key, value in plain.items()}
    assert of_json(former) == of_json(plain)
    assert of_json(former).requested == HEALTHY.requested


def test_loss_missing_in_the_newest_line_is_not_shown_for_it() -> None:
    steps = [Step(n, 500, {"lm loss": 9.0} if n < 4 else {}) for n in range(1, 6)]
    (found,) = runs(steps)
    assert evaluate(Observed(state="RUNNING", runs=[plain(found)])).reason == (
        "Iteration 5 of 500, lm loss 9.0000 at iteration 3."
    )
