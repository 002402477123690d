# SPDX-License-Identifier: GPL-3.0-or-later
"""A tiny GPT on one GPU that is traced and profiled: times are the device's, and no host waits for it."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rdm_job.profilers import wrapped
from rdm_log.report.job import collect
from rdm_log.summary import summarise
from rdm_log.timeline import Span, Timeline, chrome_trace, of_paths
from tests.gpu import processes

PLAIN, TRACED, PROFILED = (2, 3), (5, 6), 7
BATCHES = 4
SLEEP_S = 0.1
CONFIGURATION = f"""
name: small
model: {{layers: 4, hidden_size: 256, attention_heads: 8, seq_length: 128, vocab_size: 1000}}
optimisation: {{micro_batch_size: 2, global_batch_size: {2 * BATCHES}, train_iterations: 8, precision: bf16}}
data: {{mock: true, workers: 0}}
logging: {{interval: 4, eval_interval: 0, tensorboard: false, trace_steps: {TRACED[0]}-{TRACED[1]}}}
launcher: {{profiler: torch, profiler_ranks: [0], profiler_steps: {PROFILED}-{PROFILED}}}
checkpoint: {{interval: 0}}
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a job, with ``seen.json``: what a step was seen to do, by its number."""
    directory = tmp_path_factory.mktemp("traced")
    (directory / "small.yaml").write_text(CONFIGURATION)
    (seen,) = processes.run(1, _train, str(directory))
    (directory / "job" / "seen.json").write_text(json.dumps(seen))
    return directory / "job"


@pytest.fixture(scope="module")
def seen(job: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((job / "seen.json").read_text())
    return found


@pytest.fixture(scope="module")
def timeline(job: Path) -> Timeline:
    return of_paths([job])


def _train(folder: str) -> dict[str, Any]:
    """Train with a slow kernel in each forward pass; return what each step was seen to do."""
    import torch

    from rdm_core import config as configuration
    from rdm_trainer.train import Training

    directory = Path(folder)
    output = directory / "job" / "logs" / "n1.out"
    output.parent.mkdir(parents=True)

    def write(line: str) -> None:
        with output.open("a") as file:
            file.write(f"{line}\n")

    training = Training(configuration.load(directory / "small.yaml"), directory / "job", write=write)
    slow = processes.sleeper(SLEEP_S)
    training.engine.module.register_forward_pre_hook(lambda *_: slow())
    waits = _counted_waits(torch)
    step, steps = training.engine.train_step, {}
    write_memory, most = training._write_memory, []

    def watched_step(batches: Any) -> Any:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.set_sync_debug_mode("warn")
        before = len(waits)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            begin.record()
            with _sampled() as stacks:
                result = step(batches)
            end.record()
        is_ahead = not end.query()
        torch.cuda.set_sync_debug_mode("default")
        texts = [str(one.message) for one in caught]
        steps[training.iteration + 1] = begin, end, is_ahead, waits[before:], texts, stacks.most_common(3)
        return result

    def watched_memory() -> None:
        most.append(torch.cuda.max_memory_allocated() / 2**20)
        write_memory()

    training.engine.train_step = watched_step  # type: ignore[method-assign]
    training._write_memory = watched_memory  # type: ignore[method-assign]
    training.run()
    torch.cuda.synchronize()
    weights = sum(one.numel() * one.element_size() for one in training.engine.module.parameters())
    training.close()
    return {
        "steps": {
            number: {
                **{"device_ms": begin.elapsed_time(end), "is_ahead": is_ahead, "waits": waits},
                **{"warnings": texts, "stacks": stacks},
            }
            for number, (begin, end, is_ahead, waits, texts, stacks) in steps.items()
        },
        "most_mib": most[0],
        "weights_mib": weights / 2**20,
        "name": torch.cuda.get_device_name(),
    }


@contextlib.contextmanager
def _sampled() -> Iterator[Counter[str]]:
    """Sample this thread's stack now and then, to show what it waits for."""
    stacks: Counter[str] = Counter()
    thread, is_over = threading.get_ident(), threading.Event()

    def sample() -> None:
        while not is_over.wait(0.005):
            stack = traceback.extract_stack(sys._current_frames()[thread])[-3:]
            stacks[" < ".join(f"{one.filename}:{one.lineno} {one.line}" for one in reversed(stack))] += 1

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    try:
        yield stacks
    finally:
        is_over.set()
        sampler.join()


def _counted_waits(torch: Any) -> list[str]:
    """Let each call that waits for the device note its name."""
    waits: list[str] = []

    def counted(owner: Any, name: str) -> None:
        call = getattr(owner, name)

        def noted(*arguments: Any, **options: Any) -> Any:
            waits.append(f"{owner.__name__}.{name}")
            return call(*arguments, **options)

        setattr(owner, name, noted)

    for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
        counted(owner, "synchronize")
    return waits


def _outer(timeline: Timeline, step: int) -> list[Span]:
    """Return a step's spans without those that lie within others."""
    return [span for span in timeline.spans[0] if span.step == step and span.kind != "collective"]


@pytest.mark.parametrize("step", TRACED)
def test_spans_have_device_times_and_cover_the_step(
    timeline: Timeline, seen: dict[str, Any], step: int
) -> None:
    assert timeline.steps == list(TRACED)
    spans = _outer(timeline, step)
    kinds = [span.kind for span in spans]
    assert kinds.count("forward") == kinds.count("backward") == BATCHES
    assert [span.micro_batch for span in spans if span.kind == "forward"] == list(range(BATCHES))
    # To the host the slow kernel is a call that returns at once.
    forward = [span for span in spans if span.kind == "forward"]
    assert all(span.end - span.begin >= SLEEP_S * 1e6 for span in forward), forward
    assert all(one.end <= other.begin + 1.0 for one, other in itertools.pairwise(spans))
    device_us = seen["steps"][str(step)]["device_ms"] * 1e3
    assert spans[-1].end - spans[0].begin <= device_us + 1.0
    assert sum(span.end - span.begin for span in spans) >= 0.95 * device_us
    events = [one for one in chrome_trace(timeline)["traceEvents"] if one["ph"] == "X"]
    assert len(events) == len(timeline.spans[0])


def test_host_does_not_wait_within_a_traced_step(seen: dict[str, Any]) -> None:
    steps = seen["steps"]
    for number in (*PLAIN, *TRACED):
        assert steps[str(number)]["waits"] == [], number
        # Nor does torch say so of an operation.
        synchronizing = [text for text in steps[str(number)]["warnings"] if "synchronizing" in text]
        assert synchronizing == [], (number, steps[str(number)]["stacks"])


@pytest.mark.parametrize("number", [*PLAIN, *TRACED])
def test_host_is_ahead_of_the_device_in_a_traced_step_too(seen: dict[str, Any], number: int) -> None:
    step = seen["steps"][str(number)]
    assert step["device_ms"] >= 1000 * BATCHES * SLEEP_S
    # When the host has launched the step's kernels, the device has not finished them.
    assert step["is_ahead"], step["stacks"]


def test_torch_profiler_records_kernels_and_our_names(job: Path) -> None:
    assert [path.name for path in (job / "profile").iterdir()] == ["rank-00000.json"]
    events = json.loads((job / "profile" / "rank-00000.json").read_text())["traceEvents"]
    names = {event.get("name") for event in events}
    assert {f"step {PROFILED}", "ForwardPass", "BackwardPass", "OptimizerStep"} <= names
    assert f"step {PROFILED + 1}" not in names
    kernels = [event for event in events if event.get("cat") == "kernel"]
    slow = [one for one in kernels if one["dur"] >= SLEEP_S * 1e6]
    assert len(slow) == BATCHES
    assert len(kernels) > BATCHES


# Few machines have it.
if shutil.which("nsys"):

    def test_nsys_records_a_rank(tmp_path: Path) -> None:
        given = CONFIGURATION.replace("profiler: torch", "profiler: nsys")
        (tmp_path / "small.yaml").write_text(given)
        train = [sys.executable, "-m", "rdm_trainer", "train", str(tmp_path / "small.yaml")]
        (tmp_path / "job" / "profile").mkdir(parents=True)
        command = wrapped("nsys", (0,), 0, tmp_path / "job", [*train, "--job-dir", str(tmp_path / "job")])
        assert command is not None
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert (tmp_path / "job" / "profile" / "rank-00000.nsys-rep").stat().st_size > 0


def test_memory_line_has_the_peak_of_allocated_memory(job: Path, seen: dict[str, Any]) -> None:
    (run,) = summarise([job / "logs" / "n1.out"]).runs
    sizes = run["memory_mib"]["0"]
    assert sizes["max allocated"] == pytest.approx(seen["most_mib"], abs=1e-6)
    assert seen["weights_mib"] < sizes["allocated"] <= sizes["max allocated"] <= sizes["max reserved"]
    assert sizes["reserved"] <= sizes["max reserved"]


def test_report_has_the_gpus_records(job: Path, seen: dict[str, Any]) -> None:
    found = collect(job)
    assert found.timeline is not None
    assert found.timeline["shares_ms"]["0"]["forward"] >= 1000 * BATCHES * SLEEP_S
    assert found.run is not None
    assert found.run["memory_mib"]["0"]["max allocated"] == pytest.approx(seen["most_mib"], abs=1e-6)
    assert found.run["last_iteration"] == 8
