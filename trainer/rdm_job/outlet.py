# SPDX-License-Identifier: GPL-3.0-or-later
"""Where a node's metrics go, as the configuration wants: into a file, to an address, or both."""

from __future__ import annotations

import contextlib
import sys
import threading
from pathlib import Path

from rdm_core.atomic_file import write_atomically
from rdm_core.config.job import JobLoggingConfig
from rdm_job.exporter import Exporter

__all__ = ["Outlet", "file_of"]

_TIMEOUT_S = 5.0


def file_of(directory: Path, node: str) -> Path:
    """Return the file of a node's metrics in a job's directory."""
    return directory / f"metrics.{node}.prom"


class Outlet:
    """Hands Prometheus' text on. What is in the way of that ends no job, and is said once.

    Args:
        logging: What is wanted.
        file: For node_exporter's textfile collector.
        address: Of this node, where ``/metrics`` is served.
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
        """Whether anybody may read what is told."""
        return self._writes or self._exporter is not None

    def tell(self, text: str) -> None:
        """Replace what was told before, until it has ended."""
        if self._exporter is not None:
            self._exporter.text = text
        with self._lock:
            if self._writes and not self._has_ended:
                self._write(text)

    def end(self, text: str = "") -> None:
        """Leave the file with this text, or else none: it would be read as how the node is, for ever."""
        self._has_ended = True
        # Whoever writes may hang with the file system, and then nothing can be done to the file.
        if not self._lock.acquire(timeout=_TIMEOUT_S):
            return
        try:
            if not (self._writes and text and self._write(text, "What was told before is taken away.")):
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
        """Serve no longer."""
        if self._exporter is not None:
            self._exporter.close()
