# SPDX-License-Identifier: GPL-3.0-or-later
"""Throughput fields, and event files on a disk that is full."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from rdm_trainer import config as configuration
from rdm_trainer import metrics
from rdm_trainer.tracker import Tracker


def job(**logging: Any) -> configuration.Config:
    return configuration.from_dict(
        {
            "model": {
                "layers": 2,
                "hidden_size": 64,
                "attention_heads": 4,
                "seq_length": 32,
                "vocab_size": 100,
            },
            "optimisation": {"global_batch_size": 8, "train_iterations": 10},
            "logging": {"tensorboard": True, **logging},
        }
    )


def test_throughput_by_hand() -> None:
    fields = Tracker(job(), None, world_size=4).throughput(0.5)
    assert fields["samples per second"] == "16.000"
    assert fields["tokens per gpu per second (tgs)"] == "128.000"
    assert list(fields) == ["samples per second", "tokens per gpu per second (tgs)", "TFLOPs"]


def test_the_utilisation_is_of_the_given_peak() -> None:
    one = Tracker(job(peak_tflops=1e-3), None, world_size=4).throughput(0.5)
    half = Tracker(job(peak_tflops=2e-3), None, world_size=4).throughput(0.5)
    assert float(one["MFU (%)"]) == pytest.approx(2 * float(half["MFU (%)"]), rel=0.01)


def test_event_files_that_cannot_be_written_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker(job(), tmp_path, world_size=1)
    written: list[str] = []

    def full(tag: str, *_: object) -> None:
        written.append(tag)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tracker._events, "add_scalar", full)
    tracker.step(metrics.Step(1, 10, 8, 100.0, 1e-3, 8, {"lm loss": 5.0}))
    tracker.evaluation(1, "valid", {"lm loss": 5.0})
    tracker.close()
    assert len(written) == 1
