# SPDX-License-Identifier: GPL-3.0-or-later
"""``progress.json`` in the job's directory: the progress of a training, for programs that show it.

It is replaced by rename at each log interval, so a reader never sees a part of it. Its loss curve is thinned
to a few hundred points, so the file stays small however long the training.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from pathlib import Path
from typing import Any

from rdm_core.atomic_file import write_atomically

POINTS = 300

_LASTING = ("iteration", "loss", "lr", "consumed_samples", "losses", "checkpoint", "validation")


def thin(curve: list[list[float]], most: int = POINTS) -> list[list[float]]:
    """Return evenly spaced points of a curve, including the first and the last."""
    if len(curve) <= most:
        return curve
    last = len(curve) - 1
    return [curve[round(point * last / (most - 1))] for point in range(most)]


class Progress:
    """The file, whose directory is created, and its contents. One rank writes it."""

    def __init__(self, path: Path, train_iterations: int) -> None:
        self._path = path
        state: dict[str, Any] = {
            "iteration": 0,
            "train_iterations": train_iterations,
            "loss": None,
            "lr": None,
            "step_seconds": None,
            "tokens_per_second": None,
            "tflops": None,
            "consumed_samples": 0,
            "losses": [],
            "checkpoint": None,
            "validation": None,
            "phase": "starting",
            "time": time.time(),
        }
        with contextlib.suppress(OSError, ValueError, TypeError):
            # If this run fails at its start, the file must still show the progress of the run before.
            before = json.loads(path.read_text())
            state.update({key: before[key] for key in _LASTING if key in before})
        self._state = state

    def begin(self, iteration: int, curve: list[list[float]]) -> None:
        """Begin after an iteration, with the loss curve up to it."""
        self._state.update(
            iteration=iteration,
            losses=[point for point in curve if point[0] <= iteration],
            checkpoint=iteration or None,
        )

    @property
    def state(self) -> dict[str, Any]:
        """A copy of the current contents, also for other threads."""
        return self._state.copy()

    @property
    def curve(self) -> list[list[float]]:
        """Points ``[iteration, loss]``, at most twice ``POINTS``."""
        curve: list[list[float]] = self._state["losses"]
        return curve

    def add_loss(self, iteration: int, loss: float) -> None:
        """Add a point to the curve, unless the loss is not finite: JSON has no NaN."""
        if not math.isfinite(loss):
            return
        self.curve.append([iteration, loss])
        if len(self.curve) > 2 * POINTS:
            self._state["losses"] = thin(self.curve)

    def write(self, **changes: Any) -> None:
        """Change some keys and write the file.

        If the directory cannot be written, the training goes on, and the next write tries again.
        """
        self._state.update(changes, time=time.time())
        text = json.dumps({**finite(self._state), "losses": thin(self.curve)}, allow_nan=False)
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, text + "\n")


def finite(value: Any) -> Any:
    """Return plain data with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
