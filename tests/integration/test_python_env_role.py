"""The role python_env with a shared file system: both hosts are this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.plugin_utils.ansible_internals.module_cache import cache_home
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env import lock as python_lock
from ansible_collections.rdm.provision.plugins.plugin_utils.python_env.lock import find_uv

from rdm_provision.environment import CALLBACKS
from tests.ansible_playbook import ansible_playbook
from tests.conftest import COLLECTIONS, ROOT
from tests.unit.plugins.module_utils.python_env.test_environment import PYTHON, Node

NODES = ("n1", "n2")


def play(
    node: Node,
    directory: str,
    *flags: str,
    part: str = "make",
    times: int = 1,
    dead: Collection[str] = (),
    lost: Collection[str] = (),
    **more: Any,
) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Run a part of the role on both nodes; return the exit code, each node's statistics, and the output.

    Nothing answers where the nodes of ``dead`` are said to be. Those of ``lost`` fail when they have done the
    part, and the others do it again. By default, all do it ``times`` times.
    """
    folder = node.home
    lock = {"lock": node.lock, "torch_backend": ""}
    variables = {
        "rdm_accelerator": "cpu",
        "my_ip": "10.0.0.1",
        "python_env_method": "uv",
        "python_env_version": PYTHON,
        "python_env_shared": True,
        "python_env_directory": directory,
        "python_env_no_index": True,
        "python_env_find_links": node.sources.find_links,
        "python_env_cache_directory": str(folder / "cache"),
        "__python_env_lock": {
            "nodes": dict.fromkeys(NODES, lock),
            "wheel": str(node.trainer),
            "program": "rdm_trainer-1.0",
            "uv": find_uv(),
        },
        **more,
    }
    task = {
        "ansible.builtin.include_role": {
            "name": "rdm.provision.python_env",
            "tasks_from": part,
            "rolespec_validate": False,
        },
    }
    fail = {"ansible.builtin.fail": {"msg": "as any task may"}, "when": f"inventory_hostname in {list(lost)}"}
    tasks = [task, fail, task] if lost else [task] * times
    (folder / "play.yml").write_text(
        yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}], sort_keys=False)
    )
    local = {"ansible_connection": "local"}
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    hosts = {name: {**(gone if name in dead else local), "mine": f"/{name}"} for name in NODES}
    (folder / "hosts.yml").write_text(yaml.safe_dump({"workers": {"hosts": hosts}}))
    done = ansible_playbook(
        f"--inventory={folder / 'hosts.yml'}",
        f"--extra-vars={json.dumps(variables)}",
        folder / "play.yml",
        *flags,
        environment=os.environ
        | {
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(cache_home().parents[1]),
            # The same in all runs, which one server starts.
            "ANSIBLE_HOME": f"{tempfile.gettempdir()}/ansible",
            "ANSIBLE_CONFIG": str(Path(__file__).with_name("no_settings.cfg")),
            "ANSIBLE_CALLBACKS_ENABLED": CALLBACKS,
            "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
            "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json",
            "ANSIBLE_REMOTE_TEMP": str(folder / "remote"),
            "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        },
        directory=folder,
    )
    stats = json.loads(done.stdout[done.stdout.index("{") :])["stats"]
    return done.returncode, stats, done.stdout


def test_role_creates_activates_and_removes_an_environment(tmp_path: Path) -> None:
    """The whole role on this machine, with the trainer's wheel and a lock file of one package."""
    node = Node(tmp_path)
    first = python_lock.first_line(python_lock.requirements_of(ROOT / "trainer", ""), PYTHON, "")
    (tmp_path / "python_env.lock").write_text(first + node.lock)
    home, key = tmp_path / "home", tmp_path / "keys" / "id_ed25519"
    home.mkdir()
    (home / ".bashrc").write_text("# mine\n")
    more = {
        "python_env_directory": "~/env",
        "python_env_activate": True,
        "python_env_torch_backend": "",
        "python_env_shared": False,
        "container_ssh_key_dir": str(key.parent),
        "rdm_config_dir": "~/.rdm/%n",
    }

    def left() -> list[str]:
        return [path.name for path in home.iterdir()]

    def run(*flags: str, expect: int = 0, **variables: Any) -> int:
        code, stats, output = play(node, "~/env", *flags, "--limit=n1", part="main", **{**more, **variables})
        assert code == expect, output
        assert expect == 0 or "make room, or set python_env_directory" in output
        return int(stats["n1"]["changed"])

    assert run("--check") > 0, "the key is not made yet"
    key.parent.mkdir()
    key.write_text("a key\n")
    assert run(expect=2, python_env_space=2**40) == 0
    assert left() == [".bashrc"]
    assert run() > 0
    (written,) = home.glob(".rdm/*/ssh/id_ed25519")
    assert written.read_text() == "a key\n"
    assert run() == 0
    shell = ["bash", "-ic", "command -v rdm-trainer"]
    env = {"HOME": str(home), "PATH": os.environ["PATH"]}
    shown = subprocess.run(shell, env=env, capture_output=True, text=True, check=True)
    assert shown.stdout == f"{home}/env/bin/rdm-trainer\n"
    assert run(python_env_state="absent") > 0
    assert left() == [".bashrc"]
    assert (home / ".bashrc").read_text() == "# mine\n"


def test_one_node_makes_a_shared_environment_for_all(tmp_path: Path) -> None:
    node, directory = Node(tmp_path), str(tmp_path / "shared")
    # The second time, nothing changes.
    code, stats, output = play(node, directory, times=2)
    assert code == 0, output
    assert {name: stats[name]["changed"] for name in NODES} == {"n1": 1, "n2": 0}
    shown = subprocess.run([f"{directory}/bin/rdm-trainer"], capture_output=True, text=True, check=True)
    assert shown.stdout == "it runs\n"
    code, _, output = play(node, directory, "--limit=n2", part="absent")
    assert code == 0, output
    assert f"{directory} stays, for other nodes share it" in output
    assert Path(directory, "bin", "rdm-trainer").exists()
    code, _, output = play(node, directory, part="absent")
    assert code == 0, output
    assert not os.path.lexists(directory)


@pytest.mark.parametrize("flags", [(), ("--check",)])
def test_a_node_that_does_not_see_it_fails_with_a_hint(tmp_path: Path, flags: tuple[str, ...]) -> None:
    """The directory is not shared, although it was declared so."""
    code, stats, output = play(Node(tmp_path), f"{tmp_path}{{{{ mine }}}}", *flags)
    if flags:
        assert (code, stats["n1"]["changed"], stats["n2"]["failures"]) == (0, 1, 0), output
        return
    assert (code, stats["n1"]["failures"], stats["n2"]["failures"]) == (2, 0, 1)
    assert "is not what n1 has made there: there is none. Is it on a file system that both share" in output
    assert not (tmp_path / "n2").exists()


def test_environment_is_kept_on_all_nodes_while_a_job_runs(tmp_path: Path) -> None:
    node, directory = Node(tmp_path), f"{tmp_path}{{{{ mine }}}}"
    code, _, output = play(node, directory, python_env_shared=False)
    assert code == 0, output
    argv = [f"{os.path.realpath(tmp_path / 'n2')}/bin/python", "-c", "input()"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as job:
        code, stats, output = play(node, directory, part="unused", python_env_shared=False)
        assert (code, [stats[name]["failures"] for name in NODES]) == (2, [1, 1])
        message = f"is in use by process {job.pid}: stop the job first"
        assert "nothing is taken away: n2: " in output
        assert message in output
        # A node without a job does not remove it from the others, either.
        code, _, output = play(node, directory, part="absent", python_env_shared=True)
        assert (code, message in output) == (2, True), output
        assert all((tmp_path / name / "bin" / "rdm-trainer").exists() for name in NODES)
        job.communicate(b"\n")
    code, stats, output = play(node, directory, part="unused", python_env_shared=False)
    assert (code, [stats[name]["changed"] for name in NODES]) == (0, [0, 0]), output
    # A job may run on a node that does not answer.
    code, stats, output = play(node, directory, part="unused", dead=("n2",))
    assert (code, stats["n1"]["failures"], stats["n2"]["unreachable"]) == (4, 1, 1), output
    message = (
        "a job may run on n2, which cannot be queried: repair that, or leave it out with --limit 'all,!n2'"
    )
    assert message in output
    code, _, output = play(node, directory, "--limit=all,!n2", part="unused", dead=("n2",))
    assert code == 0, output
    _, _, output = play(node, directory, "--limit=workers:!n3", part="unused", dead=("n2",))
    assert "leave it out with --limit 'workers,!n3,!n2'" in output


def test_a_node_that_answers_and_is_lost_later_does_not_stop_the_others(tmp_path: Path) -> None:
    code, stats, output = play(Node(tmp_path), str(tmp_path / "none"), part="unused", lost=("n2",))
    assert (code, stats["n1"]["failures"], stats["n2"]["failures"]) == (2, 0, 1), output
    assert "nothing is taken away" not in output
