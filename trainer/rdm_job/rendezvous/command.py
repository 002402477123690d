# SPDX-License-Identifier: GPL-3.0-or-later
"""A member's command: started once the job starts, ended as a whole, with its last lines of errors."""

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

from rdm_job.processes import JOB_VARIABLE, end, of_job
from rdm_log.printable import printable

__all__ = ["Command"]

_LINES = 20
_LINE = 500
_BLOCK = 65536
_KEPT = 16384
TERM_S = 45.0
"""What a command gets to end by itself, in seconds: torchrun gives its processes 30."""
# As shells have it.
_CANNOT_RUN, _NOT_FOUND = 126, 127
_PR_SET_PDEATHSIG = 1


class Command:
    """A command, and all that it starts: they carry a mark in their environment, in whatever session.

    One that cannot be started has ended with 126 or 127.

    Args:
        arguments: The program and its arguments.
        environment: Its environment.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._mark = f"rendezvous-{secrets.token_hex(8)}"
        self._tail = b""
        self._stopped: float | None = None
        self._code: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        libc = ctypes.CDLL(None)
        try:
            self._process = subprocess.Popen(
                arguments,
                env={**environment, JOB_VARIABLE: self._mark},
                stderr=subprocess.PIPE,
                start_new_session=True,
                # It does not outlive this process, however that ends.
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self._code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN
            reason = error.strerror if isinstance(error, OSError) else str(error)
            self._tail = f"{arguments[0]} cannot be started: {reason}.".encode()
            return
        assert self._process.stderr is not None
        self._reader = threading.Thread(
            target=self._pass_on, args=(self._process.stderr.fileno(),), daemon=True
        )
        self._reader.start()

    def poll(self) -> int | None:
        """Return its exit code, as a shell has it; None while it runs."""
        if self._code is None and self._process is not None:
            code = self._process.poll()
            if code is not None:
                # What it started ends with it.
                end(of_job(self._mark), signal.SIGKILL)
                self._code = code if code >= 0 else 128 - code
            elif self._stopped is not None and time.monotonic() - self._stopped > TERM_S:
                end(of_job(self._mark), signal.SIGKILL)
        return self._code

    def stop(self) -> None:
        """Ask it to end; :meth:`poll` kills it when it takes too long."""
        if self._stopped is None and self.poll() is None and self._process is not None:
            self._stopped = time.monotonic()
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it started, at once."""
        if self._code is None and self._process is not None:
            end(of_job(self._mark), signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            # What it was just starting.
            end(of_job(self._mark), signal.SIGKILL)

    def errors(self) -> list[str]:
        """Return the last lines that it wrote to its standard error."""
        if self._reader is not None:
            # A process that it left behind may hold the stream open.
            self._reader.join(timeout=5)
        lines = (printable(line.strip())[:_LINE] for line in self._tail.decode(errors="replace").splitlines())
        return [line for line in lines if line][-_LINES:]

    def _pass_on(self, stream: int) -> None:
        """Write what comes to our own standard error, and keep the end."""
        while block := os.read(stream, _BLOCK):
            self._tail = (self._tail + block)[-_KEPT:]
            if sys.stderr is not None:
                with contextlib.suppress(OSError, ValueError):
                    sys.stderr.buffer.write(block)
                    sys.stderr.buffer.flush()
