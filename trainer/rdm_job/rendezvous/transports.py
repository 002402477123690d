# SPDX-License-Identifier: GPL-3.0-or-later
"""The transports of a rendezvous: a control connection, or files that all members can read.

:class:`rdm_job.control.ControlServer` and its client are the first. This module has the second, for members
that a batch system has started in a user's directory: the file system's permissions authenticate them, and
the batch system detects dead members.

Each member appends lines to its own file, and reopens the others' files for each read: on NFS only an open
queries the server. A member that starts late finds all messages.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rdm_job.control import ControlClient, ControlServer

_LAUNCHER = "0"
_EVERY_S = 0.5
"""Seconds between two reads of a worker: one file server may have to serve a thousand workers."""


class FileServer:
    """The launcher's end, with number 0.

    Args:
        folder: The directory of all members' files, for this meeting alone; it is made if missing.
        members: How many there will be; a worker's connection is its number.
    """

    refused: Sequence[str] = ()

    def __init__(self, folder: Path, members: int) -> None:
        self._own = _Log(folder, _LAUNCHER)
        self._others = {str(number): _Log(folder, str(number)) for number in range(1, members)}

    def send(self, message: dict[str, Any], to: Iterable[str] | None = None) -> None:
        """Write a message for all, or for some."""
        self._own.append({**message, "to": None if to is None else list(to)})

    def receive(self, timeout: float = 0.0) -> dict[str, list[dict[str, Any]]]:
        """Return the new messages, by number; without any, wait ``timeout`` seconds."""
        found = {name: messages for name, log in self._others.items() if (messages := log.read())}
        if not found:
            time.sleep(timeout)
        return found

    def silent_for(self, _: str) -> float | None:
        """Return None: the batch system detects dead members."""
        return None

    def is_connected(self, _: str) -> bool:
        """Return True: there is no connection that could break."""
        return True

    def disconnect(self, _: str) -> None:
        """Do nothing: there is no connection to close."""


class FileClient:
    """A worker's end.

    Args:
        folder: That of :class:`FileServer`.
        number: The worker's, from 1.
    """

    is_proven = True
    was_refused = False

    def __init__(self, folder: Path, number: int) -> None:
        self._name = str(number)
        self._own, self._launcher = _Log(folder, self._name), _Log(folder, _LAUNCHER)

    def send(self, message: dict[str, Any]) -> None:
        """Write a message; heartbeats are left out, since silence does not count here."""
        if message["type"] != "alive":
            self._own.append(message)

    def receive(self, timeout: float = 0.0) -> list[dict[str, Any]]:
        """Return the launcher's new messages for this worker; without any, wait a moment."""
        found = self._launcher.read()
        if not found:
            time.sleep(max(timeout, _EVERY_S))
        return [one for one in found if one.get("to") is None or self._name in one["to"]]

    def silent_for(self) -> float:
        """Return 0: a file is not silent."""
        return 0.0

    def connect_again(self) -> None:
        """Do nothing: there is no connection that could break."""


class _Log:
    """The file of one member's messages, a JSON line each.

    Args:
        folder: Its directory.
        name: The member's number.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / f"{name}.jsonl"
        self._at = 0

    def append(self, message: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(message) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Return the messages added since the last call."""
        # On an error, try again later: no file yet, a file server that fails for a moment, or a full disk.
        with contextlib.suppress(OSError, ValueError), self._path.open("rb") as file:
            file.seek(self._at)
            # The last line may be incomplete.
            whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._at += len(whole) + 1
                return [json.loads(line) for line in whole.split(b"\n")]
        return []


ServerTransport = ControlServer | FileServer
"""The launcher's end. Each process of a worker has its own connection."""
ClientTransport = ControlClient | FileClient
"""A worker's end."""
