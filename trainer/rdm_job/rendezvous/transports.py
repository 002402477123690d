# SPDX-License-Identifier: GPL-3.0-or-later
"""The transports of a rendezvous: a control connection, or files that all members see.

:class:`rdm_job.control.ControlServer` and its client are the first. Here are the second, for members that a
batch system has started in a directory of the user's: the file system's permissions are their proof, and the
batch system tells who has died.

Each member appends lines to a file of its own, and opens those of others anew for each look: on NFS only an
open asks the server. A member that comes late finds all messages.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

__all__ = ["ClientTransport", "FileClient", "FileServer", "ServerTransport"]

_LAUNCHER = "0"
_EVERY_S = 0.5
"""Between two looks of a worker: one server of files may have to answer a thousand."""


class ServerTransport(Protocol):
    """The launcher's end. A connection is what tells one process of a worker from another."""

    @property
    def refused(self) -> Sequence[str]:
        """Addresses of peers with another secret."""
        ...

    def send(self, message: dict[str, Any], to: Iterable[str] | None = None) -> None:
        """Queue a message to all, or to some connections."""
        ...

    def receive(self, timeout: float = 0.0) -> dict[str, list[dict[str, Any]]]:
        """Return what has come, by connection; wait so many seconds at most until something comes."""
        ...

    def silent_for(self, name: str, /) -> float | None:
        """Return for how many seconds nothing has come; None where silence says nothing."""
        ...

    def is_connected(self, name: str, /) -> bool:
        """Whether a connection is open, as far as is known here."""
        ...

    def disconnect(self, name: str, /) -> None:
        """Close a connection; who is still there joins again."""
        ...


class ClientTransport(Protocol):
    """A worker's end."""

    @property
    def is_proven(self) -> bool:
        """What is sent now reaches the launcher."""
        ...

    @property
    def was_refused(self) -> bool:
        """What answers does not know the job and its secret."""
        ...

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message."""
        ...

    def receive(self, timeout: float = 0.0) -> list[dict[str, Any]]:
        """Return what has come; wait so many seconds at most until something comes."""
        ...

    def silent_for(self) -> float:
        """Return for how many seconds nothing has come."""
        ...

    def connect_again(self) -> None:
        """Give up a connection of which the other end may know nothing any more."""
        ...


class FileServer:
    """The launcher's end, whose number is 0.

    Args:
        folder: Where all members' files are, of this meeting alone; made if need be.
        members: How many there will be: a worker's connection is called by its number.
    """

    refused: Sequence[str] = ()

    def __init__(self, folder: Path, members: int) -> None:
        self._own = _Log(folder, _LAUNCHER)
        self._others = {str(number): _Log(folder, str(number)) for number in range(1, members)}

    def send(self, message: dict[str, Any], to: Iterable[str] | None = None) -> None:
        """Write a message for all, or for some."""
        self._own.append({**message, "to": None if to is None else list(to)})

    def receive(self, timeout: float = 0.0) -> dict[str, list[dict[str, Any]]]:
        """Return what has been added, by number; after so many seconds when nothing has."""
        found = {name: messages for name, log in self._others.items() if (messages := log.read())}
        if not found:
            time.sleep(timeout)
        return found

    def silent_for(self, _: str) -> float | None:
        """Return None: who has died is known to the batch system."""
        return None

    def is_connected(self, _: str) -> bool:
        """There is no connection that could break."""
        return True

    def disconnect(self, _: str) -> None:
        """Do nothing, likewise."""


class FileClient:
    """A worker's end.

    Args:
        folder: As :class:`FileServer` has it.
        number: The worker's, from 1.
    """

    is_proven = True
    was_refused = False

    def __init__(self, folder: Path, number: int) -> None:
        self._name = str(number)
        self._own, self._launcher = _Log(folder, self._name), _Log(folder, _LAUNCHER)

    def send(self, message: dict[str, Any]) -> None:
        """Write a message, unless it is only a heartbeat: nobody is lost by silence."""
        if message["type"] != "alive":
            self._own.append(message)

    def receive(self, timeout: float = 0.0) -> list[dict[str, Any]]:
        """Return what the launcher has added for this worker; after a moment when nothing has been."""
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
    """The lines that one member has written.

    Args:
        folder: Where it lies.
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
        """Return the messages that have been added since."""
        # It is not there yet, the server of files has a bad moment, or a disk was full.
        with contextlib.suppress(OSError, ValueError), self._path.open("rb") as file:
            file.seek(self._at)
            # The last line may be half there.
            whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._at += len(whole) + 1
                return [json.loads(line) for line in whole.split(b"\n")]
        return []
