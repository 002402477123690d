# SPDX-License-Identifier: GPL-3.0-or-later
"""Log lines: equal to a known run's to the character, and readable by a parser made from the description."""

from __future__ import annotations

import datetime
import math
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_log import lines, records
from rdm_log.errors import findings
from rdm_trainer import metrics, process
from rdm_trainer.metrics import Step

IMPORTED = time.monotonic()
# From a published run of Megatron-LM.
KNOWN = (
    " iteration       30/      50 | consumed samples:         1920 | elapsed time per iteration (ms): 1423.8"
    " | learning rate: 7.031E-07 | global batch size:    64 | lm loss: 1.017721E+01 | loss scale: 262144.0"
    " | grad norm: 16.666 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)


def known_step(**changes: object) -> Step:
    values: dict[str, object] = {
        "iteration": 30,
        "train_iterations": 50,
        "consumed_samples": 1920,
        "milliseconds": 1423.8,
        "learning_rate": 7.03125e-07,
        "global_batch_size": 64,
        "losses": {"lm loss": 10.17721},
        "loss_scale": 262144.0,
        "grad_norm": 16.666,
    }
    return Step(**{**values, **changes})  # type: ignore[arg-type]


def described(line: str) -> dict[str, str]:
    """Read a line by the published description alone: a blank, then fields ``key: value`` ended by `` |``."""
    assert line.startswith(" iteration ")
    assert line.endswith(" |")
    head, *fields = line[1:-2].split(" | ")
    match = re.fullmatch(r"iteration (.{8})/(.{8})", head)
    assert match
    values = {"iteration": match[1], "train_iterations": match[2]}
    for field in fields:
        key, value = field.split(": ", 1)
        assert key not in values
        values[key] = value
    return values


def test_a_known_line_to_the_character() -> None:
    assert metrics.training_line(known_step()) == KNOWN


def test_additions_stand_at_the_end() -> None:
    line = metrics.training_line(known_step(throughput={"samples per second": "44.951", "TFLOPs": "12.30"}))
    assert line == KNOWN + " samples per second: 44.951 | TFLOPs: 12.30 |"


def test_missing_loss_and_norm_have_no_field() -> None:
    line = metrics.training_line(known_step(losses={"lm loss": 0.0}, grad_norm=None))
    assert "lm loss" not in line
    assert "grad norm" not in line
    nan = metrics.training_line(known_step(losses={"lm loss": math.nan}, nan=3))
    assert "lm loss" not in nan
    assert nan.endswith("number of nan iterations:   3 |")


@given(
    st.integers(1, 10**8 - 1),
    st.floats(1e-9, 1e3),
    st.floats(1e-3, 1e3),
    st.one_of(st.none(), st.floats(0, 1e4)),
    st.integers(0, 999),
)
def test_line_is_read_by_a_parser_of_the_description(
    iteration: int, rate: float, loss: float, norm: float | None, skipped: int
) -> None:
    step = known_step(
        iteration=iteration,
        train_iterations=10**8 - 1,
        learning_rate=rate,
        losses={"lm loss": loss},
        grad_norm=norm,
        skipped=skipped,
    )
    found = described(metrics.training_line(step))
    assert int(found["iteration"]) == iteration
    assert len(found["consumed samples"]) == 12
    assert float(found["learning rate"]) == pytest.approx(rate, rel=1e-3)
    assert float(found["lm loss"]) == pytest.approx(loss, rel=1e-6)
    assert ("grad norm" in found) == (norm is not None)
    assert int(found["number of skipped iterations"]) == skipped
    (ours,) = lines.parse(metrics.training_line(step).encode())
    assert isinstance(ours, records.Step)
    assert ours.iteration == iteration
    assert ours.values["lm loss"] == float(found["lm loss"])


def test_milestones_and_memory_to_the_character() -> None:
    moment = datetime.datetime(2023, 6, 14, 16, 8, 12)
    line = metrics.datetime_line("before the start of training step", moment)
    assert line == "[before the start of training step] datetime: 2023-06-14 16:08:12 "
    sizes = {"allocated": 3182535680, "most": 4057251840, "reserved": 4215275520, "most_reserved": 4215275520}
    assert metrics.memory_line(24, 20, **sizes) == (
        "[Rank 24] (after 20 iterations) memory (MB) | allocated: 3035.1025390625"
        " | max allocated: 3869.296875 | reserved: 4020.0 | max reserved: 4020.0"
    )


def test_the_line_about_the_start() -> None:
    stages = {"imports": 3.14, "process groups": 0.5, "model": 2.0, "first step": 5.0}
    line = metrics.start_line(stages)
    assert line == "started in 10.6 s: imports 3.1, process groups 0.5, model 2.0, first step 5.0"
    assert lines.parse(line.encode()) == []
    assert findings([line]) == []


def test_stages_follow_on_each_other_from_when_the_process_began() -> None:
    start = process.Start()
    assert start.began < IMPORTED
    start.end("imports")
    before = time.monotonic()
    start.end("model")
    after = time.monotonic()
    assert list(start.stages) == ["imports", "model"]
    assert start.stages["imports"] >= start.stages["model"] >= 0
    # Sums of floats are off by less than a microsecond.
    assert before - 1e-6 <= start.began + sum(start.stages.values()) <= after + 1e-6


def test_validation_lines() -> None:
    rule, line, last = metrics.validation_lines("iteration 10", {"lm loss": 2.0})
    expected = "lm loss value: 2.000000E+00 | lm loss PPL: 7.389056E+00 | "
    assert line == f" validation loss at iteration 10 | {expected}"
    assert rule == last == "-" * (len(line) + 1)
    assert lines.parse(line.encode()) == [
        records.Evaluation("iteration 10", {"lm loss value": 2.0, "lm loss PPL": 7.389056})
    ]
    huge = metrics.validation_lines("the end of training for test data", {"lm loss": 1e6})[1]
    assert f"PPL: {math.exp(20):.6E}" in huge
