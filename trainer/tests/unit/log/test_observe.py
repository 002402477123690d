# SPDX-License-Identifier: GPL-3.0-or-later
"""What logs show of a job: their verdict, and what of them cannot be read."""

from __future__ import annotations

import datetime
import errno
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rdm_log import heads
from rdm_log.errors import findings
from rdm_log.observe import check_state, observe
from rdm_log.report.job import collect
from rdm_log.samples import Device, Sample
from rdm_log.summary import NothingToRead, summarise
from rdm_log.verdict import Verdict, evaluate
from tests.unit.conftest import Program

SAMPLE = Path(__file__).parent / "corpus/sample.txt"


def lines_of_steps(first: int, last: int, loss: str = "9.0") -> str:
    fields = f"elapsed time per iteration (ms): 500.0 | lm loss: {loss} |\n"
    return "".join(f" iteration {n:8}/     500 | {fields}" for n in range(first, last + 1))


def evaluated(path: Path, after: float = 0.0, **known: Any) -> Verdict:
    """Return the verdict on a log or a directory, some seconds after its log was last written."""
    log = path / "n1.out" if path.is_dir() else path
    return evaluate(observe(path, now=log.stat().st_mtime + after, **known))


def test_unknown_word_is_no_state(tmp_path: Path, program: Program) -> None:
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
    for seconds, word in ((100, "healthy"), (480, "stalled" if clock else "healthy"), (2000, "stalled")):
        assert evaluated(log, seconds).word == word


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


FULL = (
    "[rank3]: Traceback (most recent call last):\n"
    '[rank3]:   File "x.py", line 3\n'
    "[rank3]: OSError: [Errno 28] No space left on device\n"
)


@pytest.mark.parametrize("after", ["", lines_of_steps(41, 42)])
def test_errors_in_a_log_of_both_streams_are_found(after: str, tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(lines_of_steps(1, 40) + FULL + after)
    verdict = evaluated(log)
    assert (verdict.word, verdict.evidence) == (
        "failed",
        ("A disk or a quota is full (rank 3: OSError: [Errno 28] No space left on device).",),
    )
    assert [one.node for one in verdict.culprits] == []
    # Errors of an earlier attempt, and those far before the end of a long log, are past.
    log.write_text(lines_of_steps(1, 40) + FULL + lines_of_steps(21, 60))
    assert evaluated(log).word == "healthy"
    log.write_text(FULL + "on it goes\n" * 30_000 + lines_of_steps(1, 40))
    assert evaluated(log).word == "healthy"


def test_errors_of_a_node_without_a_file_of_errors_are_in_its_output(tmp_path: Path) -> None:
    out, errors = tmp_path / "n1.out", tmp_path / "n1.err"
    (tmp_path / "n2.out").write_text(lines_of_steps(1, 40))
    out.write_text(FULL)
    for _ in range(2):
        verdict = evaluated(tmp_path)
        assert (verdict.word, [(one.node, one.rank) for one in verdict.culprits]) == ("failed", [("n1", 3)])
        errors.write_text("")
    errors.write_text("  warnings.warn(\n")
    assert evaluated(tmp_path).word == "healthy"


def test_harmless_messages_are_no_errors(tmp_path: Path) -> None:
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
    log, conf = tmp_path / "run.log", tmp_path / "conf.sh"
    log.write_text(head + ARGUMENTS + lines_of_steps(1, 40))
    conf.write_text("GLOBAL_BATCH_SIZE=32\nNUM_LAYERS=24\nTENSOR_MP_SIZE=4\nNNODES=2\n")
    assert evaluated(log, conf=conf).evidence == (
        "global_batch_size is 64, and 32 was requested.",
        "tensor_model_parallel_size is 2, and 4 was requested.",
    )
    conf.write_text("GLOBAL_BATCH_SIZE=64\nNNODES=2\n")
    assert len(evaluated(log, conf=conf).evidence) == 1
    # If there is nothing to compare with, that is reported.
    conf.write_text("NNODES=2\n")
    for state, word in (
        ("", "healthy"),
        ("COMPLETED", "suspect"),
        ("FAILED", "failed"),
        ("CANCELLED", "finished"),
    ):
        found = evaluated(log, conf=conf, state=state)
        assert (found.word, found.evidence[-1]) == (
            word,
            "Nothing of conf.sh was compared: none of its keys is in what the logs say at their head.",
        )


def test_constant_loss_of_another_program_is_reported(tmp_path: Path) -> None:
    """Megatron logs the size of its vocabulary."""
    steps = lines_of_steps(1, 400, "1.08257E+01")
    (tmp_path / "n1.out").write_text(
        f" > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n{steps}"
    )
    (tmp_path / "n2.out").write_text(steps)
    verdict = evaluated(tmp_path)
    assert (verdict.word, verdict.reason) == (
        "suspect",
        "The lm loss stays at 10.826, the logarithm of the vocabulary of 50304: nothing is learnt.",
    )
    (tmp_path / "n1.out").write_text(steps)
    assert evaluated(tmp_path).word == "healthy"


def test_heads_of_many_logs_are_read_once_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        (tmp_path / f"n{number:02d}.out").write_text(f"NODE_RANK: {number}\n" + lines_of_steps(10, 10))
    read: list[str] = []

    def head(path: Path) -> str:
        read.append(path.name)
        return heads.head(path)

    monkeypatch.setattr("rdm_log.observe.head", head)
    assert observe(tmp_path, now=0.0).reported[""]["NODE_RANK"] == "1"
    assert read == [f"n{number:02d}.out" for number in range(8)]


def test_findings_in_other_programs_logs_are_reported_per_node(tmp_path: Path) -> None:
    info = "NODE_RANK: 1\nHIDDEN_SIZE: 1600\nNUM_LAYERS: 48\nPARTITION: 24-24\n"
    arguments = "  hidden_size ..................................... 1600\n  num_layers ........ 24\n"
    gpu = "[{}] NVIDIA A10       | 49'C,  90 % | {:5d} / 22731 MB |\n"
    for node, used in (("n1", 9000), ("n2", 3)):
        (tmp_path / f"{node}.out").write_text(info + arguments + lines_of_steps(1, 40))
        # Memory that the driver takes is not a process.
        (tmp_path / f"{node}.gpu").write_text(gpu.format(0, used) + gpu.format(1, used))
    (tmp_path / "n3.gpu").write_text("[0] 16 CPU cores | 1 % | 10 / 64000 MB |\n")
    full = FULL.splitlines(keepends=True)[-1]
    (tmp_path / "n1.err").write_text("  warnings.warn(\n")
    (tmp_path / "n2.err").write_text(full)
    verdict = evaluated(tmp_path, state="RUNNING")
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
    assert evaluated(tmp_path, state="RUNNING").evidence == verdict.evidence[:2]
    (tmp_path / "n2.gpu").write_text(gpu.format(0, 3) + gpu.format(1, 3))
    # Other nodes about which nothing is known may be at work.
    for node in ("n1", "n3"):
        (tmp_path / f"{node}.gpu").write_text("")
    (tmp_path / "n2.err").write_text("")
    idle = evaluated(tmp_path, state="RUNNING")
    assert (idle.word, idle.culprits[-1].node) == ("suspect", "n2")
    # One error on many nodes is not reported for each of them.
    for number in range(2, 32):
        (tmp_path / f"n{number}.err").write_text(full)
    texts = evaluated(tmp_path, state="RUNNING").evidence
    assert (len(texts), texts[8]) == (11, "A disk or a quota is full, on 22 more nodes.")


def test_agents_records_are_evaluated_without_agents(tmp_path: Path) -> None:
    (tmp_path / "n1.out").write_text(lines_of_steps(1, 40))
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
    verdict = evaluated(tmp_path, state="RUNNING")
    assert verdict.evidence == ("GPU 1 of n1 is throttled by heat at 91'C, to 900 MHz.",)
    assert [(one.kind, one.node, one.rank) for one in verdict.culprits] == [("throttled", "n1", 5)]
    processors = Device(0, "16 CPU cores", used=98, total=100)
    stream.write_text(json.dumps(replace(measured[0], devices=(processors,)).to_json()))
    assert evaluated(tmp_path, state="RUNNING").word == "healthy"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (b"", "n1.out is empty."),
        (bytes(range(256)) * 64, "n1.out has no line ` iteration N/M |` of a training: found 16,384 bytes."),
    ],
)
def test_directory_without_a_training_has_no_verdict_and_no_report(
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
    (tmp_path / "n1.out").write_text(lines_of_steps(1, 24))
    (tmp_path / "n1.err").write_text('Traceback (most recent call last):\n  File "x.py", line 3\nRuntimeErr')
    verdict = evaluated(tmp_path, 3 * 86400)
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
    verdict = evaluated(tmp_path)
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
    assert evaluated(tmp_path).word == "healthy"
    (tmp_path / "n2.err").write_text(NOISE * 2000 + OOM if at_end else OOM + NOISE * 2000)
    verdict = evaluated(tmp_path, state=state)
    assert verdict.word == ("suspect" if state else "failed")
    assert [(one.kind, one.node) for one in verdict.culprits] == [("error", "n2")]
    assert verdict.evidence[1:] == (
        "Of the errors of n1, n2 only the beginning and the end were read: 265.6 kB were not.",
    )


def test_unreadable_and_blocking_files_are_named_and_skipped(tmp_path: Path, program: Program) -> None:
    (tmp_path / "n1.out").write_text(lines_of_steps(1, 500))
    pipes = ["n1.err", "n1.gpu", "n1.gpu.jsonl", "n2.out", "network.json", "resolved.yaml", "state.json"]
    for name in pipes:
        os.mkfifo(tmp_path / name)
    (tmp_path / "n2.err").mkdir()
    (tmp_path / "trace").mkdir()
    os.mkfifo(tmp_path / "trace/rank-00000.json")
    verdict = evaluated(tmp_path)
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
    assert evaluated(log).evidence[-1] == ("Its last line, of iteration 500, breaks off in its middle.")
    assert evaluated(log, 86401).word == "suspect"
    ended = evaluated(log, state="COMPLETED")
    assert (ended.word, ended.reason) == (
        "suspect",
        "It ended in the middle of the line of iteration 500, and does not say why.",
    )
    # Only the newline is missing, or the line is complete.
    for text in (lines_of_steps(498, 500)[:-1], lines_of_steps(498, 500)):
        log.write_text(text)
        assert evaluated(log).word == "finished"
