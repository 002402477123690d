# SPDX-License-Identifier: GPL-3.0-or-later
"""Serves metrics to Prometheus over HTTP, only at this node's address on the fabric."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

_FORM = "text/plain; version=0.0.4; charset=utf-8"
_TIMEOUT_S = 10.0
_CONNECTIONS = 16
"""The limit of open connections: anybody may connect, and each takes a thread and a file of this process."""
_NO_FILES_S = 0.2


class Exporter:
    """Serves a text at ``/metrics`` until it is closed or the process ends.

    Raises:
        OSError: The port is in use, or this machine does not have the address.
    """

    def __init__(self, address: str, port: int) -> None:
        self.text = ""
        self._server = _Server((address, port), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()


class _Server(socketserver.ThreadingTCPServer):
    """An HTTP server that, unlike http.server's, does not resolve its own name, which is slow without DNS."""

    allow_reuse_address = True
    daemon_threads = True
    # With more pending connections than this, the kernel drops new ones, and clients retry a second later.
    request_queue_size = socket.SOMAXCONN

    def __init__(self, *arguments: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        super().__init__(*arguments)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; wait after an error, so as not to spin while no file can be opened."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_NO_FILES_S)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection; close the oldest if there are too many."""
        with self._lock:
            self._open[request] = None
            if len(self._open) > _CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has been served."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that hung up."""


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
            """Log nothing: a request comes every few seconds."""

    return Handler
