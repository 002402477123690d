"""Which answers are accepted, which hosts are lost, and which get an ordinary task."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.template import is_trusted_as_template, trust_as_template
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.query_results import QueryResults, sort
from ansible_collections.rdm.provision.plugins.plugin_utils.controller.thread_pool import Outcome
from ansible_collections.rdm.provision.plugins.plugin_utils.inventory.registered import answer, registered

PARSED = {"changed": False}


def results_of(value: Any = None, error: BaseException | None = None) -> QueryResults:
    return sort([Outcome("a", value, error)], 7.0)


def test_answer_is_accepted_without_ansibles_additions() -> None:
    value = {**PARSED, "node": {"x": 1}, "invocation": {"module_args": {}}, "ansible_facts": {}}
    assert results_of(value) == QueryResults({"a": {"changed": False, "node": {"x": 1}}}, {}, {}, {})


def test_equal_answers_of_nodes_are_stored_once() -> None:
    text = '{"node": {"networks": [{"driver": "macvlan"}], "memory": 7}}'
    outcomes = [Outcome(name, json.loads(text), None) for name in "ab"]
    one, other = sort(outcomes, 7.0).answers.values()
    assert one == other == {"node": {"networks": [{"driver": "macvlan"}], "memory": 7}}
    (mine,), (theirs,) = one["node"]["networks"], other["node"]["networks"]
    assert mine is not theirs
    assert mine["driver"] is theirs["driver"]
    assert all(left is right for left, right in zip(mine, theirs, strict=True))


def test_a_string_that_ansible_has_marked_stays_marked() -> None:
    outcomes = [Outcome("a", {**PARSED, "x": "same"}, None)]
    outcomes.append(Outcome("b", {**PARSED, "x": trust_as_template("same")}, None))
    answers = sort(outcomes, 7.0).answers
    assert [is_trusted_as_template(answers[name]["x"]) for name in "ab"] == [False, True]


def test_an_interpreter_that_had_to_be_found_is_remembered() -> None:
    found = results_of({**PARSED, "ansible_facts": {"discovered_interpreter_python": "/usr/bin/python3"}})
    assert found.interpreters == {"a": "/usr/bin/python3"}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({**PARSED, "failed": True, "msg": "no disk"}, "no disk"),
        ({**PARSED, "warnings": ["odd"]}, "its answer is not a plain one"),
        ({**PARSED, "deprecations": [{"msg": "old"}]}, "its answer is not a plain one"),
        ({**PARSED, "changed": True}, "its answer is not a plain one"),
        ({"failed": True, "module_stdout": "bash: python: not found"}, "its answer is not a plain one"),
    ],
)
def test_unusual_answer_is_left_to_an_ordinary_task(value: dict[str, Any], why: str) -> None:
    assert results_of(value) == QueryResults({}, {}, {"a": why}, {})


def test_only_the_connection_plugin_says_that_a_host_is_lost() -> None:
    assert results_of(error=AnsibleConnectionFailure("no route")).lost == {"a": "no route"}
    assert results_of(error=TimeoutError()).others == {"a": "it has not answered within 7 s"}
    assert results_of(error=ValueError("odd")).others == {"a": "ValueError: odd"}


def test_a_play_of_the_rest_ends_with_one_that_was_reached() -> None:
    hosts = list("abcde")
    some = QueryResults({"c": {}, "d": {}}, {"b": "no", "a": "no"}, {"e": "odd"}, {})
    assert some.plays(hosts) == {"lost": ["a", "b", "c"], "others": ["e", "c"]}
    none_answered = QueryResults({}, {"a": "no"}, {"e": "odd"}, {})
    assert none_answered.plays(["a", "e"]) == {"lost": ["a", "e"], "others": ["e"]}
    assert QueryResults({}, {"a": "no"}, {}, {}).plays(["a"]) == {"lost": ["a"], "others": []}
    assert QueryResults({"a": {}}, {}, {}, {}).plays(["a"]) == {"lost": [], "others": []}


def test_result_of_a_nodes_own_task_wins_unless_it_was_skipped() -> None:
    everybody = {"answers": {"a": {"node": 1}}}
    assert answer("x", "a", {"x_all": everybody}) == {"node": 1}
    assert answer("x", "a", {"x_all": everybody, "x": {"node": 2}}) == {"node": 2}
    assert answer("x", "a", {"x_all": everybody, "x": {"skipped": True}}) == {"node": 1}
    assert answer("x", "b", {"x_all": everybody, "x": {"skipped": True}}) == {"skipped": True}
    assert answer("x", "b", {"x_all": everybody}) is None
    assert answer("x", "a", {"x_all": {"skipped": True}}) is None


def test_registered_reads_hosts_of_the_play_or_those_that_are_named() -> None:
    class HostVars:
        def raw_get(self, host: str) -> dict[str, Any]:
            return {"a": {"x": {"node": 1}}, "b": {"x": {"node": 2}}, "c": {}}[host]

    variables = {"hostvars": HostVars(), "ansible_play_hosts_all": ["a", "c"]}
    assert registered("x", variables) == {"a": {"node": 1}}
    assert registered("x", variables, ["b"]) == {"b": {"node": 2}}
