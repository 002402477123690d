# SPDX-License-Identifier: GPL-3.0-or-later
"""Profilers, and the steps that they record.

``nsys`` and ``rocprofv3`` start the rank's process; the training signals when the steps begin and names what
they record with NVTX ranges, which torch passes to roctx on ROCm. torch's profiler runs in the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from rdm_core.config import Config
from rdm_job.profilers import PROFILES
from rdm_trainer.engines.engine import Engine


class Profiler:
    """Records some steps of this rank with a profiler.

    Args:
        config: The job.
        engine: The engine that takes the steps.
        rank: This rank.
        job_dir: torch's profiler writes ``profile/rank-NNNNN.json`` in it, in Chrome's trace format.
    """

    def __init__(self, config: Config, engine: Engine, rank: int, job_dir: Path) -> None:
        is_chosen = rank in config.launcher.profiler_ranks
        self._steps = config.profiled_steps if is_chosen else range(0)
        self._kind = config.launcher.profiler
        self._engine = engine
        self._file = job_dir / PROFILES / f"rank-{rank:05d}.json"
        self._on_gpu = engine.device.type == "cuda"
        self._torch: Any = None

    @contextlib.contextmanager
    def step(self, iteration: int) -> Iterator[None]:
        """Take a step; the profiler records it if it was chosen."""
        if iteration not in self._steps:
            yield
            return
        if self._torch is None:
            self._start()
        with self._engine.observed(self._range), self._range("step", f"step {iteration}"):
            yield
        if iteration == self._steps[-1]:
            self._stop()

    def _range(self, _kind: str, name: str) -> contextlib.AbstractContextManager[Any]:
        if self._kind == "torch":
            return torch.profiler.record_function(name)
        return torch.cuda.nvtx.range(name) if self._on_gpu else contextlib.nullcontext()

    def _start(self) -> None:
        if self._kind == "torch":
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if self._on_gpu:
                kinds.append(torch.profiler.ProfilerActivity.CUDA)
            self._torch = torch.profiler.profile(activities=kinds)
            self._torch.start()
        else:
            self._torch = ()
            if self._on_gpu:
                # For `nsys profile --capture-range=cudaProfilerApi`; rocprofv3 records from the start.
                torch.cuda.profiler.start()

    def _stop(self) -> None:
        if self._kind == "torch":
            self._torch.stop()
            with contextlib.suppress(OSError, RuntimeError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._torch.export_chrome_trace(str(self._file))
        elif self._on_gpu:
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
