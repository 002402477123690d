# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how long a rank computes in a step, waiting excluded, so that a slow rank can be named.

Waiting is the time in collectives and messages. On a CPU it is their wall time. On a GPU, CUDA events
surround those on the computing stream, in one step between two log lines only; they are read where the log
waits for the device anyway. Communication that overlaps with computing on another stream is not waiting.
Collectives inside a compiled graph are not seen, so the ranks of a tensor-parallel group then look alike.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from rdm_core.heartbeat import HeartbeatWriter

_COLLECTIVES = (
    *("all_reduce", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"),
    *("broadcast", "reduce", "send", "recv", "barrier", "all_to_all", "all_to_all_single", "gather"),
    *("scatter", "monitored_barrier"),
)
_current: ComputeTime | None = None
_thread = threading.local()


@contextlib.contextmanager
def beside_steps() -> Iterator[None]:
    """Count no waiting of this thread in the block: steps go on meanwhile."""
    _thread.is_beside_steps = True
    try:
        yield
    finally:
        _thread.is_beside_steps = False


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Count the time of the block as waiting for other ranks."""
    if _current is None or torch.compiler.is_compiling():
        yield
        return
    with _current.waiting():
        yield


class ComputeTime:
    """The compute time of a rank's steps. Only the newest one of a process counts: it wraps collectives."""

    def __init__(self, heartbeat: HeartbeatWriter, device: torch.device) -> None:
        self.heartbeat = heartbeat
        self._on_gpu = device.type == "cuda"
        self._is_measured = False
        self._steps = 0
        self._compute_s = 0.0
        self._began = 0.0
        self._waited = 0.0
        self._ends: list[tuple[Any, Any]] = []
        self._waits: list[tuple[Any, Any]] = []
        self._loss_iteration = 0
        self._nan_at = torch.full((), -1, dtype=torch.int64, device=device)
        self._retries = 0
        global _current
        _current = self
        for name in _COLLECTIVES:
            collective = getattr(dist, name)
            if not hasattr(collective, "counts_waiting"):
                setattr(dist, name, _counting(collective))
        # Asynchronous collectives are waited for here, also by torch itself.
        if not hasattr(dist.Work.wait, "counts_waiting"):
            setattr(dist.Work, "wait", _counting(dist.Work.wait))  # noqa: B010  # to mypy it is a method

    def close(self) -> None:
        """Stop counting."""
        global _current
        if _current is self:
            _current = None

    def begin(self, iteration: int, *, measured: bool) -> None:
        """Begin a step.

        Args:
            iteration: Its number.
            measured: Whether to measure it. On a GPU, only a measured step costs anything.
        """
        self.heartbeat.step(iteration)
        self._loss_iteration = iteration
        self._is_measured = measured or not self._on_gpu
        if self._on_gpu and self._is_measured:
            self._ends.append((_event(), None))
        self._began, self._waited = time.perf_counter(), self.heartbeat.waited

    def end(self) -> None:
        """End a step, without waiting for the device."""
        if self._on_gpu and self._is_measured:
            self._ends[-1] = (self._ends[-1][0], _event())
        elif not self._on_gpu:
            self._steps += 1
            self._compute_s += time.perf_counter() - self._began - (self.heartbeat.waited - self._waited)
        self._is_measured = False

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Count the time of the block as waiting, once if a collective waits for its own work."""
        is_counted = self._on_gpu and self._is_measured and not self.heartbeat.is_waiting
        if is_counted and torch.cuda.current_stream() == torch.cuda.default_stream():
            return self._between_events()
        return self.heartbeat.waiting()

    def note_loss(self, loss: torch.Tensor) -> None:
        """Keep the first step in which a loss of this rank was not finite, without waiting for the device."""
        is_first = ~torch.isfinite(loss.detach()).all() & (self._nan_at < 0)
        # `where` would copy a number to the device, and wait for everything queued there.
        self._nan_at = self._nan_at.masked_fill(is_first, self._loss_iteration)

    def write_if_due(self, group: str) -> None:
        """Write the rank's record if one is due. The caller must have waited for the device.

        Args:
            group: A name that all ranks with the same work share.
        """
        if not self.heartbeat.is_due:
            return
        waited: dict[str, float] = {}
        if self._on_gpu:
            for begin, end in self._ends:
                self._compute_s += begin.elapsed_time(end) / 1000.0
            seconds = sum(begin.elapsed_time(end) for begin, end in self._waits) / 1000.0
            self._compute_s -= seconds
            self._steps += len(self._ends)
            # The host's waiting means nothing here: the host runs ahead of the device.
            waited = {"waited_s": seconds / max(1, self._steps)}
            self._ends, self._waits = [], []
        nan_at = int(self._nan_at)
        self.heartbeat.write(
            group=group,
            steps=self._steps,
            compute_s=self._compute_s / self._steps if self._steps else None,
            nan_at=nan_at if nan_at >= 0 else None,
            retries=self._more_retries(),
            **waited,
        )
        self._steps, self._compute_s = 0, 0.0

    def _more_retries(self) -> int:
        if not self._on_gpu:
            return 0
        before, self._retries = self._retries, int(torch.cuda.memory_stats().get("num_alloc_retries", 0))
        return self._retries - before

    @contextlib.contextmanager
    def _between_events(self) -> Iterator[None]:
        begin = _event()
        with self.heartbeat.waiting():
            yield
        self._waits.append((begin, _event()))


def _counting(collective: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(collective)
    def called(*args: Any, **kwargs: Any) -> Any:
        if _current is None or torch.compiler.is_compiling() or getattr(_thread, "is_beside_steps", False):
            return collective(*args, **kwargs)
        with _current.waiting():
            return collective(*args, **kwargs)

    called.counts_waiting = True  # type: ignore[attr-defined]
    return called


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
