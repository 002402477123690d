# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's lock on file systems that refuse flock, or implement it like NFS."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from rdm_core.errors import FAILED
from rdm_job import agent_lock, processes, rotation
from rdm_job.directory import JobDirectory
from rdm_job.protocol import Node, Request
from tests.waiting import DEADLINE_S

HOLDS = """
import sys
from pathlib import Path
from rdm_job import agent_lock
agent_lock._SETTLE_S = 0
lock = agent_lock.AgentLock.take(Path(sys.argv[1]))
print(lock is not None, flush=True)
sys.stdin.read()
"""


def as_nfs(file: int | IO[Any], operation: int) -> None:
    """Lock a file like NFS, where flock locks all bytes and needs a file that is open in the right mode.

    The kernel refuses its own locks of open file descriptions in the same way (fs/nfs/file.c, fcntl(2)).
    """
    kind = {
        fcntl.LOCK_SH: fcntl.F_RDLCK,
        fcntl.LOCK_EX: fcntl.F_WRLCK,
        fcntl.LOCK_UN: fcntl.F_UNLCK,
    }[operation & ~fcntl.LOCK_NB]
    wanted = fcntl.F_OFD_SETLK if operation & fcntl.LOCK_NB else fcntl.F_OFD_SETLKW
    fcntl.fcntl(file, wanted, struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))


def refused(problem: int) -> Callable[..., None]:
    def flock(*_: Any) -> None:
        raise OSError(problem, os.strerror(problem))

    return flock


FILE_SYSTEMS = {
    "local": fcntl.flock,
    "nfs": as_nfs,
    "nfs without its lock service": refused(errno.ENOLCK),
    "lustre without flock": refused(errno.ENOSYS),
    "another": refused(errno.EOPNOTSUPP),
}


@pytest.fixture(params=list(FILE_SYSTEMS))
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(fcntl, "flock", FILE_SYSTEMS[request.param])
    monkeypatch.setattr(agent_lock, "_SETTLE_S", 0.0)
    return str(request.param)


@pytest.fixture
def job(tmp_path: Path) -> JobDirectory:
    made = JobDirectory(tmp_path / "gpt", "n1")
    made.make(Request("gpt", "n1", (Node("n1", "127.0.0.1", 1),)))
    return made


@pytest.mark.usefixtures("file_system")
def test_a_job_has_one_agent_as_long_as_that_lives(job: JobDirectory) -> None:
    assert not job.has_agent
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(job._lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        assert job.has_agent
        other.kill()
        other.wait()
    assert not job.has_agent
    lock = job.lock()
    assert lock is not None
    with lock:
        assert job.has_agent
        assert job.lock() is None
        # The failed attempt must not change that.
        assert job.has_agent
    assert not job.has_agent
    again = job.lock()
    assert again is not None
    again.close()


def test_only_one_of_two_agents_started_at_once_without_locks_runs(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", refused(errno.ENOSYS))
    other = processes.identity(os.getppid())
    assert other is not None

    def other_writes(_: float) -> None:
        job._lock.write_text(other)

    monkeypatch.setattr("time.sleep", other_writes)
    assert job.lock() is None
    assert job.agent == other


def test_other_errors_are_not_taken_for_missing_lock_support(
    job: JobDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", refused(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        job.lock()


def test_process_with_a_reused_pid_is_no_agent(job: JobDirectory) -> None:
    mine = processes.identity(os.getpid())
    assert mine is not None
    job._lock.write_text(mine)
    assert job.has_agent
    number, start, boot = mine.split()
    for other in (f"{number} {int(start) + 1} {boot}", f"{number} {start} another", "", "x", "1 2"):
        job._lock.write_text(other)
        assert not job.has_agent


@pytest.mark.usefixtures("file_system")
def test_logs_are_read_and_rotated(tmp_path: Path) -> None:
    log = tmp_path / "n1.out"
    log.write_text("one\ntwo\n")
    rotation.rotate(log, 4, 2)
    log.write_text("three\n")
    assert rotation.end_of(log) == 14
    assert rotation.lines_from(log, 4, 100) == (b"two\nthree\n", 14)


WATCHED = """
import os, sys, threading, time
from pathlib import Path
from rdm_job import rank
from rdm_job.directory import JobDirectory

rank._POLL_S = rank._REST_S = 0.05
job = JobDirectory(Path(sys.argv[1]), "n1")
looks = []

class Told:
    @property
    def agent(self):
        looks.append(job.agent)
        if sys.argv[2] == "fails" and len(looks) == 1:
            raise OSError(116, "Stale file handle")
        if len(looks) > 2:
            time.sleep(600)
        return looks[-1]

threading.Thread(target=rank._end_with_agent, args=(Told(),), daemon=True).start()
while not looks or sys.argv[2] == "fails" and len(looks) < 2:
    time.sleep(0.01)
if sys.argv[2] == "hangs":
    # A log on a file system that does not come back.
    read, write = os.pipe()
    os.set_blocking(write, False)
    try:
        while os.write(write, bytes(65536)):
            pass
    except BlockingIOError:
        os.set_blocking(write, True)
    os.dup2(write, 2)
print("watching", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["fine", "fails", "hangs"])
def test_rank_ends_with_its_agent_on_any_file_system(job: JobDirectory, how: str) -> None:
    with subprocess.Popen(["sleep", "600"]) as agent:
        named = processes.identity(agent.pid)
        assert named is not None
        job._lock.write_text(named)
        with subprocess.Popen(
            [sys.executable, "-c", WATCHED, str(job.path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as watched:
            assert watched.stdout is not None
            assert watched.stdout.readline() == b"watching\n"
            assert watched.poll() is None
            agent.kill()
            agent.wait()
            assert watched.wait(DEADLINE_S) == FAILED
