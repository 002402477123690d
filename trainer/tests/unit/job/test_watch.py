# SPDX-License-Identifier: GPL-3.0-or-later
"""What an agent observes of its node."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rdm_core.cost import flops
from rdm_core.heartbeat import HeartbeatWriter
from rdm_core.progress import POINTS
from rdm_job import thinning
from rdm_job.devices import amd
from rdm_job.directory import JobDirectory
from rdm_job.health import Health, newest_progress
from rdm_job.watch import Watch
from rdm_log import samples, signs
from tests.unit.job.two_nodes import REQUEST, STATE, config

LINE = (
    " iteration {:8d}/    5000 | consumed samples: 64 | elapsed time per iteration (ms): {:.1f} |"
    " learning rate: 7.0E-07 | global batch size: 64 | lm loss: {:.6E} | loss scale: 1.0 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


def test_agent_reads_progress_from_deepspeeds_log(tmp_path: Path, job: JobDirectory) -> None:
    watch = Watch(job, REQUEST, config(tmp_path, launcher={"program": ["train.py"]}))
    with job.log("n1", "out").open("a") as file:
        for step in (10, 20, 30):
            time = f"[2026-11-22 10:11:{step},000] [INFO] [logging.py:96:log_dist]"
            file.write(f"{time} [Rank 0] step={step}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]\n")
    watch.update([])
    reported = watch.report()
    assert (reported["run"]["last_iteration"], reported["run"]["step_ms"]["median"]) == (30, 1000)
    assert (reported["progress"]["iteration"], reported["progress"]["lr"]) == (30, 0.001)


def test_agent_reads_only_new_parts_of_logs(tmp_path: Path, job: JobDirectory) -> None:
    out, err = job.log("n1", "out"), job.log("n1", "err")
    out.write_text(LINE.format(900, 1.0, 9.0))
    err.write_text("ValueError: of an earlier attempt\n")
    watch = Watch(job, REQUEST, config(tmp_path))
    watch.update([])
    assert (watch.report()["run"], watch.report()["findings"]) == (None, [])
    with out.open("a") as file:
        file.write(LINE.format(10, 500.0, 9.0) + LINE.format(20, 400.0, 8.0)[:60])
    with err.open("a") as file:
        file.write("[rank1]: Traceback (most recent call last):\n[rank1]:   File x\n")
    watch.update([])
    assert watch.report()["run"]["last_iteration"] == 10
    with out.open("a") as file:
        file.write(LINE.format(20, 400.0, 8.0)[60:])
    with err.open("a") as file:
        file.write("[rank1]: mypkg.Gone: of this one\n")
    watch.update([])
    reported = watch.report()
    assert (reported["run"]["last_iteration"], reported["run"]["loss"]["last"]) == (20, 8.0)
    assert [(one["line"], one["ranks"]) for one in reported["findings"]] == [("mypkg.Gone: of this one", [1])]
    assert json.loads(json.dumps(reported)) == {
        **reported,
        "findings": json.loads(json.dumps(reported["findings"])),
    }
    watch.begin()
    watch.update([])
    assert (watch.report()["run"], watch.report()["findings"]) == (None, [])


def test_unreadable_gpus_are_reported_and_missing_ones_are_not(
    tmp_path: Path, job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amd, "_folders", lambda root: [])
    for accelerator, notes in (("rocm", 1), ("cpu", 0)):
        request = replace(REQUEST, accelerator=accelerator)
        watch, health = Watch(job, request, config(tmp_path)), Health(request, config(tmp_path))
        for _ in range(2):
            watch.measure([])
            watch.begin()
            watch.update([])
        found = health.verdict(STATE, {"n1": {"watch": watch.report()}})
        reported = [line for line in found["evidence"] if line.startswith("On n1: sysfs shows no GPU")]
        assert (found["verdict"], len(reported), len(found["evidence"])) == ("starting", notes, 1 + notes)


MEGATRON = "  seq_length ...................................... 1024\n"


def test_progress_of_other_programs_is_read_from_their_logs(tmp_path: Path, job: JobDirectory) -> None:
    settings = config(tmp_path, launcher={"program": ["pretrain_gpt.py"]}, logging={"prometheus": True})
    watch = Watch(job, REQUEST, settings)
    watch.update([])
    assert watch.report()["progress"] == {}
    lines = [LINE.format(step, 500.0, 10.0 - step / 1000) for step in range(1, 1001)]
    with job.log("n1", "out").open("a") as file:
        file.write("------------------------ arguments ------------------------\n" + MEGATRON)
        file.write("".join(lines) + LINE.format(1001, 250.0, 8.5))
    watch.update([])
    found = watch.report()["progress"]
    assert (found["iteration"], found["train_iterations"], found["loss"]) == (1001, 5000, 8.5)
    # 64 samples of 1024 tokens in the 0.25 s of the last line.
    assert (found["step_seconds"], found["tokens_per_second"], found["lr"]) == (0.25, 262144.0, 7e-7)
    assert len(found["losses"]) <= POINTS
    assert (found["losses"][0][0], found["losses"][-1]) == (1, [1001, 8.5])
    assert found["phase"] == "training"
    assert "checkpoint" not in found
    # The program's own progress takes precedence, however old; without any, the known progress stays.
    read = {"progress": {}, "watch": watch.report()}
    own = {"progress": {"iteration": 7, "time": 1.0}, "watch": {}}
    state = replace(STATE, progress=found)
    for reports, iteration in (({"n1": read}, 1001), ({"n1": read, "n2": own}, 7), ({}, 1001)):
        assert newest_progress(state, reports)["iteration"] == iteration
    job.write_state(replace(STATE, progress=found))
    watch.measure([])
    prometheus = (tmp_path / "gpt/metrics.n1.prom").read_text()
    for line in ("iteration{} 1001", "iterations{} 5000", "loss{} 8.5", "step_seconds{} 0.25"):
        assert f"rdm_job_{line}\n".replace("{}", '{job="gpt"}') in prometheus
    assert 'rdm_job_tokens_per_second{job="gpt"} 262144.0\n' in prometheus
    watch.begin()
    watch.update([])
    assert watch.report()["progress"] == {}


def test_our_trainer_reports_its_progress(tmp_path: Path, job: JobDirectory) -> None:
    watch = Watch(job, REQUEST, config(tmp_path))
    job.log("n1", "out").write_text(LINE.format(1, 500.0, 9.0))
    watch.update([])
    assert watch.report()["run"]["lines"] == 1
    assert watch.report()["progress"] == {}


PADDED = " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n"


def test_loss_of_a_program_that_does_not_learn_is_found_by_its_vocabulary(
    tmp_path: Path, job: JobDirectory
) -> None:
    settings = config(tmp_path, launcher={"program": ["pretrain_gpt.py"]})
    watch, health = Watch(job, REQUEST, settings), Health(REQUEST, settings)
    with job.log("n1", "out").open("a") as file:
        file.write(PADDED + "".join(LINE.format(10 * n, 500.0, 10.8257) for n in range(1, 41)))
    watch.update([])
    found = health.verdict(STATE, {"n1": {"watch": watch.report()}})
    assert found["evidence"] == [
        "The lm loss stays at 10.826, the logarithm of the vocabulary of 50304: nothing is learnt."
    ]


def test_the_slow_rank_of_a_program_that_writes_the_timers_of_all_is_named(
    tmp_path: Path, job: JobDirectory
) -> None:
    watch = Watch(job, REQUEST, config(tmp_path, launcher={"program": ["pretrain_gpt.py"]}))
    timers = "".join(f"     rank {rank:2d}: {700.0 if rank == 2 else 400.0}\n" for rank in range(4))
    with job.log("n1", "out").open("a") as file:
        file.write("NODE_RANK: 0\nTENSOR_MP_SIZE: 1\nPIPELINE_MP_SIZE: 1\n" + LINE.format(10, 900.0, 9.0))
        file.write(f"times across ranks (ms):\n  forward-compute:\n{timers}" + LINE.format(20, 900.0, 8.9))
    watch.update([])
    (sign,) = watch.report()["signs"]
    assert (sign["kind"], sign["node"], sign["rank"]) == ("slow", "n2", 2)


def test_agent_rotates_its_logs_without_missing_a_line(tmp_path: Path, job: JobDirectory) -> None:
    out = job.log("n1", "out")
    watch = Watch(job, REQUEST, config(tmp_path, logging={"rotate_mebibytes": 1}))
    with out.open("ab", buffering=0) as writer:
        writer.write(LINE.format(10, 500.0, 9.0).encode())
        watch.update([])
        writer.write(b"no step\n" * (128 * 1024) + LINE.format(20, 400.0, 8.0)[:60].encode())
        watch.measure([])
        writer.write(LINE.format(20, 400.0, 8.0)[60:].encode())
        for _ in range(8):
            watch.update([])
    assert out.stat().st_size < 1000
    assert (tmp_path / "gpt/logs/n1.out.1").stat().st_size > 1024 * 1024
    assert watch.report()["run"]["last_iteration"] == 20


@pytest.mark.parametrize(
    ("ending", "record"),
    [
        ("gpu", "[0] NVIDIA A10       | 49'C,   0 % | {0:5d} / 22731 MB |\n"),
        ("gpu.jsonl", '{{"time": {0}}}\n'),
    ],
)
def test_agent_thins_its_records(tmp_path: Path, job: JobDirectory, ending: str, record: str) -> None:
    path = job.log("n1", ending)
    count = thinning.MOST // len(record.format(10_000)) + 1
    numbers = range(10_000, 10_000 + count)
    path.write_text("".join(map(record.format, numbers)))
    before = path.stat().st_size
    assert before > thinning.MOST
    Watch(job, REQUEST, config(tmp_path)).measure([])
    assert path.stat().st_size < 0.8 * before
    lines = path.read_text().splitlines(keepends=True)
    # Every second record of the older half, all of the newer half, and the new measurement.
    assert lines[:2] == [record.format(10_000), record.format(10_002)]
    newest = numbers[-1]
    assert lines.index(record.format(newest)) - lines.index(record.format(newest - 100)) == 100
    assert len(lines) >= count - count // 4


def test_agent_reports_the_speed_of_its_ranks(tmp_path: Path, job: JobDirectory) -> None:
    watch = Watch(job, REQUEST, config(tmp_path))
    record = {"rank": 1, "pid": os.getpid(), "state": "running", "world": 4}
    watch.update([record])
    assert watch.report()["ranks"] == []
    writer = HeartbeatWriter(job.heartbeat(1))
    began = time.time()

    def report_of(step: int, compute_s: float) -> dict[str, Any]:
        writer.step(step)
        waits = {"waited_s": 0.2, "starved_s": 0.1}
        (tmp_path / "gpt/ranks/n1/1.heartbeat").write_text(
            json.dumps(
                {
                    "time": began + 1.1 * step,
                    "group": "stage 0",
                    "compute_s": compute_s,
                    "retries": 1,
                    **waits,
                }
            )
        )
        watch.update([record])
        found: dict[str, Any] = watch.report()["ranks"][0]
        return found

    # The first two steps are warm-up, and less than 15 s is too short.
    for step in range(1, 16):
        assert "compute_s" not in report_of(step, 9.0 if step < 3 else 0.5)
    found = report_of(16, 0.5)
    assert (found["compute_s"], found["least_s"], found["waited_s"]) == (0.5, pytest.approx(0.4), 0.2)
    # A single slow record does not count, but fifteen seconds of them do.
    assert report_of(17, 4.0)["compute_s"] == 0.5
    for step in range(18, 30):
        assert report_of(step, 4.0)["least_s"] == pytest.approx(0.4)
    for step in range(30, 32):
        found = report_of(step, 4.0)
    assert (found["compute_s"], found["least_s"], found["before_s"]) == (4.0, pytest.approx(3.9), 0.5)
    with writer.waiting():
        watch.update([record])
        (found,) = watch.report()["ranks"]
        assert (found["rank"], found["iteration"], found["waits"]) == (1, 31, True)
        assert (found["group"], found["retries"]) == ("stage 0", 8)
    watch.update([record])
    assert not watch.report()["ranks"][0]["waits"]
    assert writer.waited > 0
    assert watch.report()["arguments"] == {"WORLD_SIZE": "4"}


def test_the_records_of_gpus_are_lines_and_json(tmp_path: Path, job: JobDirectory) -> None:
    watch = Watch(job, REQUEST, config(tmp_path))
    watch.measure([{"rank": 0, "pid": os.getpid(), "state": "running"}])
    (line,) = job.log("n1", "gpu").read_text().splitlines()
    assert "CPU cores" in line
    (record,) = map(json.loads, job.log("n1", "gpu.jsonl").read_text().splitlines())
    assert record["node"] == "n1"
    assert record["ranks"]["0"] > 0
    assert record["disk_free"] > 0
    assert record["devices"][0]["name"].endswith("CPU cores")


def test_time_to_the_next_checkpoint_includes_waiting(
    tmp_path: Path, job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node logs no steps; the next checkpoint is 25 of 40 steps of 1.1 s away."""
    watch = Watch(job, REQUEST, config(tmp_path, checkpoint={"interval": 40}))
    writer = HeartbeatWriter(job.heartbeat(1))
    writer.step(176)
    record = {"time": time.time(), "group": "stage 0", "compute_s": 0.5, "waited_s": 0.6}
    job.heartbeat(1).write_text(json.dumps(record))
    estimates: list[float | None] = []

    def of_node(*_: object, checkpoint_s: float | None, **__: object) -> list[signs.Sign]:
        estimates.append(checkpoint_s)
        return []

    monkeypatch.setattr(signs, "of_node", of_node)
    watch.update([{"rank": 1, "pid": os.getpid(), "state": "running"}])
    assert estimates == [pytest.approx(25 * 1.1)]


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_checkpoint_of_all_nodes_must_fit_on_a_disk_that_they_share(
    tmp_path: Path, job: JobDirectory, is_shared: bool
) -> None:
    watch = Watch(job, REQUEST, config(tmp_path, checkpoint={"interval": 40}))
    whole = flops.checkpoint_bytes(config(tmp_path, checkpoint={"interval": 40}).spec)
    for node in ("n1", "n2") if is_shared else ("n1",):
        lock = JobDirectory(job.path, node).lock()
        assert lock is not None
        lock.close()
    watch.begin()
    free = int(0.7 * whole)
    watch._samples.append(samples.Sample(time=1.0, disk_free=free))
    watch.update([])
    named = [sign["kind"] for sign in watch.report()["signs"]]
    assert named == (["disk"] if is_shared else [])


def test_prometheus_file_of_an_ended_job_does_not_say_running(tmp_path: Path, job: JobDirectory) -> None:
    watch = Watch(job, REQUEST, config(tmp_path, logging={"prometheus": True}))
    job.write_state(replace(STATE, verdict={"verdict": "healthy"}))
    watch.measure([])
    metrics_file = tmp_path / "gpt/metrics.n1.prom"
    assert 'rdm_job_verdict{job="gpt",verdict="healthy"} 1' in metrics_file.read_text()
    assert "rdm_node_memory_used_bytes" in metrics_file.read_text()
    job.write_state(replace(STATE, state="failed", ended=9.0, verdict={"verdict": "failed"}))
    watch.end()
    # The measuring thread may still be in the middle of a measurement.
    watch.measure([])
    assert 'rdm_job_verdict{job="gpt",verdict="failed"} 1' in metrics_file.read_text()
    assert "rdm_node_memory_used_bytes" not in metrics_file.read_text()
    # Slurm may restart the job on other nodes.
    job.write_state(replace(STATE, state="queued"))
    watch.end()
    assert not metrics_file.exists()
    # A truncated or invalid state must not raise an error that hides the agent's own.
    for text in ("", "[]", '{"failures": [1]}'):
        metrics_file.write_text("rdm_node_memory_used_bytes 1")
        (job.path / "state.json").write_text(text)
        watch.end()
        assert not metrics_file.exists()
