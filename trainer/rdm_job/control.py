# SPDX-License-Identifier: GPL-3.0-or-later
"""The control connection: JSON messages over TCP between one server and its members, which share a secret.

Before any message is accepted, each end proves that it knows the secret with an HMAC (RFC 2104) over numbers
that both chose for this connection:

    server  {"challenge": a}
    member  {"name": n, "challenge": b, "proof": HMAC("member proof", n, a, b)}
    server  {"proof": HMAC("server proof", n, a, b)}

Then every line is a message, prefixed with its HMAC. The HMAC covers a counter, and its key belongs to this
connection and direction, so nobody can change, repeat or insert a message. Messages are not encrypted: they
hold no secret.

Unproven connections are limited in number, bytes and time, and cannot bring the server down. If there are too
many, the oldest one of the address that has the most is closed.
"""

from __future__ import annotations

import collections
import errno
import hmac
import json
import resource
import secrets
import selectors
import socket
import time
from collections.abc import Iterable, Set
from typing import Any

UNPROVEN = 256
"""How many unproven connections may be open, plus one per member."""
_UNPROVEN_BYTES = 1024
_UNPROVEN_S = 10.0
_LONGEST = 4 * 1024 * 1024
"""The limit in bytes of a message, and of the send queue: beyond it, the other end has stopped reading."""
_AT_ONCE = 64
"""How many connections are accepted, or blocks of one read, before the others get their turn."""
_BLOCK = 65536
_RETRY_S = 1.0
_CONNECT_S = 2.0
_LISTENED_S = 3.0
"""The most that one wait for messages counts, in seconds: none takes longer unless the machine stands."""
_MOST_REFUSED = 16
"""How many addresses that sent a wrong proof are kept: a port scan must not fill a log."""
_FILES_LEFT = 64
"""How many more files this process must always be able to open."""
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Lines:
    """A non-blocking socket that sends and receives lines."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        sock.setblocking(False)
        # A message must not wait for the acknowledgement of the previous one.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._selector = sock, selector
        self._input, self._output = bytearray(), bytearray()
        self.opened = time.monotonic()
        self.is_open = True
        selector.register(sock, selectors.EVENT_READ, self)

    @property
    def is_full(self) -> bool:
        """Whether the other end has stopped reading."""
        return len(self._output) >= _LONGEST

    def send(self, line: bytes) -> None:
        """Queue a line."""
        self._output += line + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much as the socket takes."""
        try:
            while self._output and self.is_open:
                del self._output[: self._socket.send(self._output)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def receive(self, longest: int) -> None:
        """Read the data that has arrived, until more than ``longest`` bytes are buffered."""
        self.flush()
        try:
            for _ in range(_AT_ONCE):
                if not self.is_open or len(self._input) > longest:
                    return
                block = self._socket.recv(min(_BLOCK, longest + 1))
                if not block:
                    self.close()
                self._input += block
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def line(self, longest: int) -> bytes | None:
        """Return the next received line; None without a whole one. An overlong line closes the socket."""
        end = self._input.find(b"\n")
        if end > longest or (end < 0 and len(self._input) > longest):
            self.close()
            self._input.clear()
        if end < 0 or not self._input:
            return None
        line = bytes(self._input[:end])
        del self._input[: end + 1]
        return line

    def close(self) -> None:
        """Close the socket; received lines can still be read."""
        if self.is_open:
            self.is_open = False
            self._selector.unregister(self._socket)
            self._socket.close()


class _Channel:
    """A connection on which both ends have proved themselves.

    Args:
        lines: The connection.
        secret: The shared secret.
        sends: Which end this is, ``member`` or ``server``.
        receives: Which end the other is.
        about: The name and numbers that both proofs cover.
    """

    def __init__(self, lines: _Lines, secret: bytes, sends: str, receives: str, *about: str) -> None:
        self.lines = lines
        self._send_key = _digest(secret, f"{sends} messages", *about)
        self._receive_key = _digest(secret, f"{receives} messages", *about)
        self._sent = self._received = 0

    def send(self, body: bytes) -> None:
        """Queue a message, unless the other end has stopped reading."""
        if not self.lines.is_full:
            self._sent += 1
            self.lines.send(_code(self._send_key, self._sent, body) + b" " + body)

    def receive(self) -> list[dict[str, Any]]:
        """Return the received messages; a line with a wrong HMAC closes the connection."""
        self.lines.receive(_LONGEST)
        found = []
        while (line := self.lines.line(_LONGEST)) is not None:
            code, _, body = line.partition(b" ")
            self._received += 1
            if not hmac.compare_digest(code, _code(self._receive_key, self._received, body)):
                self.close()
                break
            if (message := _object(body)) is not None:
                found.append(message)
        return found

    def flush(self) -> None:
        self.lines.flush()

    def close(self) -> None:
        self.lines.close()


class _Listening:
    """A clock of the seconds in which this end has listened.

    While the machine stands still, or is so busy that this process does not run, nobody is silent: what was
    sent meanwhile is still to be read.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._at = time.monotonic()

    def advance(self) -> None:
        """Count the time since the last call. To be called after each wait for messages."""
        at = time.monotonic()
        self.now += min(at - self._at, _LISTENED_S)
        self._at = at


class _Unproven:
    """An accepted connection whose other end has not proved itself yet."""

    def __init__(self, lines: _Lines, source: str) -> None:
        self.lines, self.source = lines, source
        self.is_refused = False
        """Whether it sent a wrong proof, such as one with another secret."""
        self._challenge = secrets.token_hex(16)
        lines.send(json.dumps({"challenge": self._challenge}).encode())

    def proven(self, secret: bytes) -> tuple[str, _Channel] | None:
        """Return the member's name and its channel; None before a proof, or after a wrong one."""
        self.lines.receive(_UNPROVEN_BYTES)
        line = self.lines.line(_UNPROVEN_BYTES)
        if line is None:
            return None
        hello = _object(line) or {}
        name = str(hello.get("name"))
        about = name, self._challenge, str(hello.get("challenge"))
        if not _is_proof(hello.get("proof"), _digest(secret, "member proof", *about)):
            self.is_refused = "proof" in hello
            self.lines.close()
            return None
        self.lines.send(json.dumps({"proof": _digest(secret, "server proof", *about).hex()}).encode())
        return name, _Channel(self.lines, secret, "server", "member", *about)


class ControlServer:
    """The listening end.

    Args:
        address: The address to listen on.
        port: The port to listen on; 0 takes a free one.
        secret: The secret that it shares with its members.
        members: How many there will be.

    Raises:
        OSError: It cannot listen there.

    Attributes:
        port: The port that it listens on.
        refused: The first addresses that sent a wrong proof.
    """

    def __init__(self, address: str, port: int, secret: bytes, members: int) -> None:
        self._secret = secret
        self._most_unproven = UNPROVEN + members
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server((address, port), backlog=1024)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._accepts_from = 0.0
        self._unproven: dict[_Lines, _Unproven] = {}
        self._members: dict[str, _Channel] = {}
        self._listening = _Listening()
        self._received_at: dict[str, float] = {}
        self.refused: list[str] = []

    def send(self, message: dict[str, Any], to: Iterable[str] | None = None) -> None:
        """Queue a message to all connected members, or to some.

        Args:
            message: The message.
            to: Names of members; those that are not connected get nothing.
        """
        body = json.dumps(message).encode()
        for name in self._members if to is None else to:
            if (channel := self._members.get(name)) is not None:
                channel.send(body)

    def receive(self, timeout: float = 0.0) -> dict[str, list[dict[str, Any]]]:
        """Return the received messages, by member; wait up to ``timeout`` seconds for data."""
        self._listen()
        ready = {key.data for key, _ in self._selector.select(timeout)}
        self._listening.advance()
        found: dict[str, list[dict[str, Any]]] = {}
        for name, channel in self._members.items():
            channel.flush()
            if channel.lines in ready:
                found[name] = channel.receive()
        for name, messages in self._proven(ready):
            found.setdefault(name, []).extend(messages)
        if self._listener in ready:
            self._accept()
        found = {name: messages for name, messages in found.items() if messages}
        self._received_at.update(dict.fromkeys(found, self._listening.now))
        return found

    def silent_for(self, name: str) -> float | None:
        """Return the seconds listened since a member's last message; None if it has never proved itself.

        Reconnecting does not count as a message.
        """
        received_at = self._received_at.get(name)
        return None if received_at is None else self._listening.now - received_at

    def is_connected(self, name: str) -> bool:
        """Whether a member's connection is open, as far as this end knows."""
        channel = self._members.get(name)
        return channel is not None and channel.lines.is_open

    def disconnect(self, name: str) -> None:
        """Close a member's connection; a member that still runs reconnects."""
        if (channel := self._members.get(name)) is not None:
            channel.close()

    def close(self) -> None:
        """Send what the sockets still take of the queued messages, and close all connections."""
        for channel in self._members.values():
            channel.flush()
            channel.close()
        for one in self._unproven.values():
            one.lines.close()
        self._selector.close()
        self._listener.close()

    def _listen(self) -> None:
        """Accept connections again, unless resources ran out a moment ago."""
        if self._listener not in self._selector.get_map() and time.monotonic() >= self._accepts_from:
            self._selector.register(self._listener, selectors.EVENT_READ, self._listener)

    def _accept(self) -> None:
        """Accept connections, at most ``_AT_ONCE``."""
        for _ in range(_AT_ONCE):
            try:
                connection, (source, *_) = self._listener.accept()
            except OSError as error:
                # Any other error: no connection is waiting, or it was closed meanwhile.
                if error.errno in _NO_RESOURCES:
                    self._drop_one()
                    self._selector.unregister(self._listener)
                    self._accepts_from = time.monotonic() + _RETRY_S
                return
            # The kernel assigns the lowest free descriptor, so this one shows how many are left.
            left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - connection.fileno()
            lines = _Lines(connection, self._selector)
            self._unproven[lines] = _Unproven(lines, str(source))
            if len(self._unproven) > self._most_unproven or 0 < left < _FILES_LEFT:
                self._drop_one()

    def _drop_one(self) -> None:
        """Close the oldest unproven connection of the address that has the most."""
        counts = collections.Counter(one.source for one in self._unproven.values())
        for source, _ in counts.most_common(1):
            oldest = next(lines for lines, one in self._unproven.items() if one.source == source)
            oldest.close()
            del self._unproven[oldest]

    def _proven(self, ready: Set[object]) -> list[tuple[str, list[dict[str, Any]]]]:
        """Add the connections that have proved themselves.

        Return the messages of the new connections, and the last messages of those that they replace.
        """
        found, now = [], time.monotonic()
        for lines, one in list(self._unproven.items()):
            proven = one.proven(self._secret) if lines in ready else None
            if proven is not None:
                name, channel = proven
                if name in self._members:
                    found.append((name, self._members[name].receive()))
                    self._members[name].close()
                self._members[name] = channel
                self._received_at.setdefault(name, self._listening.now)
                found.append((name, channel.receive()))
            elif one.is_refused and one.source not in self.refused and len(self.refused) < _MOST_REFUSED:
                self.refused.append(one.source)
            elif now - lines.opened > _UNPROVEN_S:
                lines.close()
            if proven is not None or not lines.is_open:
                del self._unproven[lines]
        return found


class ControlClient:
    """A member's end. It connects and reconnects by itself.

    Args:
        address: The server's.
        port: Likewise.
        name: This member's unique name.
        secret: The secret that it shares with the server.
    """

    def __init__(self, address: str, port: int, name: str, secret: bytes) -> None:
        self._to = (address, port)
        self._name, self._secret = name, secret
        self._selector = selectors.DefaultSelector()
        self._lines: _Lines | None = None
        self._about: tuple[str, str, str] | None = None
        self._channel: _Channel | None = None
        self._tried = -_RETRY_S
        self._listening = _Listening()
        self._received_at = self._listening.now
        self.was_refused = False
        """Whether the last connection was closed before both ends had proved themselves."""

    @property
    def is_proven(self) -> bool:
        """Whether the server is connected, and both ends have proved themselves."""
        return self._channel is not None

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message, if the server is connected."""
        if self._channel is not None:
            self._channel.send(json.dumps(message).encode())

    def receive(self, timeout: float = 0.0) -> list[dict[str, Any]]:
        """Return the received messages; wait up to ``timeout`` seconds for data."""
        self._connect()
        self._selector.select(timeout)
        self._listening.advance()
        if self._lines is None:
            return []
        if self._channel is None:
            self._prove(self._lines)
        messages = [] if self._channel is None else self._channel.receive()
        if messages:
            self._received_at = self._listening.now
        if not self._lines.is_open:
            self.was_refused = self._channel is None
            self._lines = self._channel = None
        return messages

    def silent_for(self) -> float:
        """Return the seconds listened since the server's last message."""
        return self._listening.now - self._received_at

    def connect_again(self) -> None:
        """Close the connection, in case the other end has lost it; ``receive`` reconnects."""
        if self._lines is not None:
            self._lines.close()

    def close(self) -> None:
        """Send what the socket still takes of the queued messages, and close the connection."""
        if self._lines is not None:
            self._lines.flush()
            self._lines.close()
        self._selector.close()

    def _connect(self) -> None:
        if self._lines is not None or time.monotonic() - self._tried < _RETRY_S:
            return
        self._tried = time.monotonic()
        self._about = None
        try:
            connection = socket.create_connection(self._to, timeout=_CONNECT_S)
        except OSError:
            self.was_refused = False
            return
        self._lines = _Lines(connection, self._selector)

    def _prove(self, lines: _Lines) -> None:
        """Continue the proofs with the lines received so far."""
        lines.receive(_UNPROVEN_BYTES)
        while self._channel is None and (line := lines.line(_UNPROVEN_BYTES)) is not None:
            answer = _object(line) or {}
            if self._about is None:
                self._about = self._name, str(answer.get("challenge")), secrets.token_hex(16)
                proof = _digest(self._secret, "member proof", *self._about).hex()
                hello = {"name": self._name, "challenge": self._about[2], "proof": proof}
                lines.send(json.dumps(hello).encode())
            elif _is_proof(answer.get("proof"), _digest(self._secret, "server proof", *self._about)):
                self._channel = _Channel(lines, self._secret, "member", "server", *self._about)
            else:
                lines.close()
                return
        if self._channel is None and time.monotonic() - lines.opened > _UNPROVEN_S:
            lines.close()


def _digest(secret: bytes, *about: str) -> bytes:
    # As JSON, so that different lists never give the same bytes.
    return hmac.digest(secret, json.dumps(about).encode(), "sha256")


def _code(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, b"%d %b" % (number, body), "sha256").hex().encode()


def _is_proof(given: Any, expected: bytes) -> bool:
    return hmac.compare_digest(str(given).encode(errors="replace"), expected.hex().encode())


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line; None if it holds none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
