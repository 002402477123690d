"""The lock of a cluster: who holds it, and how the next run ends processes of a dead one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import (
    Busy,
    Leader,
    give_back,
    take,
)

from tests.conftest import COLLECTIONS
from trainer.tests.waiting import wait_until

RUN = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock
cluster_lock.take(Path(sys.argv[2]), "rdm-provision up")
worker = os.fork()
if worker == 0:
    # As a worker of Ansible that waits for ever: nothing but SIGKILL ends it.
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    print(worker, flush=True)
while True:
    time.sleep(60)
"""

COUNT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock
home, counter = Path(sys.argv[2]), Path(sys.argv[3])
for _ in range(50):
    while True:
        try:
            cluster_lock.take(home, "count")
            break
        except cluster_lock.Busy:
            pass
    counter.write_text(str(int(counter.read_text()) + 1))
    cluster_lock.give_back(home)
"""

Start = Callable[[], tuple[subprocess.Popen[str], int]]


@pytest.fixture(autouse=True)
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_lock, "ORDERLY_S", 0.3)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start runs that hold the lock; each is returned with its worker."""
    runs: list[tuple[subprocess.Popen[str], int]] = []

    def begin() -> tuple[subprocess.Popen[str], int]:
        argv = [sys.executable, "-c", RUN, str(COLLECTIONS), str(tmp_path)]
        run = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        assert run.stdout is not None
        runs.append((run, int(run.stdout.readline())))
        return runs[-1]

    yield begin
    for run, worker in runs:
        if alive(worker):
            os.kill(worker, signal.SIGKILL)
        run.kill()
        run.communicate()


def alive(pid: int) -> bool:
    return bool(cluster_lock.Process.of(pid).started)


def wait_until_dead(pid: int) -> None:
    """A killed process releases its lock a moment before it is dead."""
    wait_until(f"process {pid} is gone", lambda: not alive(pid))


def assert_free(home: Path) -> None:
    assert take(home, "the next") is not None
    give_back(home)


def test_a_second_run_names_the_first(tmp_path: Path) -> None:
    assert take(tmp_path, "rdm-provision up") is not None
    with pytest.raises(
        Busy, match=rf"^rdm-provision up \(process {os.getpid()} of \S+\) is working on"
    ) as caught:
        take(tmp_path, "rdm-provision down")
    assert "wait for it" in caught.value.hint
    give_back(tmp_path)
    assert_free(tmp_path)


def test_git_ignores_the_folder(tmp_path: Path) -> None:
    take(tmp_path, "x")
    give_back(tmp_path)
    assert (tmp_path / ".rdm" / ".gitignore").read_text() == "*\n"


def test_releasing_a_lock_that_is_not_held_does_nothing(tmp_path: Path) -> None:
    give_back(tmp_path)
    assert not (tmp_path / ".rdm").exists()


def test_a_living_run_is_left_alone_with_its_workers(tmp_path: Path, start: Start) -> None:
    run, worker = start()
    with pytest.raises(Busy, match=f"process {run.pid} "):
        take(tmp_path, "x")
    assert alive(run.pid)
    assert alive(worker)


def test_only_processes_of_a_dead_run_are_ended(tmp_path: Path, start: Start) -> None:
    run, worker = start()
    reader = subprocess.Popen(["tail", "-f", str(tmp_path / ".rdm" / "lock")], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    assert b"rdm-provision up" in reader.stdout.readline()
    run.kill()
    run.wait()
    assert alive(worker)
    assert_free(tmp_path)
    wait_until_dead(worker)
    assert reader.poll() is None, "a process that only reads the file was ended"
    reader.kill()
    reader.communicate()


def test_processes_left_by_a_run_that_released_the_lock(tmp_path: Path, start: Start) -> None:
    run, worker = start()
    run.kill()
    run.wait()
    (tmp_path / ".rdm" / "lock").write_bytes(b"")
    assert_free(tmp_path)
    wait_until_dead(worker)


def test_a_process_id_that_is_now_anothers_is_not_the_run(tmp_path: Path, start: Start) -> None:
    run, worker = start()
    run.kill()
    run.wait()
    lock = tmp_path / ".rdm" / "lock"
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"pid": os.getpid()}))
    assert_free(tmp_path)
    wait_until_dead(worker)


@pytest.mark.parametrize(
    "record",
    [
        json.dumps(Leader("rdm-provision up", 1, 1, "eve", "elsewhere", "")._asdict()),
        json.dumps(Leader("rdm-provision up", 1, 1, "eve", socket.gethostname(), "pid:[1]")._asdict()),
        "rdm-provision up (process 1)\n",
        '{"pid": 1}',
    ],
    ids=["another host", "another container", "another version", "half a record"],
)
def test_a_run_that_cannot_be_seen_is_not_touched(tmp_path: Path, record: str, start: Start) -> None:
    run, worker = start()
    run.kill()
    run.wait()
    (tmp_path / ".rdm" / "lock").write_text(record)
    with pytest.raises(Busy, match="is working on this cluster") as caught:
        take(tmp_path, "x")
    assert "cannot be seen from here" in caught.value.hint
    assert alive(worker)


def test_unkillable_processes_are_named(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, worker = start()
    run.kill()
    run.wait()

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(cluster_lock, "KILLED_S", 0.1)
        patched.setattr(os, "kill", refuse)
        patched.setattr(os, "killpg", refuse)
        with pytest.raises(Busy, match=rf"process {run.pid} .* has ended, but process {worker} of it"):
            take(tmp_path, "x")
    assert_free(tmp_path)


def test_a_folder_that_cannot_be_written_to_has_no_lock(tmp_path: Path) -> None:
    (tmp_path / ".rdm").write_text("")
    assert take(tmp_path, "x") is None


def test_child_processes_share_the_runs_lock(tmp_path: Path) -> None:
    file = take(tmp_path, "outer")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from ansible_collections.rdm.provision.plugins.plugin_utils.controller "
        "import cluster_lock\n"
        "cluster_lock.take(Path(sys.argv[2]), 'inner'); cluster_lock.give_back(Path(sys.argv[2]))"
    )
    child = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:], check=True)"]
    subprocess.run([*child, sys.executable, "-c", program, str(COLLECTIONS), str(tmp_path)], check=True)
    assert file is not None
    assert json.loads((tmp_path / ".rdm" / "lock").read_text())["what"] == "outer"
    give_back(tmp_path)
    assert_free(tmp_path)


def test_another_users_folder_keeps_everybody_else_out(tmp_path: Path) -> None:
    folder = cluster_lock.state_folder(tmp_path)
    tmp_path.chmod(0o755)
    if os.getuid():
        folder.chmod(0)  # as if it were another's
    child = os.fork()
    if child == 0:
        os.chdir(tmp_path)
        if not os.getuid():
            os.setuid(65534)
        try:
            take(Path(), "x")
        except Busy as busy:
            os._exit(0 if "belongs to another user" in str(busy) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    folder.chmod(0o700)
    assert_free(tmp_path)


def test_process_that_is_taking_the_lock_is_waited_for(tmp_path: Path) -> None:
    cluster_lock.state_folder(tmp_path)
    with cluster_lock.brief_lock(tmp_path / ".rdm" / "lock.taking", 1):
        began = time.monotonic()
        with pytest.raises(Busy, match="is taking the lock"):
            take(tmp_path, "x", timeout=0.2)
        assert time.monotonic() - began >= 0.2
    assert_free(tmp_path)


def test_lock_is_exclusive(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    argv = [sys.executable, "-c", COUNT, str(COLLECTIONS), str(tmp_path), str(counter)]
    counting = [subprocess.Popen(argv) for _ in range(4)]
    assert [run.wait(timeout=600) for run in counting] == [0, 0, 0, 0]
    assert counter.read_text() == "200"
