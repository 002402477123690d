# SPDX-License-Identifier: GPL-3.0-or-later
"""A rank's compute time excludes waiting for others, in any operation; a slow rank's includes its delay."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rdm_core import config as configuration
from rdm_core import heartbeat
from rdm_core.heartbeat import HeartbeatWriter
from rdm_trainer import compute_time
from rdm_trainer.checkpoint import distributed
from rdm_trainer.compute_time import ComputeTime
from rdm_trainer.train import Training
from tests.distributed import processes

SLEEP_S = 1.0
"""Much longer than other work on the machine delays the fastest of four steps."""
TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {"layers": 2, "hidden_size": 32, "attention_heads": 2, "seq_length": 16, "vocab_size": 64},
    "optimisation": {
        "micro_batch_size": 1,
        "global_batch_size": 4,
        "train_iterations": 4,
        "precision": "fp32",
        "lr": 1e-3,
    },
    "data": {"mock": True, "workers": 0},
    "logging": {"interval": 1, "eval_interval": 0, "tensorboard": False},
    "checkpoint": {"interval": 0},
}


def train(folder: str, parallel: dict[str, Any]) -> dict[str, Any]:
    """Train while rank 1 sleeps in each step; return this rank's last record and shortest compute time."""
    # torch's warnings about new names would be in the log at each step.
    warnings.simplefilter("error", FutureWarning)
    rank = dist.get_rank()
    path = Path(folder) / f"{rank}.json"
    path.write_text(json.dumps({**TINY, "parallel": parallel}))
    os.environ[heartbeat.HEARTBEAT_VARIABLE] = str(Path(folder) / f"{rank}.heartbeat")
    # Two stages are on two nodes; replicas and tensor ranks are on one.
    os.environ[heartbeat.NODE_VARIABLE] = f"n{rank}" if "pipeline" in parallel else "n0"
    heartbeat._EACH_S = 0.0
    training = Training(configuration.load(path), Path(folder) / "job", write=lambda line: None)
    step = training.engine.train_step
    nan = torch.full((), float("nan"))
    reported: list[float | None] = []

    def slow(batches: Any) -> Any:
        with contextlib.suppress(OSError):
            reported.append(heartbeat.read(Path(folder) / f"{rank}.heartbeat")[0].get("compute_s"))
        if rank == 1:
            time.sleep(SLEEP_S)
            if training.iteration == 2:
                training._compute_time.note_loss(nan)
        return step(batches)

    training.engine.train_step = slow  # type: ignore[method-assign]
    training.run()
    training.close()
    record, iteration, waits = heartbeat.read(Path(folder) / f"{rank}.heartbeat")
    assert (iteration, waits) == (4, 0.0)
    # Other work may use the processors in some steps, so take the shortest time.
    shape = heartbeat.shape(Path(folder) / f"{rank}.heartbeat")
    return {**record, "compute_s": min([*filter(None, reported), record["compute_s"]]), "shape": shape}


# Each of them also reports what was built.
@pytest.mark.parametrize(
    "parallel",
    [{"zero_stage": 0}, {"zero_stage": 1}, {"zero_stage": 3}, {"pipeline": 2}, {"tensor": 2}],
    ids=str,
)
def test_compute_time_is_long_on_the_slow_rank_alone(tmp_path: Path, parallel: dict[str, Any]) -> None:
    (tmp_path / "job").mkdir()
    victim, culprit = processes.run(2, train, str(tmp_path), parallel)
    assert culprit["compute_s"] >= SLEEP_S
    assert victim["compute_s"] < culprit["compute_s"] - SLEEP_S / 2
    assert (victim["nan_at"], culprit["nan_at"]) == (None, 3)
    assert (victim["group"] == culprit["group"]) == ("pipeline" not in parallel)
    tensor, pipeline = parallel.get("tensor", 1), parallel.get("pipeline", 1)
    assert (
        victim["shape"]
        == culprit["shape"]
        == {
            "GLOBAL_BATCH_SIZE": "4",
            "MICRO_BATCH_SIZE": "1",
            "DP_SIZE": str(2 // (tensor * pipeline)),
            "TENSOR_MP_SIZE": str(tensor),
            "PIPELINE_MP_SIZE": str(pipeline),
            "HIDDEN_SIZE": "32",
            "PARTITION": "1-1" if pipeline == 2 else "2",
            "NUM_LAYERS": "2",
            "NNODES": str(pipeline),
        }
    )


def save_during_steps(folder: str) -> list[float]:
    """Return the compute times of steps of which this rank saves the second one, and rank 1 late."""
    rank = dist.get_rank()
    path = Path(folder) / f"{rank}.json"
    checkpoint = {"interval": 2, "asynchronous": True}
    path.write_text(json.dumps({**TINY, "checkpoint": checkpoint}))
    os.environ[heartbeat.HEARTBEAT_VARIABLE] = str(Path(folder) / f"{rank}.heartbeat")
    heartbeat._EACH_S = 0.0
    training = Training(configuration.load(path), Path(folder) / "job", write=lambda line: None)
    step, write = training.engine.train_step, distributed.write
    seconds: list[float] = []

    def slow(batches: Any) -> Any:
        time.sleep(SLEEP_S)
        return step(batches)

    def late(*arguments: Any) -> None:
        time.sleep(1.5 * SLEEP_S * rank)
        write(*arguments)

    def record(**values: Any) -> None:
        seconds.append(values["compute_s"])

    training.engine.train_step = slow  # type: ignore[method-assign]
    training._compute_time.heartbeat.write = record  # type: ignore[method-assign]
    distributed.write = late  # type: ignore[assignment]
    try:
        training.run()
    finally:
        distributed.write = write
    training.close()
    return seconds


def test_asynchronous_save_counts_as_compute_time(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    for seconds in processes.run(2, save_during_steps, str(tmp_path)):
        assert len(seconds) == 4
        assert min(seconds) >= SLEEP_S, seconds


def test_nested_gpu_waits_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count()

    class Event:
        def __init__(self) -> None:
            self.second = next(seconds)

        def elapsed_time(self, other: Event) -> float:
            return 1000.0 * (other.second - self.second)

    monkeypatch.setattr(compute_time, "_event", Event)
    for name in ("current_stream", "default_stream", "memory_stats"):
        monkeypatch.setattr(torch.cuda, name, dict)
    monkeypatch.setattr(heartbeat, "_EACH_S", 0.0)
    own = ComputeTime(HeartbeatWriter(tmp_path / "0.heartbeat"), torch.device("cpu"))
    own._on_gpu = True
    own.begin(1, measured=True)
    with own.waiting(), own.waiting():
        pass
    own.end()
    own.write_if_due("stage 0")
    own.close()
    record = heartbeat.read(tmp_path / "0.heartbeat")[0]
    # The step begins, the wait begins and ends, and the step ends, a second after each other.
    assert (record["compute_s"], record["waited_s"]) == (2.0, 1.0)


def test_heartbeat_says_that_a_rank_waits(tmp_path: Path) -> None:
    writer = HeartbeatWriter(tmp_path / "ranks/n1/0.heartbeat")
    own = ComputeTime(writer, torch.device("cpu"))
    own.begin(7, measured=True)
    with own.waiting(), own.waiting():
        _, iteration, since = heartbeat.read(tmp_path / "ranks/n1/0.heartbeat")
        assert iteration == 7
        assert since == pytest.approx(time.time(), abs=60)
    own.end()
    own.write_if_due("stage 0")
    record, _, since = heartbeat.read(tmp_path / "ranks/n1/0.heartbeat")
    assert since == 0.0
    assert record["compute_s"] >= 0
    own.close()
    # The former name of the field is still read.
    writer.write(own_s=2.0)
    assert heartbeat.read(tmp_path / "ranks/n1/0.heartbeat")[0]["compute_s"] == 2.0
    # Outside a job, no heartbeat is written.
    HeartbeatWriter().write(compute_s=1.0)
    with pytest.raises(OSError, match="mark"):
        heartbeat.read(tmp_path / "absent.heartbeat")
