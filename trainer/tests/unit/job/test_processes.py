# SPDX-License-Identifier: GPL-3.0-or-later
"""The limits and the usage of a job's processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdm_job.measure import measure
from rdm_job.processes import ATTEMPT_VARIABLE, JOB_VARIABLE, end_all, of_job, usage, usage_with_children
from tests.waiting import wait_until


@pytest.mark.parametrize(("limit", "allowed"), [("", 200), ("150", 150), ("10", 100), ("1000", 200)])
def test_open_files_limit_is_raised_to_the_maximum(limit: str, allowed: int) -> None:
    code = (
        "import resource; from rdm_job.processes import allow_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))\n"
        f"allow_files({limit})\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(allowed), "200"]


def test_a_repeated_order_to_end_an_attempt_leaves_the_next_one_alone() -> None:
    """A busy node obeys it late; a launcher on the master has begun the next attempt there by then."""
    job = f"attempts@{os.getpid()}"
    with contextlib.ExitStack() as running:
        pids = []
        for attempt in ({}, {ATTEMPT_VARIABLE: "0"}, {ATTEMPT_VARIABLE: "1"}, {ATTEMPT_VARIABLE: "2"}):
            environment = {**os.environ, JOB_VARIABLE: job, **attempt}
            process = running.enter_context(subprocess.Popen(["sleep", "3600"], env=environment))
            running.callback(process.kill)
            pids.append(process.pid)
        wait_until("all run", lambda: sorted(of_job(job)) == sorted(pids))
        assert end_all(job, until=1)
        assert of_job(job) == pids[3:]
        assert not end_all(job, until=1)
        assert end_all(job)
        assert of_job(job) == []


def test_process_during_exec_is_found(tmp_path: Path) -> None:
    program = tmp_path / "again"
    program.write_text('#!/bin/sh\nexec "$0"\n')
    program.chmod(0o700)
    with subprocess.Popen([program], env={**os.environ, JOB_VARIABLE: str(tmp_path)}) as process:
        try:
            wait_until("it is found", lambda: of_job(str(tmp_path)), lambda found: found == [process.pid])
            assert all(of_job(str(tmp_path)) == [process.pid] for _ in range(100))
        finally:
            process.kill()


def test_usage_of_a_users_program_counts_for_its_rank(tmp_path: Path) -> None:
    """The program is a child of the rank's process, and its ended children count, too."""
    program = (
        "import subprocess, sys, time\n"
        "spend = 'import time\\nwhile time.process_time() < 0.5: pass'\n"
        "subprocess.run([sys.executable, '-c', spend], check=True)\n"
        "memory = bytearray(b'x') * 200_000_000\n"
        "print('there', flush=True)\n"
        "sys.stdin.read()\n"
    )
    wrapper = f"import sys; from rdm_job import rank; rank._run([sys.executable, '-c', {program!r}])"
    with subprocess.Popen(
        [sys.executable, "-c", wrapper], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        (_, alone) = usage([process.pid])[process.pid]
        found = usage_with_children([process.pid, os.getppid(), 1 << 30])
        seconds, resident = found[process.pid]
        assert alone < 100_000_000
        assert 200_000_000 + alone < resident < 400_000_000
        assert seconds >= 0.5
        # Children count towards their parents, and processes that do not exist are left out.
        assert found.keys() == {process.pid, os.getppid()}
        assert found[os.getppid()][1] >= resident
        sample = measure(1.0, tmp_path, {3: process.pid})
        assert sample.ranks[3] > 200_000_000 + alone
        assert sample.cpu_s[3] >= 0.5
        process.communicate()
