# SPDX-License-Identifier: GPL-3.0-or-later
"""A member's command: started once the job starts, ended as a whole, with its last lines of errors."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

__all__ = ["Command"]

_LINES = 20
_LINE = 500
_BLOCK = 65536
_KEPT = 16384
_TERM_S = 15.0
# As shells have it.
_CANNOT_RUN, _NOT_FOUND = 126, 127


class Command:
    """A command in a process group of its own. One that cannot be started has ended with 126 or 127.

    Args:
        arguments: The program and its arguments.
        environment: Its environment.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._tail = b""
        self._stopped: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._not_started = 0
        try:
            self._process = subprocess.Popen(
                arguments, env=environment, stderr=subprocess.PIPE, start_new_session=True
            )
        except (OSError, ValueError) as error:
            self._not_started = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN
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
        if self._process is None:
            return self._not_started
        code = self._process.poll()
        if code is None:
            if self._stopped is not None and time.monotonic() - self._stopped > _TERM_S:
                self._signal(signal.SIGKILL)
            return None
        # What it started ends with it.
        self._signal(signal.SIGKILL)
        return code if code >= 0 else 128 - code

    def stop(self) -> None:
        """Ask it to end; :meth:`poll` kills it when it takes too long."""
        if self._stopped is None and self.poll() is None:
            self._stopped = time.monotonic()
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it started, at once."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_TERM_S)

    def errors(self) -> list[str]:
        """Return the last lines that it wrote to its standard error."""
        if self._reader is not None:
            # A process that it left behind may hold the stream open.
            self._reader.join(timeout=5)
        lines = (line.strip()[:_LINE] for line in self._tail.decode(errors="replace").splitlines())
        return [line for line in lines if line][-_LINES:]

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def _pass_on(self, stream: int) -> None:
        """Write what comes to our own standard error, and keep the end."""
        while block := os.read(stream, _BLOCK):
            self._tail = (self._tail + block)[-_KEPT:]
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(block)
                sys.stderr.buffer.flush()
