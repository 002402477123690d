# SPDX-License-Identifier: GPL-3.0-or-later
"""The plan of a job: its nodes, its name, and every problem."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    sentences,
)
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_plan import (
    JOB_NAME,
    NO_PAST,
    Node,
    Past,
    Slurm,
    Wanted,
    evaluate,
    past,
    plan_job,
)
from hypothesis import given
from hypothesis import strategies as st

NODES = [Node(f"n{rank}", f"10.0.0.{100 + rank}", 2) for rank in range(4)]
NAMES = [node.name for node in NODES]
NOW = 1_790_000_000.0


def wanted(text: str = "name: tiny\n", *overrides: str, **more: Any) -> Wanted:
    return Wanted(text, "jobs/tiny.yaml", overrides, **more)


def problems_of(request: Wanted, in_run: list[str] | None = None) -> list[str]:
    with pytest.raises(PreconditionFailed) as refused:
        plan_job(request, NODES, in_run or NAMES, NOW)
    return sentences(refused.value.problems)


def test_all_nodes_take_part_by_rank_and_the_first_is_the_master() -> None:
    plan = plan_job(wanted(), NODES, reversed(NAMES), NOW)
    assert plan.nodes == NODES
    assert plan.as_dict()["master"] == "n0"
    assert plan.as_dict()["nodes"][1] == {"name": "n1", "address": "10.0.0.101", "slots": 2}


@pytest.mark.parametrize(
    ("text", "overrides", "in_run", "expected"),
    [
        ("launcher: {nodes: 2}", [], NAMES, ["n0", "n1"]),
        ("launcher: {nodes: 2}", ["launcher.nodes=3"], NAMES, ["n0", "n1", "n2"]),
        ("launcher: {nodes: 2}", ["launcher.nodes=3", "launcher.nodes=1"], NAMES, ["n0"]),
        ("name: x", [], ["n3", "n1"], ["n1", "n3"]),
        ("launcher: {nodes: 1}", [], ["n3", "n1"], ["n1"]),
        ("launcher: {nodes: 2}", ["launcher.nodes=null"], NAMES, NAMES),
        # In the order of ranks, as `tune` has placed them.
        ("launcher: {nodelist: [n2, n0]}", [], NAMES, ["n2", "n0"]),
        ("launcher: {nodelist: [n2, n0]}", ["launcher.nodelist=[n1, n0, n3]"], NAMES, ["n1", "n0", "n3"]),
        ("launcher: {nodelist: [n2, n0, n1], nodes: 2}", [], NAMES, ["n2", "n0"]),
        ("launcher: {nodelist: [n2, n0]}", ["launcher.nodelist=[]"], NAMES, NAMES),
    ],
)
def test_the_configuration_and_the_limit_choose_the_nodes(
    text: str, overrides: list[str], in_run: list[str], expected: list[str]
) -> None:
    plan = plan_job(wanted(text, *overrides), NODES, in_run, NOW)
    assert [node.name for node in plan.nodes] == expected


def test_a_new_job_is_named_after_its_configuration_and_the_time() -> None:
    assert plan_job(wanted("name: My Model!"), NODES, NAMES, NOW).name.startswith("my-model-")
    assert plan_job(wanted("model: {}"), NODES, NAMES, NOW).name.startswith("tiny-")
    assert plan_job(wanted(name="mine"), NODES, NAMES, NOW).name == "mine"
    now = plan_job(wanted(), NODES, NAMES, NOW).name
    assert plan_job(wanted(), NODES, NAMES, NOW + 1).name != now


@given(st.text(max_size=80), st.floats(0, 4e9))
def test_job_name_is_valid_for_any_configuration_name(name: str, now: float) -> None:
    import json

    plan = plan_job(wanted(json.dumps({"name": name, "model": {}})), NODES, NAMES, now)
    assert JOB_NAME.fullmatch(plan.name)


@pytest.mark.parametrize(
    ("before", "overrides", "in_run", "expected"),
    [
        # As many nodes as before: its former ones, and others instead of those that are gone.
        (["n1", "n2"], [], NAMES, ["n1", "n2"]),
        (["n2", "gone"], [], NAMES, ["n0", "n2"]),
        (["n0", "n1", "n2", "n3", "gone"], [], NAMES, NAMES),
        ([], [], NAMES, NAMES),
        # In their former order; with a replacement among them, in the inventory's order.
        (["n2", "n1"], [], NAMES, ["n2", "n1"]),
        (["n3", "n1", "gone"], [], NAMES, ["n0", "n1", "n3"]),
        # The user's current choice counts.
        (["n2", "n1"], ["launcher.nodelist=[n0, n1]"], NAMES, ["n0", "n1"]),
        (["n1", "n2"], ["launcher.nodes=1"], NAMES, ["n1"]),
        (["n1", "n2"], ["launcher.nodes=3"], NAMES, ["n0", "n1", "n2"]),
        (["n1", "n2"], [], ["n0", "n1", "n3"], ["n0", "n1", "n3"]),
    ],
)
def test_resumed_job_keeps_its_nodes(
    before: list[str], overrides: list[str], in_run: list[str], expected: list[str]
) -> None:
    request = Wanted("", "", overrides, resume="tiny-1")
    plan = plan_job(request, NODES, in_run, NOW, before=Past(nodes=before))
    assert [node.name for node in plan.nodes] == expected


def test_launch_of_a_job_comes_from_its_latest_participant() -> None:
    def reported(time: float, *nodes: str, slurm: bool = False) -> dict[str, Any]:
        return {"known": True, "past": {"slurm": slurm, "nodes": list(nodes), "time": time}}

    answers = {"n0": reported(1.0, "n0", "n1"), "n1": reported(2.0, "n1"), "n2": {"known": False}}
    assert past(answers) == Past(False, ("n1",))
    assert past({**answers, "n3": {"failed": True}, "front": reported(3.0, slurm=True)}) == Past(True, ())
    assert past({"n3": {"unreachable": True}}) == Past()


def test_resumed_job_keeps_its_configuration() -> None:
    plan = plan_job(Wanted("", "", ("parallel.tensor=2",), resume="tiny-1"), NODES, NAMES, NOW)
    assert (plan.name, plan.resume, plan.config, plan.overrides) == (
        "tiny-1",
        True,
        "",
        ["parallel.tensor=2"],
    )


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (wanted("a: [1"), ["jobs/tiny.yaml:1", "is not YAML", "correct the configuration"]),
        (wanted("a: \x01"), ["jobs/tiny.yaml is not YAML", "#x0001", "correct the configuration"]),
        (wanted("a: 2024-99-99"), ["jobs/tiny.yaml is not YAML", "month must be in 1..12"]),
        (wanted("a: " + "[" * 5000), ["jobs/tiny.yaml is not YAML", "recursion"]),
        (wanted("- a\n- b\n"), ["jobs/tiny.yaml is a list", "keys with values"]),
        (wanted("a"), ["jobs/tiny.yaml holds no keys", "keys with values"]),
        (wanted(""), ["jobs/tiny.yaml is empty", "keys with values"]),
        (wanted("launcher: 3"), ["launcher", "holds no keys"]),
        (wanted("launcher: {nodes: 9}"), ["launcher.nodes 9", "more than the 4 nodes"]),
        (wanted("launcher: {nodes: none}"), ["launcher.nodes none", "no number"]),
        (wanted("launcher: {nodes: 0}"), ["launcher.nodes 0"]),
        (wanted("launcher: {nodelist: n1}"), ["launcher.nodelist", "write it as [n2, n1]"]),
        (wanted("launcher: {nodelist: [n1, m2]}"), ["launcher.nodelist m2", "no node of this run", "n1, n2"]),
        (wanted("launcher: {nodelist: [n1, n1]}"), ["launcher.nodelist n1", "twice"]),
        (wanted("launcher: {kind: torchrn}"), ["launcher.kind torchrn", "did you mean torchrun?"]),
        (wanted("name: x", "nonsense"), ["'nonsense'", "key.sub=value"]),
        (wanted(name="../up"), ["'../up'", "no name for a job"]),
        (Wanted("", "", (), resume="A b"), ["'A b'"]),
    ],
)
def test_what_is_impossible_is_reported_in_a_sentence(request_: Wanted, words: list[str]) -> None:
    (sentence,) = problems_of(request_)
    for word in words:
        assert word in sentence


def test_every_problem_is_reported_at_once() -> None:
    messages = problems_of(wanted("launcher: {kind: mpi, nodes: 9}", "nonsense", name="No"))
    assert len(messages) == 4


def test_problems_that_allow_a_query_are_deferred_on_request() -> None:
    requested = wanted("launcher: {kind: torchrn}", "nonsense", "model.layers=few")
    planned = plan_job(requested, NODES, NAMES, NOW, put_off=True)
    assert [problem.value for problem in planned.problems] == ["'nonsense'", "launcher.kind torchrn"]
    assert planned.as_dict()["problems"][0]["hint"] == "write key.sub=value"
    # The nodes do not report them again.
    assert planned.overrides == ["model.layers=few", "launcher.kind=no_ssh"]
    assert len(planned.nodes) == len(NODES)


@pytest.mark.parametrize(
    "requested",
    [
        wanted("launcher: {kind: slrum}"),
        wanted("launcher: {kind: torchrn, nodes: 9}"),
        wanted("launcher: {kind: torchrn}", name="No"),
    ],
)
def test_problems_that_prevent_a_query_are_not_deferred(requested: Wanted) -> None:
    with pytest.raises(PreconditionFailed):
        plan_job(requested, NODES, NAMES, NOW, put_off=True)


# --- the evaluation of the nodes' answers -------------------------------------------------------------------


def plan(*names: str) -> dict[str, Any]:
    return {"name": "tiny-1", "nodes": [{"name": name} for name in names]}


def test_a_job_starts_when_no_node_has_a_problem() -> None:
    assert evaluate(plan("n0", "n1"), {"n0": {"problems": []}, "n1": {"problems": []}, "n2": {}}) == []


def test_each_nodes_problems_are_reported_with_its_name() -> None:
    found = evaluate(
        plan("n0", "n1"),
        {"n0": {"problems": ["port 29500 is in use"]}, "n1": {"problems": ["the disk is full", "no GPU"]}},
    )
    assert sentences(found) == ["n0: port 29500 is in use", "n1: the disk is full", "n1: no GPU"]


def test_problems_shared_by_all_nodes_are_reported_once() -> None:
    same = {"problems": ["unknown key model.layer"]}
    found = evaluate(plan("n0", "n1"), {"n0": same, "n1": {"problems": [*same["problems"], "no GPU"]}})
    assert sentences(found) == ["unknown key model.layer", "n1: no GPU"]


def test_a_node_that_was_not_reached_is_a_problem() -> None:
    answers: dict[str, dict[str, Any]] = {
        "n0": {"problems": []},
        "n1": {
            "unreachable": True,
            "msg": "Task failed: Failed to connect to the host via ssh: ssh: connect to host 10.0.0.1 "
            "port 22: Connection refused\r\n",
        },
    }
    messages = sentences(evaluate(plan("n0", "n1", "n2"), answers))
    # Without Ansible's prefixes, as everywhere else.
    assert messages[0].startswith(
        "n1: cannot be reached: connect to host 10.0.0.1 port 22: Connection refused: "
    )
    assert messages[1].startswith("n2: cannot be reached: ")


def test_a_check_that_failed_is_a_problem() -> None:
    messages = sentences(evaluate(plan("n0"), {"n0": {"failed": True, "msg": "no Docker Engine answers."}}))
    assert messages == ["n0: no Docker Engine answers"]


def test_nodes_with_other_versions_than_most_are_named() -> None:
    facts = {"python": "3.11", "torch": "2.13.0", "disk_free": 1}
    answers = {
        "n0": {"problems": [], "facts": facts},
        "n1": {"problems": [], "facts": {**facts, "torch": "2.12.0", "disk_free": 2}},
        "n2": {"problems": [], "facts": facts},
    }
    [problem] = sentences(evaluate(plan("n0", "n1", "n2"), answers))
    assert problem.startswith("n1: torch 2.12.0 is not 2.13.0, as on n0: give all nodes the same image, or")
    assert evaluate(plan("n0", "n2"), answers) == []


FRONT = Slurm("front")


def test_where_there_is_only_slurm_it_is_the_default_and_chooses_the_nodes() -> None:
    plan = plan_job(wanted("name: x", "launcher.nodes=500"), [], ["front"], NOW, FRONT)
    assert [node.name for node in plan.nodes] == ["front"]
    assert (plan.slurm, plan.overrides) == (True, ["launcher.nodes=500", "launcher.kind=slurm"])
    # A resumed job has its launcher, and a job that names one needs no override.
    assert plan_job(wanted("", resume="x"), [], ["front"], NOW, FRONT).overrides == []
    named = wanted("launcher: {kind: slurm}")
    assert plan_job(named, [], ["front"], NOW, FRONT).overrides == []
    with pytest.raises(PreconditionFailed) as refused:
        plan_job(wanted("launcher: {kind: no_ssh}"), [], ["front"], NOW, FRONT)
    (problem,) = sentences(refused.value.problems)
    assert "needs nodes, and this inventory has only Slurm (group login: front)" in problem


def test_the_nodes_of_a_job_of_slurm_are_not_the_inventorys() -> None:
    request = wanted("launcher: {kind: slurm, nodelist: [n1]}")
    with pytest.raises(PreconditionFailed) as refused:
        plan_job(request, NODES, NAMES, NOW, Slurm("n0", False))
    assert "launcher.slurm.nodelist" in sentences(refused.value.problems)[0]


def test_with_nodes_a_job_goes_through_slurm_only_when_it_is_its_launcher() -> None:
    run = [*NAMES, "front"]

    def way(requested: Wanted, before: Past = NO_PAST) -> tuple[bool, str]:
        plan = plan_job(requested, NODES, run, NOW, FRONT, before)
        return plan.slurm, plan.nodes[0].name

    nodes, submits = (False, NAMES[0]), (True, "front")
    assert way(wanted("name: x")) == way(wanted("launcher: {kind: no_ssh}")) == nodes
    assert way(wanted("name: x", "launcher.kind=slurm")) == way(wanted("launcher: {kind: slurm}")) == submits
    assert way(wanted("", resume="x")) == nodes
    assert way(wanted("", resume="x"), before=Past(slurm=True)) == submits
    with pytest.raises(PreconditionFailed) as refused:
        plan_job(wanted("launcher: {kind: slurm}"), NODES, NAMES, NOW, FRONT)
    (problem,) = sentences(refused.value.problems)
    assert "needs front, from which jobs are submitted: do not leave it out of --limit" in problem


@pytest.mark.parametrize("here", [False, True])
def test_slurm_without_a_login_host_is_refused_with_a_hint(here: bool) -> None:
    with pytest.raises(PreconditionFailed) as refused:
        plan_job(wanted("launcher: {kind: slurm}"), NODES, NAMES, NOW, Slurm(here=here))
    (problem,) = sentences(refused.value.problems)
    assert "needs a host that jobs are submitted to Slurm from: put it into the group login" in problem
    assert ("since this machine has sbatch" in problem) == here
