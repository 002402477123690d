"""Runs of tiny playbooks through the real ansible-runner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.rdm.provision.plugins.plugin_utils.controller import cluster_lock

from rdm_provision.api.cluster import Cluster
from rdm_provision.errors import ClusterBusyError
from rdm_provision.results.events import (
    NodeResult,
    NodeStarted,
    Output,
    PhaseStarted,
    RunFinished,
    RunStarted,
    Status,
    TaskGoesOn,
    TaskStarted,
)
from rdm_provision.runner.lock import Lock
from rdm_provision.runner.record import KEEP
from rdm_provision.runner.run import _remove_stale
from rdm_provision.runner.run_spec import RunSpec
from tests.conftest import ROOT
from tests.unit.rdm_provision.conftest import NODES, MakeInventory, Play

SECRET = "hunter2-never-to-be-seen"


def task(name: str, module: str, arguments: Any, **keywords: Any) -> dict[str, Any]:
    return {"name": name, f"ansible.builtin.{module}": arguments, **keywords}


def write(text: str = "hello") -> dict[str, Any]:
    # One module, which creates the file; `copy` would run four.
    arguments = {"line": text, "path": "{{ folder }}/{{ inventory_hostname }}", "create": True}
    return task("Write a file", "lineinfile", arguments)


def records(home: Path) -> list[Path]:
    return sorted((home / ".rdm" / "runs").iterdir())


def test_events_are_in_order(play: Play) -> None:
    run = play([task("Say hello", "debug", {"msg": "hello"})])
    events = list(run)
    assert isinstance(events[0], RunStarted)
    assert events[0].nodes == NODES
    assert isinstance(events[-1], RunFinished)
    kinds = [type(event) for event in events if isinstance(event, (PhaseStarted, TaskStarted, NodeStarted))]
    assert kinds == [PhaseStarted, TaskStarted, NodeStarted, NodeStarted, NodeStarted]
    results = [event for event in events if isinstance(event, NodeResult)]
    assert {(result.node, result.task, result.status) for result in results} == {
        (node, "Say hello", Status.OK) for node in NODES
    }
    assert run.result().exit_code == 0


def test_a_change_is_counted_and_shown_as_a_diff(play: Play, tmp_path: Path) -> None:
    tasks = [write()]
    first = play(tasks, extra_vars={"folder": str(tmp_path)}, diff=True).result()
    assert first.changed == NODES
    (change,) = first.nodes["node2"].changes
    assert change.task == "Write a file"
    assert "+hello" in change.diff.splitlines()
    second = play(tasks, extra_vars={"folder": str(tmp_path)}, diff=True).result()
    assert second.changed == ()
    assert {node.status for node in second.nodes.values()} == {Status.OK}


def test_a_check_says_what_would_change_and_changes_nothing(play: Play, tmp_path: Path) -> None:
    result = play([write()], extra_vars={"folder": str(tmp_path)}, diff=True, check=True).result()
    assert result.check
    assert result.changed == NODES
    assert not (tmp_path / "node1").exists()


@pytest.mark.parametrize("verbosity", [0, 1])
def test_ansible_prints_no_difference_unless_its_own_output_is_requested(
    play: Play, tmp_path: Path, verbosity: int
) -> None:
    run = play([write()], extra_vars={"folder": str(tmp_path)}, diff=True, check=True, verbosity=verbosity)
    printed = "".join(event.text for event in run if isinstance(event, Output))
    assert "changed: [node1]" in printed
    assert ("+hello" in printed) == bool(verbosity)
    assert "+hello" in run.result().nodes["node1"].changes[0].diff


def test_one_node_fails_and_the_others_finish(play: Play, tmp_path: Path) -> None:
    tasks = [
        task("Stumble", "command", {"argv": ["cat", "/nowhere"]}, when="inventory_hostname == 'node2'"),
        write(),
    ]
    run = play(tasks, extra_vars={"folder": str(tmp_path)})
    result = run.result()
    assert result.exit_code == 1
    assert result.failed == ("node2",)
    assert result.nodes["node2"].why == "exit code 1: cat: /nowhere: No such file or directory"
    assert result.nodes["node3"].status is Status.CHANGED
    assert result.record is not None
    assert "nowhere" in (result.record / "ansible.log").read_text(encoding="utf-8")


def test_ignored_and_rescued_failures_do_not_count(play: Play) -> None:
    failing = task("Stumble", "command", {"argv": ["false"]})
    tasks = [
        {**failing, "ignore_errors": True},
        {"name": "Try", "block": [failing], "rescue": [task("Repair", "debug", {"msg": "repaired"})]},
    ]
    result = play(tasks).result()
    assert result.exit_code == 0
    assert {node.status for node in result.nodes.values()} == {Status.OK}
    assert [node.why for node in result.nodes.values()] == ["", "", ""]


@pytest.mark.parametrize("sound", [True, False])
def test_a_bad_override_of_a_job_is_named_although_no_node_can_be_reached(
    play: Play, make_inventory: MakeInventory, tmp_path: Path, sound: bool
) -> None:
    gone = {"ansible_connection": "ssh", "ansible_port": 1}
    hosts = {node: {**gone, "ansible_host": f"127.0.0.{number}"} for number, node in enumerate(NODES, 1)}
    inventory = make_inventory(hosts=hosts, rdm_accelerator="cpu")
    config = tmp_path / "tiny.yml"
    config.write_text("name: tiny\n", encoding="utf-8")
    agree: dict[str, Any] = {
        "ansible.builtin.import_role": {
            "name": "rdm.provision.job",
            "tasks_from": "agree",
            "rolespec_validate": False,
        },
        "vars": {"job_config": str(config), "job_overrides": ["a=1"] if sound else ["nonsense"]},
    }
    result = play([agree], inventory=inventory).result()
    messages = [str(problem) for problem in result.problems]
    if sound:
        assert (result.exit_code, set(result.unreachable), messages) == (1, set(NODES), [])
    else:
        assert result.exit_code == 3
        assert messages[0] == "'nonsense' is no override: write key.sub=value"
        assert [reason.partition(":")[0] for reason in messages[1:]] == list(NODES)
        assert all("cannot be reached" in reason for reason in messages[1:])


def test_a_node_that_cannot_be_reached(play: Play, make_inventory: MakeInventory) -> None:
    gone = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}
    result = play([task("Gather", "ping", {})], inventory=make_inventory(hosts={"node3": gone})).result()
    assert result.exit_code == 1
    assert result.unreachable == ("node3",)
    assert result.nodes["node3"].why == "connect to host 127.0.0.1 port 1: Connection refused"
    assert result.nodes["node1"].status is Status.OK


def test_a_failing_item_of_a_loop_is_named(play: Play) -> None:
    loop = task("Check", "assert", {"that": "item != 'b'", "fail_msg": "b is bad"}, loop=["a", "b"])
    result = play([loop]).result()
    assert result.nodes["node1"].why == "b: b is bad"


def test_secrets_appear_in_no_event_and_no_record(play: Play, tmp_path: Path) -> None:
    tasks = [
        task("Use it", "command", {"argv": ["echo", "{{ password }}"]}, no_log=True),
        task("Use it and fail", "command", {"argv": ["cat", "/{{ password }}"]}, no_log=True),
    ]
    run = play(tasks, extra_vars={"password": SECRET})
    events = list(run)
    assert SECRET not in repr(events)
    result = run.result()
    assert result.nodes["node1"].changed == 1
    assert "hidden" in result.nodes["node1"].why
    assert result.record is not None
    for file in result.record.iterdir():
        assert SECRET not in file.read_text(encoding="utf-8"), file.name


SUDO = """#!/bin/sh
# Prompts as sudo does, and keeps the password.
while :; do
    case $1 in
        -p) printf %s "$2" >&2; shift 2 ;;
        -u) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
read -r password
printf %s "$password" > "$(dirname "$0")/password"
exec "$@"
"""


def test_the_password_of_sudo_reaches_it_and_no_command_line_or_record(play: Play, tmp_path: Path) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text(SUDO, encoding="utf-8")
    sudo.chmod(0o700)
    run = play(
        [task("Become root", "raw", "true", become=True)],
        extra_vars={"ansible_become_exe": str(sudo)},
        env={"ANSIBLE_BECOME_ALLOW_SAME_USER": "true"},  # root, too, gets the prompt
        limit="node1",
        become=SECRET,
    )
    assert "--ask-become-pass" in run.command
    events = list(run)
    assert run.result().exit_code == 0
    assert (tmp_path / "password").read_text(encoding="utf-8") == SECRET
    assert SECRET not in repr(events) + repr(run.spec) + run.command
    assert run.spec.home is not None
    (record,) = records(run.spec.home)
    assert all(SECRET.encode() not in file.read_bytes() for file in record.iterdir())


def test_a_run_that_never_reads_the_password_of_sudo_ends_nevertheless(play: Play) -> None:
    run = play([], limit="node9", become=SECRET)
    assert run.result().exit_code == 3
    assert "rdm-become" not in {thread.name for thread in threading.enumerate()}


def test_user_input_is_never_a_template(play: Play) -> None:
    words = [
        "{{ 7 * 7 }}",
        "a'b\"c",
        "$(id) `id`",
        "two\nlines",
        "true",
        "010",
        "",
        "\u2028\x7fé",
        "\U0001f600",
    ]
    show = task("Show", "debug", {"msg": "{{ words }}"})
    run = play([show], literal_vars={"words": words}, keep=frozenset({"ansible.builtin.debug"}))
    returned = run.result().returned["ansible.builtin.debug"]
    assert returned["node1"][0]["msg"] == words


@pytest.mark.parametrize("pattern", ["ZZZ", "010", "{{ 7 * 7 }}|^[ab]", ""])
def test_the_module_gets_the_pattern_that_was_typed(
    play: Play, make_inventory: MakeInventory, pattern: str
) -> None:
    tasks = yaml.safe_load((ROOT / "roles/job/tasks/logs.yml").read_text(encoding="utf-8"))
    grep = tasks[0]["rdm.provision.job"]["grep"]
    literal = Cluster.load(make_inventory()).logs("x", grep=pattern).spec.literal_vars
    show = task("Show", "debug", {"msg": grep})
    run = play([show], literal_vars=literal, keep=frozenset({"ansible.builtin.debug"}))
    assert run.result().returned["ansible.builtin.debug"]["node1"][0]["msg"] == pattern


def test_extra_variables_keep_their_types(play: Play) -> None:
    show = task("Show", "debug", {"msg": "{{ [off, number, text] }}"})
    values = {"off": False, "number": 8, "text": "8"}
    run = play([show], extra_vars=values, keep=frozenset({"ansible.builtin.debug"}))
    assert run.result().returned["ansible.builtin.debug"]["node1"][0]["msg"] == [False, 8, "8"]


def test_ansible_leaves_no_events_and_no_temporary_folder(play: Play) -> None:
    before = set(Path(tempfile.gettempdir()).glob(f"rdm-provision-{os.getpid()}-*"))
    play([task("Say", "debug", {"msg": "x"})]).result()
    assert set(Path(tempfile.gettempdir()).glob(f"rdm-provision-{os.getpid()}-*")) == before


SHOWS_TEMPORARY_DIRECTORIES = """
import os, tempfile
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        variables = (os.environ.get(name, "none") for name in ("TMPDIR", "RDM_TMPDIR"))
        return {"failed": True, "msg": " ".join((tempfile.gettempdir(), *variables))}
"""


@pytest.mark.parametrize("is_set", [True, False])
def test_tasks_have_the_callers_temporary_directory(
    is_set: bool, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ansible has another one at its start, but what tasks make may outlive the run."""
    monkeypatch.delenv("TMPDIR", raising=False)
    usual, given = tempfile.gettempdir(), "none"
    folder = Path(usual)
    if is_set:
        usual = given = str(tmp_path)
        monkeypatch.setenv("TMPDIR", given)
    else:
        monkeypatch.setenv("TMP", usual)  # the next that Python looks at
    plugins = tmp_path / "action_plugins"
    plugins.mkdir()
    (plugins / "shows.py").write_text(SHOWS_TEMPORARY_DIRECTORIES, encoding="utf-8")
    run = play([{"name": "Show them", "shows": {}}])
    assert run._environment(folder)["TMPDIR"] == str(folder)
    result = run.result()
    assert result.nodes["node1"].why == f"{usual} {given} none"
    assert result.warnings == ()


def test_ansible_keeps_a_temporary_directory_that_is_long(play: Play, tmp_path: Path) -> None:
    """The path of a socket has at most 107 bytes."""
    run = play([task("Say", "debug", {"msg": "x"})])
    assert "TMPDIR" not in run._environment(tmp_path / ("x" * 99))


def test_folders_of_dead_runs_go_and_those_of_other_process_namespaces_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two containers can share a directory for temporary files without seeing each other's processes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = subprocess.Popen(["true"])
    ended.wait()
    here = cluster_lock.process_space()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(cluster_lock, "_space", lambda: "pid:[1]")
        there = cluster_lock.process_space()
    assert here != there
    names = [f"rdm-provision-{pid}-{at}-x_1" for pid in (os.getpid(), ended.pid) for at in (here, there)]
    for name in names:
        (tmp_path / name).mkdir()
    _remove_stale()
    gone = [name for name in names if not (tmp_path / name).exists()]
    assert gone == [f"rdm-provision-{ended.pid}-{here}-x_1"]


def test_folders_whose_process_cannot_be_seen_go_when_nothing_changed_for_a_month(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    pid, month_ago = os.getpid(), time.time() - 31 * 86400
    names = [f"rdm-provision-{pid}-x_1", f"rdm-provision-{pid}-{'0' * 16}-x_1"]
    old, new = [[f"{name}{age}" for name in names] for age in ("old", "new")]
    others = ["rdm-provision-lab.x1", f"rdm-provision-{pid}-{cluster_lock.process_space()}-x_1"]
    for name in (*old, *new, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stdout").touch()
        for path in (tmp_path / name / "stdout", tmp_path / name):
            os.utime(path, (month_ago, month_ago))
    for name in new:  # it runs: its folder is as old, but what is printed is not
        os.utime(tmp_path / name / "stdout")
    _remove_stale()
    assert {path.name for path in tmp_path.glob("rdm-*")} == {*new, *others}


def test_a_limit_that_matches_nothing_is_bad_input(play: Play) -> None:
    result = play([task("Say", "debug", {"msg": "x"})], limit="nobody").result()
    assert result.exit_code == 3
    assert [problem.value for problem in result.problems] == ["nobody"]


def test_a_playbook_that_cannot_be_parsed_is_bad_input(play: Play) -> None:
    result = play([{"name": "Nonsense", "no.such.module": {}}]).result()
    assert result.exit_code == 3
    assert "no.such.module" in str(result.problems[0])


def test_a_task_that_takes_long_is_reported_while_it_runs(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rdm_provision.runner.translator.LONG_S", 0.1)
    go_on = tmp_path / "go-on"
    waited = []
    for event in play([task("Wait", "wait_for", {"path": str(go_on), "timeout": 240})], limit="node1"):
        if isinstance(event, TaskGoesOn):
            waited.append(event.task)
            go_on.touch()
    assert waited == ["Wait"]


# --- stopping -----------------------------------------------------------------------------------------


def sleeping() -> list[dict[str, Any]]:
    return [
        task("Say", "debug", {"msg": "x"}),
        task("Sleep", "command", {"argv": ["sleep", "600"]}, when="inventory_hostname == 'node2'"),
    ]


@pytest.fixture
def little_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ansible waits until a node's current task ends; here the task is killed soon."""
    monkeypatch.setattr("rdm_provision.runner.run.GRACE_S", 1.0)


@pytest.mark.usefixtures("little_grace")
def test_cancel_stops_ansible_and_reports_the_running_task(play: Play) -> None:
    run = play(sleeping())
    began = 0.0
    for event in run:
        if isinstance(event, NodeStarted) and (event.node, event.task) == ("node2", "Sleep"):
            began = time.monotonic()
            run.cancel()
    result = run.result()
    assert time.monotonic() - began < 500
    assert result.exit_code == 130
    assert ("node2", "Sleep") in {(item.node, item.task) for item in result.in_progress}
    assert result.nodes["node2"].ok == 1


@pytest.mark.usefixtures("little_grace")
def test_leaving_the_block_early_cancels(play: Play) -> None:
    with play(sleeping()) as run:
        for event in run:
            if isinstance(event, NodeStarted) and event.task == "Sleep":
                break
    assert run.result().cancelled


def test_two_runs_do_not_change_one_cluster_at_a_time(play: Play, make_inventory: MakeInventory) -> None:
    home = make_inventory()
    lock = Lock(home, "up")
    run = play([task("Say", "debug", {"msg": "x"})], inventory=home, exclusive=True)
    with pytest.raises(ClusterBusyError, match="rdm-provision up"):
        run.start()
    lock.release()
    assert run.result().exit_code == 0
    Lock(home, "up").release()


def test_a_run_that_only_reads_drops_the_lock(
    play: Play, make_inventory: MakeInventory, tmp_path: Path
) -> None:
    home = make_inventory()
    run = play([task("Say", "debug", {"msg": "x"})], inventory=home, exclusive=True, observes_from="Watch")
    book = Path(run.spec.playbook)
    lock = "{{ lookup('rdm.provision.cluster_lock', 'master:workers', hold=%s) }}"
    (change,) = yaml.safe_load(book.read_text())
    plays = [
        {**change, "name": name, "hosts": lock % hold} for name, hold in (("Change", True), ("Watch", False))
    ]
    book.write_text(yaml.safe_dump(plays))
    was_free = {}
    for event in run:
        if isinstance(event, PhaseStarted):
            try:
                Lock(home, "down").release()
                was_free[event.phase] = True
            except ClusterBusyError:
                was_free[event.phase] = False
    assert was_free == {"Change": False, "Watch": True}
    assert run.result().exit_code == 0


def test_forked_program_is_no_part_of_its_run(make_inventory: MakeInventory) -> None:
    home = make_inventory()
    lock = Lock(home, "up")
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    lock.release()
    Lock(home, "down").release()
    assert os.waitpid(child, os.WNOHANG) == (0, 0), "it was ended as if the run had left it"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


# --- the record ----------------------------------------------------------------------------------------


def test_the_record_is_compact_and_git_ignores_it(play: Play, make_inventory: MakeInventory) -> None:
    home = make_inventory()
    result = play([task("Say", "debug", {"msg": "x"})], inventory=home).result()
    assert result.record == records(home)[-1]
    assert (home / ".rdm" / ".gitignore").read_text(encoding="utf-8") == "*\n"
    lines = (result.record / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["run_started", "phase_started", "task_started"]
    stored = json.loads((result.record / "result.json").read_text(encoding="utf-8"))
    assert stored["exit_code"] == 0
    assert not (result.record / "ansible.log").exists()


def test_only_the_newest_records_stay(play: Play, make_inventory: MakeInventory) -> None:
    home = make_inventory()
    runs = home / ".rdm" / "runs"
    for number in range(KEEP + 5):
        (runs / f"20200101T0000{number:02d}Z-up").mkdir(parents=True)
    result = play([task("Say", "debug", {"msg": "x"})], inventory=home).result()
    kept = records(home)
    assert len(kept) == KEEP
    assert kept[-1] == result.record


# --- the equivalent command ------------------------------------------------------------------------------


def test_the_shown_command_does_the_same(play: Play, tmp_path: Path) -> None:
    values = {"folder": str(tmp_path), "odd": "a 'b' \"c\" $(id)\nd"}
    run = play([write("{{ odd }}")], extra_vars=values, limit="node1", nodes=("node1",))
    bin_folder = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", run.command], env={**os.environ, "PATH": bin_folder}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "node1").read_text(encoding="utf-8") == values["odd"] + "\n"
    assert not (tmp_path / "node2").exists()


def test_forks_default_to_the_nodes_up_to_fifty() -> None:
    def forks(nodes: int, given: int = 0) -> int:
        names = tuple(f"n{number}" for number in range(nodes))
        return RunSpec(verb="up", playbook="site", inventory="x", nodes=names, forks=given).effective_forks

    assert [forks(3), forks(50), forks(1000), forks(1000, 200)] == [3, 50, 50, 200]


def test_a_task_that_queries_all_nodes_counts_up_while_it_works(play: Play, tmp_path: Path) -> None:
    there, later = tmp_path / "there", tmp_path / "later"
    there.touch()
    paths = dict(zip(NODES, (there, later, there), strict=True))
    arguments = {node: {"path": str(path), "timeout": 240} for node, path in paths.items()}
    query = {"module": "ansible.builtin.wait_for", "arguments": arguments, "connections": ["local"]}
    alone = {"name": "Query", "rdm.provision.run_on_all": {**query, "timeout": 300}, "run_once": True}
    nodes = []
    with play([alone, task("Go on", "debug", {"msg": "x"})]) as run:
        for event in run:
            if isinstance(event, NodeResult) and event.task == "Query":
                nodes.append(event.node)
                later.touch()  # not before another node is reported
    assert sorted(nodes) == list(NODES)
    assert nodes[0] == "node3"
    assert {recap.ok for recap in run.result().nodes.values()} == {2}
