# SPDX-License-Identifier: GPL-3.0-or-later
"""Prefixes each line of a rank with its number, because the ranks of a node share one log."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Mapping
from pathlib import Path

_BLOCK = 64 * 1024
_LONGEST = 1024 * 1024
"""A line of more bytes is written in parts."""
_REST_S = 1.0


class Marked:
    """A helper process that prefixes the lines of this process and its children with the rank.

    It is a process so that a rank's last lines reach the log even when the rank is killed. It ends when all
    writers have closed their end. Create it before this process has threads: it is forked.

    Args:
        rank: The rank.
        streams: File descriptors of this process, such as 1 and 2, that are open on logs.
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
        """Write to the logs directly again, and wait a moment until the earlier lines are in them.

        Child processes may write for ever; their lines are still marked.
        """
        for stream, log in self._logs.items():
            os.dup2(log, stream)
        deadline = time.monotonic() + _REST_S
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._process, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                time.sleep(0.01)


def _serve(mark: bytes, logs: Mapping[int, int]) -> None:
    """Copy from pipes to logs, until all writers have closed the pipes.

    Args:
        mark: The prefix of each line.
        logs: ``{read end of a pipe: log}``.
    """
    # Survive the signals that end the rank's process group, to copy its last lines.
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)
    # Close everything else: the rank's ends of the pipes, and the launcher's files.
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
    """Append lines to a log in one write, each with the mark unless it has it already."""
    lines = text.splitlines(keepends=True)
    data = b"".join(line if line.startswith(mark.rstrip()) else mark + line for line in lines)
    # A full disk must not end the training.
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(log, data) :]
