# SPDX-License-Identifier: GPL-3.0-or-later
"""Prometheus metrics of a training that was started by hand: those of agents, from the same code.

One rank of each node measures during the steps; the first rank also exports the job's metrics. Nothing
evaluates such a training while it runs, so there is no verdict before it has ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from rdm_core.config import Config
from rdm_core.heartbeat import NODE_VARIABLE
from rdm_core.progress import Progress
from rdm_job import health, metrics
from rdm_job.devices import Sampler
from rdm_job.measure import measure
from rdm_job.outlet import Outlet, file_of
from rdm_job.processes import JOB_VARIABLE
from rdm_job.protocol import State
from rdm_trainer import process
from rdm_trainer.distributed.collective import Collective

_EACH_S = 5.0
"""Seconds between exports; the same as agents'."""
_THIS_MACHINE = "127.0.0.1"


@contextlib.contextmanager
def exporting(config: Config, job_dir: Path, collective: Collective, progress: Progress) -> Iterator[None]:
    """Export metrics during the block, if the job wants them and no agent exports them.

    Args:
        config: The job.
        job_dir: Where the files go.
        collective: All ranks; each of them must call this.
        progress: How far the training is.
    """
    wanted = config.logging.prometheus or config.logging.metrics_port is not None
    if not wanted or JOB_VARIABLE in os.environ:
        yield
        return
    node = os.environ.get(NODE_VARIABLE) or socket.gethostname()
    processes = collective.gather((node, os.getpid()))
    ranks = {rank: process for rank, (host, process) in enumerate(processes) if host == node}
    if dist.get_rank() != min(ranks):
        yield
        return
    exporter = _Exporter(config, job_dir, progress, node, ranks, [host for host, _ in processes])
    has_failed = True
    try:
        yield
        has_failed = False
    finally:
        exporter.end(has_failed=has_failed)


class _Exporter:
    """Exports one node's metrics, in a thread. An error does not end the training; the first is printed."""

    def __init__(
        self,
        config: Config,
        job_dir: Path,
        progress: Progress,
        node: str,
        ranks: dict[int, int],
        nodes: list[str],
    ) -> None:
        self._job_dir, self._progress = job_dir, progress
        self._node, self._ranks, self._nodes = node, ranks, nodes
        self._job, self._started = job_dir.resolve().name, time.time()
        self._sampler: Sampler | None = None
        # On a cluster's nodes MY_IP is the address on the fabric.
        address = os.environ.get("MY_IP", _THIS_MACHINE)
        self._outlet = Outlet(config.logging, file_of(job_dir, node), address)
        self._has_printed_error = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while True:
            with self._printing_errors():
                self._outlet.publish(self._text())
            if self._is_over.wait(_EACH_S):
                return

    @contextlib.contextmanager
    def _printing_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # drivers and file systems have errors of their own
            if not self._has_printed_error:
                print(f"Prometheus gets no metrics now: {type(error).__name__}: {error}.", file=sys.stderr)
            self._has_printed_error = True

    def _text(self) -> str:
        if self._sampler is None:
            accelerator = process.device().type
            self._sampler = Sampler("rocm" if accelerator == "cuda" and torch.version.hip else accelerator)
        devices = self._sampler.devices()[: len(self._ranks)]
        sample = measure(time.time(), self._job_dir, self._ranks, devices)
        text = metrics.of_node(self._job, self._node, sample)
        return metrics.of_job(self._state("running", "running")) + text if 0 in self._ranks else text

    def _state(self, word: str, of_nodes: str) -> State:
        return State(
            job=self._job,
            state=word,
            nodes=dict.fromkeys(self._nodes, of_nodes),
            started=self._started,
            progress=self._progress.state,
        )

    def end(self, *, has_failed: bool) -> None:
        """Leave a file that says how the job has ended; other nodes' files are removed."""
        self._is_over.set()
        # A driver that hangs must not keep the training from ending.
        self._thread.join(_EACH_S)
        text = ""
        with self._printing_errors():
            text = self._last_text(has_failed=has_failed)
        with self._printing_errors():
            self._outlet.end(text)
            self._outlet.close()

    def _last_text(self, *, has_failed: bool) -> str:
        if 0 not in self._ranks:
            return ""
        progress = self._progress.state
        is_done = progress["iteration"] >= progress["train_iterations"]
        word = "failed" if has_failed else "finished" if is_done else "stopped"
        ended = replace(self._state(word, "failed" if has_failed else "done"), ended=time.time())
        ended.verdict.update(health.of_state(ended))
        return metrics.of_job(ended)
