"""Running jobs, by the locks that their processes hold, and the message that refuses to end them."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.jobs.running_jobs import (
    jobs_of_processes,
    running_jobs,
)

from tests.unit.plugins.job_locks import running_job

NAMES_ITSELF = """
import pathlib, sys
start = pathlib.Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
file = pathlib.Path(sys.argv[1]).open("w")
file.write(f"{pathlib.Path('/proc/self').readlink()} {start} {boot}".ljust(79) + "\\n")
file.flush()
print(flush=True)
sys.stdin.read()
"""


def test_a_job_runs_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    with running_job(tmp_path, "two"), running_job(tmp_path, "one"), running_job(tmp_path, "left"):
        assert running_jobs(str(tmp_path), "n1") == ["left", "one", "two"]
    assert running_jobs(str(tmp_path), "n1") == []
    assert (tmp_path / "one" / ".agent.n1.lock").exists()


def test_nodes_may_share_the_directory(tmp_path: Path) -> None:
    # This kernel does not know agents on other nodes.
    elsewhere = tmp_path / "locks"
    elsewhere.touch()
    with running_job(tmp_path, "one", "n1"), running_job(tmp_path, "both", "n1"):
        with running_job(tmp_path, "both", "n2"):
            assert running_jobs(str(tmp_path), "n1", str(elsewhere)) == ["both", "one"]
            assert running_jobs(str(tmp_path), "n2", str(elsewhere)) == ["both"]
        assert running_jobs(str(tmp_path), "n3", str(elsewhere)) == []


def test_a_job_under_the_nodes_former_name_is_seen(tmp_path: Path) -> None:
    with running_job(tmp_path, "one", "gpu-7"):
        assert running_jobs(str(tmp_path), "n1") == ["one"]
    assert running_jobs(str(tmp_path), "n1") == []


def test_a_job_of_another_cluster_is_seen_by_its_process_wherever_its_directory_is(tmp_path: Path) -> None:
    name = f"other-{os.getpid()}"
    (tmp_path / "elsewhere").mkdir()
    with running_job(tmp_path / "elsewhere", name, "gpu-7"):
        assert name in jobs_of_processes()
    left = tmp_path / "elsewhere" / name / ".agent.gpu-7.lock"
    with left.open("a"):  # open, and not locked
        assert name not in jobs_of_processes()


def test_process_with_an_unlocked_file_is_no_agent(tmp_path: Path) -> None:
    lock = tmp_path / "one" / ".agent.n1.lock"
    lock.parent.mkdir()
    with lock.open("a") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert running_jobs(str(tmp_path), "n1") == []
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_links_and_special_files_are_not_opened(tmp_path: Path) -> None:
    """Only a regular file in a job's directory is a lock."""
    jobs = tmp_path / "jobs"
    for name in ("link", "pipe", "directory", "empty"):
        (jobs / name).mkdir(parents=True)
    (jobs / "file").touch()
    with running_job(tmp_path, "elsewhere"):
        (jobs / "linked").symlink_to(tmp_path / "elsewhere")
        (jobs / "link" / ".agent.n1.lock").symlink_to(tmp_path / "elsewhere" / ".agent.n1.lock")
        os.mkfifo(jobs / "pipe" / ".agent.n1.lock")
        (jobs / "directory" / ".agent.n1.lock").mkdir()
        assert running_jobs(str(jobs), "n1") == []


def test_a_directory_that_cannot_be_read_has_no_jobs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "missing", tmp_path / "file", ""):
        assert running_jobs(str(path), "n1") == []


@pytest.mark.parametrize("problem", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.parametrize("is_inside", [False, True])
def test_a_job_on_a_file_system_without_locks_is_seen_by_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int, is_inside: bool
) -> None:
    """Its container may have its own process IDs, as with unshare."""

    def refuse(*_: Any) -> None:
        raise OSError(problem, os.strerror(problem))

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = tmp_path / "one" / ".agent.n1.lock"
    lock.parent.mkdir()
    inside = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if is_inside else []
    with subprocess.Popen(
        [*inside, sys.executable, "-c", NAMES_ITSELF, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline()
        assert running_jobs(str(tmp_path), "n1") == ["one"]
        assert "one" in jobs_of_processes()
        agent.communicate(b"")
    assert running_jobs(str(tmp_path), "n1") == []
    lock.write_text("1 2 3")
    assert running_jobs(str(tmp_path), "n1") == []
