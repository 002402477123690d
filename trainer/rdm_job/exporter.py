# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers Prometheus over HTTP, at this node's address on the fabric and at no other."""

from __future__ import annotations

import socketserver
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

__all__ = ["Exporter"]

_FORM = "text/plain; version=0.0.4; charset=utf-8"
_PATIENCE_S = 10.0


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

    def handle_error(self, request: object, client_address: object) -> None:
        """Let who hung up go."""


def _handler(exporter: Exporter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

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
