"""What a result means: exit codes, statuses, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rdm_provision.problem import Problem
from rdm_provision.results.events import (
    Change,
    NodeRecap,
    NodeResult,
    RunFinished,
    RunResult,
    Status,
    to_json,
)

OK = NodeRecap(ok=3)
CHANGED = NodeRecap(ok=2, changed=1, changes=(Change("my_ip", "Write", "+x\n"),))
FAILED = NodeRecap(ok=1, changed=1, failed=1, phase="images", why="no space")
GONE = NodeRecap(unreachable=True, why="no route")


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (RunResult(verb="up", nodes={"a": OK, "b": CHANGED}), 0),
        (RunResult(verb="up", nodes={"a": OK, "b": FAILED}), 1),
        (RunResult(verb="up", nodes={"a": OK, "b": GONE}), 1),
        (RunResult(verb="up", message="ansible-playbook ended with 250"), 1),
        (RunResult(verb="up", refused="nodes"), 2),
        (RunResult(verb="up", refused="inventory"), 3),
        (RunResult(verb="up", refused="input"), 3),
        (RunResult(verb="up", nodes={"a": FAILED}, cancelled=True), 130),
    ],
)
def test_exit_codes(result: RunResult, code: int) -> None:
    assert result.exit_code == code
    assert result.ok == (code == 0)


def test_worst_outcome_is_the_status() -> None:
    assert [recap.status for recap in (NodeRecap(), OK, CHANGED, FAILED, GONE)] == [
        Status.SKIPPED,
        Status.OK,
        Status.CHANGED,
        Status.FAILED,
        Status.UNREACHABLE,
    ]


def test_a_result_turns_into_json() -> None:
    result = RunResult(
        verb="up",
        nodes={"a": CHANGED, "b": FAILED, "c": GONE},
        problems=(Problem("a", "x", "is bad", "repair it"),),
        record=Path("/srv/x"),
        returned={"m": {"a": [{"secret": 1}]}},
    )
    data = json.loads(json.dumps(result.to_json()))
    assert (data["ok"], data["exit_code"]) == (False, 1)
    assert (data["changed"], data["failed"], data["unreachable"]) == (["a", "b"], ["b"], ["c"])
    assert data["nodes"]["b"]["status"] == "failed"
    assert data["nodes"]["a"]["changes"] == [{"phase": "my_ip", "task": "Write", "diff": "+x\n"}]
    assert data["record"] == "/srv/x"
    assert "returned" not in data


def test_events_turn_into_json_with_their_kind() -> None:
    event = NodeResult(1.0, "a", "images", "Load", Status.CHANGED, True, "", "", 0.5)
    assert to_json(event)["event"] == "node_result"
    assert to_json(RunFinished(2.0, RunResult(verb="up")))["result"]["exit_code"] == 0


@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (Problem("a", "my_ip x", "is no address", "choose one"), "a: my_ip x is no address: choose one"),
        (Problem(None, "", "is no address", ""), "is no address"),
    ],
)
def test_a_problem_is_one_sentence(problem: Problem, sentence: str) -> None:
    assert str(problem) == sentence
