# SPDX-License-Identifier: GPL-3.0-or-later
"""The verbs that query, stop, follow and prune jobs."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rdm_provision.api.jobs import JobVerbs
from rdm_provision.cli.render import job_view, live
from rdm_provision.cli.verbs import jobs as jobs_verb
from rdm_provision.cli.verbs import logs as logs_verb
from rdm_provision.cli.verbs import report as report_verb
from rdm_provision.cli.verbs import stop as stop_verb
from rdm_provision.cli.verbs import train as train_verb
from rdm_provision.errors import InputError
from rdm_provision.results.events import NodeRecap, RunResult
from rdm_provision.results.job_state import JobState
from tests.conftest import ROOT
from tests.unit.rdm_provision.conftest import MakeInventory
from tests.unit.rdm_provision.job_reports import (
    NOW,
    REPORTED,
    SLOW,
    WELL,
    answered,
    invoke,
    state,
)


@pytest.mark.parametrize(
    ("words", "answer", "removes"),
    [
        (["--yes"], "", True),
        ([], "y", True),
        ([], "n", False),
        (["--json"], "", False),
        (["--json", "--yes"], "", True),
    ],
)
def test_prune_lists_jobs_and_prompts(
    monkeypatch: pytest.MonkeyPatch,
    make_inventory: MakeInventory,
    words: list[str],
    answer: str,
    removes: bool,
) -> None:
    ended = {**REPORTED, "state": "finished", "started": NOW - 9e6, "ended": NOW - 8e6}
    size = {"removed": [{"job": "demo-1", "bytes": 3 << 30}], "kept": []}
    kept = {"removed": [], "kept": [{"job": "demo-1", "reason": "its agent is still at work"}]}
    requested: list[tuple[str, bool]] = []

    def watch(run: Any, *_: Any, **__: Any) -> tuple[RunResult, None]:
        requested.append((run.spec.verb, run.spec.check))
        if run.spec.verb == "jobs":
            return answered({"n1": {"jobs": [ended], "directory": "/d"}}), None
        return answered({"n1": size, "n2": kept}, "prune"), None

    monkeypatch.setattr(job_view, "watch", watch)
    inventory = make_inventory("n1", "n2")
    result = invoke(jobs_verb.jobs, inventory, "--prune", "30d", *words, input=answer + "\n")
    assert result.exception is None, result.output
    assert requested == [("jobs", False), ("prune", True), *([("prune", False)] if removes else [])]
    if "--json" in words:
        reported = json.loads(result.stdout)
        assert (reported["removed"], reported["jobs"][0]["job"]) == (removes, "demo-1")
        assert [(one["node"], one["bytes"]) for one in reported["directories"]] == [
            ("n1", 3 << 30),
            ("n2", 0),
        ]
    else:
        assert re.search(r"demo-1 +finished +\d+ d ago +n1 3.0 GiB, n2 keeps it", result.output)
        assert ("Removed 1 job, 3.0 GiB on 1 node" in result.output) == removes
        assert ("Nothing was removed." in result.output) != removes
    # A node that keeps a directory is a failure.
    assert result.return_value == int(removes)


@pytest.mark.parametrize("left", [True, False])
def test_prune_finds_the_rest_of_a_killed_removal(
    monkeypatch: pytest.MonkeyPatch, make_inventory: MakeInventory, left: bool
) -> None:
    def watch(run: Any, *_: Any, **__: Any) -> tuple[RunResult, None]:
        reported: dict[str, Any] = {"jobs": [], "directory": "/d"}
        if run.spec.verb == "prune":
            assert run.spec.literal_vars == {"job_names": []}
            reported = {"removed": [{"job": "demo-1", "bytes": 2048, "identity": "1a-2b"}] * left, "kept": []}
        return answered({"n1": reported}, run.spec.verb), None

    monkeypatch.setattr(job_view, "watch", watch)
    result = invoke(jobs_verb.jobs, make_inventory("n1"), "--prune", "30d", "--yes")
    assert (result.exception, result.return_value) == (None, 0), result.output
    assert bool(re.search(r"demo-1 +half removed +- +n1 2.0 KiB", result.output)) == left
    assert ("Removed 1 job, 2.0 KiB on 1 node." in result.output) == left
    assert ("No job ended 30d ago" in result.output) != left


@pytest.mark.parametrize("words", [["--yes"], ["--yes", "--json"]])
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ({"cancelled": True}, 130),
        ({"message": "Another run holds the lock of the cluster."}, 1),
        ({"refused": "nodes"}, 2),
    ],
)
@pytest.mark.parametrize("ends_at", [1, 2, 3])
def test_nothing_is_pruned_after_a_run_that_did_not_come_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
    make_inventory: MakeInventory,
    words: list[str],
    end: dict[str, Any],
    code: int,
    ends_at: int,
) -> None:
    ended = {**REPORTED, "state": "finished", "started": NOW - 9e6, "ended": NOW - 8e6}
    queried: list[bool] = []

    def watch(run: Any, *_: Any, **__: Any) -> tuple[RunResult, None]:
        queried.append(run.spec.check)
        removal = {"removed": [{"job": "demo-1", "bytes": 1}], "kept": []}
        result = answered({"n1": {"jobs": [ended], "directory": "/d", **removal}}, run.spec.verb)
        return (replace(result, **end) if len(queried) == ends_at else result), None

    monkeypatch.setattr(job_view, "watch", watch)
    arguments = ["-i", str(make_inventory("n1")), "--prune", "30d", *words]
    outcome = CliRunner().invoke(jobs_verb.jobs, arguments)
    assert (len(queried), outcome.exit_code) == (ends_at, code), outcome.output
    assert "Removed" not in outcome.output
    assert "No job ended" not in outcome.output
    if "--json" in words:
        assert json.loads(outcome.stdout)["exit_code"] == code
    else:
        assert end.get("message", "") in outcome.output
        assert outcome.stderr


@pytest.mark.parametrize(
    ("words", "answers", "limits"),
    [
        (["demo-1", "--verdict"], {"n1": REPORTED}, ["n1"]),
        (["demo-1", "--watch"], {"n1": REPORTED}, ["n1"]),
        # The master does not have the job or does not answer; or it is of a job whose master is another.
        (["demo-1", "--json"], {"n2": REPORTED | {"master": "n2"}}, ["n1", ""]),
        (["demo-1"], {"n1": REPORTED | {"master": "n2"}, "n2": REPORTED | {"master": "n2"}}, ["n1", ""]),
        (["demo-1"], {"n2": REPORTED}, ["n1", ""]),
        # --limit selects the queried nodes; a list of jobs queries all.
        (["demo-1", "--limit", "n2"], {"n2": REPORTED}, ["n2"]),
        ([], {"n1": REPORTED}, [""]),
    ],
)
def test_a_jobs_master_is_queried_and_the_others_only_when_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
    make_inventory: MakeInventory,
    words: list[str],
    answers: dict[str, dict[str, Any]],
    limits: list[str],
) -> None:
    queried: list[str] = []
    verdict = {"verdict": "healthy", "reason": "It makes steps.", "exit_code": 0}

    def watch(run: Any, *_: Any, **__: Any) -> tuple[RunResult, JobState | None]:
        queried.append(run.spec.limit)
        known = [node for node in run.spec.nodes if node in answers]
        result = answered(
            {node: {"job": answers[node] | {"verdict": verdict}, "directory": "/jobs"} for node in known},
            nodes={},
        )
        states = JobVerbs().job_states(result)
        return result, states[0] if states else None

    monkeypatch.setattr(job_view, "watch", watch)
    outcome = invoke(jobs_verb.jobs, make_inventory("n1", "n2", "n3"), *words)
    assert outcome.exception is None, outcome.output
    assert queried == limits
    assert "healthy" in outcome.output


@pytest.mark.parametrize(
    ("verb", "words", "near", "hint"),
    [
        (jobs_verb.jobs, [], [], "rdm-provision jobs -i INVENTORY lists them"),
        (jobs_verb.jobs, ["--verdict"], ["gpt-1"], "did you mean gpt-1?"),
        (jobs_verb.jobs, ["--sections"], ["gpt-1"], "did you mean gpt-1?"),
        (logs_verb.logs, [], ["gpt-1"], "did you mean gpt-1?"),
        (stop_verb.stop, [], ["gpt-1"], "did you mean gpt-1?"),
        (report_verb.report, [], ["gpt-1"], "did you mean gpt-1?"),
    ],
)
def test_a_job_that_is_misspelt_is_named_as_it_may_have_been_meant(
    monkeypatch: pytest.MonkeyPatch,
    make_inventory: MakeInventory,
    verb: Any,
    words: list[str],
    near: list[str],
    hint: str,
) -> None:
    reported = {"known": False, "ended": True, "near": near}
    result = answered({"n1": reported, "n2": reported})
    monkeypatch.setattr(job_view, "watch", lambda *_, **__: (result, None))
    monkeypatch.setattr(job_view, "read", lambda *_, **__: (result, {}))
    monkeypatch.setattr(live, "watch", lambda *_, **__: result)
    inventory = make_inventory("n1", "n2")
    outcome = invoke(verb, inventory, "gtp-1", *words)
    assert isinstance(outcome.exception, InputError), outcome.output
    assert "there is no job gtp-1" in str(outcome.exception)
    assert outcome.exception.hint == hint.replace("INVENTORY", str(inventory))


@pytest.mark.parametrize("failed", [False, True])
def test_detaching_shows_the_jobs_name_and_the_next_commands(
    monkeypatch: pytest.MonkeyPatch, make_inventory: MakeInventory, failed: bool
) -> None:
    result = RunResult(verb="train", nodes={"n1": NodeRecap(changed=1, failed=int(failed))})
    monkeypatch.setattr(job_view, "watch", lambda *_, **__: (result, state(state="starting")))
    inventory, words = make_inventory("n1"), ("--resume", "demo-1", "--detach")
    outcome = invoke(train_verb.train, inventory, *words)
    assert outcome.exception is None, outcome.output
    for part in ("demo-1", "jobs -i", "--watch", "logs -i", "stop -i"):
        assert part in outcome.output
    assert "goes on" not in outcome.output
    as_json = invoke(train_verb.train, inventory, *words, "--json")
    assert json.loads(as_json.stdout)["job"]["job"] == "demo-1"


@pytest.mark.parametrize(
    ("checkpoint", "changed", "words"),
    [
        (33, 1, "demo-1 is stopped. Its newest checkpoint is of iteration 33."),
        (33, 0, "demo-1 had ended already. Its newest checkpoint is of iteration 33."),
        (None, 1, "demo-1 is stopped. It has no checkpoint: it would start from the beginning."),
    ],
)
def test_stop_shows_the_checkpoint_to_resume_from(
    monkeypatch: pytest.MonkeyPatch,
    make_inventory: MakeInventory,
    checkpoint: int | None,
    changed: int,
    words: str,
) -> None:
    # The master's report counts: the other node does not know the last checkpoint.
    answers = {
        node: {"known": True, "job": {**REPORTED, "state": "stopped", "progress": {"checkpoint": saved}}}
        for node, saved in (("n2", 20), ("n1", checkpoint))
    }
    result = answered(answers, "stop", nodes=dict.fromkeys(answers, NodeRecap(ok=1, changed=changed)))
    monkeypatch.setattr(live, "watch", lambda *_, **__: result)
    arguments = ["-i", str(make_inventory("n1", "n2")), "demo-1"]
    outcome = CliRunner().invoke(stop_verb.stop, arguments)
    assert words in outcome.output
    reported = json.loads(CliRunner().invoke(stop_verb.stop, [*arguments, "--json"]).stdout)
    assert reported["job"]["checkpoint"] == checkpoint


@pytest.mark.parametrize(
    ("node", "changes", "words"),
    [
        # It is unknown where a command writes checkpoints.
        ("n1", {"progress": {"iteration": 5000, "loss": 2.1}}, ""),
        # A former master still has its old state.
        ("n2", {"progress": {"checkpoint": 20}}, ""),
        ("n2", {"progress": {}}, ""),
        (
            "gate",
            {"launcher": "slurm", "progress": {"checkpoint": None}},
            " It has no checkpoint: it would start from the beginning.",
        ),
    ],
)
def test_unknown_checkpoints_are_not_shown(
    monkeypatch: pytest.MonkeyPatch, make_inventory: MakeInventory, node: str, changes: Any, words: str
) -> None:
    reported = {"known": True, "job": {**REPORTED, "state": "stopped", **changes}}
    result = answered({node: reported}, "stop", nodes={node: NodeRecap(ok=1, changed=1)})
    monkeypatch.setattr(live, "watch", lambda *_, **__: result)
    outcome = CliRunner().invoke(stop_verb.stop, ["-i", str(make_inventory("n1", "n2")), "demo-1"])
    assert outcome.output.splitlines()[0] == f"demo-1 is stopped.{words}"


@pytest.mark.parametrize("option", ["--node", "--limit"])
@pytest.mark.parametrize(
    ("launcher", "nodes", "reason", "hint"),
    [
        ("no_ssh", "n1 n2", "the job demo-1 is not on n3", "its nodes are n1, n2"),
        (
            "no_ssh",
            "n1 n2 n3",
            "the job demo-1 has no logs: its directory /jobs/demo-1 is gone on n3",
            "its other nodes are n1, n2",
        ),
        (
            "slurm",
            "n1 n2 n3",
            "the job demo-1 is not on n3",
            "Slurm ran it: its logs are on gate, those of all its nodes",
        ),
    ],
)
def test_a_node_without_the_job_gets_its_nodes(
    monkeypatch: pytest.MonkeyPatch,
    make_inventory: MakeInventory,
    option: str,
    launcher: str,
    nodes: str,
    reason: str,
    hint: str,
) -> None:
    job = {**REPORTED, "launcher": launcher, "nodes": dict.fromkeys(nodes.split(), "running")}
    everywhere = answered({"n3": {"known": True, "job": job, "directory": "/jobs"}}, "logs")
    unknown = answered({"n3": {"known": False, "ended": True}}, "logs")
    monkeypatch.setattr(job_view, "read", lambda *_, **__: (unknown, {}))
    monkeypatch.setattr(job_view, "watch", lambda run, *_, **__: (everywhere, run.spec.limit))
    inventory = make_inventory("n1", "n2", "n3")
    (inventory / "login.yml").write_text("login: {hosts: {gate: {}}}\n", encoding="utf-8")
    result = invoke(logs_verb.logs, inventory, "demo-1", option, "n3")
    assert isinstance(result.exception, InputError), result.output
    assert (str(result.exception), result.exception.hint) == (reason, hint)
    assert result.exception.exit_code == 3


@pytest.mark.parametrize(
    ("answers", "is_refused"),
    [
        ({"n1": {"known": True, "ranks": 16}, "n2": {"known": True, "ranks": 16}}, True),
        ({"n1": {"known": True, "ranks": 16}, "n2": {"known": False}}, True),
        # The job continued with fewer ranks: one node has lines of the earlier ranks.
        ({"n1": {"known": True, "ranks": 16}, "n2": {"known": True}}, False),
    ],
)
def test_a_rank_is_refused_when_no_node_has_a_line_of_it(
    monkeypatch: pytest.MonkeyPatch, make_inventory: MakeInventory, answers: dict[str, Any], is_refused: bool
) -> None:
    result = answered(answers, "logs")
    texts = {"n1": "", "n2": "" if is_refused else "[rank20]: slow\n"}
    monkeypatch.setattr(job_view, "read", lambda *_, **__: (result, texts))
    outcome = invoke(logs_verb.logs, make_inventory("n1", "n2"), "demo-1", "--err", "--rank", "20")
    if is_refused:
        assert isinstance(outcome.exception, InputError), outcome.output
        assert str(outcome.exception) == "rank 20 is none of the job demo-1"
        assert outcome.exception.hint == "its ranks are 0 to 15"
    else:
        assert (outcome.exception, outcome.output) == (None, "n2  [rank20]: slow\n")


def test_a_jobs_slurm_submit_host_is_queried_in_the_same_run(
    monkeypatch: pytest.MonkeyPatch, make_inventory: MakeInventory
) -> None:
    queried: list[str] = []

    def watch(run: Any, *_: Any, **__: Any) -> tuple[RunResult, JobState | None]:
        queried.append(run.spec.limit)
        job = REPORTED | {"launcher": "slurm", "master": "n3"}
        result = answered({"gate": {"job": job, "directory": "/jobs"}}, nodes={})
        return result, JobVerbs().job_states(result)[0]

    monkeypatch.setattr(job_view, "watch", watch)
    inventory = make_inventory("n1", "n2", "n3")
    (inventory / "login.yml").write_text("login: {hosts: {gate: {}, gate2: {}}}\n", encoding="utf-8")
    outcome = invoke(jobs_verb.jobs, inventory, "demo-1")
    assert outcome.exception is None, outcome.output
    assert queried == ["n1,gate"]


@pytest.mark.parametrize(("verdict", "code"), [(SLOW, 4), (WELL, 0)])
def test_scripts_get_the_verdict_as_exit_code(
    capsys: pytest.CaptureFixture[str], verdict: dict[str, Any], code: int
) -> None:
    state_ = JobState.of({**REPORTED, "verdict": verdict}, "/d", NOW)
    assert jobs_verb._verdict(state_, as_json=False) == code
    assert capsys.readouterr().out.splitlines()[0] == f"{verdict['verdict']}: {verdict['reason']}"
    assert jobs_verb._verdict(state_, as_json=True) == code
    result = json.loads(capsys.readouterr().out)
    assert (result["job"], result["verdict"], result["exit_code"]) == ("demo-1", verdict["verdict"], code)
    with pytest.raises(InputError, match="no verdict on demo-1"):
        jobs_verb._verdict(JobState.of(REPORTED, "/d", NOW), as_json=False)


def test_missing_node_is_named_in_output_verdict_and_report(
    monkeypatch: pytest.MonkeyPatch, make_inventory: MakeInventory, tmp_path: Path
) -> None:
    log = tmp_path / "n1.out"
    log.write_text(" iteration 3/ 5 | lm loss: 9.0 |\n")
    code = "import json; from pathlib import Path; from rdm_log.report.job import collect; "
    program = [sys.executable, "-c", f"{code}print(json.dumps(collect(Path({str(tmp_path)!r})).to_json()))"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "trainer")}
    part = json.loads(subprocess.run(program, env=env, check=True, capture_output=True, text=True).stdout)
    nodes = {"n1": NodeRecap(ok=1), "n2": NodeRecap(unreachable=True, why="No route to host")}
    ended = answered({"n1": {"report": part, "directory": "/d"}}, nodes=nodes)
    monkeypatch.setattr(job_view, "watch", lambda *_, **__: (ended, None))
    page = tmp_path / "page.html"
    inventory, words = make_inventory("n1", "n2"), ("demo-1", "-o", str(page))
    result = invoke(report_verb.report, inventory, *words)
    assert result.exception is None, result.output
    assert result.stdout.splitlines()[-1] == f"Written to {page}, without n2, which could not be queried."
    sentence = "n2 could not be queried: its logs are not in this."
    assert f"<li>{sentence}</li>" in page.read_text("utf-8")
    result = invoke(report_verb.report, inventory, *words, "--json")
    shown = json.loads(result.stdout)
    assert (shown["missing"], shown["jobs"]["demo-1"]["evidence"][1]) == (["n2"], sentence)


@pytest.mark.parametrize("words", [["jobs", "--verdict"], ["jobs", "--sections"], ["report"]])
def test_logs_that_may_not_be_read_are_reported_in_a_sentence(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    really = Path.stat

    def denied(path: Path, **named: Any) -> Any:
        if path.name == "dark":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return really(path, **named)

    verb, *options = words
    command = {"jobs": jobs_verb.jobs, "report": report_verb.report}[verb]
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", denied)
        ended = CliRunner().invoke(command, [*options, str(tmp_path / "dark")], standalone_mode=False)
    assert ended.exception is None or isinstance(ended.exception, InputError), ended.exception
    # The program that reads logs checks the path itself; this test has no such program.
    output = f"{ended.exception}{capfd.readouterr().err}"
    assert re.search(r"no (?:file|directory) .*dark|dark (?:is|has)|There is no", output), output
