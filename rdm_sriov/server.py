# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker's plugin protocol over a unix socket.

Source: https://docs.docker.com/engine/extend/plugin_api/.

This runs on nodes (Python 3.8 or newer).
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import stat
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any, Dict, Set, Tuple

from ansible_collections.rdm.provision.plugins.module_utils.base.host import read_text
from ansible_collections.rdm.provision.rdm_sriov.driver import ACTIVATE, CREATE_ENDPOINT, IMPLEMENTS, Driver
from ansible_collections.rdm.provision.rdm_sriov.vfs import VfProblem

LARGEST = 1024 * 1024
"""Maximum bytes of a request; Docker's have some hundred."""
_CONTENT_TYPE = "application/vnd.docker.plugins.v1.1+json"
_IDLE_S = 300.0
_DRAINED = 8 * LARGEST
_DRAIN_S = 5.0


class _Refused(Exception):  # noqa: N818  # an answer
    """A malformed request."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class _Handler(BaseHTTPRequestHandler):
    """One connection from Docker."""

    protocol_version = "HTTP/1.1"
    # An incomplete request must not keep a thread for ever.
    timeout = _IDLE_S
    server: "Server"

    def do_POST(self) -> None:
        """Answer a call."""
        call = self.path.lstrip("/")
        cut_off = False
        try:
            status, answer = 200, self._answer(call)
        except _Refused as refused:
            status, answer = refused.status, {"Err": str(refused)}
            # The rest of the body may follow.
            self.close_connection = cut_off = True
        except VfProblem as problem:
            status, answer = 200, {"Err": str(problem)}
        except Exception as error:  # a bug must not stop the plugin, which other containers need
            status, answer = 500, {"Err": "{0}: {1}".format(type(error).__name__, error)}
        if "Err" in answer:
            say("{0}: {1}".format(call, answer["Err"]))
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", _CONTENT_TYPE)
        self.send_header("Content-Length", str(len(payload)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(payload)
        if cut_off:
            self._drain()

    def _drain(self) -> None:
        """Read a bounded rest of a request: a client that is still sending does not read the answer."""
        until = time.monotonic() + _DRAIN_S
        left = _DRAINED
        with contextlib.suppress(OSError):
            while left > 0:
                seconds = until - time.monotonic()
                if seconds <= 0:
                    break
                self.connection.settimeout(seconds)
                part = self.rfile.read1(65536)
                if not part:
                    break
                left -= len(part)

    def _answer(self, call: str) -> Dict[str, Any]:
        body = self._body()
        if not self.server.driver.knows(call):
            raise _Refused(404, "there is no {0}".format(call[:80] or "call without a name"))
        try:
            request = json.loads(body or b"{}")
        except (ValueError, RecursionError):
            raise _Refused(400, "the request is not JSON") from None
        # Docker sends null for no arguments.
        if request is None:
            request = {}
        if not isinstance(request, dict):
            raise _Refused(400, "the request is no JSON object")
        engines, peer = self.server.engines, _peer(self.connection)
        if call == CREATE_ENDPOINT:
            engines.add(_process(peer))
        # Every engine that sees the socket activates the plugin, as for `docker volume ls`. While all with
        # our endpoints run, this is no restart.
        elif call == ACTIVATE:
            if engines and all(one[0] not in (0, peer) and _process(one[0]) == one for one in tuple(engines)):
                return dict(IMPLEMENTS)
            engines.clear()
        return self.server.driver.answer(call, request)

    def _body(self) -> bytes:
        try:
            if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
                return self._chunks()
            length = int(self.headers.get("Content-Length") or 0)
        except ValueError:
            raise _Refused(400, "the request's length is no number") from None
        if not 0 <= length <= LARGEST:
            raise _Refused(413, "a request has at most {0} bytes".format(LARGEST))
        body = self.rfile.read(length)
        if len(body) < length:
            raise _Refused(400, "the request ends in the middle")
        return body

    def _chunks(self) -> bytes:
        body = b""
        while True:
            size = int(self.rfile.readline(100).split(b";")[0], 16)
            if not 0 <= size <= LARGEST - len(body):
                raise _Refused(413, "a request has at most {0} bytes".format(LARGEST))
            body += self.rfile.read(size)
            self.rfile.readline(100)
            if size == 0:
                return body

    def send_error(self, code: int, message: Any = None, explain: Any = None) -> None:  # noqa: ARG002
        """Answer a malformed request in the same form."""
        self.close_connection = True
        payload = json.dumps({"Err": str(message or "this is no request of Docker's")}).encode()
        with contextlib.suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(payload)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(payload)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: errors are logged elsewhere."""

    def address_string(self) -> str:
        """A unix socket has no client address."""
        return "docker"


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Serves a driver; Docker keeps connections open, so each has a thread.

    Attributes:
        engines: the processes that created endpoints since the last restart of one, see `_process`.

    Raises:
        VfProblem: another plugin answers there, or the socket cannot be created.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, path: str, driver: Driver) -> None:
        self.driver = driver
        self.engines: Set[Tuple[int, str]] = set()
        self._path = path
        _make_way(path)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            # Other users must not be able to connect, not even for a moment.
            before = os.umask(0o177)
            try:
                super().__init__(path, _Handler)
            finally:
                os.umask(before)
        except OSError as error:
            raise VfProblem("cannot listen on {0}: {1}".format(path, error.strerror)) from error
        self._inode = os.stat(path).st_ino

    def server_close(self) -> None:
        """Stop, and remove the socket if it is still ours."""
        with contextlib.suppress(OSError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log in one line why a connection broke off."""
        say("a connection broke off: {0}".format(sys.exc_info()[1]))


def _peer(connection: socket.socket) -> int:
    """Return the process at the other end; 0 if it is not visible from this container."""
    size = struct.calcsize("3i")
    pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
    return pid


def _process(pid: int) -> Tuple[int, str]:
    """Return a process with its start time, since ids are reused; (0, "") if it has ended."""
    fields = read_text("/proc/{0}/stat".format(pid)).rpartition(")")[2].split()
    return (pid, fields[19]) if fields and fields[0] not in "ZX" else (0, "")


def _make_way(path: str) -> None:
    """Remove a socket that nobody listens on."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise VfProblem("{0} is there and is no socket: move it away".format(path))
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as other:
        other.settimeout(5)
        try:
            other.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            return
        except FileNotFoundError:
            return
        except OSError as error:
            raise VfProblem("cannot connect to {0}: {1}".format(path, error)) from error
    raise VfProblem(
        "another plugin answers on {0}: two cannot hand out the same VFs, so end that one first".format(path)
    )


_say_lock = threading.Lock()


def say(line: str) -> None:
    """Write a line to the log, not mixed with those of other threads."""
    with _say_lock:
        sys.stdout.write(line.replace("\n", " ") + "\n")
        sys.stdout.flush()
