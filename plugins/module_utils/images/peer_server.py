# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP server of a peer: a bounded number of connections, deadlines, and limits on what it sends.

This runs on nodes (Python 3.8 or newer, standard library).
"""

from __future__ import annotations

import hmac
import http.server
import io
import socket
import socketserver
import threading
import time
from typing import Any, Callable, Optional, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.images.peer_limits import BODY_MAX, CHUNK, QUIET_S

_UPLOADS = 3
"""Pieces that are sent at a time: with few, each arrives soon and is passed on."""
_CONNECTIONS = 64
"""Each of a node's neighbours takes up to three, and neighbours of two turns may be connected."""


class Uploads:
    """Limits a node's uploads: pieces at a time, and bytes per second."""

    def __init__(self, bandwidth: float) -> None:
        self.slots = threading.BoundedSemaphore(_UPLOADS)
        self.sent = 0
        # Short enough that no receiver that shares the bandwidth times out between two chunks.
        self.chunk = max(1, min(CHUNK, int(bandwidth / 4))) if bandwidth else CHUNK
        self._bandwidth = bandwidth
        self._lock = threading.Lock()
        self._free = 0.0

    def wait(self, length: int) -> None:
        """Count these bytes, and wait until they may be sent."""
        with self._lock:
            self.sent += length
            now = time.monotonic()
            begin = max(self._free, now)
            self._free = begin + (length / self._bandwidth if self._bandwidth else 0)
        if begin > now:
            time.sleep(begin - now)


class Request(http.server.BaseHTTPRequestHandler):
    """One request of another node, or of the controller's module."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = QUIET_S
    server: Server

    def setup(self) -> None:
        """Read each request through a stream with a deadline."""
        super().setup()
        self._source = _InTime(self.connection)
        self.rfile = io.BufferedReader(self._source)

    def handle_one_request(self) -> None:
        """Answer the next request."""
        self._source.until = time.monotonic() + QUIET_S
        super().handle_one_request()

    def do_GET(self) -> None:
        """Answer the request, if it has the run's token."""
        given = self.headers.get("Authorization", "")
        try:
            if not hmac.compare_digest(given.encode(), ("Bearer " + self.server.token).encode()):
                self.reply(b"", 403)
                return
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= BODY_MAX:
                self.reply(b"", 413)
                return
            self.server.serve(self, self.path, self.rfile.read(length))
        except (OSError, ValueError, KeyError, TypeError):
            self.close_connection = True

    def do_POST(self) -> None:
        """Answer it like a GET."""
        self.do_GET()

    def begin(self, length: Optional[int], number: Optional[int] = None, status: int = 200) -> None:
        """Send the header of a response.

        Args:
            length: of the body in bytes; None means until the connection ends.
            number: of the piece that is sent.
            status: of HTTP.
        """
        self.send_response_only(status)
        if status >= 400:
            # A peer that gets nothing tries again later. Until then, its connection would be one of few.
            self.send_header("Connection", "close")
        if length is not None:
            self.send_header("Content-Length", str(length))
        if number is not None:
            self.send_header("X-Piece", str(number))
        self.end_headers()

    def reply(self, body: bytes, status: int = 200) -> None:
        """Send an answer."""
        self.begin(len(body), status=status)
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: nobody would read it."""


class _InTime(io.RawIOBase):
    """A connection's data up to a deadline, so that no client holds it with a byte now and then."""

    def __init__(self, connection: socket.socket) -> None:
        self.until = 0.0
        self._connection = connection

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the data that has arrived."""
        self._connection.settimeout(max(0.001, self.until - time.monotonic()))
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(QUIET_S)


class Server(http.server.ThreadingHTTPServer):
    """Serves a bounded number of connections; others wait in the kernel, and are closed after `QUIET_S`.

    Args:
        at: address and port.
        token: a request without it is refused.
        serve: answers a request, by its path and body.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, at: Tuple[str, int], token: str, serve: Callable[[Request, str, bytes], None]) -> None:
        self.token = token
        self.serve = serve
        self.address_family = socket.AF_INET6 if ":" in at[0] else socket.AF_INET
        self._connections = threading.BoundedSemaphore(_CONNECTIONS)
        super().__init__(at, Request)

    def server_bind(self) -> None:
        """Bind without HTTPServer's lookup of this host's name, which may take a resolver seconds."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the request in a thread; close it if none is free in time, so that the server can end."""
        if self._connections.acquire(timeout=QUIET_S):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the request, then let the next one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report nothing: the other side reports a broken connection."""
