# SPDX-License-Identifier: GPL-3.0-or-later
"""Keeps a control connection alive while its agent waits for a file system.

All files of an agent may be on NFS, where a stall of half a minute is ordinary. So the connection has its own
thread, which touches no file: it passes messages in both directions, and sends a heartbeat every second.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any

from rdm_job.control import ControlClient, ControlServer

BEAT_S = 1.0
STALL_S = 300.0
"""After this many seconds without progress, the agent counts as lost: its file system hangs."""
_TICK_S = 0.1


class Heartbeat:
    """Runs a control connection in a thread.

    Args:
        connection: The connection, which nothing else may use from now on.
    """

    def __init__(self, connection: ControlServer | ControlClient) -> None:
        self._connection = connection
        self._outbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._inbox: dict[tuple[str, frozenset[str]], dict[str, Any]] = {}
        self._news = threading.Condition()
        self._received_at = time.monotonic()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message to the server, or to all members."""
        self._outbox.put(message)

    def receive(self, timeout: float) -> list[tuple[str, dict[str, Any]]]:
        """Return the received messages with their members; to a client they come from ''.

        Of messages with the same keys only the newest is returned: an agent that waited for a file system
        does not need the old ones.
        """
        self._received_at = time.monotonic()
        with self._news:
            self._news.wait_for(lambda: self._inbox, timeout)
            found, self._inbox = self._inbox, {}
        return [(name, message) for (name, _), message in found.items()]

    def close(self) -> None:
        """Send what the sockets still take of the queued messages, and close the connection."""
        self._is_closed = True
        self._thread.join()

    def _run(self) -> None:
        beat = -BEAT_S
        while not self._is_closed:
            self._send_waiting()
            now = time.monotonic()
            if now - beat >= BEAT_S and now - self._received_at < STALL_S:
                beat = now
                self._connection.send({})
            received = self._connection.receive(_TICK_S)
            self._store(received if isinstance(received, dict) else {"": received})
        self._send_waiting()
        self._connection.close()

    def _send_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._connection.send(self._outbox.get_nowait())

    def _store(self, received: dict[str, list[dict[str, Any]]]) -> None:
        with self._news:
            for name, messages in received.items():
                for message in filter(None, messages):
                    kind = name, frozenset(message)
                    # Removed first, so that it moves behind earlier messages.
                    self._inbox.pop(kind, None)
                    self._inbox[kind] = message
            if self._inbox:
                self._news.notify()
