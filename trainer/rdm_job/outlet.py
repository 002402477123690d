# SPDX-License-Identifier: GPL-3.0-or-later
"""Publishes a node's metrics as configured: in a file, over HTTP, or both."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

from rdm_core.atomic_file import write_atomically
from rdm_core.config.job import JobLoggingConfig
from rdm_job.exporter import Exporter

_TIMEOUT_S = 5.0


def file_of(directory: Path, node: str) -> Path:
    """Return the file of a node's metrics in a job's directory."""
    return directory / f"metrics.{node}.prom"


class Outlet:
    """Publishes metrics for Prometheus. An error does not end the job, and is reported once.

    Args:
        logging: The configuration.
        file: For node_exporter's textfile collector.
        address: This node's, where ``/metrics`` is served.
    """

    def __init__(self, logging: JobLoggingConfig, file: Path, address: str) -> None:
        self._file = file
        self._writes = logging.prometheus
        self._exporter: Exporter | None = None
        self._lock = threading.Lock()
        self._has_ended = self._has_complained = False
        if logging.metrics_port is None:
            return
        try:
            self._exporter = Exporter(address, logging.metrics_port)
        except OSError as error:
            print(
                f"/metrics is not served at {address}:{logging.metrics_port}: {error.strerror}.",
                file=sys.stderr,
            )

    @property
    def is_open(self) -> bool:
        """Whether the metrics are published at all."""
        return self._writes or self._exporter is not None

    def publish(self, text: str) -> None:
        """Replace the published text; after ``end`` the file stays as it is."""
        if self._exporter is not None:
            self._exporter.text = text
        with self._lock:
            if self._writes and not self._has_ended:
                self._write(text)

    def end(self, text: str = "") -> None:
        """Write a last text to the file, or remove it: old metrics would be read as current for ever."""
        self._has_ended = True
        # A writer may hang in the file system; then the file cannot be changed.
        if not self._lock.acquire(timeout=_TIMEOUT_S):
            return
        try:
            if not (self._writes and text and self._write(text, "The last metrics are removed.")):
                with contextlib.suppress(OSError):
                    self._file.unlink(missing_ok=True)
        finally:
            self._lock.release()

    def _write(self, text: str, then: str = "It is tried again each time.") -> bool:
        try:
            write_atomically(self._file, text)
        except OSError as error:
            if not self._has_complained:
                print(f"{self._file} cannot be written: {error.strerror}. {then}", file=sys.stderr)
            self._has_complained = True
            return False
        return True

    def close(self) -> None:
        """Stop serving."""
        if self._exporter is not None:
            self._exporter.close()
