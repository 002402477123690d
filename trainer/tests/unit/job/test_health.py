# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict on a running job from its agents' reports, and what an agent observes of its node."""

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
from rdm_job import health as health_module
from rdm_job import thinning
from rdm_job.devices import amd
from rdm_job.directory import JobDirectory
from rdm_job.health import Health, newest_progress, of_state
from rdm_job.measure import measure
from rdm_job.protocol import Failure
from rdm_job.watch import Watch
from rdm_log import samples, signs
from tests.unit.job.two_nodes import REQUEST, STATE, config

LINE = (
    " iteration {:8d}/    5000 | consumed samples: 64 | elapsed time per iteration (ms): {:.1f} |"
    " learning rate: 7.0E-07 | global batch size: 64 | lm loss: {:.6E} | loss scale: 1.0 |"
    " number of skipped iterations:   0 | number of nan iterations:   0 |\n"
)


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(health_module, "time", made)
    return made


def rank(number: int, **more: Any) -> dict[str, Any]:
    base = {"rank": number, "group": "stage 0", "iteration": 40, "waits": False, "compute_s": 0.5}
    return {**base, "least_s": 0.5, "waited_s": 0.1, "before_s": 0.5, "nan_at": None, "retries": 0, **more}


def run(iteration: int = 40) -> dict[str, Any]:
    loss = {"name": "lm loss", "curve": [], "last": 8.0, "lowest": 8.0, "lowest_at": 40, "not_finite": 0}
    times = {"recent": [500.0] * 10, "median": 500.0}
    reported = {"lines": 40, "first_iteration": 1, "last_iteration": iteration, "train_iterations": 5000}
    return {**reported, "loss": loss, "step_ms": times, "skipped": 0, "nan": 0, "milestones": {}}


def reports(*, iteration: int = 40, **ranks: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the reports of two healthy nodes with two ranks each, with changes for some ranks (``r3``)."""

    def watch(first: int) -> dict[str, Any]:
        reported = [rank(n, iteration=iteration, **ranks.get(f"r{n}", {})) for n in (first, first + 1)]
        return {
            "versions": {"torch": "2.13.0"},
            "findings": [],
            "run": run(iteration) if first else None,
            "since_s": 0.3,
            "phase": "" if first else "training",
            "reports_phases": not first,
            "ranks": reported,
            "signs": [],
            "held_back": "",
            "quota": None,
            "gpu_processes": None,
            "arguments": {"WORLD_SIZE": "4"},
            "vocabulary": None,
        }

    return {"n1": {"watch": watch(0)}, "n2": {"watch": watch(2)}}


def test_a_healthy_job(tmp_path: Path, clock: Clock) -> None:
    health = Health(REQUEST, config(tmp_path))
    found = health.verdict(STATE, {})
    assert (found["verdict"], found["since"]) == ("starting", 1000.0)
    for step in range(600):
        clock.now += 1
        found = health.verdict(STATE, reports(iteration=40 + step))
    assert found["verdict"] == "healthy"
    assert found["reason"] == "Iteration 639 of 5000, 0.50 s a step, lm loss 8.0000."
    assert found["since"] == 1001.0
    # A long checkpoint and a restart are healthy.
    pauses = reports()
    pauses["n1"]["watch"]["phase"] = "saving"
    disk = {"kind": "disk", "text": "The disk of n2 is full.", "node": "n2"}
    pauses["n2"]["watch"]["signs"] = [disk]
    for watch in pauses.values():
        watch["watch"]["since_s"] = 500.0
    clock.now += 500
    assert health.verdict(STATE, pauses)["verdict"] == "healthy"
    pauses["n1"]["watch"]["phase"] = "training"
    assert disk["text"] in health.verdict(STATE, pauses)["evidence"]
    health.begin()
    assert health.verdict(replace(STATE, state="restarting"), {})["verdict"] == "starting"


SLOW: dict[str, Any] = {
    "r3": {"compute_s": 1.5, "least_s": 1.4},
    **{f"r{n}": {"waited_s": 1.1} for n in range(3)},
}


def test_a_slow_rank_is_named(tmp_path: Path, clock: Clock) -> None:
    found = Health(REQUEST, config(tmp_path)).verdict(STATE, reports(**SLOW))
    assert (found["verdict"], found["exit_code"]) == ("suspect", 4)
    assert found["culprits"] == [{"kind": "slow", "node": "n2", "rank": 3}]


def test_that_others_use_a_node_is_reported_after_a_while_and_makes_no_job_suspect(
    tmp_path: Path, clock: Clock
) -> None:
    health = Health(REQUEST, config(tmp_path))
    ranks: dict[str, Any] = {**SLOW, "r3": {"compute_s": 1.5, "least_s": 0.5, "starved_s": 0.9}}
    busy = reports(**ranks)
    assert len(health.verdict(STATE, busy)["evidence"]) == 1
    clock.now += 50
    assert len(health.verdict(STATE, reports(iteration=41))["evidence"]) == 1
    clock.now += 1
    health.verdict(STATE, busy)
    for step in range(60):
        clock.now += 1
        found = health.verdict(STATE, reports(iteration=42 + step, **ranks))
    assert (found["verdict"], found["culprits"]) == ("healthy", [])
    assert found["evidence"][1].startswith("Others use the processors of n2: rank 3 takes")
    busy["n2"]["watch"]["held_back"] = "its quota is 0.5"
    found = health.verdict(STATE, busy)
    assert (found["verdict"], found["culprits"]) == (
        "suspect",
        [{"kind": "processors", "node": "n2", "rank": 3}],
    )
    assert found["reason"] == (
        "n2 has too few processors for its ranks, its quota is 0.5: rank 3 takes 1.50 s of its own in a "
        "step, 900 ms of it waiting for a processor; its peers take 500 ms."
    )
    # With equal quotas, it is chance which node is throttled first.
    busy["n2"]["watch"]["quota"] = busy["n1"]["watch"]["quota"] = 0.5
    for step in range(61):
        clock.now += 1
        for node in busy.values():
            for one in node["watch"]["ranks"]:
                one["iteration"] = 200 + step
        found = health.verdict(STATE, busy)
        assert (found["verdict"], found["culprits"]) == ("healthy", [])
    assert "its quota is 0.5 and its peers' no larger: rank 3 takes" in found["evidence"][1]
    busy["n1"]["watch"]["quota"] = 1.0
    assert health.verdict(STATE, busy)["culprits"] == [{"kind": "processors", "node": "n2", "rank": 3}]


def test_what_is_not_known_of_gpus_is_reported_once_and_makes_no_job_suspect(
    tmp_path: Path, clock: Clock
) -> None:
    health, why = Health(REQUEST, config(tmp_path)), "nvidia-ml-py is not installed: nothing is known."
    reported = reports()
    reported["n2"]["watch"]["unwatched"] = why
    for nodes in ("n2", "all nodes"):
        clock.now += 1
        found = health.verdict(STATE, reported)
        assert (found["verdict"], found["culprits"]) == ("healthy", [])
        assert found["evidence"][1:] == [f"On {nodes}: {why}"]
        reported["n1"]["watch"]["unwatched"] = why


def test_a_node_whose_gpus_cannot_be_read_says_so_and_one_without_has_nothing_to_say(
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


def test_a_rank_that_does_not_come_is_named(tmp_path: Path, clock: Clock) -> None:
    health = Health(REQUEST, config(tmp_path))
    waits: dict[str, Any] = {f"r{n}": {"waits": n != 2} for n in range(4)}
    reported = reports(**waits)
    health.verdict(STATE, reported)
    clock.now += 25
    for one in reported.values():
        one["watch"]["since_s"] = 25.0
    found = health.verdict(STATE, reported)
    assert found["verdict"] == "stalled"
    assert found["reason"] == (
        "No step for 25 s after iteration 40 (usual are 0.5 s): the others wait for rank 2 on n2."
    )


def test_versions_errors_and_what_was_requested(tmp_path: Path, clock: Clock) -> None:
    program = ["pretrain_gpt.py", "--num-layers", "24", "--lr=1e-4", "--hidden-size", "1024"]
    health = Health(REQUEST, config(tmp_path, launcher={"program": program}))
    reported = reports()
    reported["n2"]["watch"]["versions"] = {"torch": "2.11.0"}
    reported["n1"]["watch"]["findings"] = [
        {
            "name": "disk-full",
            "kind": "error",
            "cause": "a disk or a quota is full",
            "line": "OSError: [Errno 28] No space left on device",
            "count": 2,
            "ranks": [1],
            "node": "",
        }
    ]
    reported["n1"]["watch"]["arguments"] = {"num_layers": "12", "lr": "0.0001", "WORLD_SIZE": "2"}
    reported["n2"]["watch"]["arguments"] = {"lr": "1.0e-4", "WORLD_SIZE": "4"}
    clock.now += 1
    found = health.verdict(STATE, reported)
    assert found["verdict"] == "suspect"
    assert found["evidence"] == [
        "A disk or a quota is full, 2 times (n1, rank 1: OSError: [Errno 28] No space left on device).",
        "num_layers is 12 on n1, and 24 was requested.",
        "WORLD_SIZE is 2 on n1, and 4 was requested.",
        "n2 has torch 2.11.0, others have 2.13.0.",
    ]
    assert {"kind": "version", "node": "n2", "rank": None} in found["culprits"]
    assert {"kind": "configuration", "node": "n1", "rank": None} in found["culprits"]
    for one in reported.values():
        one["watch"]["arguments"] = {"WORLD_SIZE": "2"}
    found = health.verdict(STATE, reported)
    assert "WORLD_SIZE is 2 on n1, n2, and 4 was requested." in found["evidence"]
    assert "configuration" not in [one["kind"] for one in found["culprits"]]


def test_the_verdict_on_a_job_that_has_ended() -> None:
    failure = Failure("n2", 3, "Rank 3 on n2 failed: it was killed.")
    ended = replace(STATE, state="failed", reason=failure.reason, failures=[failure], ended=9.0)
    found = of_state(ended)
    assert (found["verdict"], found["since"], found["reason"]) == ("failed", 9.0, failure.reason)
    assert found["culprits"] == [{"kind": "failure", "node": "n2", "rank": 3}]
    done = of_state(replace(STATE, state="finished", progress={"iteration": 50}))
    assert (done["verdict"], done["reason"]) == ("finished", "It came to iteration 50.")
    short = {"iteration": 30, "train_iterations": 50, "phase": "done"}
    # "done" means that it ended there on request; otherwise the reason is unknown.
    for phase, word in (("done", "finished"), ("training", "suspect")):
        reported = of_state(replace(STATE, state="finished", progress={**short, "phase": phase}))
        assert reported["verdict"] == word


def test_whose_loss_was_no_number_is_known_when_its_process_has_ended(tmp_path: Path, clock: Clock) -> None:
    health = Health(REQUEST, config(tmp_path))
    broken = reports(r3={"nan_at": 38})
    assert health.verdict(STATE, broken)["culprits"] == [{"kind": "nan", "node": "n2", "rank": 3}]
    # The ranks that still report are no culprits, and ended processes report nothing.
    for gone in ("n2", "n1"):
        broken[gone]["watch"]["ranks"] = []
        broken["n2"]["watch"]["run"] = {**run(5000), "nan": 3}
        found = health.verdict(replace(STATE, state="finished"), broken)
        assert (found["verdict"], found["exit_code"]) == ("suspect", 4)
        assert found["culprits"] == [{"kind": "nan", "node": "n2", "rank": 3}]
        assert "The loss was not a number 3 times." in found["evidence"]
    health.begin()
    assert health.verdict(replace(STATE, state="finished"), reports())["culprits"] == []


# --- what an agent sees ---------------------------------------------------------------------------------


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    made = JobDirectory(tmp_path / "gpt", "n1")
    made.make(REQUEST)
    return made


def test_an_agent_sees_how_far_deepspeed_alone_is(tmp_path: Path, job: JobDirectory) -> None:
    watch = Watch(job, REQUEST, config(tmp_path, launcher={"program": ["train.py"]}))
    with job.log("n1", "out").open("a") as file:
        for step in (10, 20, 30):
            time = f"[2026-11-22 10:11:{step},000] [INFO] [logging.py:96:log_dist]"
            file.write(f"{time} [Rank 0] step={step}, skipped=0, lr=[0.001], mom=[(0.9, 0.95)]\n")
    watch.update([])
    reported = watch.report()
    assert (reported["run"]["last_iteration"], reported["run"]["step_ms"]["median"]) == (30, 1000)
    assert (reported["progress"]["iteration"], reported["progress"]["lr"]) == (30, 0.001)


def test_an_agent_reads_only_what_its_logs_gained(tmp_path: Path, job: JobDirectory) -> None:
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


MEGATRON = "  seq_length ...................................... 1024\n"


def test_how_far_another_program_is_is_read_from_its_log(tmp_path: Path, job: JobDirectory) -> None:
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


def test_our_trainer_says_itself_how_far_it_is(tmp_path: Path, job: JobDirectory) -> None:
    watch = Watch(job, REQUEST, config(tmp_path))
    job.log("n1", "out").write_text(LINE.format(1, 500.0, 9.0))
    watch.update([])
    assert watch.report()["run"]["lines"] == 1
    assert watch.report()["progress"] == {}


PADDED = " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)\n"


def test_a_program_that_learns_nothing_is_told_from_its_own_vocabulary(
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


def test_an_agent_rotates_its_logs_and_misses_nothing(tmp_path: Path, job: JobDirectory) -> None:
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
def test_an_agent_thins_what_it_has_measured(
    tmp_path: Path, job: JobDirectory, ending: str, record: str
) -> None:
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


def test_an_agent_sees_how_its_ranks_get_on(tmp_path: Path, job: JobDirectory) -> None:
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


def test_the_time_to_the_next_checkpoint_counts_what_a_rank_waits(
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


def test_prometheus_file_says_no_longer_that_a_job_runs_when_it_has_ended(
    tmp_path: Path, job: JobDirectory
) -> None:
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


@pytest.mark.parametrize(
    ("version", "files"),
    [
        ("0::/", {"cpu.max": "50000 100000", "cpu.stat": "usage_usec 9\nnr_periods 70\nnr_throttled 40"}),
        (
            "5:cpu,cpuacct:/docker/abc",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
                "cpu,cpuacct/cpu.stat": "nr_periods 70\nnr_throttled 40\nthrottled_time 9",
            },
        ),
    ],
)
def test_the_quota_of_both_versions_of_cgroups(tmp_path: Path, version: str, files: dict[str, str]) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{version}\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    found = measure(1.0, tmp_path, {7: os.getpid()}, root=tmp_path)
    assert (found.quota, found.periods, found.throttled) == (0.5, 70, 40)
    assert found.cpu_s[7] > 0
    assert found.processors
    for name in files:
        if name.endswith(("max", "quota_us")):
            (tmp_path / "sys/fs/cgroup" / name).write_text("max 100000\n" if name == "cpu.max" else "-1\n")
    assert measure(1.0, tmp_path, {}, root=tmp_path).quota is None


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def test_segments_that_were_sent_again_are_read_by_name(tmp_path: Path) -> None:
    """The text is from a real kernel: columns are inserted, and other protocols have similar lines."""
    put(
        tmp_path,
        {
            "proc/self/net/snmp": "Ip: Forwarding OutSegs RetransSegs\nIp: 1 9 9\n"
            "Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets "
            "CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors\n"
            "Tcp: 1 200 120000 -1 318 201 7 12 4 90210 81234 56 0 31 0\n"
            "Udp: InDatagrams OutSegs\nUdp: 5 8"
        },
    )
    found = measure(1.0, tmp_path, {}, root=tmp_path)
    assert (found.segments, found.resent) == (81234, 56)
    for broken in ("Tcp: OutSegs RetransSegs", "Tcp: OutSegs RetransSegs\nTcp: 1", "Tcp: OutSegs\nTcp: many"):
        put(tmp_path, {"proc/self/net/snmp": broken})
        found = measure(1.0, tmp_path, {}, root=tmp_path)
        assert (found.segments, found.resent) == (None, None), broken


def test_errors_of_each_interface_and_of_each_infiniband_port_are_counted(tmp_path: Path) -> None:
    net, ports = "sys/class/net", "sys/class/infiniband/mlx5_0/ports"
    put(
        tmp_path,
        {
            f"{net}/ib0/statistics/rx_errors": "3",
            f"{net}/ib0/statistics/tx_errors": "4",
            f"{net}/ib0/statistics/rx_dropped": "1000",
            f"{net}/lo/statistics/rx_errors": "9",
            f"{ports}/1/counters/symbol_error": "1",
            f"{ports}/1/counters/link_downed": "2",
            f"{ports}/1/counters/port_rcv_errors": "4",
            f"{ports}/1/counters/local_link_integrity_errors": "8",
            f"{ports}/1/counters/port_xmit_data": "123456789",
            f"{ports}/1/hw_counters/packet_seq_err": "16",
            f"{ports}/1/hw_counters/local_ack_timeout_err": "32",
            f"{ports}/1/hw_counters/out_of_sequence": "1000",
            # A counter that the firmware does not support, and a port without hw_counters.
            f"{ports}/2/counters/symbol_error": "N/A",
            f"{ports}/2/counters/link_downed": "64",
        },
    )
    found = measure(1.0, tmp_path, {}, root=tmp_path)
    assert found.interfaces == {"ib0": 7, "mlx5_0/1": 63, "mlx5_0/2": 64}
    # A node without interfaces reports none.
    assert measure(1.0, tmp_path, {}, root=tmp_path / "absent").interfaces == {}


@pytest.mark.parametrize(
    ("line", "files"),
    [
        (
            "0::/job",
            {
                "job/memory.current": "500",
                "job/memory.events": "low 0\nhigh 8\nmax 21\noom 4\noom_kill 3\noom_group_kill 1",
                # The host's counters include other jobs.
                "memory.current": "900",
                "memory.events": "oom 9\noom_kill 99",
            },
        ),
        # In a container, where the cgroup's own path is not visible.
        ("0::/docker/0123", {"memory.current": "500", "memory.events": "oom 4\noom_kill 3"}),
        (
            "5:memory:/job\n4:cpu,cpuacct:/",
            {
                "memory/job/memory.usage_in_bytes": "500",
                "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3",
                "memory/memory.usage_in_bytes": "900",
                "memory/memory.oom_control": "oom_kill 99",
            },
        ),
    ],
)
def test_who_was_killed_for_memory_is_counted_of_the_own_cgroup(
    tmp_path: Path, line: str, files: dict[str, str]
) -> None:
    put(tmp_path, {"proc/self/cgroup": line})
    put(tmp_path / "sys/fs/cgroup", files)
    assert measure(1.0, tmp_path, {}, root=tmp_path).killed == 3
    # Without the kernel's counter the number is unknown, not 0.
    for name in files:
        if name.endswith(("events", "oom_control")):
            (tmp_path / "sys/fs/cgroup" / name).write_text("under_oom 0\n")
    assert measure(1.0, tmp_path, {}, root=tmp_path).killed is None


def test_memory_is_that_of_who_has_less_left(tmp_path: Path) -> None:
    """Not that with the larger used share: a small container that grows would be noticed too late."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 25000000 kB\nMemAvailable: 15000000 kB\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in {"memory.current": "500000000", "memory.max": "3000000000"}.items():
        (tmp_path / "sys/fs/cgroup" / name).write_text(text)
    found = measure(1.0, tmp_path, {}, root=tmp_path)
    assert (found.memory_used, found.memory_limit) == (500_000_000, 3_000_000_000)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 25000000 kB\nMemAvailable: 1000000 kB\n")
    assert measure(1.0, tmp_path, {}, root=tmp_path).memory_limit == 25_600_000_000
