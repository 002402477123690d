# SPDX-License-Identifier: GPL-3.0-or-later
"""``rdm-trainer train`` without a launcher: its log, its event files, and a signal in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed import processes
from tests.waiting import DEADLINE_S

CONFIGURATION = """
name: small
model: {layers: 2, hidden_size: 32, attention_heads: 4, seq_length: 16, vocab_size: 90}
optimisation: {micro_batch_size: 2, global_batch_size: 4, train_iterations: 100000, precision: fp32, lr: 0.01}
data: {mock: true, workers: 0}
logging: {interval: 5, eval_interval: 10, eval_iterations: 1}
checkpoint: {interval: 0}
"""

DATETIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "


def arguments(directory: Path, *overrides: str) -> list[str]:
    (directory / "small.yaml").write_text(CONFIGURATION)
    return ["train", str(directory / "small.yaml"), "--job-dir", str(directory / "job"), *overrides]


def start(directory: Path, *overrides: str, largest_file: int | None = None) -> processes.Command:
    return processes.Command(*arguments(directory, *overrides), largest_file=largest_file)


def parse_step_line(line: str) -> dict[str, str]:
    """Read a step's line from the description alone: see docs/training-log.md."""
    match = re.fullmatch(r" iteration ([ \d]{8})/([ \d]{8}) \|((?: [^|:]+: +[^|]+ \|)+)", line)
    assert match, line
    fields = dict(re.findall(r" ([^|:]+): +([^| ]+) \|", match[3]))
    return {"iteration": match[1].strip(), "of": match[2].strip(), **fields}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], int]:
    """A job that SIGTERM ended after its 15th step: its directory, log and exit code."""
    directory = tmp_path_factory.mktemp("command")
    with start(directory) as process:
        lines = []
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if line.startswith(" iteration       15/"):
                os.kill(process.pid, signal.SIGTERM)
        _, errors = process.communicate()
    assert "Traceback" not in errors
    assert process.returncode is not None
    return directory, lines, process.returncode


def test_sigterm_saves_a_checkpoint_and_ends_the_job(stopped: tuple[Path, list[str], int]) -> None:
    """It resumes in a separate Python process, as a launcher starts it, to check its imports."""
    directory, lines, code = stopped
    assert code == 0
    checkpoints = directory / "job" / "checkpoints"
    last = int((checkpoints / "latest_checkpointed_iteration.txt").read_text())
    assert last > 15
    assert lines[-1] == f"exiting at iteration {last}: SIGTERM requested it"
    progress = json.loads((directory / "job" / "progress.json").read_text())
    assert progress["phase"] == "done"
    assert progress["checkpoint"] == last

    rest = last + 3
    changes = (f"optimisation.train_iterations={rest}", "logging.interval=1")
    done = subprocess.run(
        [sys.executable, "-m", "rdm_trainer", *arguments(directory, *changes)],
        env={**os.environ, "PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    out = done.stdout
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert out.startswith("[after megatron is initialized] "), "what is imported writes into the log"
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "torch._dynamo" in imported
    assert "torch._inductor.compile_fx" not in imported, (
        "importing the compiler takes seconds, and the job does not use it"
    )
    steps = [parse_step_line(line) for line in out.splitlines() if line.startswith(" iteration ")]
    assert [int(step["iteration"]) for step in steps] == [last + 1, last + 2, rest]
    assert int(steps[0]["consumed samples"]) == 4 * (last + 1)
    assert " validation loss at the end of training for test data | lm loss value: " in out


def test_failure_to_save_the_last_step_is_an_error_and_can_be_resumed(tmp_path: Path) -> None:
    changes = ("optimisation.train_iterations=3", "logging.tensorboard=false")
    # A disk that takes only small files.
    with start(tmp_path, *changes, largest_file=4096) as process:
        out, errors = process.communicate()
    assert process.returncode == 1
    assert "exiting at iteration 3: the training is done, and its last step could not be saved" in out
    (error,) = [line for line in errors.splitlines() if line.startswith("Error: ")]
    assert "Iteration 3, the last one, could not be saved" in error
    assert error.endswith("goes on from the start.")
    assert "Traceback" not in errors
    with start(tmp_path, *changes) as process:
        out, errors = process.communicate()
    assert process.returncode == 0, errors
    assert (tmp_path / "job" / "checkpoints" / "latest").read_text() == "global_step3"


def test_unsuitable_device_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with start(tmp_path, "launcher.backend=nccl") as process:
        _, errors = process.communicate()
    assert process.returncode == 3
    assert errors.splitlines()[-1] == (
        "Error: launcher.backend is nccl, but this node has no GPU; use auto or gloo."
    )
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("key", "starts", "words"),
    [
        ("init_from", False, "checkpoint.init_from cannot be taken: {} has neither a complete checkpoint"),
        # On disks that nodes do not share, only all nodes together know what there is.
        ("load", True, "checkpoint.load is {}, which has no complete checkpoint"),
    ],
)
def test_missing_initial_weights_are_refused_before_anything_is_written(
    tmp_path: Path, key: str, starts: bool, words: str
) -> None:
    nowhere = tmp_path / "nowhere"
    with start(tmp_path, f"checkpoint.{key}={nowhere}") as process:
        out, errors = process.communicate()
    assert process.returncode == 3
    assert errors.splitlines()[-1].startswith(f"Error: {words.format(nowhere)}")
    assert ("megatron is initialized" in out) is starts
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_refused_training_changes_no_file_of_the_job(stopped: tuple[Path, list[str], int]) -> None:
    directory, _, _ = stopped

    def contents() -> dict[str, tuple[int, bytes]]:
        files = [path for path in (directory / "job").rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = contents()
    with start(directory, "model.hidden_size=64") as process:
        _, errors = process.communicate()
    assert process.returncode == 3
    assert "is of another model: model.ffn_hidden_size is 256 here and 128 there" in errors.splitlines()[-1]
    assert contents() == before


def test_second_training_in_one_directory_is_refused(tmp_path: Path) -> None:
    with start(tmp_path) as first:
        assert any(line.startswith(" iteration ") for line in first.stdout), "the first one ended"
        with start(tmp_path) as second:
            _, errors = second.communicate()
        os.kill(first.pid, signal.SIGKILL)
    assert second.returncode == 3
    assert errors.splitlines()[-1].startswith(f"Error: Another training is at work in {tmp_path / 'job'}; ")


def test_log_has_megatrons_format(stopped: tuple[Path, list[str], int]) -> None:
    _, lines, _ = stopped
    order = [
        r"\[after megatron is initialized\] datetime: " + DATETIME,
        r"\[after model, optimizer, and learning rate scheduler are built\] datetime: " + DATETIME,
        r"\[after dataloaders are built\] datetime: " + DATETIME,
        r"done with setup \.\.\.",
        r"\[before the start of training step\] datetime: " + DATETIME,
        r"started in [\d.]+ s: imports [\d.]+, process groups [\d.]+, model [\d.]+, data [\d.]+,"
        r" trackers [\d.]+, first step [\d.]+",
        r" iteration        5/  100000 \| .*",
        r"\[Rank 0\] \(after 5 iterations\) memory \(MB\) \| allocated: [\d.]+ \| max allocated: [\d.]+"
        r" \| reserved: [\d.]+ \| max reserved: [\d.]+",
        r" iteration       10/  100000 \| .*",
        r"-+",
        r" validation loss at iteration 10 \| lm loss value: [\dE.+]+ \| lm loss PPL: [\dE.+]+ \| ",
        r"-+",
        r" iteration       15/  100000 \| .*",
    ]
    for pattern, line in zip(order, lines, strict=False):
        assert re.fullmatch(pattern, line), (pattern, line)
    assert len(lines) > len(order)
    assert any(re.fullmatch(r"\[after training is done\] datetime: " + DATETIME, line) for line in lines)
    steps = [parse_step_line(line) for line in lines if line.startswith(" iteration ")]
    assert [step["consumed samples"] for step in steps[:3]] == ["20", "40", "60"]
    assert float(steps[-1]["lm loss"]) < float(steps[0]["lm loss"])
    assert {"elapsed time per iteration (ms)", "learning rate", "global batch size", "loss scale"} <= set(
        steps[0]
    )
    assert {"grad norm", "number of skipped iterations", "number of nan iterations"} <= set(steps[0])
    assert list(steps[0])[-3:] == ["samples per second", "tokens per gpu per second (tgs)", "TFLOPs"]


def test_event_files_have_megatrons_tags(stopped: tuple[Path, list[str], int]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    directory, lines, _ = stopped
    events = EventAccumulator(str(directory / "job" / "tensorboard"))
    events.Reload()
    losses = events.Scalars("lm-loss-training/lm loss")
    printed = [parse_step_line(line) for line in lines if line.startswith(" iteration ")]
    assert [event.step for event in losses][: len(printed)] == [int(step["iteration"]) for step in printed]
    assert losses[0].value == pytest.approx(float(printed[0]["lm loss"]), rel=1e-5)
    for tag in (
        "learning-rate/learning-rate",
        "grad-norm/grad-norm",
        "lm-loss-validation/lm loss validation",
    ):
        assert events.Scalars(tag)
    assert events.Scalars("lm-loss-training/lm loss vs samples")[0].step == 20
