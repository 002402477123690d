# SPDX-License-Identifier: GPL-3.0-or-later
"""A member's command: started once the job starts, ended as a whole, with its last lines of errors."""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence

from rdm_trainer.errors import TrainerError

__all__ = ["Command"]

_LINES = 20
_LINE = 500
_TERM_S = 15.0


class Command:
    """A command in a process group of its own.

    Args:
        arguments: The program and its arguments.
        environment: Its environment.

    Raises:
        TrainerError: It cannot be started.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        try:
            self._process = subprocess.Popen(
                arguments, env=environment, stderr=subprocess.PIPE, start_new_session=True
            )
        except OSError as error:
            raise TrainerError(
                f"{arguments[0]} cannot be started: {error.strerror}.", exit_code=127
            ) from None
        self._tail: collections.deque[str] = collections.deque(maxlen=_LINES)
        self._reader = threading.Thread(target=self._pass_on, daemon=True)
        self._reader.start()
        self._stopped: float | None = None

    def poll(self) -> int | None:
        """Return its exit code, as a shell has it; None while it runs."""
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
        if self._stopped is None and self._process.poll() is None:
            self._stopped = time.monotonic()
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and all that it started, at once."""
        self._signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_TERM_S)

    def errors(self) -> list[str]:
        """Return the last lines that it wrote to its standard error."""
        self._reader.join(timeout=5)
        return list(self._tail)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _pass_on(self) -> None:
        """Write what comes to our own standard error, and keep the last lines."""
        stream = self._process.stderr
        assert stream is not None
        for line in stream:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(line)
                sys.stderr.buffer.flush()
            if text := line.decode(errors="replace").strip():
                self._tail.append(text[:_LINE])
