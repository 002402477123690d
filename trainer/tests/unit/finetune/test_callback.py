# SPDX-License-Identifier: GPL-3.0-or-later
"""What a fine-tuning does at the end of a step."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from rdm_core import config as configuration
from rdm_core.config.finetune import FinetuneConfig

pytest.importorskip("transformers")

from transformers import TrainerControl, TrainerState

from rdm_trainer.finetune.callback import Reporter


@pytest.mark.parametrize(
    ("step", "received", "due", "ends", "evaluates"),
    [
        (9, None, True, False, True),
        (10, None, True, True, True),
        (10, None, False, True, False),
        (10, signal.SIGTERM, True, True, False),
        (20, None, False, True, True),
    ],
)
def test_only_an_end_by_signal_skips_the_evaluation(
    step: int, received: signal.Signals | None, due: bool, ends: bool, evaluates: bool, tmp_path: Path
) -> None:
    file = tmp_path / "tune.yaml"
    file.write_text("{model: {path: m}, data: {train: [a.jsonl]}, logging: {tensorboard: false}}")
    config = configuration.load_as(FinetuneConfig, file, ["checkpoint.exit_interval=10"])
    parts: dict[str, Any] = dict.fromkeys(
        ("checkpoints", "compute_time", "progress", "write", "answer"), mock.Mock()
    )
    collective = cast(Any, SimpleNamespace(rank=1, size=2))
    stop = cast(Any, SimpleNamespace(received=received))
    reporter = Reporter(config, tmp_path, collective=collective, stop=stop, **parts)
    arguments = cast(Any, SimpleNamespace(eval_strategy="steps"))
    control = TrainerControl(should_evaluate=due)
    with mock.patch.object(reporter, "_flags") as flags:
        flags.exchange.side_effect = lambda raised: raised
        reporter.on_step_end(arguments, TrainerState(global_step=step, max_steps=20), control)
    assert (control.should_training_stop, control.should_save) == (ends, ends)
    assert control.should_evaluate == evaluates
