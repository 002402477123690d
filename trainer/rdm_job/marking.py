# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rank writes, with its number before each line: in a node's log the lines of its ranks are mixed."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping
from pathlib import Path

__all__ = ["Marked"]

_BLOCK = 64 * 1024
_LONGEST = 1024 * 1024
"""A line that has more bytes is written in parts."""
_REST_S = 1.0


class Marked:
    """A process that puts a rank's number before the lines of this one and of those that it starts.

    A process, so that what a rank wrote last comes into the log when it is killed; it ends when nobody can
    write to it any more. It is made before this process has threads.

    Args:
        rank: The rank.
        streams: What this process writes to, such as 1 and 2, each of which is a log now.
    """

    def __init__(self, rank: int, *streams: int) -> None:
        self._logs = {stream: os.dup(stream) for stream in streams}
        pipes = {stream: os.pipe() for stream in streams}
        self._process = os.fork()
        if self._process == 0:
            try:
                _serve(f"[rank{rank}]: ".encode(), {pipes[one][0]: log for one, log in self._logs.items()})
            finally:
                os._exit(0)
        for stream, (read, write) in pipes.items():
            os.close(read)
            os.dup2(write, stream)
            os.close(write)

    def end(self) -> None:
        """Write to the logs again, and wait a moment until what was written is in them.

        Processes that were started may go on writing for ever, and their lines are marked.
        """
        for stream, log in self._logs.items():
            os.dup2(log, stream)
        deadline = time.monotonic() + _REST_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._process, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                time.sleep(0.01)


def _serve(mark: bytes, logs: Mapping[int, int]) -> None:
    """Write what comes from pipes into logs, until nobody is left who could write to them.

    Args:
        mark: What to put before each line.
        logs: By the pipes' ends from which to read.
    """
    # Who ends the rank's group, or its launcher, lets it say its last word.
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    # Neither the rank's end of a pipe nor the launcher's is held open here.
    kept = {*logs, *logs.values()}
    for file in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if file not in kept:
            with contextlib.suppress(OSError):
                os.close(file)
    rests = dict.fromkeys(logs, b"")
    with selectors.DefaultSelector() as selector:
        for pipe in logs:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select():
                data = os.read(key.fd, _BLOCK)
                if not data:
                    selector.unregister(key.fd)
                text = rests[key.fd] + data
                end = len(text) if not data or len(text) > _LONGEST else text.rfind(b"\n") + 1
                rests[key.fd] = text[end:]
                _write(logs[key.fd], mark, text[:end])


def _write(log: int, mark: bytes, text: bytes) -> None:
    """Append lines to a log, each with the mark that it may have already, all of them at once."""
    lines = text.splitlines(keepends=True)
    data = b"".join(line if line.startswith(mark.rstrip()) else mark + line for line in lines)
    # A full disk ends no training.
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(log, data) :]
