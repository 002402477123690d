# SPDX-License-Identifier: GPL-3.0-or-later
"""A real image registry on this machine; only clients that get its certificate trust it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

from rdm_job import network
from tests.waiting import DEADLINE_S, wait_until


class Registry:
    """The registry.

    Args:
        folder: Where all its files are.
        port: Where it listens.

    Attributes:
        name: Its name in the names of images.
        certificate: Its certificate.
    """

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.name, self.certificate = f"localhost:{port}", folder / "certificate.pem"

    def push(self, archive: Path, name: str) -> None:
        """Store the image of a Docker archive under a name."""
        target = f"docker://{self.name}/{name}"
        _run(
            "skopeo",
            "--insecure-policy",
            "copy",
            "--dest-tls-verify=false",
            f"docker-archive:{archive}",
            target,
        )

    def configure(self) -> Path:
        """Write its configuration, and return where."""
        key = self.folder / "key.pem"
        whose = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
        made = ("-keyout", str(key), "-out", str(self.certificate), "-days", "2")
        _run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *whose, *made)
        tls = {"certificate": str(self.certificate), "key": str(key)}
        settings = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self.folder / "store")}},
            "http": {"addr": f"127.0.0.1:{self.port}", "tls": tls},
        }
        path = self.folder / "registry.yml"
        path.write_text(json.dumps(settings))
        return path

    def answers(self) -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 5).close()
            return True
        return False


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Registry]:
    """Provide a running registry.

    Args:
        folder: Where all its files go.
    """
    found = network.take_free_ports("127.0.0.1", 1, zlib.crc32(str(folder).encode()))
    assert found, "no port is free for a registry"
    registry = Registry(folder, found[0])
    with (folder / "registry.log").open("wb") as log:
        command = ["docker-registry", "serve", str(registry.configure())]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            wait_until("the registry listens", registry.answers)
            yield registry
        finally:
            process.terminate()
            process.wait(timeout=DEADLINE_S)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, f"{command}: {done.stderr}"
