# SPDX-License-Identifier: GPL-3.0-or-later
"""What a profile measures of a step."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rdm_trainer import profile_model


class _Engine:
    """Takes steps of four micro-batches, whose first and last ones take longer, in a time of its own.

    Args:
        each: The spans of a micro-batch, with their seconds.
        after: Those after the last micro-batch.
    """

    device = torch.device("cpu")

    def __init__(self, each: list[tuple[str, float]], after: list[tuple[str, float]]) -> None:
        self.now, self._each, self._after = 0.0, each, after

    @contextlib.contextmanager
    def observed(self, observer: Any) -> Iterator[None]:
        self._observer = observer
        yield

    def train_step(self, _batches: Any) -> None:
        for micro_batch in range(4):
            for kind, seconds in self._each:
                self._run(kind, seconds * (1.0 if micro_batch in (1, 2) else 1.5))
        for kind, seconds in self._after:
            self._run(kind, seconds)

    def _run(self, kind: str, seconds: float) -> None:
        with self._observer(kind, kind):
            self.now += seconds


PASSES = [("load", 0.0), ("forward", 1.0), ("backward", 2.0)]


@pytest.mark.parametrize(
    ("each", "after"),
    [
        (PASSES, [("reduce", 0.01), ("optimiser", 0.02)]),
        # DeepSpeed steps after each micro-batch, and does nothing unless it is the last one.
        ([*PASSES, ("optimiser", 0.0)], [("optimiser", 0.03)]),
    ],
    ids=["native", "deepspeed"],
)
def test_the_optimisers_time_is_that_after_the_last_backward_pass(
    each: list[tuple[str, float]], after: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = _Engine(each, after)
    monkeypatch.setattr("time.perf_counter", lambda: engine.now)
    found = profile_model._timed_steps(engine, itertools.repeat(None))
    assert (found.forward, found.backward) == pytest.approx((1.0, 2.0))
    assert found.optimiser == pytest.approx(0.03)
