# SPDX-License-Identifier: GPL-3.0-or-later
"""Throughput fields, and trackers: libraries that fail or are missing do not end a training.

Weights & Biases and MLflow are stand-ins, since they need a server.
"""

from __future__ import annotations

import errno
import importlib.machinery
import io
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from rdm_core import config as configuration
from rdm_core.errors import TrainerError
from rdm_trainer import metrics
from rdm_trainer.tracker import Tracker
from rdm_trainer.writers import missing

STEP = metrics.Step(
    1, 10, 8, 100.0, 1e-3, 8, {"lm loss": 5.0}, throughput={"MFU (%)": "41.2", "TFLOPs": "120.5"}
)


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
    fields = Tracker(job(), None, world_size=4).throughput(0.5, 8)
    assert fields["samples per second"] == "16.000"
    assert fields["tokens per gpu per second (tgs)"] == "128.000"
    assert list(fields) == ["samples per second", "tokens per gpu per second (tgs)", "TFLOPs"]


def test_the_utilisation_is_of_the_given_peak() -> None:
    one = Tracker(job(peak_tflops=1e-3), None, world_size=4).throughput(0.5, 8)
    half = Tracker(job(peak_tflops=2e-3), None, world_size=4).throughput(0.5, 8)
    assert float(one["MFU (%)"]) == pytest.approx(2 * float(half["MFU (%)"]), rel=0.01)


def test_event_files_that_cannot_be_written_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = Tracker(job(), tmp_path, world_size=1)
    written: list[str] = []

    def full(tag: str, *_: object) -> None:
        written.append(tag)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", lambda _, *given: full(*given))
    tracker.step(STEP)
    tracker.evaluation(1, "valid", {"lm loss": 5.0})
    tracker.close()
    assert len(written) == 1
    assert "Nothing more is written to tensorboard: [Errno 28]" in capsys.readouterr().err
    # The log's disk is full, too.
    with io.TextIOWrapper(Path("/dev/full").open("wb", buffering=0), write_through=True) as log:
        monkeypatch.setattr("sys.stderr", log)
        Tracker(job(), tmp_path, world_size=1).step(STEP)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The calls to the stand-ins of both libraries, in an environment of their own."""
    monkeypatch.setattr("os.environ", {**os.environ, "MLFLOW_HTTP_REQUEST_TIMEOUT": "3"})
    found: list[tuple[Any, ...]] = []

    def standin(name: str, **functions: Any) -> None:
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, name, module)

    def start_run(*, run_id: str | None, run_name: str | None) -> types.SimpleNamespace:
        found.append(("mlflow", run_id, run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="4f2a"))

    def log_metrics(values: dict[str, float], *, step: int, synchronous: bool) -> None:
        assert not synchronous
        assert not [name for name in values if set(name) & set("()%")]
        found.append(("mlflow", step, values))

    run = types.SimpleNamespace(
        id="9b1c",
        log=lambda values, step: found.append(("wandb", step, values)),
        finish=lambda: found.append(("wandb", "end")),
    )

    def init(**given: Any) -> types.SimpleNamespace:
        # The real one would use it as its own directory (wandb_dir in its settings).
        assert not Path(given["dir"], ".wandb").exists()
        found.append(("wandb", given))
        return run

    standin("wandb", init=init)
    standin(
        "mlflow",
        start_run=start_run,
        log_metrics=log_metrics,
        log_dict=lambda config, name: found.append(("mlflow", name, config)),
        end_run=lambda: found.append(("mlflow", "end")),
    )
    return found


def test_weights_and_biases_and_mlflow_get_the_same_numbers(
    tmp_path: Path, calls: list[tuple[Any, ...]]
) -> None:
    config = job(tensorboard=False, trackers=["wandb", "mlflow"])
    tracker = Tracker(config, tmp_path, world_size=1)
    (_, given), (_, before, name), (_, _, shown) = calls
    assert (given["name"], given["id"], before, name) == (tmp_path.name, None, None, tmp_path.name)
    # Ranks wait for both servers, but not forever; the user's own limits win.
    bounds = ("WANDB_INIT_TIMEOUT", "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT")
    assert [os.environ[variable] for variable in bounds] == ["30", "2", "3"]
    # The environment that a user gives to the processes may be secret.
    assert not {"env"} & {*shown["launcher"], *given["config"]["launcher"]}
    del calls[:]
    tracker.step(STEP)
    tracker.close()
    (_, step, first), (_, other, second), *ends = calls
    assert (step, other, ends) == (1, 1, [("wandb", "end"), ("mlflow", "end")])
    assert first["lm-loss-training/lm loss"] == second["lm-loss-training/lm loss"] == 5.0
    assert first["samples"] == second["samples"] == 8
    # A resumed job continues the same run.
    del calls[:]
    Tracker(config, tmp_path, world_size=1)
    (_, given), again = calls
    assert (given["id"], given["resume"], again) == ("9b1c", "allow", ("mlflow", "4f2a", None))


def test_a_library_that_is_missing_is_one_sentence() -> None:
    (sentence,) = missing(job(trackers=["wandb"]))
    assert sentence == "logging.trackers has wandb, which is not installed: install it, or leave it out."
    with pytest.raises(TrainerError, match="wandb, which is not installed"):
        Tracker(job(trackers=["wandb"]), Path("nowhere"), world_size=1)
