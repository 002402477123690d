"""The lock of a cluster on a node: who holds it, and when it expires."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.state import node_lock
from ansible_collections.rdm.provision.plugins.module_utils.state.node_lock import holder, release, take

from tests.conftest import COLLECTIONS

LEADER = {"what": "rdm-provision up", "pid": 7, "user": "eve", "host": "ctl"}
TAKE = """
import sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.rdm.provision.plugins.module_utils.state import node_lock
node_lock._path = lambda cluster: sys.argv[2]
node_lock.LIMIT_S = 200
wanted = {"cluster": "c", "run": sys.argv[3], "home": sys.argv[3], "leader": {}}
for _ in range(20):
    if not node_lock.take(wanted):
        print("taken")
        node_lock.release(wanted)
"""


def wanted(run: str, home: str = "") -> dict[str, Any]:
    return {"cluster": "c", "run": run, "home": home or run, "leader": LEADER}


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "locks" / "c.lock"
    monkeypatch.setattr(node_lock, "_path", lambda _cluster: str(path))
    return path


def ended(path: Path, **record: Any) -> None:
    """Leave the lock of a run that was killed long ago, with these keys changed."""
    took = json.loads(path.read_text()) | {"call": None, "session": None} | record
    path.write_text(json.dumps(took))
    long_ago = time.time() - 2 * node_lock.FRESH_S
    os.utime(path, (long_ago, long_ago))


def test_one_run_at_a_time_has_the_lock_until_it_releases_it(path: Path) -> None:
    assert take(wanted("one")) == {}
    assert take(wanted("one")) == {}
    assert holder("c") == take(wanted("two")) == {"run": "one", "leader": LEADER}
    release(wanted("two"))
    assert take(wanted("two"))["run"] == "one"
    assert path.stat().st_mode & 0o777 == 0o600
    release(wanted("one"))
    assert not path.parent.exists()
    assert (holder("c"), take(wanted("two"))) == ({}, {})


def test_a_run_that_was_killed_locks_nothing_for_long(path: Path) -> None:
    take(wanted("one"))
    ended(path)
    assert (holder("c"), take(wanted("two"))) == ({}, {})
    assert holder("c")["run"] == "two"


def test_lock_is_kept_by_a_running_child_of_the_run(path: Path) -> None:
    take(wanted("one"))
    record = json.loads(path.read_text())
    ended(path, call=record["call"])
    assert take(wanted("two"))["run"] == "one"
    ended(path, call=[record["call"][0], 1])  # the id is another process's by now
    assert holder("c") == {}
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as session:
        me = [session.pid, node_lock._started(session.pid)]
        while not node_lock._children(session.pid):
            time.sleep(0.01)
        ended(path, session=me)
        assert take(wanted("two"))["run"] == "one"
        session.communicate(b"\n")
        ended(path, session=me)
        assert take(wanted("two")) == {}


def test_a_run_is_followed_by_the_next_from_the_same_inventory_and_by_who_knows_that_it_ended() -> None:
    take(wanted("one", home="here"))
    assert take(wanted("two", home="here")) == {}
    assert take(wanted("three"))["run"] == "two"
    assert take(wanted("three"), ended=["two"]) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run": "one"}'])
def test_truncated_record_locks_nothing(path: Path, text: str) -> None:
    path.parent.mkdir()
    path.write_text(text)
    assert (holder("c"), take(wanted("two"))) == ({}, {})


def test_a_directory_that_is_not_this_users_is_not_used(path: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    path.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        take(wanted("one"))
    assert holder("c") == {}
    release(wanted("one"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_runs_that_take_and_release_it_at_once_do_not_stumble(path: Path) -> None:
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", TAKE, str(COLLECTIONS), str(path), run], stdout=subprocess.PIPE, text=True
        )
        for run in ("one", "two", "three")
    ]
    outputs = [program.communicate(timeout=240)[0] for program in programs]
    assert [program.returncode for program in programs] == [0, 0, 0]
    assert any("taken" in text for text in outputs)
    assert not path.parent.exists()
