# SPDX-License-Identifier: GPL-3.0-or-later
"""How agents talk: lines of JSON over TCP on the fabric, between the master's agent and each other one.

Who connects first proves that it knows the job's key, by an HMAC (RFC 2104) over a number that the master
chose for this connection. The fabric carries the job's own traffic unencrypted, and so these lines, which
hold no secret.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import selectors
import socket
import time
from pathlib import Path
from typing import Any

__all__ = ["Hub", "Link", "job_key"]

CLUSTER_KEY = Path("/etc/rdm/ssh/id_ed25519")
"""The key that all containers of a cluster share and nobody else has. ``RDM_CLUSTER_KEY`` names another."""
_LONGEST = 4 * 1024 * 1024


def job_key(job: str) -> bytes:
    """Return the key of a job's agents, derived from what the cluster's containers share.

    Raises:
        OSError: This container has no such key.
    """
    shared = Path(os.environ.get("RDM_CLUSTER_KEY") or CLUSTER_KEY).read_bytes()
    return hmac.digest(shared, f"rdm-job {job}".encode(), "sha256")


def _proof(key: bytes, nonce: str, node: str) -> str:
    return hmac.new(key, f"{nonce} {node}".encode(), hashlib.sha256).hexdigest()


class _Lines:
    """A socket that sends and receives JSON lines and never waits."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.heard = time.monotonic()
        self._input = b""
        self._output = b""
        self.is_open = True

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message, unless the other side has stopped listening."""
        if len(self._output) < _LONGEST:
            self._output += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much as goes."""
        try:
            while self._output and self.is_open:
                sent = self.socket.send(self._output)
                self._output = self._output[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def receive(self) -> list[dict[str, Any]]:
        """Return the messages that have come."""
        self.flush()
        try:
            while self.is_open:
                block = self.socket.recv(65536)
                if not block:
                    self.close()
                self._input += block
                if len(self._input) > _LONGEST:
                    self.close()
        except BlockingIOError:
            pass
        except OSError:
            self.close()
        *lines, self._input = self._input.split(b"\n")
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                if isinstance(message, dict):
                    found.append(message)
        if found:
            self.heard = time.monotonic()
        return found

    def close(self) -> None:
        """Give it up."""
        self.is_open = False
        self.socket.close()


class Hub:
    """The master's side.

    Args:
        address: Where to listen.
        port: Likewise.
        key: The job's.

    Raises:
        OSError: It cannot listen there.
    """

    def __init__(self, address: str, port: int, key: bytes) -> None:
        self._key = key
        self._listener = socket.create_server((address, port), backlog=1024)
        self._listener.setblocking(False)
        self._strangers: list[tuple[_Lines, str]] = []
        self._nodes: dict[str, _Lines] = {}

    def send(self, message: dict[str, Any]) -> None:
        """Tell all nodes."""
        for link in self._nodes.values():
            link.send(message)

    def receive(self) -> dict[str, list[dict[str, Any]]]:
        """Return what nodes have said: {node: messages}."""
        found = self._accept()
        for name, link in self._nodes.items():
            found.setdefault(name, []).extend(link.receive())
        return {name: messages for name, messages in found.items() if messages}

    def silent_for(self, node: str) -> float | None:
        """Return for how many seconds nothing has come from a node, or None when it never came."""
        link = self._nodes.get(node)
        return None if link is None else time.monotonic() - link.heard

    def close(self) -> None:
        """Close all connections, after what was to be said was said as far as possible."""
        for link in self._nodes.values():
            link.flush()
            link.close()
        self._listener.close()

    def _accept(self) -> dict[str, list[dict[str, Any]]]:
        """Take new connections; return what was said behind a proof, and in connections that are replaced."""
        found: dict[str, list[dict[str, Any]]] = {}
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self._listener.accept()
                link, nonce = _Lines(connection), secrets.token_hex(16)
                link.send({"nonce": nonce})
                self._strangers.append((link, nonce))
        for link, nonce in list(self._strangers):
            messages = link.receive()
            name = str(messages[0].get("node")) if messages else ""
            given = str(messages[0].get("proof")) if messages else ""
            known = bool(messages) and hmac.compare_digest(given, _proof(self._key, nonce, name))
            if known:
                said = messages[1:]
                if name in self._nodes:
                    found.setdefault(name, []).extend(self._nodes[name].receive())
                    self._nodes[name].close()
                    # It has only connected again, and has yet to say something.
                    link.heard = link.heard if said else self._nodes[name].heard
                found.setdefault(name, []).extend(said)
                self._nodes[name] = link
            elif messages or not link.is_open or time.monotonic() - link.heard > 10:
                link.close()
            else:
                continue
            self._strangers.remove((link, nonce))
        return found


class Link:
    """A node's side. It connects, and connects again, by itself.

    Args:
        address: The master's.
        port: Where its agent listens.
        node: This node's name.
        key: The job's.
    """

    def __init__(self, address: str, port: int, node: str, key: bytes) -> None:
        self._to = (address, port)
        self._node = node
        self._key = key
        self._lines: _Lines | None = None
        self._greeted = False
        self._tried = 0.0
        self.heard = time.monotonic()

    def send(self, message: dict[str, Any]) -> None:
        """Tell the master, if it is there."""
        if self._lines is not None and self._greeted:
            self._lines.send(message)

    def receive(self) -> list[dict[str, Any]]:
        """Return what the master has said."""
        self._connect()
        if self._lines is None:
            return []
        messages = self._lines.receive()
        if messages and not self._greeted and "nonce" in messages[0]:
            proof = _proof(self._key, str(messages.pop(0)["nonce"]), self._node)
            self._lines.send({"node": self._node, "proof": proof})
            self._greeted = True
        if messages:
            self.heard = time.monotonic()
        if not self._lines.is_open:
            self._lines = None
        return messages

    def silent_for(self) -> float:
        """Return for how many seconds the master has said nothing."""
        return time.monotonic() - self.heard

    def close(self) -> None:
        """Let go."""
        if self._lines is not None:
            self._lines.flush()
            self._lines.close()

    def _connect(self) -> None:
        if self._lines is not None or time.monotonic() - self._tried < 1:
            return
        self._tried = time.monotonic()
        self._greeted = False
        with contextlib.suppress(OSError):
            self._lines = _Lines(socket.create_connection(self._to, timeout=2))


def wait(links: list[Hub | Link], seconds: float) -> None:
    """Return when something has come, at the latest after so many seconds."""
    with selectors.DefaultSelector() as selector:
        for link in links:
            for sock in _sockets(link):
                selector.register(sock, selectors.EVENT_READ)
        selector.select(seconds)


def _sockets(link: Hub | Link) -> list[socket.socket]:
    if isinstance(link, Link):
        return [link._lines.socket] if link._lines is not None and link._lines.is_open else []
    lines = [*link._nodes.values(), *(stranger for stranger, _ in link._strangers)]
    return [link._listener, *(one.socket for one in lines if one.is_open)]
