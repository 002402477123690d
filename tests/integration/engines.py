"""Docker Engines of other releases of the distribution, and a stand-in for a newer one.

An engine of another release runs in the machine's own network namespace, from a directory with that release's
packages. They come from the machine's own package sources, and are cached in .artifacts. The release's docker
command comes with it, for an engine refuses one that is much older.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.rdm_lab.recipe import apt_sources

CACHE = Path(__file__).parents[2] / ".artifacts/engines"
ENGINES = {"20.10": "", "26.1": "trixie", "28.5+": "sid"}
"""Version or minimum version -> the release that has it. The machine's own engine is used as installed."""
_CLIENT = "usr/bin/docker"
_USR = ("bin", "sbin", "lib", "lib64")
_TIMEOUT = 600.0


def numbers(version: str) -> tuple[int, int]:
    """Return the first two numbers of a version."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def is_of(found: str, version: str) -> bool:
    """Return whether an engine's version matches a key of ENGINES. A release in development gets updates."""
    wanted = numbers(version.removesuffix("+"))
    return numbers(found) >= wanted if version.endswith("+") else numbers(found) == wanted


def engine_directory(release: str) -> Path:
    """Return a root directory with a release's Docker Engine and docker command; fetch it if needed.

    Args:
        release: code name.
    """
    where = CACHE / release
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{release}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (where / _CLIENT).exists():
            _fetch(release, where)
    return where


def _fetch(release: str, where: Path) -> None:
    own = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    assert own, "the machine does not say which release it is"
    files = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    texts = {str(path): path.read_text() for path in files if path.is_file()}
    sources = [
        line.replace(f" {own[1]} ", f" {release} ")
        for line in apt_sources(texts, own[1])
        if f" {own[1]} " in line
    ]
    new = where.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    command = [
        "mmdebstrap",
        "--quiet",
        "--variant=extract",  # only unpacked, since only the programs are needed
        '--aptopt=APT::Install-Recommends "false"',
        # The signature of a release in development may be out of date for some days.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        "--include=docker.io,docker-cli",
        release,
        str(new),
        *sources,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    if done.returncode:
        pytest.fail(f"no Docker Engine of {release} could be fetched:\n{done.stderr[-2000:]}")
    for name in _USR:
        if not (new / name).exists():
            (new / name).symlink_to(f"usr/{name}")
    for name in ("dev", "mnt", "proc", "run", "sys", "tmp"):
        (new / name).mkdir(exist_ok=True)
    shutil.rmtree(where, ignore_errors=True)
    new.rename(where)


def inside(directory: Path) -> list[str]:
    """Return a command that becomes its arguments in a directory that has the machine's devices and /run."""
    # Not a chroot: a process that enters a container's mount namespace would leave it.
    steps = [
        'mount --bind "$0" "$0"',
        *(f'mount --rbind /{name} "$0/{name}"' for name in ("dev", "proc", "run", "sys", "tmp")),
        'cd "$0"',
        "pivot_root . mnt",
        'exec "$@"',
    ]
    return ["unshare", "--mount", "sh", "-c", " && ".join(steps), str(directory)]


class _Relay(socketserver.BaseRequestHandler):
    """One connection, decided by its first request."""

    server: Any

    def handle(self) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (part := self.request.recv(65536)):
                return
            head += part
        version = re.match(rb"\w+ /v(\d+)\.(\d+)/", head)
        if version and tuple(map(int, version.groups())) < self.server.oldest:
            self._refuse(version[1].decode(), version[2].decode())
            return
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as engine:
            engine.connect(self.server.engine)
            # One request per connection, so that each is checked.
            engine.sendall(head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
            back = threading.Thread(target=_pump, args=(engine, self.request), daemon=True)
            back.start()
            _pump(self.request, engine)
            back.join()

    def _refuse(self, major: str, minor: str) -> None:
        oldest = ".".join(map(str, self.server.oldest))
        message = f"client version {major}.{minor} is too old. Minimum supported API version is {oldest}"
        body = f'{{"message":"{message}"}}'
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        self.request.sendall(f"{head}\r\nConnection: close\r\n\r\n{body}".encode())


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 128


@contextlib.contextmanager
def newer_engine(engine: str, path: Path, oldest: tuple[int, int] = (1, 44)) -> Iterator[None]:
    """Relay an engine's socket to a path, but refuse APIs older than `oldest`, as version 29 does."""
    path.unlink(missing_ok=True)
    with _Server(str(path), _Relay) as server:
        server.engine, server.oldest = engine, oldest  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield
        server.shutdown()
    path.unlink(missing_ok=True)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            sink.sendall(part)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
