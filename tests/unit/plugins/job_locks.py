"""A running job as seen from outside its container: a lock that another process holds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
sys.stdin.read()
"""


@contextmanager
def running_job(directory: Path, job: str, node: str = "n1") -> Iterator[None]:
    """A job of this name runs on a node, with its files below a directory."""
    lock = directory / job / f".agent.{node}.lock"
    lock.parent.mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        agent.stdout.readline()
        yield
        agent.kill()
