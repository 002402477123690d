# SPDX-License-Identifier: GPL-3.0-or-later
"""Members of a rendezvous as processes of this machine, forked unless a test needs a program of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import psutil

from rdm_job.network import interface_of, outward_address, take_free_ports
from tests.distributed.processes import Command
from tests.waiting import DEADLINE_S, wait_until

_PROGRAM = [sys.executable, "-m", "rdm_trainer"]
Member = Command | subprocess.Popen[bytes]


def interface() -> str:
    """Return an interface of this machine that others could reach; a lab's may disappear meanwhile."""
    if (address := outward_address()) is not None and (name := interface_of(address)) is not None:
        return name
    for name, entries in sorted(psutil.net_if_addrs().items()):
        for entry in entries:
            if entry.family == socket.AF_INET and not entry.address.startswith("127."):
                return name
    raise AssertionError("this machine has no address but its loopback's")


class Members:
    """The members of one job; all are ended afterwards.

    Args:
        folder: Where their output and the secret go.

    Attributes:
        scratch: Their temporary directory; killed members leave files there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self._running: list[Member] = []
        # Not a port that a connection of another process may take until the launcher listens.
        found = take_free_ports("127.0.0.1", 1, zlib.crc32(str(folder).encode()))
        assert found, "no port is free for the launcher"
        (self.port,) = found
        (folder / "secret").write_text("a secret of tests, long enough\n")

    def __enter__(self) -> Members:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            with process:
                if process.poll() is None:
                    process.kill()

    def start(
        self,
        name: str,
        command: list[str],
        *options: str,
        count: int = 0,
        secret: str = "secret",
        master: str = "127.0.0.1",
        port: int = 0,
        stderr: int = subprocess.STDOUT,
        within: Sequence[str] | None = None,
    ) -> Member:
        """Start a member.

        Args:
            name: Its name.
            command: What it runs.
            options: Further options.
            count: Number of the job's members; giving it makes this the launcher.
            secret: The secret's file; empty: the member has none.
            master: The launcher's address, for a worker.
            port: The launcher's port, if it is not the job's own.
            stderr: Where the standard error of a program of its own goes.
            within: The command that starts it, or an empty one: it is then a program of its own, and imports
                all itself.
        """
        environment = {key: value for key, value in os.environ.items() if not key.startswith("RDZV_")}
        environment |= {
            "ROLE": "launcher" if count else "worker",
            "NUM_NODES": str(count or 1),
            "MASTER_ADDR": master,
            "RDZV_ID": "test",
            "RDZV_PORT": str(port or self.port),
            "RDZV_NAME": name,
            "TMPDIR": str(self.scratch),
            "RDM_JOBS": str(self.folder / "jobs"),
        }
        if secret:
            environment["RDZV_SECRET_FILE"] = str(self.folder / secret)
        words = ["rendezvous", "--interface", interface(), *options, "--", *command]
        output = self.folder / f"{name}.log"
        process: Member
        if within is None:
            process = Command(*words, environment=environment, log=output)
        else:
            with output.open("ab") as log:
                process = subprocess.Popen(
                    [*within, *_PROGRAM, *words], env=environment, stdout=log, stderr=stderr
                )
        self._running.append(process)
        return process

    def log(self, name: str) -> str:
        """Return what a member has written."""
        file = self.folder / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def wait_for_output(self, name: str, text: str) -> None:
        """Wait until a member has written something."""
        wait_until(f"{name} says {text!r}", lambda: self.log(name), lambda log: text in log)


def codes(*processes: Member) -> list[int]:
    """Wait for processes, and return their exit codes."""
    return [process.wait(timeout=DEADLINE_S) for process in processes]
