# SPDX-License-Identifier: GPL-3.0-or-later
"""A slow kernel counts as its own rank's compute time alone, though the host never waits for it."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from rdm_core import config as configuration
from rdm_core import heartbeat
from rdm_log.peers import RankHeartbeat, slow, usual
from tests.gpu import processes

SLEEP_S = 0.2
STEPS = 16
TINY: dict[str, Any] = {
    "name": "tiny",
    "model": {"layers": 2, "hidden_size": 64, "attention_heads": 2, "seq_length": 32, "vocab_size": 64},
    "parallel": {"zero_stage": 0},
    "optimisation": {
        "micro_batch_size": 1,
        "global_batch_size": 4,
        "train_iterations": STEPS,
        "precision": "fp32",
        "lr": 1e-3,
    },
    "data": {"mock": True, "workers": 0},
    "logging": {"interval": 1, "eval_interval": 0, "tensorboard": False},
    "checkpoint": {"interval": 0},
}


def _train(folder: str) -> list[dict[str, Any]]:
    """Train with a rank 1 whose steps have a slow kernel; return this rank's records."""
    import torch.distributed as dist

    from rdm_trainer.train import Training

    rank = dist.get_rank()
    file = Path(folder) / f"{rank}.heartbeat"
    given = Path(folder) / f"{rank}.json"
    given.write_text(json.dumps(TINY))
    os.environ[heartbeat.HEARTBEAT_VARIABLE] = str(file)
    os.environ[heartbeat.NODE_VARIABLE] = f"n{rank}"
    heartbeat._EACH_S = 0.0
    training = Training(configuration.load(given), Path(folder) / "job", write=lambda line: None)
    sleep = processes.sleeper(SLEEP_S)
    step = training.engine.train_step
    records: list[dict[str, Any]] = []

    def slow_step(batches: Any) -> Any:
        with contextlib.suppress(OSError):
            records.append(heartbeat.read(file)[0])
        if rank == 1:
            sleep()
        return step(batches)

    training.engine.train_step = slow_step  # type: ignore[method-assign]
    training.run()
    training.close()
    return [*records, heartbeat.read(file)[0]]


def test_slow_kernel_counts_as_its_ranks_compute_time_while_its_peer_waits(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    reported = processes.run(2, _train, str(tmp_path))
    # They wrote one in each step, and the rules ask for some over twenty seconds.
    times = [
        usual([{**one, "time": 4.0 * number} for number, one in enumerate(records)]) for records in reported
    ]
    victim, culprit = times
    assert culprit["least_s"] >= SLEEP_S
    assert victim["compute_s"] < culprit["compute_s"] - SLEEP_S / 2
    assert victim["waited_s"] >= SLEEP_S / 2
    assert culprit["waited_s"] < victim["waited_s"] - SLEEP_S / 2
    ranks = [
        RankHeartbeat.of(f"n{rank}", {"rank": rank, "group": reported[rank][-1]["group"], **one})
        for rank, one in enumerate(times)
    ]
    (sign,) = slow(ranks)
    assert (sign.kind, sign.node, sign.rank) == ("slow", "n1", 1), sign.text
