# SPDX-License-Identifier: GPL-3.0-or-later
"""Nodes' reports of jobs, as records, as JSON, and in a terminal."""

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
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from rdm_provision import Cluster
from rdm_provision.api.jobs import JobVerbs
from rdm_provision.cli.render import job_view, live, view
from rdm_provision.cli.verbs import jobs as jobs_verb
from rdm_provision.cli.verbs import logs as logs_verb
from rdm_provision.cli.verbs import report as report_verb
from rdm_provision.cli.verbs import stop as stop_verb
from rdm_provision.cli.verbs import train as train_verb
from rdm_provision.errors import InputError
from rdm_provision.results.events import NodeRecap, RunResult
from rdm_provision.results.job_state import JobLines, JobNode, JobState, JobUpdate, job_news
from rdm_provision.results.pruning import age, prunable
from rdm_provision.runner.run_spec import RunSpec
from rdm_provision.runner.translator import Translator
from tests.conftest import ROOT
from tests.unit.rdm_provision.conftest import MakeInventory

NOW = 2_000_000.0
# As docs/launchers.md describes it.
REPORTED: dict[str, Any] = {
    "version": 1,
    "job": "demo-1",
    "state": "running",
    "reason": "",
    "launcher": "no_ssh",
    "master": "n1",
    "nodes": {"n1": "running", "n2": "running"},
    "failures": [],
    "restarts": 0,
    "started": NOW - 60,
    "ended": None,
    "directory": "/jobs/demo-1",
    "gpu": {"n1": ["[0] NVIDIA H200 | 98 % |"]},
    "progress": {
        "iteration": 30,
        "train_iterations": 50,
        "loss": 8.91,
        "lr": 1.6e-06,
        "tokens_per_second": 46800.0,
        "losses": [[10, 10.9], [20, 10.1], [30, 8.91]],
        "checkpoint": 20,
        "phase": "training",
    },
}
FAILED: dict[str, Any] = {
    **REPORTED,
    "state": "failed",
    "reason": "rank 5 on n2 was killed",
    "nodes": {"n1": "done", "n2": "failed"},
    "failures": [{"node": "n2", "rank": 5, "reason": "it was killed by SIGKILL", "lines": ["last words"]}],
    "ended": NOW - 10,
}


def state(**changes: Any) -> JobState:
    return JobState.of({**REPORTED, **changes}, "/var/lib/rdm/rdm", NOW)


def answered(answers: dict[str, Any], verb: str = "jobs", **more: Any) -> RunResult:
    """Return the result of a run in which each node reported this, and by default went well."""
    returned = {"rdm.provision.job": {node: [answer] for node, answer in answers.items()}}
    return RunResult(
        **{"verb": verb, "nodes": dict.fromkeys(answers, NodeRecap(ok=1)), "returned": returned, **more}
    )


def invoke(verb: Any, inventory: Path, *words: str, **how: Any) -> Result:
    return CliRunner().invoke(verb, ["-i", str(inventory), *words], standalone_mode=False, **how)


def screen(*, terminal: bool = False) -> Console:
    return Console(
        width=120, record=True, force_terminal=terminal, highlight=False, markup=False, color_system=None
    )


# --- records --------------------------------------------------------------------------------------------


def test_what_a_node_reports_becomes_a_record() -> None:
    job = state()
    assert (job.job, job.state, job.ended, job.seconds) == ("demo-1", "running", False, 60.0)
    assert job.nodes == (JobNode("n1", "running"), JobNode("n2", "running"))
    assert job.losses[-1] == (30, 8.91)
    assert job.directory == "/var/lib/rdm/rdm/demo-1"
    assert json.loads(json.dumps(job.to_json()))["gpu"] == {"n1": ["[0] NVIDIA H200 | 98 % |"]}


def test_a_job_that_has_only_begun_has_no_figures() -> None:
    job = JobState.of({"job": "new", "state": "starting"}, "/jobs", NOW)
    assert (job.iteration, job.loss, job.losses, job.seconds, job.remaining) == (0, None, (), None, None)
    assert job_view.figures(job) == []


def test_the_time_to_go_of_a_resumed_job_is_that_of_its_own_steps() -> None:
    """The run has made ten steps in a minute; 900 steps and their losses are from an earlier run."""
    far = {"iteration": 910, "train_iterations": 1000, "step_seconds": 6.0, "losses": [[1, 11.0], [910, 3.0]]}
    assert state(started=NOW - 60, progress=far).remaining == 90 * 6.0
    assert state(progress={**far, "iteration": 1001}).remaining == 0
    # There is no estimate before its first steps.
    assert state(progress={**far, "step_seconds": None}).remaining is None


def test_the_speed_of_a_program_whose_tokens_nobody_knows_is_its_steps() -> None:
    job = JobState.of(
        {"job": "new", "state": "running", "progress": {"iteration": 7, "step_seconds": 0.5}}, "/jobs", NOW
    )
    assert job_view.figures(job) == ["iteration 7", "0.50 s a step"]
    assert "0.50 s a step" not in job_view.figures(replace(job, tokens_per_second=46800.0))


def test_of_several_words_on_a_job_its_masters_counts(make_inventory: MakeInventory) -> None:
    cluster = Cluster.load(make_inventory("n1", "n2"))
    older = {**REPORTED, "job": "demo-0", "started": NOW - 900}
    result = answered(
        {
            "n2": {"jobs": [{**REPORTED, "state": "failed"}], "directory": "/d"},
            "n1": {"jobs": [older, REPORTED], "directory": "/d"},
        }
    )
    assert [(job.job, job.state) for job in cluster.job_states(result)] == [
        ("demo-1", "running"),
        ("demo-0", "running"),
    ]


def test_a_job_whose_master_is_silent_is_known_from_the_others(make_inventory: MakeInventory) -> None:
    cluster = Cluster.load(make_inventory("n1", "n2"))
    result = answered({"n2": {"job": FAILED, "known": True}})
    (job,) = cluster.job_states(result)
    assert job.failures[0].lines == ("last words",)
    assert cluster.knows_job(result)


def test_sections_of_nodes_are_joined_in_their_order(make_inventory: MakeInventory) -> None:
    def reported(name: str, total: int, times: list[str]) -> dict[str, Any]:
        out = {"title": "last output message", "lines": [f"==> {name}.out <=="], "total": total}
        time = {"title": "iteration time", "lines": times, "total": None, "is_whole": True}
        return {"sections": [{**out, "is_whole": False}, time], "known": True}

    cluster = Cluster.load(make_inventory("n1", "n2", "n3"))
    assert cluster.jobs("demo-1", sections=True).spec.extra_vars == {
        "job_name": "demo-1",
        "job_verb": "sections",
    }
    second, first = reported("n2", 4, ["iteration 1 : 2 s"]), reported("n1", 3, [])
    result = answered(
        {"n2": second, "n1": first, "n3": {"known": False}},
        nodes=dict.fromkeys(cluster.names, NodeRecap(ok=1)),
    )
    out, time = cluster.job_sections(result)
    assert (out.lines, out.total) == (("==> n1.out <==", "", "==> n2.out <=="), 7)
    assert (time.lines, time.total) == (("iteration 1 : 2 s",), None)


def test_what_nodes_send_a_report_is_in_their_order(make_inventory: MakeInventory) -> None:
    cluster = Cluster.load(make_inventory("n1", "n2", "n3"))
    spec = cluster.jobs("demo-1", report=True).spec
    assert spec.extra_vars == {"job_name": "demo-1", "job_verb": "report"}
    reports = {"n2": {"report": {"name": "b"}}, "n1": {"report": {"name": "a"}}, "n3": {"report": None}}
    result = answered(reports, nodes=dict.fromkeys(cluster.names, NodeRecap(ok=1)))
    assert [part["name"] for part in cluster.report_parts(result)] == ["a", "b"]


def test_only_jobs_that_ended_long_ago_by_their_masters_word_are_pruned(
    make_inventory: MakeInventory,
) -> None:
    cluster = Cluster.load(make_inventory("n1", "n2"))
    day = 86400.0

    def job(name: str, state: str, ended: float | None, **more: Any) -> dict[str, Any]:
        return {**REPORTED, "job": name, "state": state, "started": NOW - 99 * day, "ended": ended, **more}

    answers = [
        job("old", "finished", NOW - 40 * day),
        job("older", "failed", NOW - 50 * day),
        job("young", "stopped", NOW - 29 * day),
        job("runs", "running", None),
        job("waits", "queued", None, started=None),
        job("odd", "finished", None, started=None),
        job("of-n2", "finished", NOW - 60 * day, master="n2"),
        job("submitted", "finished", NOW - 31 * day, master="n7", launcher="slurm"),
    ]
    known = cluster.heard_jobs(answered({"n1": {"jobs": answers, "directory": "/d"}}))
    assert [one.job for one in prunable(known, age("30d"), NOW)] == ["older", "old", "submitted"]
    run = cluster.prune(["old", "older"], check=True)
    assert run.spec.literal_vars == {"job_names": ["old", "older"]}
    assert (run.spec.check, run.spec.exclusive, cluster.prune(["old"]).spec.exclusive) == (True, False, True)


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1y", "1d2h", "", "1e3d"])
def test_what_is_no_age_is_bad_input(text: str) -> None:
    assert (age("90m"), age("1.5h"), age("2w")) == (5400.0, 5400.0, 1209600.0)
    with pytest.raises(InputError, match="is no age"):
        age(text)


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
def test_prune_shows_what_goes_and_prompts(
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


def test_a_directory_that_nodes_share_is_shown_once(make_inventory: MakeInventory) -> None:
    def reported(size: int, identity: str) -> dict[str, Any]:
        kept = [{"job": "demo-2", "reason": "it is running"}]
        return {"removed": [{"job": "demo-1", "bytes": size, "identity": identity}], "kept": kept}

    answers = {"n1": reported(1, "1a-2b"), "n2": reported(9, "1a-2b"), "n3": reported(9, "3c-4d")}
    result = answered(answers, "prune")
    removals = Cluster.load(make_inventory("n1", "n2", "n3")).removals(result)
    gone = [(one.job, one.node, one.bytes) for one in removals if not one.reason]
    # Nodes that remove a shared directory later find fewer files in it.
    assert gone == [("demo-1", "n2", 9), ("demo-1", "n3", 9)]
    assert [one.node for one in removals if one.reason] == ["n1", "n2", "n3"]


@pytest.mark.parametrize("left", [True, False])
def test_prune_finds_what_a_killed_removal_has_left(
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
def test_who_leaves_a_started_job_is_shown_its_name_and_the_next_commands(
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
def test_who_stops_a_job_learns_from_where_it_can_go_on(
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


# --- events ---------------------------------------------------------------------------------------------


def retry(**more: Any) -> dict[str, Any]:
    details = {"host": "n1", "resolved_action": "rdm.provision.job", "res": {"job": REPORTED, "ended": False}}
    return {"event": "runner_retry", "event_data": {**details, **more}, "stdout": ""}


def test_each_try_of_a_watched_job_is_news() -> None:
    translator = Translator(RunSpec(verb="train", playbook="train", inventory="i", nodes=("n1",)))
    (event,) = translator.translate(retry())
    assert isinstance(event, JobUpdate)
    assert (event.node, event.job.iteration) == ("n1", 30)


def test_another_modules_job_is_none() -> None:
    translator = Translator(RunSpec(verb="train", playbook="train", inventory="i", nodes=("n1",)))
    assert list(translator.translate(retry(resolved_action="rdm.provision.job_plan"))) == []


def test_what_was_read_of_a_log_is_an_event_and_nothing_is_none() -> None:
    (event,) = job_news(1.0, "n2", {"text": "a\nb\n", "stream": "err", "offset": 4})
    assert event == JobLines(1.0, "n2", "err", "a\nb\n")
    assert list(job_news(1.0, "n2", {"text": "", "stream": "err", "offset": 4})) == []


def test_one_host_may_have_read_the_logs_of_all_nodes() -> None:
    reported = {"text": "", "parts": {"h1": "a\n", "n060": "b\n"}, "stream": "out", "offset": "h1=2,n060=2"}
    assert list(job_news(1.0, "login1", reported)) == [
        JobLines(1.0, "h1", "out", "a\n"),
        JobLines(1.0, "n060", "out", "b\n"),
    ]


def test_a_job_that_waits_says_why_without_a_terminal() -> None:
    console = screen()
    reason = "It waits in partition gpu2, 2nd in the queue: the nodes that it needs are in use (Resources)."
    shown = job_view.JobView(console, "lab")
    shown.handle(JobUpdate(1.0, "n1", state(state="queued", reason=reason)))
    assert reason in " ".join(console.export_text().split())


# --- asking ---------------------------------------------------------------------------------------------


def test_train_hands_over_words_that_are_never_templated(
    make_inventory: MakeInventory, tmp_path: Path
) -> None:
    config = tmp_path / "gpt.yaml"
    config.write_text("name: gpt\n")
    run = Cluster.load(make_inventory()).train(config, ["data.blend=[{{ x }}]"], watch=False)
    assert run.spec.literal_vars == {"job_overrides": ["data.blend=[{{ x }}]"]}
    assert run.spec.extra_vars == {"job_config": str(config), "job_watch": False}
    assert "!unsafe" in run.command


def test_data_comes_from_this_machine_or_from_nodes(make_inventory: MakeInventory, tmp_path: Path) -> None:
    cluster = Cluster.load(make_inventory())
    assert cluster.bring_data(tmp_path).spec.extra_vars == {"job_data": str(tmp_path)}
    run = cluster.bring_data("/jobs/gpt/checkpoints", from_nodes=["n1", "former"], to="gpt", check=True)
    assert run.spec.extra_vars == {
        "job_data": "/jobs/gpt/checkpoints",
        "job_data_from": ["n1", "former"],
        "job_data_to": "gpt",
    }
    assert run.spec.check


def test_a_check_says_which_files_nodes_lack(make_inventory: MakeInventory) -> None:
    answers: dict[str, Any] = {"n1": [{"copied": []}], "n2": [{"copied": ["a", "b"]}]}
    answers["n3"] = [{"failed": True, "msg": "it is not a directory"}]
    nodes = dict.fromkeys([*answers, "n4"], NodeRecap(ok=1))
    found = RunResult(verb="data", nodes=nodes, returned={"rdm.provision.job_data": answers})
    assert Cluster.load(make_inventory()).lacking_data(found) == {"n2": ["a", "b"]}


def test_train_keeps_others_from_the_cluster_only_until_it_watches(
    make_inventory: MakeInventory, tmp_path: Path
) -> None:
    config = tmp_path / "gpt.yaml"
    config.write_text("name: gpt\n")
    cluster = Cluster.load(make_inventory())
    assert cluster.train(config).spec.exclusive
    assert not cluster.train(config, check=True).spec.exclusive
    plays = yaml.safe_load((ROOT / "playbooks/train.yml").read_text())
    # The play before it starts the job. If no play had this name, the lock would be held for days.
    assert [play["vars"]["__play"] for play in plays].index(cluster.train(config).spec.observes_from) == 1


@pytest.mark.parametrize(
    ("verb", "arguments", "words"),
    [
        ("train", {}, "no configuration"),
        ("train", {"config": "/nowhere.yaml"}, "/nowhere.yaml"),
        ("jobs", {"watch": True}, "which job"),
        ("jobs", {"sections": True}, "which job"),
        ("jobs", {"job": "x", "watch": True, "sections": True}, "not both"),
        ("jobs", {"report": True}, "which job"),
        ("jobs", {"job": "x", "sections": True, "report": True}, "not both"),
        ("logs", {"job": "x", "stream": "stdout"}, "no log 'stdout'"),
        ("logs", {"job": "x", "grep": "("}, "no regular expression"),
        ("bring_data", {"directory": "/nowhere"}, "no directory /nowhere on this machine"),
        (
            "bring_data",
            {"directory": "ckpt", "from_nodes": ["n1"]},
            "ckpt is a directory on nodes: give its absolute path",
        ),
        ("bring_data", {"directory": "/tmp/..", "from_nodes": ["n1"]}, "without .."),
        ("bring_data", {"directory": "/", "to": "/gpt"}, "/gpt is not below /jobs/data"),
        ("bring_data", {"directory": "/", "to": "../gpt"}, "../gpt is not below /jobs/data"),
    ],
)
def test_what_makes_no_sense_is_bad_input(
    make_inventory: MakeInventory, verb: str, arguments: dict[str, Any], words: str
) -> None:
    cluster = Cluster.load(make_inventory())
    with pytest.raises(InputError, match=words):
        getattr(cluster, verb)(**arguments)


# --- in a terminal --------------------------------------------------------------------------------------


def test_the_end_of_a_job_has_curve_paths_and_failures() -> None:
    console = screen()
    job_view.ending(console, JobState.of(FAILED, "/var/lib/rdm/rdm", NOW))
    text = console.export_text()
    assert "loss 10.900 at iteration 10, 8.910 at 30" in text
    assert "┤" in text
    assert "rank 5 on n2  it was killed by SIGKILL" in text
    assert "last words" in text
    assert "/var/lib/rdm/rdm/demo-1/checkpoints on each node, the newest of iteration 20" in text


def test_a_fine_tuning_says_how_long_it_takes_and_where_its_model_is() -> None:
    tuned = {"iteration": 30, "train_iterations": 50, "step_seconds": 1.5}
    assert state(progress=tuned).remaining == 30.0
    console = screen()
    job_view.ending(console, state(state="finished", progress={**tuned, "exported": ["adapter", "model"]}))
    text = console.export_text()
    for name in ("adapter", "model"):
        assert f"/var/lib/rdm/rdm/demo-1/{name} on n1" in text


@pytest.mark.parametrize(
    ("changes", "commands"),
    [
        ({}, ["jobs -i x demo-1 --watch", "logs -i x demo-1", "stop -i x demo-1"]),
        ({"state": "finished"}, ["train -i x --resume demo-1 optimisation.train_iterations=N"]),
        ({"state": "failed"}, ["train -i x --resume demo-1", "logs -i x demo-1 --err"]),
        ({"state": "stopped"}, ["train -i x --resume demo-1", "logs -i x demo-1"]),
    ],
)
def test_what_makes_sense_next_follows_from_the_state(changes: dict[str, Any], commands: list[str]) -> None:
    steps = [command for _, command in job_view.next_steps(state(**changes), " -i x")]
    assert [f"rdm-provision {command}" for command in commands] == steps[: len(commands)]


def test_without_a_terminal_each_step_is_a_line_and_printed_once() -> None:
    console = screen()
    view = job_view.JobView(console, "demo")
    later = {**REPORTED, "progress": {**REPORTED["progress"], "iteration": 40, "loss": 8.0}}
    for record in (REPORTED, REPORTED, later):
        view.handle(JobUpdate(1.0, "n1", JobState.of(record, "/d", NOW)))
    assert console.export_text().splitlines() == [
        "demo-1  running  30/50  loss 8.9100  46.8 k tokens/s",
        "demo-1  running  40/50  loss 8.0000  46.8 k tokens/s",
    ]


SLOW: dict[str, Any] = {
    "verdict": "suspect",
    "exit_code": 4,
    "reason": "Rank 5 on n2 is slow.",
    "evidence": ["Rank 5 on n2 is slow.", "GPU 1 of n2 is throttled by heat."],
    "culprits": [{"kind": "slow", "node": "n2", "rank": 5}],
    "since": NOW - 5,
}
WELL = {
    **SLOW,
    "verdict": "healthy",
    "exit_code": 0,
    "reason": "Iteration 30.",
    "evidence": ["Iteration 30."],
}


def test_a_watch_prints_when_the_verdict_changes_and_not_that_all_is_well() -> None:
    console = screen()
    view = job_view.JobView(console, "demo")
    begins = {**WELL, "verdict": "starting"}
    for verdict in (begins, WELL, WELL, SLOW, {**SLOW, "reason": "Another."}, WELL):
        view.handle(JobUpdate(1.0, "n1", JobState.of({**REPORTED, "verdict": verdict}, "/d", NOW)))
    assert console.export_text().splitlines() == [
        "demo-1  running  30/50  loss 8.9100  46.8 k tokens/s",
        "demo-1  suspect  Rank 5 on n2 is slow.",
        "  GPU 1 of n2 is throttled by heat.",
        "demo-1  healthy  Iteration 30.",
    ]


def test_a_job_and_the_list_of_jobs_show_the_verdict() -> None:
    console = screen()
    state_ = JobState.of({**REPORTED, "verdict": SLOW}, "/d", NOW)
    job_view.ending(console, state_)
    job_view.table(console, [state_, JobState.of(REPORTED, "/d", NOW)], NOW)
    text = console.export_text(clear=False)
    assert "suspect  Rank 5 on n2 is slow.\n  GPU 1 of n2 is throttled by heat." in text
    assert re.search(r"job +state +verdict +iteration", text)
    assert re.search(r"demo-1 +running +suspect +30/50", text)
    assert re.search(r"demo-1 +running +- +30/50", text)
    # Doubts about a finished job's result are shown; its end is shown already.
    done = {**REPORTED, "state": "finished", "ended": NOW}
    for verdict, is_shown in ((SLOW, True), ({**WELL, "verdict": "finished"}, False)):
        console = screen()
        job_view.ending(console, JobState.of({**done, "verdict": verdict}, "/d", NOW))
        assert (str(verdict["reason"]) in console.export_text()) == is_shown


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


def test_lines_of_many_ranks_are_folded_with_a_count() -> None:
    texts = {
        f"n{node}": "".join(f"[rank{8 * node + n}]: RuntimeError: NCCL error\n" for n in range(8))
        for node in range(1000)
    }
    texts["n7"] += "2026-11-22 10:11:12 once\n"
    first, once = job_view.folded(texts)
    assert first.startswith("[rank0]: RuntimeError: NCCL error  [8000 times, n0, n1, n2")
    assert once == "2026-11-22 10:11:12 once  [n7]"
    assert job_view.folded({"n1": ""}) == []


def test_a_page_without_a_node_says_so_in_the_last_line_in_the_verdict_and_on_the_page(
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


def test_nothing_that_a_job_wrote_is_obeyed_by_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    title = "\x1b]0;PWNED\x07"
    words = f"{title}\x1b[2Jlast\x9b31m words"
    evaluated = {"verdict": "suspect", "reason": words, "evidence": [words, words], "exit_code": 4}
    failure = {"node": "n2", "rank": 5, "reason": words, "lines": [words]}
    bad = JobState.of({**REPORTED, "state": "failed", "reason": words, "failures": [failure]}, "/d", NOW)
    job_view.lines("n1", f"{words}\rbar\n", ["n1"])
    assert job_view.folded({"n1": words}) == ["last words  [n1]"]
    jobs_verb._verdict(JobState.of({**REPORTED, "verdict": evaluated}, "/d", NOW), as_json=False)
    job_view.ending(view.out(), bad)
    job_view.JobView(view.out(), "demo")._print_verdict(
        JobState.of({**REPORTED, "verdict": evaluated}, "/d", NOW)
    )
    shown = capsys.readouterr().out
    assert shown.startswith("last words\nbar\nsuspect: last words\n  last words\n")
    assert shown.count("last") >= 7
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)


def test_on_a_terminal_bar_figures_and_nodes_are_in_place() -> None:
    console = screen(terminal=True)
    view = job_view.JobView(console, "demo")
    view.state = JobState.of({**REPORTED, "restarts": 2}, "/d", NOW)
    console.print(view)
    text = console.export_text()
    assert "demo-1  running  restarted 2 times  60 s" in text.replace("1 min 00 s", "60 s")
    assert "30/50   loss 8.9100   46.8 k tokens/s" in text
    assert "● n1  ● n2" in text
    assert "Ctrl-C stops watching, not the job" in text


def test_many_nodes_are_counted() -> None:
    console = screen(terminal=True)
    view = job_view.JobView(console, "demo")
    nodes = {f"n{rank}": "lost" if rank == 7 else "running" for rank in range(40)}
    view.state = JobState.of({**REPORTED, "nodes": nodes}, "/d", NOW)
    console.print(view)
    assert "39 running, 1 lost" in console.export_text()


@pytest.mark.parametrize(
    ("tokens", "words"),
    [(950.0, "950 tokens/s"), (12_345.0, "12.3 k tokens/s"), (2.5e6, "2.5 M tokens/s"), (None, "")],
)
def test_speeds_are_for_people(tokens: float | None, words: str) -> None:
    assert job_view.rate(tokens) == words


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
