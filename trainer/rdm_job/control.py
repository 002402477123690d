# SPDX-License-Identifier: GPL-3.0-or-later
"""The control connection: JSON messages over TCP between one server and its members, who share a secret.

Each end proves that it knows the secret, by an HMAC (RFC 2104) over numbers that both chose for this
connection, before the other believes a word of it:

    server  {"challenge": a}
    member  {"name": n, "challenge": b, "proof": HMAC("member proof", n, a, b)}
    server  {"proof": HMAC("server proof", n, a, b)}

Then every line is a message behind its own HMAC, with a number that counts up and a key that is this
connection's and direction's, so that nobody can change, repeat or insert one. Messages are not encrypted:
they hold no secret.

Whoever has not proved itself gets few connections, bytes and seconds, and cannot end the server. When there
are too many, the address with most of them loses its oldest.
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

__all__ = ["UNPROVEN", "ControlClient", "ControlServer"]

UNPROVEN = 256
"""How many connections may be open without a proof, besides one of each member."""
_UNPROVEN_BYTES = 1024
_UNPROVEN_S = 10.0
_LONGEST = 4 * 1024 * 1024
"""Bytes of a message, and of messages that wait to be sent: then the other end has stopped reading."""
_AT_ONCE = 64
"""So many connections are accepted, and so many blocks of one are read, before others have their turn."""
_BLOCK = 65536
_RETRY_S = 1.0
_REFUSED = 16
"""So many addresses that sent a wrong proof are known: a port scan must not fill a log."""
_FILES_LEFT = 64
"""So many files this process must still be able to open."""
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Lines:
    """A socket that sends and receives lines and never waits."""

    def __init__(self, sock: socket.socket, selector: selectors.BaseSelector) -> None:
        sock.setblocking(False)
        # A message must not wait until the one before it is acknowledged.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket, self._selector = sock, selector
        self._input, self._output = bytearray(), bytearray()
        self.opened = time.monotonic()
        self.is_open = True
        selector.register(sock, selectors.EVENT_READ, self)

    @property
    def is_full(self) -> bool:
        """The other end has stopped reading."""
        return len(self._output) >= _LONGEST

    def send(self, line: bytes) -> None:
        """Queue a line."""
        self._output += line + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send as much as goes."""
        try:
            while self._output and self.is_open:
                del self._output[: self._socket.send(self._output)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()

    def receive(self, longest: int) -> None:
        """Read what has come, as long as no line is longer than that."""
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
        """Return the next line that was received; None when none is whole. One that is too long closes it."""
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
        """Close it; what was received can still be read."""
        if self.is_open:
            self.is_open = False
            self._selector.unregister(self._socket)
            self._socket.close()


class _Channel:
    """A connection whose ends have both proved themselves.

    Args:
        lines: The connection.
        secret: What both know.
        sends: Which end this is, ``member`` or ``server``.
        receives: Which end the other is.
        about: What both proofs were about.
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
        """Return the messages that have come; a line that is none closes the connection."""
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


class _Unproven:
    """A connection that the server has accepted, and that has yet to prove itself."""

    def __init__(self, lines: _Lines, source: str) -> None:
        self.lines, self.source = lines, source
        self.is_refused = False
        """Its proof is that of another secret."""
        self._challenge = secrets.token_hex(16)
        lines.send(json.dumps({"challenge": self._challenge}).encode())

    def proven(self, secret: bytes) -> tuple[str, _Channel] | None:
        """Return the member's name and its channel; None while it has not proved itself, or has failed."""
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
    """The end that listens.

    Args:
        address: Where.
        port: Likewise; 0 takes a free one.
        secret: What its members know.
        members: How many there will be.

    Raises:
        OSError: It cannot listen there.

    Attributes:
        port: Where it listens.
        refused: Addresses, the first of them, that sent the proof of another secret.
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
        self._heard: dict[str, float] = {}
        self.refused: list[str] = []

    def send(self, message: dict[str, Any], to: Iterable[str] | None = None) -> None:
        """Queue a message to every member that is connected, or to some.

        Args:
            message: What is sent.
            to: Names of members; nothing is sent to those that are not connected.
        """
        body = json.dumps(message).encode()
        for name in self._members if to is None else to:
            if (channel := self._members.get(name)) is not None:
                channel.send(body)

    def receive(self, timeout: float = 0.0) -> dict[str, list[dict[str, Any]]]:
        """Return the messages that have come, by member.

        Args:
            timeout: So many seconds are waited at most until something comes.
        """
        self._listen()
        ready = {key.data for key, _ in self._selector.select(timeout)}
        found: dict[str, list[dict[str, Any]]] = {}
        for name, channel in self._members.items():
            channel.flush()
            if channel.lines in ready:
                found[name] = channel.receive()
        for name, messages in self._proven(ready):
            found.setdefault(name, []).extend(messages)
        if self._listener in ready:
            self._accept()
        now = time.monotonic()
        found = {name: messages for name, messages in found.items() if messages}
        self._heard.update(dict.fromkeys(found, now))
        return found

    def silent_for(self, name: str) -> float | None:
        """Return for how many seconds nothing has come from a member; None when it has never proved itself.

        One that only connects again has yet to say something.
        """
        heard = self._heard.get(name)
        return None if heard is None else time.monotonic() - heard

    def is_connected(self, name: str) -> bool:
        """Whether a member's connection is open, as far as is known here."""
        channel = self._members.get(name)
        return channel is not None and channel.lines.is_open

    def disconnect(self, name: str) -> None:
        """Close a member's connection; if it is still there, it connects again."""
        if (channel := self._members.get(name)) is not None:
            channel.close()

    def close(self) -> None:
        """Close all connections, after messages that wait are sent as far as they can be."""
        for channel in self._members.values():
            channel.flush()
            channel.close()
        for one in self._unproven.values():
            one.lines.close()
        self._selector.close()
        self._listener.close()

    def _listen(self) -> None:
        """Wait for connections, too, unless there were no resources for one a moment ago."""
        if self._listener not in self._selector.get_map() and time.monotonic() >= self._accepts_from:
            self._selector.register(self._listener, selectors.EVENT_READ, self._listener)

    def _accept(self) -> None:
        """Accept connections, some at a time."""
        for _ in range(_AT_ONCE):
            try:
                connection, (source, *_) = self._listener.accept()
            except OSError as error:
                # Otherwise nobody is there, or hung up meanwhile.
                if error.errno in _NO_RESOURCES:
                    self._drop_one()
                    self._selector.unregister(self._listener)
                    self._accepts_from = time.monotonic() + _RETRY_S
                return
            # The kernel gives the lowest number that is free.
            left = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - connection.fileno()
            lines = _Lines(connection, self._selector)
            self._unproven[lines] = _Unproven(lines, str(source))
            if len(self._unproven) > self._most_unproven or 0 < left < _FILES_LEFT:
                self._drop_one()

    def _drop_one(self) -> None:
        """Close the oldest unproven connection of the address that has most of them."""
        counts = collections.Counter(one.source for one in self._unproven.values())
        for source, _ in counts.most_common(1):
            oldest = next(lines for lines, one in self._unproven.items() if one.source == source)
            oldest.close()
            del self._unproven[oldest]

    def _proven(self, ready: Set[object]) -> list[tuple[str, list[dict[str, Any]]]]:
        """Return what was sent on connections that are replaced, and on those that have proved themselves."""
        found, now = [], time.monotonic()
        for lines, one in list(self._unproven.items()):
            proven = one.proven(self._secret) if lines in ready else None
            if proven is not None:
                name, channel = proven
                if name in self._members:
                    found.append((name, self._members[name].receive()))
                    self._members[name].close()
                self._members[name] = channel
                self._heard.setdefault(name, now)
                found.append((name, channel.receive()))
            elif one.is_refused and one.source not in self.refused and len(self.refused) < _REFUSED:
                self.refused.append(one.source)
            elif now - lines.opened > _UNPROVEN_S:
                lines.close()
            if proven is not None or not lines.is_open:
                del self._unproven[lines]
        return found


class ControlClient:
    """A member's end. It connects, and connects again, by itself.

    Args:
        address: The server's.
        port: Likewise.
        name: This member's, which no other has.
        secret: What the server knows as well.
    """

    def __init__(self, address: str, port: int, name: str, secret: bytes) -> None:
        self._to = (address, port)
        self._name, self._secret = name, secret
        self._selector = selectors.DefaultSelector()
        self._lines: _Lines | None = None
        self._about: tuple[str, str, str] | None = None
        self._channel: _Channel | None = None
        self._tried = -_RETRY_S
        self._heard = time.monotonic()
        self.was_refused = False
        """The other end closed the last connection before both had proved themselves."""

    @property
    def is_proven(self) -> bool:
        """The server is connected, and both have proved themselves."""
        return self._channel is not None

    def send(self, message: dict[str, Any]) -> None:
        """Queue a message, if the server is there."""
        if self._channel is not None:
            self._channel.send(json.dumps(message).encode())

    def receive(self, timeout: float = 0.0) -> list[dict[str, Any]]:
        """Return the messages that have come.

        Args:
            timeout: So many seconds are waited at most until something comes.
        """
        self._connect()
        self._selector.select(timeout)
        if self._lines is None:
            return []
        if self._channel is None:
            self._prove(self._lines)
        messages = [] if self._channel is None else self._channel.receive()
        if messages:
            self._heard = time.monotonic()
        if not self._lines.is_open:
            self.was_refused = self._channel is None
            self._lines = self._channel = None
        return messages

    def silent_for(self) -> float:
        """Return for how many seconds no message has come from the server."""
        return time.monotonic() - self._heard

    def connect_again(self) -> None:
        """Give up the connection, of which the other end may know nothing any more."""
        if self._lines is not None:
            self._lines.close()

    def close(self) -> None:
        """Close the connection, after messages that wait are sent as far as they can be."""
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
            connection = socket.create_connection(self._to, timeout=2)
        except OSError:
            self.was_refused = False
            return
        self._lines = _Lines(connection, self._selector)

    def _prove(self, lines: _Lines) -> None:
        """Go on with the proofs, as far as lines have come."""
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
    # As JSON, so that no two lists come to the same bytes.
    return hmac.digest(secret, json.dumps(about).encode(), "sha256")


def _code(key: bytes, number: int, body: bytes) -> bytes:
    return hmac.digest(key, b"%d %b" % (number, body), "sha256").hex().encode()


def _is_proof(given: Any, wanted: bytes) -> bool:
    return hmac.compare_digest(str(given).encode(errors="replace"), wanted.hex().encode())


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a line; None when it is none."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
