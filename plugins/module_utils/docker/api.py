# SPDX-License-Identifier: GPL-3.0-or-later
"""A thin client of the Docker Engine API over its unix socket, with the standard library only.

It runs on nodes (Python 3.8 or newer), where the Docker SDK may be missing. It uploads an image of 50 GB in
constant memory. The API is described at https://docs.docker.com/reference/api/engine/.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
import struct
import threading
import time
from typing import Any, Iterable, Iterator, NamedTuple
from urllib.parse import quote, urlencode

from ansible_collections.rdm.provision.plugins.module_utils.base.node_error import NodeError
from ansible_collections.rdm.provision.plugins.module_utils.docker import podman

DEFAULT_SOCKET = "/var/run/docker.sock"

# The newest API version that this client was written for (Docker 28.3). An older engine gets its own version.
NEWEST_API = (1, 51)

_READ_SIZE = 64 * 1024
_PART_SIZE = 1024 * 1024
_STDERR = 2
_IDLE_S = 600.0
"""Seconds that the engine may stay silent while it works on an upload."""


class DockerProblem(NodeError):  # noqa: N818  # a state of the node, not an error
    """A request to the engine failed; the text is one sentence."""


class DockerUnavailable(DockerProblem):
    """No engine answers: the socket is missing, refuses connections, or stays silent."""


class DockerForbidden(DockerProblem):
    """This user may not use the socket."""


class DockerTimeout(DockerProblem):
    """A command in a container did not finish before its deadline."""


class DockerError(DockerProblem):
    """The engine answered with an error.

    Attributes:
        status: the HTTP status; 200 if an operation fails after it began.
        message: the engine's error message.
    """

    def __init__(self, status: int, message: str, request: str = "") -> None:
        self.status = status
        self.message = message.strip()
        what = "Docker Engine refused {0}".format(request) if request else "Docker Engine reports"
        super().__init__("{0}: {1} (status {2})".format(what, self.message, status))


class ExecResult(NamedTuple):
    """The result of a command in a container."""

    exit_code: int
    stdout: bytes
    stderr: bytes


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("docker", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect the socket; http.client calls this before it sends."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            self.sock.connect(self._path)
        except OSError:
            self.sock.close()
            raise


def socket_path(given: str = "") -> str:
    """Return the path of the engine's socket: the given one, else DOCKER_HOST's, else Docker's default.

    Args:
        given: a path, or a unix:// address.

    Raises:
        DockerUnavailable: the address is not a unix socket's.
    """
    address = given or os.environ.get("DOCKER_HOST", "") or DEFAULT_SOCKET
    if address.startswith("unix://"):
        return address[len("unix://") :]
    if "://" in address:
        raise DockerUnavailable("{0} is not the address of a unix socket (unix:///path)".format(address))
    return address


class DockerAPI:
    """The engine at a unix socket: a Docker Engine, or Podman, for which podman.py translates.

    Every request uses a new connection, so threads can share one object.

    Args:
        socket: path or unix:// address; empty means DOCKER_HOST, else /var/run/docker.sock.
        timeout: seconds that the engine may stay silent.
    """

    def __init__(self, socket: str = "", timeout: float = 60) -> None:
        self.socket = socket_path(socket)
        self.timeout = timeout
        self._version: dict[str, Any] | None = None

    # ---- what the engine is

    def version(self) -> dict[str, Any]:
        """Return the engine's /version; it is requested once."""
        if self._version is None:
            self._version = self._json("GET", "/version")
        return self._version

    @property
    def podman(self) -> str:
        """Podman's version; empty for a Docker Engine."""
        return podman.release(self.version())

    @property
    def updates(self) -> bool:
        """Whether a container's restart policy can be changed; Podman's compatible API cannot."""
        return not self.podman

    @property
    def api_version(self) -> str:
        """The API version in use: the older of ours and the engine's.

        Raises:
            DockerUnavailable: the engine no longer supports any version that this client knows.
        """
        version = self.version()
        oldest = _numbers(version.get("MinAPIVersion", "1.12"))
        if oldest > NEWEST_API:
            raise DockerUnavailable(
                "Docker Engine {0} at {1} speaks API {2} and newer; the newest known here is {3}".format(
                    version.get("Version", "?"), self.socket, _dotted(oldest), _dotted(NEWEST_API)
                )
            )
        return _dotted(min(NEWEST_API, _numbers(version["ApiVersion"])))

    # ---- requests

    def get(self, path: str, **query: Any) -> Any:
        """Return the response to GET: the JSON value, or text if it is not JSON."""
        found = self._json("GET", self._versioned(path, query))
        if not self.podman:
            return found
        return podman.from_podman(path, found, lambda: self._json("GET", podman.LIBPOD_NETWORKS))

    def post(self, path: str, body: Any = None, **query: Any) -> Any:
        """Return the response to POST with a JSON body (None: no body); None if it is empty."""
        if body is not None and self.podman:
            body = podman.to_podman(path, body)
        return self._json("POST", self._versioned(path, query), body)

    def delete(self, path: str, **query: Any) -> Any:
        """Return the response to DELETE; None if it is empty."""
        return self._json("DELETE", self._versioned(path, query))

    def get_stream(self, path: str, **query: Any) -> Iterator[bytes]:
        """Yield the response to GET in parts of at most 1 MiB, such as an image's archive.

        Raises:
            DockerError: the engine refuses the request.
            DockerUnavailable: the response breaks off, or the engine stays silent for too long.
        """
        connection = UnixConnection(self.socket, self.timeout)
        try:
            response = self._send(connection, "GET", self._versioned(path, query), None, {})
            _raise_for_status(response, "GET " + path)
            yield from iter(lambda: response.read(_PART_SIZE), b"")
        except (OSError, http.client.HTTPException) as error:
            raise self._problem(error) from error
        finally:
            connection.close()

    def post_stream(
        self,
        path: str,
        chunks: Iterable[bytes],
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Iterator[dict[str, Any]]:
        """Upload a stream in constant memory and yield the engine's progress, one JSON line each.

        The upload is complete when this returns; the lines are read lazily. An engine that writes much before
        it has read the whole stream would block: pass quiet=1 to /images/load.

        Args:
            path: such as /images/load.
            chunks: the body; exceptions from iterating over it reach the caller.
            headers: such as {"Content-Type": "application/x-tar"}.
            query: the parameters of the request.

        Raises:
            DockerError: the engine refuses the request, or reports an error while its lines are read.
        """
        target = self._versioned(path, query)
        request = "POST " + path
        connection = UnixConnection(self.socket, _IDLE_S)
        try:
            response = self._send(connection, "POST", target, _non_empty(chunks), dict(headers or {}))
            _raise_for_status(response, request)
        except BaseException:
            connection.close()
            raise
        return self._progress(connection, response, request)

    def exec(
        self, container: str, argv: list[str], timeout: float, user: str = "", stdin: bytes | None = None
    ) -> ExecResult:
        """Run a command in a running container, without a terminal, and wait until it ends.

        The engine cannot end a command that it has started, so a command that may hang needs its own timeout.

        Args:
            container: name or id.
            argv: the command and its arguments; no shell is involved.
            timeout: in seconds.
            user: user[:group] in the container; empty means the container's default.
            stdin: the command's standard input; None: it has none.

        Raises:
            DockerTimeout: the command did not end in time.
            DockerError: no such container, or it does not run.
        """
        deadline = time.monotonic() + timeout
        spec = {
            "AttachStdin": stdin is not None,
            "AttachStdout": True,
            "AttachStderr": True,
            "Cmd": list(argv),
            "User": user,
        }
        exec_id = self.post("/containers/{0}/exec".format(quote(container, safe="")), spec)["Id"]
        late = "{0} in container {1} did not finish within {2:g} s".format(argv[0], container, timeout)
        stdout, stderr = self._attach(exec_id, deadline, late, stdin)
        while True:
            state = self.get("/exec/{0}/json".format(exec_id))
            if not state["Running"] and state["ExitCode"] is not None:
                return ExecResult(state["ExitCode"], stdout, stderr)
            # The output has ended, but the engine may not know the exit status yet.
            if time.monotonic() > deadline:
                raise DockerTimeout(late)
            time.sleep(0.01)

    # ---- inside

    def _versioned(self, path: str, query: dict[str, Any]) -> str:
        """Return the request target: version prefix, path, and the query with JSON for lists and maps."""
        words = {key: _query_value(value) for key, value in query.items() if value is not None}
        return "/v{0}{1}{2}".format(self.api_version, path, "?" + urlencode(words) if words else "")

    def _json(self, method: str, target: str, body: Any = None) -> Any:
        connection = UnixConnection(self.socket, self.timeout)
        headers = {}
        payload = None
        request = "{0} {1}".format(method, target.partition("?")[0])
        if body is not None:
            headers["Content-Type"] = "application/json"
            payload = json.dumps(body).encode()
        try:
            response = self._send(connection, method, target, payload, headers)
            _raise_for_status(response, request)
            text = response.read().decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise self._problem(error) from error
        finally:
            connection.close()
        if not text.strip():
            return None
        if "json" in response.headers.get("Content-Type", ""):
            try:
                return json.loads(text)
            except ValueError as error:
                raise DockerProblem(
                    "Docker Engine's answer to {0} cannot be read: {1}".format(request, error)
                ) from error
        return text

    def _send(
        self, connection: UnixConnection, method: str, target: str, body: Any, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        try:
            connection.connect()
        except OSError as error:
            raise self._problem(error) from error
        upload = _Upload(body) if body is not None and not isinstance(body, bytes) else None
        try:
            connection.request(method, target, body=upload or body, headers=headers, encode_chunked=True)
        except (BrokenPipeError, ConnectionResetError) as error:
            # The engine may refuse an upload before it has read all of it; its response says why.
            if upload is not None and upload.error is error:
                raise
        except OSError as error:
            if upload is not None and upload.error is error:
                raise
            raise self._problem(error) from error
        try:
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._problem(error) from error

    def _progress(
        self, connection: UnixConnection, response: http.client.HTTPResponse, request: str
    ) -> Iterator[dict[str, Any]]:
        try:
            for line in _lines(response):
                value = json.loads(line)
                if "error" in value:
                    raise DockerError(response.status, str(value["error"]), request)
                yield value
        except (OSError, http.client.HTTPException) as error:
            raise self._problem(error) from error
        except ValueError as error:
            raise DockerError(
                response.status, "unreadable answer {0!r}".format(line[:200]), request
            ) from error
        finally:
            connection.close()

    def _attach(self, exec_id: str, deadline: float, late: str, stdin: bytes | None) -> tuple[bytes, bytes]:
        """Start an exec, send its input, and return its output: (stdout, stderr)."""
        connection = UnixConnection(self.socket, self.timeout)
        target = self._versioned("/exec/{0}/start".format(exec_id), {})
        try:
            response = self._send(
                connection,
                "POST",
                target,
                json.dumps({"Detach": False, "Tty": False}).encode(),
                {"Content-Type": "application/json"},
            )
            _raise_for_status(response, "POST /exec/start")
            with _Feed(response, stdin, deadline):
                return _demultiplex(_until(response, deadline))
        except socket.timeout as error:
            raise DockerTimeout(late) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._problem(error) from error
        finally:
            connection.close()

    def _problem(self, error: Exception) -> DockerProblem:
        """Turn a failure of the connection into one sentence."""
        number = getattr(error, "errno", None)
        if number in (errno.EACCES, errno.EPERM):
            return DockerForbidden(
                "user {0} may not use {1}: add it to the group that owns the socket (usually docker)".format(
                    _user_name(), self.socket
                )
            )
        if number in (errno.ENOENT, errno.ENOTDIR):
            reason = "there is no such socket"
        elif number == errno.ECONNREFUSED:
            reason = "the socket is there, but nothing listens on it"
        elif isinstance(error, socket.timeout):
            reason = "it stayed silent for {0:g} s".format(self.timeout)
        elif isinstance(error, (ConnectionResetError, BrokenPipeError, http.client.IncompleteRead)):
            reason = "it broke the connection off"
        else:
            reason = str(error) or type(error).__name__
        return DockerUnavailable("no Docker Engine answers at {0}: {1}".format(self.socket, reason))


class _Upload:
    """An iterable body. It records an error of its source, to tell it from a connection error."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = chunks
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._chunks
        except Exception as error:
            self.error = error
            raise


def _non_empty(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Leave out empty chunks: in a chunked body an empty chunk means the end."""
    return (chunk for chunk in chunks if chunk)


def _raise_for_status(response: http.client.HTTPResponse, request: str) -> None:
    if response.status < 400:
        return
    text = response.read().decode("utf-8", "replace")
    try:
        message = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError):
        message = text or response.reason
    raise DockerError(response.status, str(message), request)


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the non-empty lines of a response.

    Iterating over the response itself would not notice that it breaks off.

    Raises:
        http.client.IncompleteRead: the response broke off.
    """
    rest = b""
    while True:
        piece = response.read1(_READ_SIZE)
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line for line in whole if line.strip())
        if not piece:
            if rest.strip():
                yield rest
            return


class _Feed(threading.Thread):
    """Sends input to an exec while its output is read: a command need not read all its input.

    It is a context manager; read the output within.

    Args:
        response: the response whose connection takes the input.
        data: the input; None for none.
        deadline: in seconds, as time.monotonic counts.
    """

    def __init__(self, response: http.client.HTTPResponse, data: bytes | None, deadline: float) -> None:
        super().__init__(daemon=True)
        # A duplicate, since the response closes its socket at its end, which would not wake a blocked send.
        self._connection = _connection(response).dup()
        self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
        self._data = data

    def run(self) -> None:
        """Send the input, then end it."""
        try:
            self._connection.sendall(self._data or b"")
            self._connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the command ended without reading it; its output says why

    def __enter__(self) -> None:
        if self._data is not None:
            self.start()

    def __exit__(self, *_exception: object) -> None:
        if self.is_alive():
            try:
                self._connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the engine has closed it
            self.join()
        self._connection.close()


def _connection(response: http.client.HTTPResponse) -> socket.socket:
    """Return the socket that a response is read from."""
    found: socket.socket = response.fp.raw._sock  # type: ignore[attr-defined]  # no public way
    return found


def _until(response: http.client.HTTPResponse, deadline: float) -> Iterator[bytes]:
    """Yield the chunks of a response as they arrive. Raise socket.timeout at the deadline."""
    connection = _connection(response)
    while True:
        connection.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = response.read1(_READ_SIZE)
        if not piece:
            return
        yield piece


def _demultiplex(pieces: Iterable[bytes]) -> tuple[bytes, bytes]:
    """Split the engine's raw stream into (stdout, stderr).

    Each frame has 8 bytes of header: the stream (1 stdout, 2 stderr), three zeros, and the length of the
    payload as a big-endian 32-bit number.
    """
    stdout, stderr, buffer = bytearray(), bytearray(), bytearray()
    for piece in pieces:
        buffer += piece
        while len(buffer) >= 8:
            stream, length = struct.unpack(">BxxxL", buffer[:8])
            if len(buffer) < 8 + length:
                break
            (stderr if stream == _STDERR else stdout).extend(buffer[8 : 8 + length])
            del buffer[: 8 + length]
    return bytes(stdout), bytes(stderr)


def _query_value(value: Any) -> str:
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, (dict, list)):
        return json.dumps(value)
    return str(value)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _user_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
