# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a job: each fault is named, and a healthy job is healthy."""

from __future__ import annotations

import datetime
import errno
import json
import math
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log import heads
from rdm_log.errors import findings
from rdm_log.observe import check_state, observe, of_json, to_json
from rdm_log.records import Step
from rdm_log.report.job import collect
from rdm_log.runs import runs
from rdm_log.samples import Device, Sample
from rdm_log.signs import Sign
from rdm_log.summary import NothingToRead, plain, summarise
from rdm_log.verdict import EXIT_CODES, Observed, evaluate
from tests.unit.conftest import Program

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
        (ended(), "finished", ["It came to iteration 600."]),
        # The last line's interval did not end with the last step.
        (
            ended(train_iterations=605, milestones=DONE),
            "finished",
            ["It came to iteration 600 of 605."],
        ),
        (
            ended([*[9.0] * 57, *[math.nan] * 3]),
            "suspect",
            [
                "The loss was not a number 3 times, first at iteration 580.",
                "It came to iteration 600.",
            ],
        ),
        (
            ended([10.83] * 60),
            "suspect",
            [
                "The lm loss stays at 10.830, the logarithm of the vocabulary of 50304: nothing is learnt.",
                "It came to iteration 600.",
            ],
        ),
        # Megatron and our trainer report that they end early as configured.
        (
            ended(last=300, milestones={"exiting program at iteration 300": ""}),
            "finished",
            ["It came to iteration 300 of 600: exiting program at iteration 300."],
        ),
        (ended(last=300, milestones=DONE), "finished", ["It came to iteration 300 of 600."]),
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
def test_words_of_slurm_and_of_launchers_are_states(state: str) -> None:
    check_state(state)


def test_another_word_is_no_state(tmp_path: Path, program: Program) -> None:
    (tmp_path / "n1.out").write_text(" iteration 3/ 5 | lm loss: 9.0 |\n")
    for words in (["log", "verdict"], ["report", "-o", tmp_path / "x.html"]):
        code, _, message = program(*words, tmp_path, "--state", "COMPLETE")
        assert code == 3
        hint = "COMPLETE is no state of a job that Slurm or a launcher knows; did you mean COMPLETED?"
        assert hint in message
    with pytest.raises(NothingToRead, match="such as RUNNING, COMPLETED or FAILED"):
        check_state("banana")
    with pytest.raises(NothingToRead, match=r"^FAILURE is no state"):
        check_state("COMPLETED\nFAILURE")


@pytest.mark.parametrize("clock", [True, False])
def test_deepspeed_alone_is_late_and_its_slow_steps_are_named(clock: bool, tmp_path: Path) -> None:
    """DeepSpeed does not log how long a step takes: the times before its lines show it, if there are any."""
    now = datetime.datetime(2026, 11, 22, 10, 0)
    text = ""
    for number in range(10, 510, 10):
        now += datetime.timedelta(seconds=90 if number == 300 else 5)
        time = f"[{now:%Y-%m-%d %H:%M:%S},250] [INFO] [logging.py:96:log_dist] " if clock else ""
        text += f"{time}[Rank 0] step={number}, skipped=1, lr=[0.001], mom=[(0.9, 0.95)]\n"
    log = tmp_path / "n1.out"
    # The last line was cut, and was written in the same moment as the one before.
    log.write_text(text + text.splitlines()[-1].replace("step=500", "step=510")[:-22])
    (one,) = summarise([log]).runs
    assert (one["last_iteration"], one["learning_rate"], one["skipped"]) == (510, 0.001, 1)
    assert 0.0 not in one["step_ms"]["recent"]
    if clock:
        assert one["step_ms"]["median"] == 500
        assert one["step_ms"]["outliers"] == [[300, 9000.0]]
        assert (one["first_time"], one["last_time"]) == ("2026-11-22 10:00:05", "2026-11-22 10:05:35")
    written = log.stat().st_mtime
    for seconds, word in ((100, "healthy"), (480, "stalled" if clock else "healthy"), (2000, "stalled")):
        assert evaluate(observe(log, now=written + seconds)).word == word


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


def test_a_directory_is_evaluated(tmp_path: Path, program: Program) -> None:
    sample = SAMPLE.read_text()
    info = "".join(f"{line}\n" for line in sample.splitlines() if re.match(r"[A-Z_]+: ", line))
    (tmp_path / "n060.out").write_text(info + sample.replace("/      50 |", "/     500 |"))
    (tmp_path / "n060.gpu").write_text("[0] NVIDIA A10       | 49'C,  90 % |  9000 / 22731 MB | me(8990M)\n")
    (tmp_path / "n060.err").write_text("  warnings.warn(\n")
    conf = tmp_path / "_00_conf.sh"
    conf.write_text(
        "MODEL='xl' # small or xl\nNNODES=8\nWORLD_SIZE=$((4 * 8))\nPARTITION=\"0-11-8-8-8-8-5-0\"\n"
    )

    def printed(*words: str) -> tuple[int, str]:
        code, out, err = program("log", "verdict", tmp_path, *words)
        return code, out + err

    assert printed("--state", "RUNNING", "--conf", str(conf)) == (
        0,
        "healthy: Iteration 50 of 500, 1.39 s a step, lm loss 8.9176.\n",
    )
    conf.write_text("NNODES=4\nPARTITION=6-6-6-6\n")
    code, text = printed("--conf", str(conf))
    assert (code, text.splitlines()) == (
        4,
        [
            "suspect: NNODES is 8, and 4 was requested.",
            "  PARTITION is 0-11-8-8-8-8-5-0, and 6-6-6-6 was requested.",
        ],
    )
    (tmp_path / "n060.gpu").write_text("[0] NVIDIA A10       | 49'C,   0 % |     0 / 22731 MB |\n")
    assert printed("--state", "RUNNING") == (4, "stalled: It runs, but no process is on its GPUs.\n")
    (tmp_path / "n060.err").write_text("ModuleNotFoundError: No module named 'apex'\n")
    code, text = printed("--json")
    assert (code, json.loads(text)["verdict"]) == (1, "failed")
    assert printed("--conf", str(tmp_path / "absent"))[0] == 3


def lines_of_steps(first: int, last: int) -> str:
    fields = "elapsed time per iteration (ms): 500.0 | lm loss: 9.0 |\n"
    return "".join(f" iteration {n:8}/     500 | {fields}" for n in range(first, last + 1))


FULL = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "x.py", line 3\n'
    "[rank3]: OSError: [Errno 28] No space left on device\n"
)


@pytest.mark.parametrize("after", ["", lines_of_steps(41, 42)])
def test_errors_in_a_log_of_both_streams_are_found(after: str, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(lines_of_steps(1, 40) + FULL + after)
    verdict = evaluate(observe(log, now=log.stat().st_mtime))
    assert (verdict.word, verdict.evidence) == (
        "failed",
        ("A disk or a quota is full (rank 3: OSError: [Errno 28] No space left on device).",),
    )
    assert [one.node for one in verdict.culprits] == []
    # Errors of an earlier attempt, and those far before the end of a long log, are past.
    log.write_text(lines_of_steps(1, 40) + FULL + lines_of_steps(21, 60))
    assert evaluate(observe(log, now=log.stat().st_mtime)).word == "healthy"
    log.write_text(FULL + "on it goes\n" * 30_000 + lines_of_steps(1, 40))
    assert evaluate(observe(log, now=log.stat().st_mtime)).word == "healthy"


def test_errors_of_a_node_without_a_file_of_errors_are_in_its_output(tmp_path: Path) -> None:
    out, errors = tmp_path / "n1.out", tmp_path / "n1.err"
    (tmp_path / "n2.out").write_text(lines_of_steps(1, 40))
    out.write_text(FULL)
    now = out.stat().st_mtime
    for _ in range(2):
        verdict = evaluate(observe(tmp_path, now=now))
        assert (verdict.word, [(one.node, one.rank) for one in verdict.culprits]) == ("failed", [("n1", 3)])
        errors.write_text("")
    errors.write_text("  warnings.warn(\n")
    assert evaluate(observe(tmp_path, now=now)).word == "healthy"


def test_what_programs_write_in_order_is_no_error(tmp_path: Path) -> None:
    lines = (SAMPLE.parent / "lines.txt").read_text().splitlines(keepends=True)
    # One line contains another rank's error.
    sound = [line for line in lines if "RuntimeError: at iteration" not in line]
    assert len(sound) == len(lines) - 1
    for text in ("".join(sound), SAMPLE.read_text(), ARGUMENTS + lines_of_steps(1, 9)):
        assert [one.line for one in findings(text.splitlines(keepends=True)) if one.kind == "error"] == []
        (tmp_path / "run.log").write_text(text)
        seen = observe(tmp_path / "run.log", now=0.0)
        assert [one.line for one in seen.findings if one.kind == "error"] == []


ARGUMENTS = (
    "------------------------ arguments ------------------------\n"
    "  global_batch_size ............................... 64\n"
    "  num_layers ...................................... 24\n"
    "  tensor_model_parallel_size ...................... 2\n"
    "-------------------- end of arguments ---------------------\n"
)


@pytest.mark.parametrize("head", ["", "NUM_LAYERS: 12\n"])
def test_the_requested_configuration_is_compared_with_the_arguments_of_a_program_alone(
    head: str, tmp_path: Path
) -> None:
    line = " iteration {:8d}/     {} | elapsed time per iteration (ms): 500.0 | lm loss: {:.3f}E+00 |\n"
    steps = "".join(line.format(n, 500, 9 - n / 40) for n in range(1, 41))
    log, conf = tmp_path / "run.log", tmp_path / "conf.sh"
    log.write_text(head + ARGUMENTS + steps)
    conf.write_text("GLOBAL_BATCH_SIZE=32\nNUM_LAYERS=24\nTENSOR_MP_SIZE=4\nNNODES=2\n")
    now = log.stat().st_mtime
    assert evaluate(observe(log, now=now, conf=conf)).evidence == (
        "global_batch_size is 64, and 32 was requested.",
        "tensor_model_parallel_size is 2, and 4 was requested.",
    )
    conf.write_text("GLOBAL_BATCH_SIZE=64\nNNODES=2\n")
    assert len(evaluate(observe(log, now=now, conf=conf)).evidence) == 1
    # If there is nothing to compare with, that is reported.
    conf.write_text("NNODES=2\n")
    for state, word in (
        ("", "healthy"),
        ("COMPLETED", "suspect"),
        ("FAILED", "failed"),
        ("CANCELLED", "finished"),
    ):
        found = evaluate(observe(log, now=now, conf=conf, state=state))
        assert (found.word, found.evidence[-1]) == (
            word,
            "Nothing of conf.sh was compared: none of its keys is in what the logs say at their head.",
        )


def test_who_is_idle_is_named_once_and_no_node_where_all_are() -> None:
    late = replace(HEALTHY, seconds_since_step=75, gpu_processes={"n1": 8, "n2": 0, "n3": 0})
    found = evaluate(late)
    assert found.word == "stalled"
    assert [(one.kind, one.node) for one in found.culprits] == [("idle", "n2"), ("idle", "n3")]
    all_idle = evaluate(replace(late, gpu_processes={"n1": 0, "n2": 0}))
    assert (all_idle.reason, all_idle.culprits) == ("It runs, but no process is on its GPUs.", ())


def test_another_program_s_loss_that_stays_where_it_began_is_reported(tmp_path: Path) -> None:
    """Megatron logs the size of its vocabulary."""
    line = " iteration {:8d}/    5000 | elapsed time per iteration (ms): 500.0 | lm loss: 1.08257E+01 |\n"
    steps = "".join(line.format(10 * n) for n in range(1, 41))
    (tmp_path / "n1.out").write_text(
        f" > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n{steps}"
    )
    (tmp_path / "n2.out").write_text(steps)
    now = (tmp_path / "n1.out").stat().st_mtime
    verdict = evaluate(observe(tmp_path, now=now))
    assert (verdict.word, verdict.reason) == (
        "suspect",
        "The lm loss stays at 10.826, the logarithm of the vocabulary of 50304: nothing is learnt.",
    )
    (tmp_path / "n1.out").write_text(steps)
    assert evaluate(observe(tmp_path, now=now)).word == "healthy"


def test_of_many_logs_each_head_is_read_once_at_most_and_those_of_most_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = " iteration {:8d}/    5000 | elapsed time per iteration (ms): 500.0 | lm loss: 8.0E+00 |\n"
    for number in range(40):
        (tmp_path / f"n{number:02d}.out").write_text(f"NODE_RANK: {number}\n" + line.format(10))
    read: list[str] = []

    def head(path: Path) -> str:
        read.append(path.name)
        return heads.head(path)

    monkeypatch.setattr("rdm_log.observe.head", head)
    assert observe(tmp_path, now=0.0).reported[""]["NODE_RANK"] == "1"
    assert read == [f"n{number:02d}.out" for number in range(8)]


def test_what_a_node_with_an_older_trainer_observed_is_understood() -> None:
    plain = to_json(HEALTHY)
    former = {{"requested": "asked", "reported": "told"}.get(key, key): value for key, value in plain.items()}
    assert of_json(former) == of_json(plain)
    assert of_json(former).requested == HEALTHY.requested


def test_what_each_node_of_others_logs_shows_is_reported_for_that_node(tmp_path: Path) -> None:
    line = " iteration {:8d}/    5000 | elapsed time per iteration (ms): 500.0 | lm loss: {:.3f}E+00 |\n"
    info = "NODE_RANK: 1\nHIDDEN_SIZE: 1600\nNUM_LAYERS: 48\nPARTITION: 24-24\n"
    arguments = "  hidden_size ..................................... 1600\n  num_layers ........ 24\n"
    steps = "".join(line.format(10 * n, 9 - n / 10) for n in range(1, 41))
    gpu = "[{}] NVIDIA A10       | 49'C,  90 % | {:5d} / 22731 MB |\n"
    for node, used in (("n1", 9000), ("n2", 3)):
        (tmp_path / f"{node}.out").write_text(info + arguments + steps)
        # Memory that the driver takes is not a process.
        (tmp_path / f"{node}.gpu").write_text(gpu.format(0, used) + gpu.format(1, used))
    (tmp_path / "n3.gpu").write_text("[0] 16 CPU cores | 1 % | 10 / 64000 MB |\n")
    full = "[rank3]: OSError: [Errno 28] No space left on device\n"
    (tmp_path / "n1.err").write_text("  warnings.warn(\n")
    (tmp_path / "n2.err").write_text(full)
    now = (tmp_path / "n1.out").stat().st_mtime
    verdict = evaluate(observe(tmp_path, state="RUNNING", now=now))
    assert verdict.evidence == (
        "A disk or a quota is full (n2, rank 3: OSError: [Errno 28] No space left on device).",
        "num_layers is 24, and 48 was requested.",
        "No process is on the GPUs of n2.",
    )
    assert [(one.kind, one.node, one.rank) for one in verdict.culprits] == [
        ("error", "n2", 3),
        ("idle", "n2", None),
    ]
    # A small program on a large GPU is a process.
    (tmp_path / "n2.gpu").write_text("[0] NVIDIA H100 | 40'C,  90 % |  1200 / 81559 MB |\n")
    assert evaluate(observe(tmp_path, state="RUNNING", now=now)).evidence == verdict.evidence[:2]
    (tmp_path / "n2.gpu").write_text(gpu.format(0, 3) + gpu.format(1, 3))
    # Other nodes about which nothing is known may be at work.
    for node in ("n1", "n3"):
        (tmp_path / f"{node}.gpu").write_text("")
    (tmp_path / "n2.err").write_text("")
    idle = evaluate(observe(tmp_path, state="RUNNING", now=now))
    assert (idle.word, idle.culprits[-1].node) == ("suspect", "n2")
    # One error on many nodes is not reported for each of them.
    for number in range(2, 32):
        (tmp_path / f"n{number}.err").write_text(full)
    texts = evaluate(observe(tmp_path, state="RUNNING", now=now)).evidence
    assert (len(texts), texts[8]) == (11, "A disk or a quota is full, on 22 more nodes.")


def test_what_agents_have_measured_is_evaluated_without_them(tmp_path: Path) -> None:
    line = " iteration {:8d}/    5000 | elapsed time per iteration (ms): 500.0 | lm loss: {:.3f}E+00 |\n"
    (tmp_path / "n1.out").write_text("".join(line.format(10 * n, 9 - n / 10) for n in range(1, 41)))
    gpu = Device(1, "NVIDIA A10", 91, 98, 2**30, 2**34, throttled=("hw_thermal",), clocks={"sm": 900})
    measured = [
        Sample(5.0 * n, 2**40, 2**33, 2**35, ranks={4: 2**30, 5: 2**30}, devices=(replace(gpu, index=0), gpu))
        for n in range(9)
    ]
    measured[-1] = replace(measured[-1], devices=(replace(gpu, index=0, throttled=()), gpu))
    records = [json.dumps({**one.to_json(), "node": "n1", "note": "said once"}) for one in measured]
    stream = tmp_path / "n1.gpu.jsonl"
    # Other programs may have written there, and the last line may be cut.
    stream.write_text("\n".join(["7", "{}", *records, records[0][:90]]))
    now = (tmp_path / "n1.out").stat().st_mtime
    verdict = evaluate(observe(tmp_path, state="RUNNING", now=now))
    assert verdict.evidence == ("GPU 1 of n1 is throttled by heat at 91'C, to 900 MHz.",)
    assert [(one.kind, one.node, one.rank) for one in verdict.culprits] == [("throttled", "n1", 5)]
    processors = Device(0, "16 CPU cores", used=98, total=100)
    stream.write_text(json.dumps(replace(measured[0], devices=(processors,)).to_json()))
    assert evaluate(observe(tmp_path, state="RUNNING", now=now)).word == "healthy"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (b"", "n1.out is empty."),
        (bytes(range(256)) * 64, "n1.out has no line ` iteration N/M |` of a training: found 16,384 bytes."),
    ],
)
def test_what_has_nothing_of_a_training_has_neither_a_verdict_nor_a_page(
    written: bytes, words: str, tmp_path: Path, program: Program
) -> None:
    (tmp_path / "n1.out").write_bytes(written)
    (tmp_path / "n1.err").write_bytes(written)
    # No GPU is reported.
    (tmp_path / "n1.gpu").write_bytes(written)

    def printed(*arguments: str) -> tuple[int, str]:
        code, out, err = program(*arguments)
        return code, out + err

    page = printed("report", str(tmp_path), "-o", str(tmp_path / "x.html"))
    assert page == printed("log", "verdict", str(tmp_path))
    assert page[0] == 3
    assert words in page[1]
    assert printed("log", "verdict", str(tmp_path), "--state", "PENDING")[0] == 0
    (tmp_path / "state.json").write_text('{"state": "starting"}')
    starting = "starting: It has not come to a step yet.\n"
    assert printed("log", "verdict", str(tmp_path)) == (0, starting)
    (tmp_path / "state.json").unlink()
    # Both say why a program ended before its first step.
    (tmp_path / "n1.err").write_text("ModuleNotFoundError: No module named 'apex'\n")
    assert printed("log", "verdict", str(tmp_path))[0] == 1
    assert "failed" in printed("report", str(tmp_path), "-o", str(tmp_path / "x.html"))[1]


def test_a_traceback_that_was_cut_off_is_why_a_job_failed(tmp_path: Path) -> None:
    fields = "elapsed time per iteration (ms): 9.0 | lm loss: 9.0 |\n"
    (tmp_path / "n1.out").write_text("".join(f" iteration {n:8}/ 50 | {fields}" for n in range(1, 25)))
    (tmp_path / "n1.err").write_text('Traceback (most recent call last):\n  File "x.py", line 3\nRuntimeErr')
    seen = observe(tmp_path, now=(tmp_path / "n1.out").stat().st_mtime + 3 * 86400)
    verdict = evaluate(seen)
    assert (verdict.word, verdict.reason) == ("failed", "A traceback was cut off (n1: RuntimeErr).")
    assert [one.node for one in verdict.culprits] == ["n1"]


@pytest.mark.parametrize("number", ["99999999999999999999", "6", "9007199254740993"])
@pytest.mark.parametrize("before", [0, 4000])
def test_a_line_of_garbage_is_no_step_beyond_the_end(number: str, before: int, tmp_path: Path) -> None:
    log = tmp_path / "n1.out"
    fields = "elapsed time per iteration (ms): 9.0 | lm loss: 9.0 |\n"
    steps = "".join(f" iteration {n:21}/ {before or 5} | {fields}" for n in range(1, (before or 3) + 1))
    beyond = f" iteration {number:>21}/ 5 | {fields}"
    log.write_text(steps + beyond + "iteration " + "9" * 5000 + "/ 5 | lm loss: 1.0 |\n")
    (found,) = summarise([log]).runs
    assert (found["last_iteration"], found["lines"]) == (before or 3, before or 3)


def test_logs_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "n1.out").write_text(" iteration 3/ 5 | lm loss: 9.0 |\n")
    (tmp_path / "n2.out").mkdir()
    (tmp_path / "n3.out").symlink_to("absent")
    verdict = evaluate(observe(tmp_path, now=(tmp_path / "n1.out").stat().st_mtime))
    note = "Not all logs were read: n2.out is a directory; n3.out is a link to nothing."
    assert (verdict.word, verdict.evidence[1:]) == ("healthy", (note,))
    # They do not count if the other logs are empty, either.
    (tmp_path / "n1.out").write_text("")
    assert observe(tmp_path, now=0.0).is_unknown


NOISE = "n1:3000:4000 [0] NCCL INFO Channel 00/0 : 0[0] -> 4[0] [send] via NET/IB/3/GDRDMA\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"


@pytest.mark.parametrize("state", ["", "RUNNING"])
@pytest.mark.parametrize("at_end", [True, False])
def test_an_error_at_either_end_of_long_errors_is_found(
    at_end: bool, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdm_log.observe._ERROR_BYTES", 0)
    for node in ("n1", "n2"):
        (tmp_path / f"{node}.out").write_text(lines_of_steps(1, 40))
        (tmp_path / f"{node}.err").write_text(NOISE * 2000)
    # The middle of the other file has an error, too; the traceback there does not end where it is left out.
    traceback = "Traceback (most recent call last):\n" + '  File "x.py", line 3\n' * 200
    (tmp_path / "n1.err").write_text(NOISE * 380 + traceback + NOISE * 2000 + OOM + NOISE * 2000)
    assert evaluate(observe(tmp_path, now=(tmp_path / "n1.out").stat().st_mtime)).word == "healthy"
    (tmp_path / "n2.err").write_text(NOISE * 2000 + OOM if at_end else OOM + NOISE * 2000)
    verdict = evaluate(observe(tmp_path, now=(tmp_path / "n1.out").stat().st_mtime, state=state))
    assert verdict.word == ("suspect" if state else "failed")
    assert [(one.kind, one.node) for one in verdict.culprits] == [("error", "n2")]
    assert verdict.evidence[1:] == (
        "Of the errors of n1, n2 only the beginning and the end were read: 265.6 kB were not.",
    )


def test_what_may_hang_or_cannot_be_read_is_named_and_left_out(tmp_path: Path, program: Program) -> None:
    (tmp_path / "n1.out").write_text(lines_of_steps(1, 500))
    pipes = ["n1.err", "n1.gpu", "n1.gpu.jsonl", "n2.out", "network.json", "resolved.yaml", "state.json"]
    for name in pipes:
        os.mkfifo(tmp_path / name)
    (tmp_path / "n2.err").mkdir()
    (tmp_path / "trace").mkdir()
    os.mkfifo(tmp_path / "trace/rank-00000.json")
    verdict = evaluate(observe(tmp_path, now=(tmp_path / "n1.out").stat().st_mtime))
    assert (verdict.word, verdict.evidence[-1]) == (
        "finished",
        "Not all logs were read: n2.out is a named pipe; n1.err is a named pipe; n2.err is a directory; "
        "n1.gpu is a named pipe; n1.gpu.jsonl is a named pipe; state.json is a named pipe.",
    )
    assert program("report", tmp_path, "-o", tmp_path / "x.html")[0] == 0
    code, out, _ = program("log", "sections", tmp_path)
    assert code == 0
    assert "==> " in out


def test_a_log_that_may_never_end_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(Path, "open", lambda path, *_, **__: pytest.fail(f"{path} is opened"))
    page = str(tmp_path / "x.html")
    for file, kind in ((str(pipe), "a named pipe"), ("/dev/zero", "a device")):
        for command in (["log", "summary"], ["log", "verdict"], ["report", "-o", page]):
            code, _, err = program(*command, file)
            assert code == 3, command
            assert f"{file} is {kind}, which may never end: write what it says to a file.\n" in err, command


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "n1.out").write_text(lines_of_steps(1, 500))
    (tmp_path / "n1.err").write_text(OOM)
    really = Path.open

    def denied(path: Path, *arguments: Any, **named: Any) -> Any:
        if path.name == "n1.err":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really(path, *arguments, **named)

    monkeypatch.setattr(Path, "open", denied)
    verdict = evaluate(observe(tmp_path, now=0.0, state="COMPLETED"))
    assert verdict.word == "finished"
    assert verdict.evidence[-1] == "Not all logs were read: n1.err cannot be read (Permission denied)."


@pytest.mark.parametrize("name", ["", "logs"])
def test_a_directory_that_may_not_be_read_is_reported_in_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    (tmp_path / "logs").mkdir()
    really = Path.iterdir

    def denied(path: Path) -> Any:
        if path == tmp_path / name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really(path)

    monkeypatch.setattr(Path, "iterdir", denied)
    for read in (lambda: observe(tmp_path, now=0.0), lambda: collect(tmp_path)):
        with pytest.raises(NothingToRead, match="cannot be read: Permission denied"):
            read()
    if not name:
        for command in (["sections", tmp_path], ["trace", tmp_path, "-o", tmp_path / "t.json"]):
            code, _, err = program("log", *command)
            assert code == 3
            assert f"{tmp_path} cannot be read: Permission denied.\n" in err


@pytest.mark.parametrize(
    "written",
    [
        "[" * 100_000,
        '{"state":' * 100_000,
        '{"failures": 7, "restarts": "x", "verdict": [], "state": {}}',
        "7",
    ],
)
def test_a_state_of_garbage_is_none(written: str, tmp_path: Path) -> None:
    (tmp_path / "n1.out").write_text(lines_of_steps(1, 500))
    for name in ("state.json", "network.json", "job.json", "n1.gpu.jsonl"):
        (tmp_path / name).write_text(written)
    assert evaluate(observe(tmp_path, now=0.0)).word == "finished"
    assert collect(tmp_path).verdict().word == "finished"


@pytest.mark.parametrize("end", [30, 60, 75])
@pytest.mark.parametrize("before", [0, 499])
def test_a_last_line_that_breaks_off_is_not_the_end_of_a_training(
    before: int, end: int, tmp_path: Path
) -> None:
    log = tmp_path / "run.log"
    log.write_text(lines_of_steps(1, before) + lines_of_steps(500, 500)[:end])
    now = log.stat().st_mtime
    assert evaluate(observe(log, now=now)).evidence[-1] == (
        "Its last line, of iteration 500, breaks off in its middle."
    )
    assert evaluate(observe(log, now=now + 86401)).word == "suspect"
    ended = evaluate(observe(log, now=now, state="COMPLETED"))
    assert (ended.word, ended.reason) == (
        "suspect",
        "It ended in the middle of the line of iteration 500, and does not say why.",
    )
    # Only the newline is missing, or the line is complete.
    for text in (lines_of_steps(498, 500)[:-1], lines_of_steps(498, 500)):
        log.write_text(text)
        assert evaluate(observe(log, now=now)).word == "finished"


def test_a_loss_that_the_newest_line_lacks_is_not_shown_as_its_own() -> None:
    steps = [Step(n, 500, {"lm loss": 9.0} if n < 4 else {}) for n in range(1, 6)]
    (found,) = runs(steps)
    assert evaluate(Observed(state="RUNNING", runs=[plain(found)])).reason == (
        "Iteration 5 of 500, lm loss 9.0000 at iteration 3."
    )
