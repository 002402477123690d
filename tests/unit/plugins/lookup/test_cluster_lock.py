"""Plain ansible-playbook takes the lock of the cluster that it changes, and nothing else does."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock

from tests.ansible_playbook import ansible_playbook
from tests.conftest import COLLECTIONS, ROOT
from trainer.tests.waiting import wait_until

INVENTORY = {
    "all": {
        "vars": {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "rdm_accelerator": "cpu",
            "network_driver": "macvlan",
            "images_list": [{"name": "training:1", "source": "registry"}],
        },
        "children": {"master": {"hosts": {"a": {}}}, "workers": {"hosts": {"b": {}}}},
    }
}

PLAY = """
- name: Change
  hosts: "{{ lookup('rdm.provision.cluster_lock', 'master:workers') }}"
  gather_facts: false
  tasks:
    - name: Say so
      ansible.builtin.copy: {content: "", dest: "{{ home }}/changing"}
      run_once: true
    - name: Wait
      ansible.builtin.wait_for: {path: "{{ home }}/go-on", sleep: 1}
      run_once: true

- name: Watch
  hosts: "{{ lookup('rdm.provision.cluster_lock', 'master:workers', hold=false) }}"
  gather_facts: false
  tasks:
    - name: Say so
      ansible.builtin.copy: {content: "", dest: "{{ home }}/watching"}
      run_once: true
    - name: Wait
      ansible.builtin.wait_for: {path: "{{ home }}/end", sleep: 1}
      run_once: true
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "inventory"
    folder.mkdir()
    (folder / "hosts.yml").write_text(yaml.safe_dump(INVENTORY))
    return folder


def argv(home: Path, playbook: Path, *options: str) -> list[str]:
    program = Path(sys.executable).with_name("ansible-playbook")
    return [str(program), "-i", str(home), str(playbook), *options]


def environment(**more: str) -> dict[str, str]:
    own = {"ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS), "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg")}
    return os.environ | own | more


def run(home: Path, playbook: str, *options: str) -> subprocess.CompletedProcess[str]:
    book = ROOT / "playbooks" / f"{playbook}.yml"
    return ansible_playbook(*argv(home, book, *options)[1:], environment=environment())


@pytest.fixture
def other_run(home: Path) -> Iterator[int]:
    """Another run that holds the lock and is not our parent; yields the process that leads it."""
    hold = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from ansible_collections.rdm.provision.plugins.plugin_utils.controller.cluster_lock import take\n"
        "take(Path(sys.argv[2]), 'rdm-provision up'); print('taken', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(COLLECTIONS), str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "taken\n"
    yield other.pid
    other.communicate()


@pytest.mark.parametrize("playbook", ["site", "clean", "train", "plan"])
def test_a_cluster_that_another_run_changes_is_refused(home: Path, playbook: str, other_run: int) -> None:
    done = run(home, playbook, "-e", "plan_write=true")
    assert done.returncode != 0
    assert f"rdm-provision up (process {other_run} of" in done.stderr
    assert "is working on this cluster: wait for it to end" in " ".join(done.stderr.split())
    assert "TASK" not in done.stdout
    assert not (home / "address_plan.cfg").exists()


@pytest.mark.usefixtures("other_run")
def test_read_only_playbook_runs_while_locked(home: Path) -> None:
    done = run(home, "plan")
    checked = run(home, "plan", "--check", "-e", "plan_write=true")
    assert (done.returncode, checked.returncode) == (0, 0)


@pytest.mark.usefixtures("other_run")
@pytest.mark.parametrize("playbook", ["status", "exec", "jobs", "logs"])
def test_playbook_that_queries_nodes_runs_while_locked(home: Path, playbook: str) -> None:
    """No node can answer here; only the attempt to query matters."""
    variables = {
        "rdm_become": False,
        "rdm_docker_socket": str(home / "none.sock"),
        "exec_argv": ["true"],
        "job_name": "none",
    }
    done = run(home, playbook, "-e", json.dumps(variables))
    assert re.search(r"^(ok|fatal): \[a\]", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert "is working on this cluster" not in " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("option", ["--syntax-check", "--list-tasks"])
def test_playbook_that_does_not_run_takes_no_lock(home: Path, option: str) -> None:
    others = [str(ROOT / "playbooks" / f"{name}.yml") for name in ("clean", "train")]
    done = run(home, "site", *others, option)
    assert done.returncode == 0
    assert [line.split("/")[-1] for line in done.stdout.splitlines() if line.startswith("playbook: ")] == [
        "site.yml",
        "clean.yml",
        "train.yml",
    ]
    assert not (home / ".rdm").exists()


def test_lock_is_released_before_the_read_only_play(home: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.yml"
    book.write_text(PLAY)
    playing = subprocess.Popen(argv(home, book, "-e", f"home={home}"), env=environment())
    wait_until("the first play runs", (home / "changing").exists)
    with pytest.raises(cluster_lock.Busy, match=r"ansible-playbook book\.yml \(process"):
        cluster_lock.take(home, "rdm-provision up")
    (home / "go-on").touch()
    wait_until("the second play runs", (home / "watching").exists)
    assert cluster_lock.take(home, "rdm-provision up") is not None
    assert playing.poll() is None
    (home / "end").touch()
    assert playing.wait(timeout=240) == 0
    with pytest.raises(cluster_lock.Busy):
        cluster_lock.take(home, "rdm-provision down")
    cluster_lock.give_back(home)


def test_processes_of_a_killed_ansible_playbook_are_ended(home: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.yml"
    book.write_text(PLAY)
    playing = subprocess.Popen(argv(home, book, "-e", f"home={home}"), env=environment())
    wait_until("the first play runs", (home / "changing").exists)
    lock = os.open(home / ".rdm" / "lock", os.O_RDONLY)
    # The program and its waiting worker.
    wait_until("the worker waits", lambda: len(cluster_lock.having(lock, locked=True)) == 2)
    playing.kill()
    playing.wait()
    assert cluster_lock.take(home, "rdm-provision up") is not None
    assert cluster_lock.having(lock, locked=True) == set()
    os.close(lock)
    cluster_lock.give_back(home)
