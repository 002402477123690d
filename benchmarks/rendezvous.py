# SPDX-License-Identifier: GPL-3.0-or-later
"""Measure how long the members of a rendezvous on one machine take to find each other, and to end together.

Run `trainer/.venv/bin/python benchmarks/rendezvous.py`; it prints a table for docs/performance.md. Launcher
and workers run the product's own code over TCP, from the connection to the end of the job. The launcher is
this process. The workers are threads of forked processes, fifty in each, since a thousand Python processes
would measure how fast a machine starts Python. All come at once, before the launcher listens. Their command
does nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import secrets
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "trainer")]

from benchmarks.tables import markdown  # noqa: E402
from rdm_job.control import UNPROVEN, ControlClient, ControlServer  # noqa: E402
from rdm_job.processes import allow_files  # noqa: E402
from rdm_job.rendezvous.command import Command  # noqa: E402
from rdm_job.rendezvous.meeting import End, Launcher, Started, Worker  # noqa: E402
from rdm_job.rendezvous.roster import Member, Roster  # noqa: E402

EACH = 50
SECRET = b"of this run, long enough"
TIMEOUT_S = 600.0


def show(line: str) -> None:
    """Print nothing."""


class Nothing(Command):
    """A command that has already ended."""

    def __init__(self) -> None:
        self.code = 0

    def poll(self) -> int:
        """Return its exit code."""
        return self.code

    def stop(self) -> None:
        """Do nothing."""

    def errors(self) -> list[str]:
        """Return nothing."""
        return []


def member(number: int) -> Member:
    """Return the description of a member."""
    return Member(f"node{number}", f"node{number}", f"10.0.{number // 250}.{1 + number % 250}", 8, "cuda GPU")


def take_part(number: int, port: int, begins: list[float], ends: list[float]) -> None:
    """Run a worker; record when it starts its command, and when it knows that the job has ended."""
    client = ControlClient("127.0.0.1", port, f"node{number}#{secrets.token_hex(8)}", SECRET)
    worker = Worker(client, member(number), show)
    started = worker.gather(TIMEOUT_S, "the launcher", lambda: False)
    assert isinstance(started, Started), started
    assert started.members[started.rank] == member(number)
    begins.append(time.monotonic())
    assert worker.run(Nothing(), TIMEOUT_S, lambda: False, dict) == End(0)
    ends.append(time.monotonic())
    client.close()


def take_parts(numbers: range, port: int, results: Any) -> None:
    """Run some workers, and send their times and this process's CPU seconds."""
    # Waiting threads would wake every 5 ms.
    sys.setswitchinterval(1)
    begins: list[float] = []
    ends: list[float] = []
    threads = [threading.Thread(target=take_part, args=(number, port, begins, ends)) for number in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == len(numbers), "not all workers have started and ended"
    results.put((max(begins), max(ends), time.process_time()))


def measure(count: int) -> tuple[float, float, float, float]:
    """Return the seconds to start and to end, and the CPU seconds of the launcher and of a worker."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    parts = [range(first, min(count, first + EACH)) for first in range(1, count, EACH)]
    before, began = time.process_time(), time.monotonic()
    for part in parts:
        context.Process(target=take_parts, args=(part, port, results), daemon=True).start()
    server = ControlServer("127.0.0.1", port, SECRET, count)
    launcher = Launcher(server, Roster(member(0), count), secrets.token_hex(8), show)
    assert launcher.gather(TIMEOUT_S) is not None
    launcher.start(port)
    assert launcher.run(Nothing(), TIMEOUT_S, lambda: False, lambda *_: None) == End(0)
    own = time.process_time() - before
    server.close()
    found = [results.get(timeout=TIMEOUT_S) for _ in parts]
    begins, ends, cpu = zip(*found, strict=True)
    return max(begins) - began, max(ends) - max(begins), own, sum(cpu) / (count - 1)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", default="50,200,1000", help="how many, with commas between")
    sizes = [int(size) for size in parser.parse_args().members.split(",")]
    # The launcher's end of each connection.
    allow_files(2 * max(sizes) + UNPROVEN)
    rows = [("members", "start s", "end s", "launcher CPU s", "worker CPU ms")]
    for size in sizes:
        start, end, own, others = measure(size)
        rows.append((f"{size:,}", f"{start:.1f}", f"{end:.1f}", f"{own:.1f}", f"{1000 * others:.0f}"))
    print(markdown(rows))


if __name__ == "__main__":
    main()
