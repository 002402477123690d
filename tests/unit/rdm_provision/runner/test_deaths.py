"""Whatever is killed at any time, no process and no file of a run is left, and the next run succeeds."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rdm_provision.runner.lock import Lock
from tests.conftest import ROOT
from tests.unit.rdm_provision.conftest import MakeInventory, Play
from trainer.tests.waiting import wait_until

NODES = tuple(f"n{number}" for number in range(8))
HANGS_S = 240.0
"""Seconds that only a hang exceeds, even on a busy machine."""
PROGRAM = """
import sys
from pathlib import Path
from rdm_provision.runner.run import Run
from rdm_provision.runner.run_spec import RunSpec
book, home, *nodes = sys.argv[1:]
spec = RunSpec(verb="up", playbook=book, inventory=home, nodes=tuple(nodes), home=Path(home), exclusive=True)
sys.exit(Run(spec).result().exit_code)
"""
# Like a worker that waits for a semaphore of a dead process, this one does not end by itself.
STUCK = """
import signal, time
from pathlib import Path
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        Path(self._task.args["mark"]).touch()
        while True:
            time.sleep(60)
"""


@dataclass
class Runs:
    """Runs of one playbook on one cluster, with temporary folders of their own.

    Attributes:
        home: the inventory's folder.
        book: the playbook.
        folder: for their temporary files.
        mark: a string in the environment of all processes of these runs.
    """

    home: Path
    book: Path
    folder: Path
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self) -> subprocess.Popen[bytes]:
        """Start a run, as ``rdm-provision up`` would."""
        own = {
            "TMPDIR": str(self.folder),
            "ANSIBLE_HOME": str(self.folder / "ansible"),
            "RDM_TEST": self.mark,
        }
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.book), str(self.home), *NODES],
            env=os.environ | own | {"PYTHONPATH": str(ROOT), "RDM_TEST": self.mark},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    def processes(self) -> set[int]:
        """The living processes of these runs."""
        found = set()
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in environ.read_bytes():
                    found.add(int(environ.parent.name))
            except OSError:
                continue
        return found

    def files(self) -> list[Path]:
        """The temporary files that are there."""
        return [path for path in self.folder.rglob("*") if not path.is_dir() or path.name.startswith("rdm-")]

    def assert_nothing_is_left(self) -> None:
        """Assert that no lock and, shortly after, no process is left, watchers included."""
        Lock(self.home, "test").release()
        wait_until("no process of the run is left", lambda: not self.processes())


@pytest.fixture
def runs(play: Play, make_inventory: MakeInventory) -> Iterator[Callable[..., Runs]]:
    made: list[Runs] = []

    def make(tasks: list[dict[str, Any]]) -> Runs:
        home = make_inventory(*NODES)
        # As short as a user's, because the path of a socket has at most 107 bytes.
        folder = Path(tempfile.mkdtemp(prefix="rdm-t-", dir="/tmp"))
        made.append(Runs(home, Path(play(tasks, inventory=home).spec.playbook), folder))
        return made[-1]

    yield make
    for each in made:
        for pid in each.processes():
            kill_if_there(pid)
        shutil.rmtree(each.folder)


@contextmanager
def busy_machine() -> Iterator[None]:
    """Run a busy loop on each processor."""
    burning = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)
    ]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


@pytest.fixture
def stuck(runs: Callable[..., Runs], tmp_path: Path) -> tuple[Runs, subprocess.Popen[bytes]]:
    """A run with a worker that only SIGKILL ends."""
    plugins = tmp_path / "action_plugins"
    plugins.mkdir()
    (plugins / "stuck.py").write_text(STUCK)
    mark = tmp_path / "is-stuck"
    task = {"name": "Get stuck", "stuck": {"mark": str(mark)}, "run_once": True}
    cluster = runs([{**task, "when": f"{str(mark)!r} is not exists"}])
    run = cluster.start()
    wait_until("a worker is stuck", mark.exists)
    return cluster, run


def test_workers_die_with_their_run(stuck: tuple[Runs, subprocess.Popen[bytes]]) -> None:
    """Without a next run, the watcher of ansible-playbook ends the workers and removes temporary files."""
    cluster, run = stuck
    run.kill()
    run.wait()
    wait_until("no process of the run is left", lambda: not cluster.processes())
    assert cluster.files() == []


def test_workers_die_with_their_ansible_playbook(stuck: tuple[Runs, subprocess.Popen[bytes]]) -> None:
    cluster, run = stuck
    (playbook,) = children(run.pid)
    os.kill(playbook, signal.SIGKILL)
    assert run.wait(timeout=HANGS_S) == 1
    wait_until("no process of the run is left", lambda: not cluster.processes())
    assert cluster.files() == []


def test_the_next_run_ends_a_worker_that_is_left_when_all_else_was_killed(
    stuck: tuple[Runs, subprocess.Popen[bytes]],
) -> None:
    cluster, run = stuck
    (playbook,) = children(run.pid)
    lock = cluster.home / ".rdm" / "lock"
    # The other child, the watcher, does not hold the lock.
    (worker,) = {pid for pid in children(playbook) if lock in open_files(pid)}
    for pid in cluster.processes() - {worker}:
        kill_if_there(pid)
    run.wait()
    wait_until("only the worker is left", lambda: cluster.processes() == {worker})
    assert cluster.start().wait(timeout=HANGS_S) == 0
    wait_until("no process of either run is left", lambda: not cluster.processes())
    assert cluster.files() == []


def children(pid: int) -> set[int]:
    """The living children of a process."""
    pids = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    return {int(child) for children in pids for child in children}


def open_files(pid: int) -> set[Path]:
    """The files that a process has open."""
    return {file.readlink() for file in Path(f"/proc/{pid}/fd").iterdir()}


def kill_at_random_moments(cluster: Runs, times: int) -> None:
    """Kill runs, each with some of its processes, and check each time that nothing is left."""
    chance = random.Random(times)
    began = time.monotonic()
    assert cluster.start().wait(timeout=HANGS_S) == 0
    whole = time.monotonic() - began
    with_workers = number = 0
    while number < times or not with_workers:
        number += 1
        assert number <= 10 * times, "no run was killed at work"
        run = cluster.start()
        began = time.monotonic()
        try:
            run.wait(timeout=chance.uniform(0, whole))
        except subprocess.TimeoutExpired:
            there = cluster.processes()
            run.kill()
            # Three processes are its own, ansible-playbook and the watcher; all others are workers.
            at_work = len(there) > 3
            with_workers += at_work
            # How long a run takes depends on the machine's load: adapt the range of moments to this run.
            whole *= 1.0 if at_work else 1.2
            among = chance.choice((0.0, 0.3, 1.0))
            for pid in there - {run.pid}:
                if chance.random() < among:
                    kill_if_there(pid)
            run.wait()
        else:
            assert run.returncode == 0, f"run {number}, after a killed one, was refused"
            whole = time.monotonic() - began
        cluster.assert_nothing_is_left()
    assert cluster.start().wait(timeout=HANGS_S) == 0
    cluster.assert_nothing_is_left()
    assert cluster.files() == []


def kill_if_there(pid: int) -> None:
    """Kill a process that may have ended already."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


# More than a pipe holds: a worker that writes a result waits for the reader, and holds the queue's semaphore.
RESULTS = [
    {"name": f"Say {number}", "ansible.builtin.debug": {"msg": "{{ 'x' * 100000 }}"}} for number in range(6)
]


def test_killed_at_ten_random_moments(runs: Callable[..., Runs]) -> None:
    kill_at_random_moments(runs(RESULTS), 10)


@pytest.mark.long
@pytest.mark.timeout(0)
def test_killed_at_two_hundred_random_moments(runs: Callable[..., Runs]) -> None:
    with busy_machine():
        kill_at_random_moments(runs(RESULTS), 200)
