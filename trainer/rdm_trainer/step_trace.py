# SPDX-License-Identifier: GPL-3.0-or-later
"""Trace a few steps of this rank, into the files that ``rdm_log.timeline`` reads.

Each pipeline instruction, collective and optimiser step leaves two marks: on a CPU the time, on a GPU events
of its stream. Nothing waits for these events before the last of the steps is over.
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from rdm_core.atomic_file import write_atomically
from rdm_log.timeline import TRACES, VERSION
from rdm_trainer.distributed import clocks
from rdm_trainer.distributed.collective import Collective
from rdm_trainer.distributed.collective_watch import CollectiveWatch
from rdm_trainer.distributed.topology import Topology
from rdm_trainer.engines.engine import Engine


class StepTrace:
    """Records some steps of this rank and writes them when the last one is over.

    Args:
        steps: Which ones.
        engine: The engine that takes the steps.
        topology: This rank's position.
        collective: All ranks.
        job_dir: The file goes into its ``trace/``.
        sees_collectives: Record each collective, too. Compiled code would be compiled again for that.
    """

    def __init__(
        self,
        steps: range,
        engine: Engine,
        topology: Topology,
        collective: Collective,
        job_dir: Path,
        *,
        sees_collectives: bool = True,
    ) -> None:
        self._steps, self._engine, self._topology = steps, engine, topology
        self._collective, self._job_dir = collective, job_dir
        self._watch = CollectiveWatch(self._begun, collective.group) if sees_collectives else None
        self._on_gpu = engine.device.type == "cuda"
        self._marks: list[list[Any]] = []
        self._counts: dict[str, int] = {}
        self._step = 0

    @contextlib.contextmanager
    def step(self, iteration: int) -> Iterator[None]:
        """Take a step, and record it if it was chosen. Other steps cost one comparison."""
        if iteration not in self._steps:
            yield
            return
        if iteration == self._steps[0] or not self._step:
            self._begin()
        self._step = iteration
        self._counts.clear()
        watching = self._watch.watching() if self._watch else contextlib.nullcontext()
        with self._engine.observed(self._span), watching:
            yield
        if iteration == self._steps[-1]:
            self.close()

    def close(self) -> None:
        """Write what was recorded, after the last step or when the training ends before it."""
        if self._marks:
            self._write()

    def _begin(self) -> None:
        """Compare the hosts' clocks, and find the origin of the device's time on this host's clock."""
        self._ahead, self._uncertainty = clocks.compare(self._collective)
        if self._on_gpu:
            torch.cuda.synchronize()
        self._origin = self._mark()
        if self._on_gpu:
            torch.cuda.synchronize()
        self._began = time.perf_counter_ns()

    def _mark(self) -> Any:
        """Mark this moment, without waiting for the device."""
        if not self._on_gpu:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextlib.contextmanager
    def _span(self, kind: str, name: str) -> Iterator[None]:
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        begin = self._mark()
        try:
            yield
        finally:
            self._marks.append([kind, name, self._step, number, begin, self._mark()])

    def _begun(self, name: str) -> Callable[[], None]:
        """Mark the start of a collective, and return a function that marks its end; the last call counts."""
        if self._on_gpu and torch.cuda.is_current_stream_capturing():
            # An event in a graph has no time.
            return lambda: None
        begin = self._mark()
        mark = ["collective", name, self._step, -1, begin, begin]
        self._marks.append(mark)

        def end() -> None:
            mark[-1] = self._mark()

        return end

    def _time_us(self, mark: Any) -> float:
        """Return when a mark was made, in microseconds of the first node's clock."""
        nanoseconds = mark
        if self._on_gpu:
            nanoseconds = self._began + self._origin.elapsed_time(mark) * 1e6
        return (float(nanoseconds) + self._ahead) / 1e3

    def _write(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize()
        topology = self._topology
        spans = []
        for kind, name, step, number, begin, end in self._marks:
            first = self._time_us(begin)
            batch = number if kind in ("forward", "backward", "send", "receive", "load") else -1
            spans.append([kind, name, step, batch, round(first, 1), round(self._time_us(end) - first, 1)])
        record = {
            "version": VERSION,
            "rank": topology.rank,
            "node": os.environ.get("RDM_NODE") or socket.gethostname(),
            "pipeline": topology.pipeline,
            "pipeline_rank": topology.pipeline_rank,
            "data_rank": topology.data_rank,
            "tensor_rank": topology.tensor_rank,
            "clock_uncertainty_us": round(self._uncertainty / 1e3, 1),
            "spans": sorted(spans, key=operator.itemgetter(4)),
        }
        self._marks.clear()
        path = self._job_dir / TRACES / f"rank-{topology.rank:05d}.json"
        # A full disk must not end a training.
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(record))
