# SPDX-License-Identifier: GPL-3.0-or-later
"""A control connection that lives while its agent waits for a file system.

Everything that an agent reads and writes may lie on NFS, where a stall of half a minute is ordinary. So its
connection has a thread of its own, which touches no file: it takes messages to and fro, and says every second
that the agent is there.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any

from rdm_job.control import ControlClient, ControlServer

__all__ = ["BEAT_S", "STALL_S", "Heartbeat"]

BEAT_S = 1.0
STALL_S = 300.0
"""After so many seconds in which the agent has not got on, it counts as lost: its file system hangs."""
_TICK_S = 0.1


class Heartbeat:
    """Keeps a control connection.

    Args:
        connection: It, which from now on nobody else uses.
    """

    def __init__(self, connection: ControlServer | ControlClient) -> None:
        self._connection = connection
        self._outbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._inbox: dict[tuple[str, frozenset[str]], dict[str, Any]] = {}
        self._news = threading.Condition()
        self._moved = time.monotonic()
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, to the server or to all members, as soon as that goes."""
        self._outbox.put(message)

    def receive(self, timeout: float) -> list[tuple[str, dict[str, Any]]]:
        """Return the messages that have come, and from which member; a client's are from ''.

        Of messages with the same keys only the newest is returned: who comes late from a file system need not
        hear old ones.

        Args:
            timeout: So many seconds are waited at most until something comes.
        """
        self._moved = time.monotonic()
        with self._news:
            self._news.wait_for(lambda: self._inbox, timeout)
            found, self._inbox = self._inbox, {}
        return [(name, message) for (name, _), message in found.items()]

    def close(self) -> None:
        """Close the connection, after messages that wait are sent as far as they can be."""
        self._is_over = True
        self._thread.join()

    def _run(self) -> None:
        beat = -BEAT_S
        while not self._is_over:
            self._send_waiting()
            now = time.monotonic()
            if now - beat >= BEAT_S and now - self._moved < STALL_S:
                beat = now
                self._connection.send({})
            received = self._connection.receive(_TICK_S)
            self._keep(received if isinstance(received, dict) else {"": received})
        self._send_waiting()
        self._connection.close()

    def _send_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._connection.send(self._outbox.get_nowait())

    def _keep(self, received: dict[str, list[dict[str, Any]]]) -> None:
        with self._news:
            for name, messages in received.items():
                for message in filter(None, messages):
                    kind = name, frozenset(message)
                    # Behind those that came before it.
                    self._inbox.pop(kind, None)
                    self._inbox[kind] = message
            if self._inbox:
                self._news.notify()
