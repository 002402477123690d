# SPDX-License-Identifier: GPL-3.0-or-later
"""An interrupted build, and what it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.rdm_lab import work

BUILD = """
from ansible_collections.rdm.provision.rdm_lab import work

with work.unwinding(), work.work_directory():
    try:
        print("builds", flush=True)
        input()
    finally:
        print("cleans up", flush=True)
        input()
"""


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_ended_twice_cleans_up(tmp_path: Path, first: signal.Signals) -> None:
    argv = [sys.executable, "-c", BUILD]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as build:
        assert build.stdin
        assert build.stdout
        assert build.stdout.readline() == "builds\n"
        assert any(tmp_path.iterdir())
        build.send_signal(first)
        assert build.stdout.readline() == "cleans up\n"
        build.send_signal(signal.SIGTERM)
        build.send_signal(signal.SIGINT)
        build.stdin.write("\n")
        build.stdin.flush()
        build.wait()
    assert not any(tmp_path.iterdir())


def test_a_build_goes_on_while_others_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make, others = tempfile.mkdtemp, iter([work.sweep])

    def swept_before_it_is_locked(prefix: str) -> str:
        path = make(prefix=prefix)
        next(others, lambda: None)()
        return path

    monkeypatch.setattr(tempfile, "mkdtemp", swept_before_it_is_locked)
    with work.work_directory() as directory:
        work.sweep()
        (directory / "layer").touch()
    assert not any(tmp_path.iterdir())


def test_mounts_of_a_build_are_removed_with_it(tmp_path: Path) -> None:
    inside = 'mount -t tmpfs none "$1" && touch "$1/mounted"'
    mounts = ["sh", "-c", inside, "sh", str(tmp_path)]
    # Another user has its own mounts by a namespace of users, as mmdebstrap makes one.
    work.run(mounts if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount", *mounts])
    assert not os.path.ismount(tmp_path)
    assert not any(tmp_path.iterdir())


PROGRAM = """
import subprocess

from ansible_collections.rdm.provision.rdm_lab import work

with work.unwinding():
    program = subprocess.Popen(["sleep", "100"])
    try:
        print("builds", flush=True)
        input()
    except KeyboardInterrupt:
        print(program.wait(60))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_programs_of_a_worker_of_ansible_are_ended_too(number: signal.Signals) -> None:
    """A worker leads a process group; what its programs still wrote would be left behind."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        stdin=pipe,
        stdout=pipe,
        text=True,
        start_new_session=True,
    ) as worker:
        assert worker.stdout
        assert worker.stdout.readline() == "builds\n"
        worker.send_signal(number)
        assert worker.stdout.readline() == f"{-number}\n"
