# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers Prometheus over HTTP, at this node's address on the fabric and at no other."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

__all__ = ["Exporter"]

_FORM = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT_S = 10.0
_CONNECTIONS = 16
"""Anybody may connect; so many threads and files they get of a process that has other work."""
_NO_FILES_S = 0.2


class Exporter:
    """Serves a text at ``/metrics`` until the process ends, or it is closed.

    Args:
        address: Where it listens.
        port: Likewise.

    Raises:
        OSError: The port is taken, or the address is none of this machine's.

    Attributes:
        text: What it serves.
    """

    def __init__(self, address: str, port: int) -> None:
        self.text = ""
        self._server = _Server((address, port), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Serve no longer."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """http.server's asks for the name of its address, which may take long where no name server is."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. While this process can open no files, do not try again and again."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_NO_FILES_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection; the oldest has to go where there are too many."""
        with self._lock:
            self._open[request] = None
            if len(self._open) > _CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that is answered."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Let who hung up go."""


def _handler(exporter: Exporter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _TIMEOUT_S

        def do_GET(self) -> None:  # http.server's name
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            body = exporter.text.encode()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", _FORM)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: it is asked every few seconds."""

    return Handler
