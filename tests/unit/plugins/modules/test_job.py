# SPDX-License-Identifier: GPL-3.0-or-later
"""The module for jobs: its calls of the agent, and every way in which they can fail."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.docker.api import (
    DockerUnavailable,
    ExecResult,
)
from ansible_collections.rdm.provision.plugins.module_utils.jobs import execution_environment
from ansible_collections.rdm.provision.plugins.modules import job

from tests.unit.plugins.job_locks import running_job
from tests.unit.plugins.modules.running import Failed, run_module

PLAN = {
    "name": "tiny-1",
    "resume": False,
    "config": "name: tiny\n",
    "overrides": ["a.b=1"],
    "nodes": [{"name": "n1", "address": "10.0.0.100", "slots": 2}],
    "master": "n1",
    "accelerator": "cpu",
    "offer": {"agent_port": 1, "master_port": 2},
}
RUNNING = {"job": "tiny-1", "state": "running", "master": "n1", "reason": ""}


class Engine:
    """An engine with one training container, whose agent gives the set answer."""

    def __init__(self, jobs: Path) -> None:
        self.container: dict[str, Any] = {
            "Names": ["/rdm"],
            "State": "running",
            "Mounts": [{"Destination": "/jobs", "Source": str(jobs)}],
        }
        self.containers = [self.container]
        self.answer = ExecResult(0, b'{"ok": true, "problems": []}', b"")
        self.argv: list[str] = []
        self.stdin: bytes | None = None

    def get(self, path: str, **query: Any) -> Any:
        assert path == "/containers/json"
        assert query["filters"] == {"label": ["rdm.provision.cluster=c", "rdm.provision.role=container"]}
        return self.containers

    def exec(
        self, container: str, argv: list[str], timeout: float, user: str = "", stdin: bytes | None = None
    ) -> ExecResult:
        assert container == "rdm"
        self.argv, self.stdin = argv, stdin
        return self.answer

    def returns(self, code: int = 0, **answer: Any) -> None:
        self.answer = ExecResult(code, json.dumps({"ok": True, "problems": [], **answer}).encode(), b"")


class Environment:
    """A virtual environment of the host, whose agent gives the set answer."""

    def __init__(self, home: Path, jobs: Path) -> None:
        self.home = home
        self.options = {
            "runtime": "host",
            "environment": str(home / "env"),
            "directory": str(jobs),
            "key": str(home / "key"),
            "my_ip": "10.0.0.100",
        }
        program = home / "env" / "bin" / "rdm-trainer"
        program.parent.mkdir(parents=True)
        program.write_text(
            f"#!{sys.executable}\n"
            "import json, os, sys\n"
            f"os.chdir({str(home)!r})\n"
            "call = {'argv': sys.argv[1:], 'stdin': sys.stdin.read(), 'environment': dict(os.environ)}\n"
            "open('call', 'w').write(json.dumps(call))\n"
            "answer = json.load(open('answer'))\n"
            "sys.stdout.write(answer[1])\n"
            "sys.stderr.write(answer[2])\n"
            "sys.exit(answer[0])\n",
            encoding="utf-8",
        )
        program.chmod(0o755)
        (home / "key").touch()
        self.program = program
        self.answer = ExecResult(0, b'{"ok": true, "problems": []}', b"")

    @property
    def answer(self) -> ExecResult:
        raise AssertionError("only the agent reads it")

    @answer.setter
    def answer(self, answer: ExecResult) -> None:
        result = [answer.exit_code, answer.stdout.decode(), answer.stderr.decode()]
        (self.home / "answer").write_text(json.dumps(result), encoding="utf-8")

    @property
    def called_with(self) -> dict[str, Any]:
        path = self.home / "call"
        return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}

    @property
    def argv(self) -> list[str]:
        return ["rdm-trainer", *self.called_with["argv"]] if self.called_with else []

    @property
    def stdin(self) -> bytes:
        return str(self.called_with["stdin"]).encode()

    def returns(self, code: int = 0, **answer: Any) -> None:
        self.answer = ExecResult(code, json.dumps({"ok": True, "problems": [], **answer}).encode(), b"")


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    (tmp_path / "tiny-1").mkdir()
    made = Engine(tmp_path)
    monkeypatch.setattr(execution_environment, "DockerAPI", lambda: made)
    return made


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    (tmp_path / "jobs" / "tiny-1").mkdir(parents=True)
    monkeypatch.setattr(execution_environment, "DockerAPI", None)  # no engine is queried
    return Environment(tmp_path, tmp_path / "jobs")


@pytest.fixture(params=["engine", "host"])
def agent(request: pytest.FixtureRequest) -> Any:
    """The agent in each execution environment: all make the same promises."""
    return request.getfixturevalue(request.param)


def run(verb: str, at: Any = None, *, check: bool = False, **options: Any) -> dict[str, Any]:
    where = {"execution_environment": at.options} if isinstance(at, Environment) else {}
    return run_module(job, {"cluster": "c", "verb": verb, **where, **options}, check=check)


# --- what is called -------------------------------------------------------------------------------------


def test_a_request_goes_through_standard_input_and_not_through_the_arguments(agent: Any) -> None:
    agent.returns(facts={"torch": "2"}, offer={"agent_port": 5, "master_port": 6})
    result = run("check", agent, plan=PLAN, node="n1")
    assert agent.argv == ["rdm-trainer", "job", "check"]
    request = json.loads(agent.stdin or b"")
    assert request == {**{k: v for k, v in PLAN.items() if k != "master"}, "version": 1, "node": "n1"}
    assert (result["problems"], result["offer"]["agent_port"], result["changed"]) == ([], 5, False)


def test_a_start_changes_something_once(agent: Any) -> None:
    agent.returns(started=True, job=RUNNING)
    assert run("start", agent, plan=PLAN, node="n1")["changed"]
    agent.returns(started=False, job=RUNNING)
    assert not run("start", agent, plan=PLAN, node="n1")["changed"]


def test_state_of_a_started_job_comes_from_its_master(agent: Any) -> None:
    agent.returns(started=True, job=RUNNING)
    assert run("start", agent, plan=PLAN, node="n1")["job"] == RUNNING
    assert "job" not in run("start", agent, plan=PLAN, node="n2")


def test_in_check_mode_nothing_is_started_or_stopped(agent: Any) -> None:
    assert run("start", agent, plan=PLAN, node="n1", check=True)["changed"]
    assert agent.argv == []
    agent.returns(job=RUNNING)
    assert run("stop", agent, name="tiny-1", check=True)["changed"]
    assert agent.argv[:3] == ["rdm-trainer", "job", "state"]
    agent.returns(job={**RUNNING, "state": "finished"})
    assert not run("stop", agent, name="tiny-1", check=True)["changed"]


@pytest.mark.parametrize(
    ("state", "ended", "msg"),
    [
        ("running", False, "the job tiny-1 is running"),
        ("finished", True, "the job tiny-1 has finished"),
        ("failed", True, "the job tiny-1 has failed: a rank died"),
        ("stopped", True, "the job tiny-1 was stopped"),
    ],
)
def test_state_of_a_job_is_returned(agent: Any, state: str, ended: bool, msg: str) -> None:
    reason = "a rank died" if state == "failed" else ""
    agent.returns(job={**RUNNING, "state": state, "reason": reason})
    result = run("state", agent, name="tiny-1", wait=5)
    assert agent.argv == ["rdm-trainer", "job", "state", "tiny-1", "--wait", "5.0"]
    assert (result["known"], result["ended"], result["msg"]) == (True, ended, msg)


def test_a_log_is_read_from_its_end_and_then_from_where_it_was_left(agent: Any) -> None:
    agent.returns(text="a\n", offset=7, ended=False)
    result = run("logs", agent, name="tiny-1", stream="err", tail=3)
    assert agent.argv[3:] == ["tiny-1", "--stream", "err", "--tail", "3"]
    assert (result["text"], result["offset"], result["stream"]) == ("a\n", 7, "err")
    run("logs", agent, name="tiny-1", offset=7, wait=2)
    assert agent.argv[3:] == ["tiny-1", "--stream", "out", "--offset", "7", "--wait", "2.0"]


def test_a_notice_about_missing_lines_is_passed_on(agent: Any) -> None:
    agent.returns(text="", offset=7, ended=False, notice="No line on n1 says so.")
    assert run("logs", agent, name="tiny-1", rank=1)["notice"] == "No line on n1 says so."


def test_log_of_an_unknown_rank_is_not_followed(agent: Any) -> None:
    agent.returns(text="", offset=7, ended=False, ranks=4)
    result = run("logs", agent, name="tiny-1", rank=99, wait=10)
    assert (result["ranks"], result["ended"]) == (4, True)
    assert run("logs", agent, name="tiny-1", rank=4)["ranks"] == 4
    assert "ranks" not in run("logs", agent, name="tiny-1", rank=3)
    # It is unknown for a job that Slurm has not started.
    agent.returns(text="", offset="", ended=False)
    assert "ranks" not in run("logs", agent, name="tiny-1", rank=99)


@pytest.mark.parametrize("found", [{"text": "[rank20]: a\n"}, {"text": "", "parts": {"n2": "[rank20]: a\n"}}])
def test_lines_of_a_rank_that_the_job_had_before_are_shown(agent: Any, found: dict[str, Any]) -> None:
    # A former agent always reports the number of ranks.
    agent.returns(offset=7, ended=False, ranks=16, **found)
    result = run("logs", agent, name="tiny-1", rank=20)
    assert {key: result.get(key) for key in found} == found
    assert (result["ended"], "ranks" in result) == (False, False)


@pytest.mark.parametrize("verb", ["sections", "report"])
def test_sections_and_a_report_are_the_agents(agent: Any, verb: str) -> None:
    agent.returns(**{verb: ["what the agent has"]})
    result = run(verb, agent, name="tiny-1")
    assert agent.argv == ["rdm-trainer", "job", verb, "tiny-1"]
    assert (result[verb], result["known"]) == (["what the agent has"], True)


def test_jobs_of_this_node_are_removed_and_in_check_mode_only_checked(agent: Any) -> None:
    agent.returns(removed=[{"job": "tiny-1", "bytes": 4096}], kept=[])
    result = run("remove", agent, names=["another", "tiny-1"], check=True)
    assert agent.argv == ["rdm-trainer", "job", "remove", "tiny-1", "--look"]
    result = run("remove", agent, names=["another", "tiny-1"])
    assert agent.argv == ["rdm-trainer", "job", "remove", "tiny-1"]
    assert (result["removed"], result["changed"]) == ([{"job": "tiny-1", "bytes": 4096}], True)
    agent.returns(removed=[], kept=[{"job": "tiny-1", "reason": "it is running"}])
    assert not run("remove", agent, names=["tiny-1"])["changed"]


def test_no_other_directory_is_removed(agent: Any) -> None:
    for name in ("../tiny-1", "/", "", "--look", "."):
        with pytest.raises(Failed, match="is no name of a job"):
            run("remove", agent, names=["tiny-1", name])
    assert run("remove", agent, names=["another"])["removed"] == []
    assert agent.argv == []


def test_rest_of_a_killed_removal_is_removed_for_any_names(agent: Any, tmp_path: Path) -> None:
    agent.returns(removed=[{"job": "old", "bytes": 4096}], kept=[])
    left = next(tmp_path.rglob("tiny-1")).parent / ".removed-old.1a-2b"
    left.mkdir()
    assert run("remove", agent, names=["another"], check=True)["changed"]
    assert agent.argv == ["rdm-trainer", "job", "remove", "--look"]


def test_launch_of_a_job_is_read_from_its_directory(agent: Any, tmp_path: Path) -> None:
    file = next(tmp_path.rglob("tiny-1")) / "job.json"
    file.write_text(json.dumps({"nodes": [{"name": "n2"}, {"name": "n1"}]}))
    os.utime(file, (7.0, 7.0))
    assert run("past", agent, name="tiny-1")["past"] == {"slurm": False, "nodes": ["n2", "n1"], "time": 7.0}
    assert "past" not in run("past", agent, name="another")
    file.write_text("{")
    damaged = run("past", agent, name="tiny-1")
    assert (damaged["known"], "job.json is damaged" in damaged["msg"], "past" in damaged) == (
        False,
        True,
        False,
    )
    assert agent.argv == [], "its agent is not called, whose program may be another one now"


def test_stop_says_whether_there_was_anything_to_stop(agent: Any) -> None:
    agent.returns(stopped=True, job={**RUNNING, "state": "stopped"})
    assert run("stop", agent, name="tiny-1", now=True)["changed"]
    assert agent.argv[-1] == "--now"


def test_a_node_without_the_job_is_not_queried(agent: Any) -> None:
    for verb in ("state", "logs", "sections", "report", "stop"):
        result = run(verb, agent, name="another")
        assert (result["known"], result["ended"], result["changed"]) == (False, True, False)
    assert agent.argv == []


def test_a_node_names_the_jobs_that_may_have_been_meant(agent: Any, tmp_path: Path) -> None:
    jobs = next(tmp_path.rglob("tiny-1")).parent
    # Other directories next to jobs are not jobs, whatever their names.
    others: dict[str, list[str]] = {"tniy-2": [], "tniy-3": [], "tniy-4": []}
    for name, files in {"tiny-1": ["job.json"], "gpt-9": ["job.json"], **others}.items():
        (jobs / name).mkdir(exist_ok=True)
        for file in files:
            (jobs / name / file).touch()
    for verb in ("state", "logs", "sections", "report", "stop"):
        assert run(verb, agent, name="tniy-1")["near"] == ["tiny-1"]
        assert run(verb, agent, name="t")["near"] == ["tiny-1"], "it begins so"
        assert run(verb, agent, name="xyz")["near"] == []


def test_running_jobs_are_named_without_the_agent(engine: Engine, tmp_path: Path) -> None:
    with running_job(tmp_path, "tiny-1"), running_job(tmp_path, "other", node="former"):
        assert run("running", node="n1")["running"] == ["other", "tiny-1"]
    assert run("running", node="n1")["running"] == []
    assert engine.argv == []


def test_a_killed_runs_leftover_container_is_not_queried(engine: Engine, tmp_path: Path) -> None:
    engine.containers.insert(0, {**engine.container, "Names": ["/rdm.next"], "State": "created"})
    engine.returns(jobs=[])
    assert "directory" in run("list")
    with running_job(tmp_path, "tiny-1"):
        assert run("running", node="n1")["running"] == ["tiny-1"]


def test_where_no_container_runs_no_job_does(engine: Engine, tmp_path: Path) -> None:
    with running_job(tmp_path, "tiny-1"):
        engine.container["Mounts"] = []
        assert run("running", node="n1") == {"changed": False, "running": []}
        engine.containers = []
        assert run("running", node="n1") == {"changed": False, "running": []}


# --- what goes wrong ------------------------------------------------------------------------------------


def broken(engine: Engine, how: str) -> None:
    if how == "none":
        engine.containers = []
    elif how == "stopped":
        engine.container["State"] = "exited"
    elif how == "old":
        engine.container["Mounts"] = []
    elif how == "image":
        words = b'OCI runtime exec failed: exec: "rdm-trainer": executable file not found in $PATH: unknown'
        engine.answer = ExecResult(126, words, b"")
    elif how == "crash":
        engine.answer = ExecResult(1, b"", b"Traceback\nKeyError: 'x'\n")


BROKEN = [
    ("none", "there is no training container of cluster c"),
    ("stopped", r"the container rdm does not run \(it is exited\)"),
    ("old", "the container rdm has no /jobs"),
    ("image", "the container rdm has no rdm-trainer: use a training image"),
    ("crash", "rdm-trainer job .* ended with exit code 1: KeyError: 'x'"),
]


@pytest.mark.parametrize(("how", "sentence"), BROKEN)
def test_each_failure_is_one_sentence(engine: Engine, how: str, sentence: str) -> None:
    broken(engine, how)
    with pytest.raises(Failed, match=sentence):
        run("list")


@pytest.mark.parametrize("how", [how for how, _ in BROKEN])
def test_a_check_reports_it_instead_of_failing_so_that_all_nodes_report(engine: Engine, how: str) -> None:
    broken(engine, how)
    assert len(run("check", plan=PLAN, node="n1")["problems"]) == 1


def test_an_engine_that_does_not_answer_is_a_problem_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise DockerUnavailable("no Docker Engine answers at /x")

    monkeypatch.setattr(execution_environment, "DockerAPI", none)
    assert run("check", plan=PLAN, node="n1")["problems"] == ["no Docker Engine answers at /x"]
    assert run("running", node="n1")["running"] == []


def test_an_agent_that_refuses_gives_its_reasons(agent: Any) -> None:
    agent.returns(3, ok=False, problems=["The disk is full.", "No GPU."])
    assert run("check", agent, plan=PLAN, node="n1")["problems"] == ["The disk is full.", "No GPU."]
    with pytest.raises(Failed, match=r"^The disk is full; No GPU$"):
        run("start", agent, plan=PLAN, node="n1")


@pytest.mark.parametrize(
    ("verb", "options", "sentence"),
    [
        ("start", {}, "plan is missing"),
        ("state", {}, "'' is no name of a job"),
        ("stop", {"name": "../up"}, r"'\.\./up' is no name"),
        ("logs", {"name": "-x"}, "'-x' is no name"),
    ],
)
def test_options_that_make_no_sense(agent: Any, verb: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Failed, match=sentence):
        run(verb, agent, **options)
    assert agent.argv == []


def test_check_returns_the_full_configuration_or_its_problems(agent: Any) -> None:
    agent.answer = ExecResult(0, b"name: tiny\nmodel: {}\n", b"")
    assert run("config", agent, plan=PLAN)["config"] == "name: tiny\nmodel: {}\n"
    assert agent.argv == ["rdm-trainer", "config", "/dev/stdin", "a.b=1"]
    assert agent.stdin == b"name: tiny\n"
    agent.answer = ExecResult(3, b"", b"Error: model.layer is not a key\n")
    with pytest.raises(Failed, match=r"^model\.layer is not a key$") as failed:
        run("config", agent, plan=PLAN)
    assert failed.value.result["rdm_refused"] == "nodes"
    agent.answer = ExecResult(3, b"", b"Error: model.layer is not a key\nError: data.mock is missing\n")
    with pytest.raises(Failed) as failed:
        run("config", agent, plan=PLAN)
    reasons = [problem["reason"] for problem in failed.value.result["problems"]]
    assert reasons == ["model.layer is not a key", "data.mock is missing"]
    agent.answer = ExecResult(1, b"", b"Error: no space left on device\n")
    with pytest.raises(Failed, match=r"^no space left on device$") as failed:
        run("config", agent, plan=PLAN)
    assert "rdm_refused" not in failed.value.result


def test_only_errors_are_wrong_with_a_configuration(agent: Any) -> None:
    warning = b"bash: warning: setlocale: cannot change locale (C.UTF-9)\n/x.py:3: FutureWarning: x\n"
    agent.answer = ExecResult(3, b"", warning + b"Error: model.layer is not a key\n")
    with pytest.raises(Failed, match=r"^model\.layer is not a key$") as failed:
        run("config", agent, plan=PLAN)
    assert [one["reason"] for one in failed.value.result["problems"]] == ["model.layer is not a key"]
    agent.answer = ExecResult(3, b"", warning)
    with pytest.raises(Failed) as failed:
        run("config", agent, plan=PLAN)
    assert str(failed.value) == warning.decode().strip()
    assert "problems" not in failed.value.result


# --- on the host ----------------------------------------------------------------------------------------


def test_the_hosts_agent_has_its_environment_and_not_the_modules(
    host: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    host.returns(jobs=[])
    assert run("list", host)["directory"] == host.options["directory"]
    variables = host.called_with["environment"]
    assert variables["PATH"].split(":")[0] == str(host.program.parent)
    assert "PYTHONPATH" not in variables
    names = ("MY_IP", "RDM_CLUSTER_KEY", "RDM_JOBS", "VIRTUAL_ENV")
    assert [variables[name] for name in names] == [
        host.options[key] for key in ("my_ip", "key", "directory", "environment")
    ]


def test_paths_are_the_users_and_the_hosts(host: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(host.home))
    host.options.update(directory="~/%n")
    (host.home / os.uname().nodename).mkdir()
    host.returns(jobs=[])
    assert run("list", host)["directory"] == str(host.home / os.uname().nodename)


@pytest.mark.parametrize(
    ("lost", "sentence"),
    [
        (
            "env/bin/rdm-trainer",
            "there is no environment with rdm-trainer at .*/env: make it with rdm-provision",
        ),
        ("jobs/tiny-1", "there is no directory .*/jobs for jobs: make it"),
        ("key", "the cluster's key .*/key cannot be read: make it"),
    ],
)
def test_missing_program_of_the_host_is_one_sentence(host: Environment, lost: str, sentence: str) -> None:
    path = host.home / lost
    if path.is_dir():
        path.rmdir()
        path.parent.rmdir()
    else:
        path.unlink()
    with pytest.raises(Failed, match=sentence):
        run("list", host)
    assert len(run("check", host, plan=PLAN, node="n1")["problems"]) == 1


def test_an_environment_that_lost_its_python_is_named(host: Environment) -> None:
    host.program.write_text("#!/nowhere/python\n", encoding="utf-8")
    with pytest.raises(Failed, match=r"cannot be run: No such file or directory; recreate the environment"):
        run("list", host)


def test_query_of_a_hanging_agent_times_out(host: Environment) -> None:
    host.program.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    with pytest.raises(Failed, match="has not ended within 1 s"):
        run("list", host, timeout=-9)


def test_running_jobs_of_the_host_are_named_without_the_agent(host: Environment) -> None:
    with running_job(host.home / "jobs", "tiny-1"):
        assert run("running", host, node="n1")["running"] == ["tiny-1"]
    assert run("running", host, node="n1")["running"] == []
    assert host.argv == []
