# SPDX-License-Identifier: GPL-3.0-or-later
"""A member's command: starts it, ends it with all its processes, and keeps the last lines of its errors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, TextIO

from rdm_job.processes import JOB_VARIABLE, end, of_job
from rdm_log.printable import printable

_LINES = 20
_LINE = 500
_BLOCK = 65536
_KEPT = 16384
TERM_S = 45.0
"""How long a command may take to end by itself, in seconds: torchrun gives its processes 30."""
# The exit codes that shells use.
_CANNOT_RUN, _NOT_FOUND = 126, 127
_PR_SET_PDEATHSIG = 1


class Command:
    """A command and all processes that it starts, found in any session by a mark in their environment.

    The exit code of a command that cannot be started is 126 or 127.

    Args:
        arguments: The program and its arguments.
        environment: Its environment.
        mark: The mark of its processes; a random one by default.
        logs: The files for its output and its errors.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        mark: str = "",
        logs: tuple[Path, Path] | None = None,
    ) -> None:
        self._mark = mark or f"rendezvous-{secrets.token_hex(8)}"
        self._tail = b""
        self._stopped: float | None = None
        self._code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._readers: list[threading.Thread] = []
        libc = ctypes.CDLL(None)
        try:
            self._process = subprocess.Popen(
                arguments,
                env={**environment, JOB_VARIABLE: self._mark},
                stdout=None if logs is None else subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                # It must not outlive this process, however that ends.
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._tail = f"{arguments[0]} cannot be started: {reason}.".encode()
            return
        self._read(self._process.stderr, sys.stderr, logs and logs[1], keeps_end=True)
        if logs is not None:
            self._read(self._process.stdout, sys.stdout, logs[0], keeps_end=False)

    def poll(self) -> int | None:
        """Return its exit code, as in a shell; None while it runs."""
        if self._code is None and self._process is not None:
            code = self._process.poll()
            if code is not None:
                # Its child processes end with it.
                end(of_job(self._mark), signal.SIGKILL)
                self._code = code if code >= 0 else 128 - code
            elif self._stopped is not None and time.monotonic() - self._stopped > TERM_S:
                end(of_job(self._mark), signal.SIGKILL)
        return self._code

    def stop(self) -> None:
        """Send SIGTERM; :meth:`poll` kills the command if it takes too long to end."""
        if self._stopped is None and self.poll() is None and self._process is not None:
            self._stopped = time.monotonic()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the command and all its processes at once."""
        if self._code is None and self._process is not None:
            end(of_job(self._mark), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            # Again, for a process that it was just starting.
            end(of_job(self._mark), signal.SIGKILL)

    def errors(self) -> list[str]:
        """Return the last lines that it wrote to its standard error."""
        if self._readers:
            # A remaining process may hold the stream open.
            self._readers[0].join(timeout=5)
        lines = (printable(line.strip())[:_LINE] for line in self._tail.decode(errors="replace").splitlines())
        return [line for line in lines if line][-_LINES:]

    def close(self) -> None:
        """Wait until all of its output has been passed on, or a few seconds."""
        for reader in self._readers:
            reader.join(timeout=5)

    def _read(
        self, stream: IO[bytes] | None, shown: TextIO | None, log: Path | None, *, keeps_end: bool
    ) -> None:
        """Pass on a stream's data in a thread of its own."""
        assert stream is not None
        sinks: list[IO[bytes]] = [] if shown is None else [shown.buffer]
        if log is not None:
            with contextlib.suppress(OSError):
                sinks.append(log.open("ab", buffering=0))
        self._readers.append(
            threading.Thread(target=self._copy, args=(stream, sinks, keeps_end), daemon=True)
        )
        self._readers[-1].start()

    def _copy(self, stream: IO[bytes], sinks: list[IO[bytes]], keeps_end: bool) -> None:
        while block := os.read(stream.fileno(), _BLOCK):
            if keeps_end:
                self._tail = (self._tail + block)[-_KEPT:]
            for sink in sinks:
                # The reader may be gone, or the disk full.
                with contextlib.suppress(OSError, ValueError):
                    sink.write(block)
                    sink.flush()
