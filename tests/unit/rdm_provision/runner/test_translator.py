"""Translate single dictionaries of ansible-runner, where a real run would cost more than it shows."""

from __future__ import annotations

from typing import Any

import pytest

from rdm_provision.results.diffs import unified_diff
from rdm_provision.results.events import (
    NodeResult,
    NodeStarted,
    Notice,
    PhaseStarted,
    Progress,
    RunResult,
    Status,
    TaskGoesOn,
    TaskStarted,
)
from rdm_provision.runner.run_spec import RunSpec
from rdm_provision.runner.translator import LONG_S, Translator, error_sentence

NODES = ("a", "b", "c", "d", "e")


def translator(**spec: Any) -> Translator:
    return Translator(RunSpec(**{"verb": "up", "playbook": "site", "inventory": "x", "nodes": NODES, **spec}))


def task(role: str, name: str, action: str = "rdm.provision.node_facts") -> dict[str, Any]:
    return {
        "event": "playbook_on_task_start",
        "event_data": {"resolved_role": role, "name": f"{role} : {name}", "task_action": action},
    }


def outcome(kind: str, node: str, res: dict[str, Any], action: str = "x.y.z") -> dict[str, Any]:
    return {"event": f"runner_on_{kind}", "event_data": {"host": node, "task_action": action, "res": res}}


def feed(made: Translator, *events: dict[str, Any]) -> list[Any]:
    return [event for data in events for event in made.translate(data)]


def end(made: Translator, rc: int = 0) -> RunResult:
    return made.end(rc, cancelled=False, record=None)


def test_roles_are_phases_by_their_short_name() -> None:
    made = translator()
    events = feed(
        made,
        task("rdm.provision.images", "Load"),
        task("rdm.provision.images", "Pull"),
        task("rdm.provision.network", "Make"),
    )
    assert [(type(event), event.phase) for event in events] == [
        (PhaseStarted, "images"),
        (TaskStarted, "images"),
        (TaskStarted, "images"),
        (PhaseStarted, "network"),
        (TaskStarted, "network"),
    ]
    assert [event.task for event in events if isinstance(event, TaskStarted)] == ["Load", "Pull", "Make"]
    assert [phase.phase for phase in end(made).phases] == ["images", "network"]


def test_slow_task_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("rdm_provision.runner.translator.time.monotonic", lambda: now)
    made = translator()
    assert list(made.waited()) == []
    for name in ("Make the images", "Make the lab"):
        feed(made, task("rdm.provision.lab", name))
        now += LONG_S - 1
        assert list(made.waited()) == []
        now += 1
        (message,) = made.waited()
        assert isinstance(message, TaskGoesOn)
        assert message.task == name
        now += LONG_S
        assert list(made.waited()) == []


@pytest.mark.parametrize("end", ["playbook_on_play_start", "playbook_on_stats"])
def test_a_task_that_has_ended_takes_no_longer(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("rdm_provision.runner.translator.time.monotonic", lambda: now)
    made = translator()
    feed(made, task("rdm.provision.lab", "Make the lab"), {"event": end, "event_data": {}})
    now += 2 * LONG_S
    assert list(made.waited()) == []


def test_a_task_that_queries_all_nodes_is_a_task_on_each_that_answers() -> None:
    made = translator()
    query = {"host": "a", "task_action": "rdm.provision.run_on_all"}
    started = feed(
        made,
        task("rdm.provision.preflight", "Gather facts of the nodes", "rdm.provision.run_on_all"),
        {"event": "runner_on_start", "event_data": query},
    )
    assert [event.node for event in started if isinstance(event, NodeStarted)] == list(NODES)
    line = {"event": "verbose", "stdout": "answered: d", "event_data": query}
    early = [event for event in feed(made, line) if isinstance(event, NodeResult)]
    res = {"answers": {"a": {}, "b": {}, "d": {}}, "lost": {"c": "no route"}, "others": {"e": "odd"}}
    events = feed(made, {"event": "runner_on_ok", "event_data": {**query, "res": res, "duration": 2}})
    events = [*early, *events]
    assert [(event.node, event.status) for event in events] == [("d", "ok"), ("a", "ok"), ("b", "ok")]
    assert {(event.phase, event.task) for event in events} == {("preflight", "Gather facts of the nodes")}
    result = made.end(0, cancelled=True, record=None)
    assert [name for name, recap in result.nodes.items() if recap.ok] == ["a", "b", "d"]
    assert result.in_progress == ()


def test_how_far_an_image_is_on_its_way_is_progress() -> None:
    made = translator()
    doing = {"host": "a", "task_action": "rdm.provision.image_distribution"}
    lines = ("node to node: x.tar: 40% of 1.0 GiB on 3 nodes", "something else")
    events = feed(made, *({"event": "verbose", "stdout": line, "event_data": doing} for line in lines))
    assert [event.text for event in events if isinstance(event, Progress)] == [lines[0].partition(": ")[2]]


def test_a_task_that_queries_all_nodes_is_in_progress_on_all_until_it_ends() -> None:
    made = translator()
    feed(
        made,
        task("rdm.provision.preflight", "Gather facts of the nodes", "rdm.provision.run_on_all"),
        {"event": "runner_on_start", "event_data": {"host": "a", "task_action": "rdm.provision.run_on_all"}},
    )
    cancelled = made.end(1, cancelled=True, record=None)
    assert [doing.node for doing in cancelled.in_progress] == list(NODES)


def test_an_inspection_belongs_to_the_phase_that_requests_it() -> None:
    made = translator()
    inspection = task("rdm.provision.images", "Inspect")
    inspection["event_data"]["task_path"] = "/x/roles/images/tasks/inspect.yml:3"
    events = feed(
        made,
        task("rdm.provision.preflight", "Gather"),
        inspection,
        task("rdm.provision.preflight", "Check"),
        task("rdm.provision.images", "Load"),
        inspection,
    )
    assert [event.phase for event in events if isinstance(event, PhaseStarted)] == ["preflight", "images"]
    assert [event.task for event in events if isinstance(event, TaskStarted)][1] == "Inspect"


def test_a_rescue_that_fails_has_the_last_word() -> None:
    made = translator()
    feed(
        made,
        task("rdm.provision.images", "Pull"),
        outcome("failed", "a", {"msg": "500 Server Error for http+docker://localhost"}),
        outcome("failed", "b", {"msg": "500 Server Error for http+docker://localhost"}),
        task("rdm.provision.images", "Say why"),
        outcome("failed", "a", {"msg": "registry r cannot be reached"}),
        {"event": "playbook_on_stats", "event_data": {"failures": {"a": 1}, "rescued": {"a": 1, "b": 1}}},
    )
    nodes = end(made, rc=2).nodes
    assert (nodes["a"].phase, nodes["a"].why) == ("images", "registry r cannot be reached")
    assert nodes["b"].why == ""


def test_an_error_by_all_nodes_is_not_the_failure_of_one() -> None:
    made = translator()
    failure = {
        "rdm_refused": "nodes",
        "problems": [
            {"node": "a", "value": "192.169.16.0/24", "reason": "overlaps ib0", "hint": "choose another"},
            {"node": None, "value": "", "reason": "too old", "hint": ""},
        ],
        "msg": "…",
    }
    (event,) = feed(made, outcome("failed", "a", failure, "rdm.provision.plan"))
    assert event.refused
    result = end(made, 2)
    assert result.exit_code == 2
    assert [str(problem) for problem in result.problems] == [
        "a: 192.169.16.0/24 overlaps ib0: choose another",
        "too old",
    ]
    assert result.failed == ()


def test_equal_problems_of_several_nodes_are_one() -> None:
    made = translator()
    problem = {"node": None, "value": "rank 99", "reason": "is none of the job x", "hint": ""}
    failure = {"rdm_refused": "input", "problems": [problem], "msg": "…"}
    feed(made, *(outcome("failed", node, failure, "rdm.provision.job") for node in ("a", "b")))
    result = end(made, 2)
    assert result.exit_code == 3
    assert [str(one) for one in result.problems] == ["rank 99 is none of the job x"]


def test_problems_of_a_collection_of_another_release_are_read() -> None:
    made = translator()
    problems = [
        {"node": "a", "value": "ib0", "reason": "is down", "hint": "plug it in", "severity": "high"},
        {"reason": "the engine is too old", "hint": None},
    ]
    feed(made, outcome("failed", "a", {"rdm_refused": "nodes", "problems": problems, "msg": "…"}))
    assert [str(one) for one in end(made, 2).problems] == [
        "a: ib0 is down: plug it in",
        "the engine is too old",
    ]


def test_wrong_arguments_of_a_role_are_bad_input_before_any_change() -> None:
    made = translator()
    errors = {"argument_errors": ["value of x must be one of: a, b, got: c"], "msg": "Validation failed"}
    feed(made, outcome("failed", "a", errors, "ansible.builtin.validate_argument_spec"))
    result = end(made, 2)
    assert result.exit_code == 3
    assert result.problems[0].reason == errors["argument_errors"][0]


def test_wrong_arguments_of_a_role_after_a_change_are_a_failure() -> None:
    made = translator()
    errors = {"argument_errors": ["value of x is bad"], "msg": "Validation failed"}
    feed(
        made,
        outcome("ok", "b", {"changed": True}),
        outcome("failed", "a", errors, "ansible.builtin.validate_argument_spec"),
    )
    assert end(made, 2).exit_code == 1


def test_slow_task_reports_progress_with_each_retry() -> None:
    made = translator(verb="verify")
    messages = {
        "host": "a",
        "resolved_action": "rdm.provision.rdma_probe",
        "res": {"progress": "round 3 of 7", "done": False},
    }
    (event,) = feed(made, {"event": "runner_retry", "event_data": messages})
    assert isinstance(event, Progress)
    assert event.text == "round 3 of 7"


def test_the_plan_and_the_fabric_are_kept() -> None:
    made = translator(keep=frozenset({"rdm.provision.container_exec"}))
    plan = {"changed": True, "nodes": {"a": {"my_ip": "10.0.0.1"}}, "hostfile": "x", "_ansible_no_log": False}
    feed(
        made,
        outcome("ok", "a", plan, "rdm.provision.plan"),
        outcome("ok", "a", {"fabric": {"nodes": ["a"]}, "msg": "table"}, "rdm.provision.fabric_result"),
        outcome("ok", "c", {"rc": 1}, "rdm.provision.container_exec"),
        outcome("ok", "b", {"rc": 0, "invocation": {}}, "rdm.provision.container_exec"),
    )
    feed(
        made,
        outcome("ok", "a", {"parts": {}, "msg": "2 nodes"}, "rdm.provision.rdma_pairs"),
        outcome("ok", "a", {"rdma": {"nodes": ["a"]}}, "rdm.provision.rdma_pairs"),
        outcome("ok", "a", {"collective": {"busbw": 21.5}}, "rdm.provision.collective_result"),
    )
    result = end(made)
    assert result.plan == {"nodes": {"a": {"my_ip": "10.0.0.1"}}, "hostfile": "x"}
    assert result.fabric == {"nodes": ["a"]}
    assert result.rdma == {"nodes": ["a"]}
    assert result.collective == {"busbw": 21.5}
    # In the inventory's order, whatever the order of their results.
    assert [*result.returned["rdm.provision.container_exec"].items()] == [
        ("b", [{"rc": 0}]),
        ("c", [{"rc": 1}]),
    ]


def test_a_diff_that_many_nodes_have_is_kept_once() -> None:
    made = translator()
    for node in NODES:
        diff = {"before": "", "after": "".join(f"line {number}\n" for number in range(100))}
        feed(made, outcome("ok", node, {"changed": True, "diff": diff}))
    diffs = [recap.changes[0].diff for recap in end(made).nodes.values()]
    assert len(diffs[0].splitlines()) == 103
    assert all(diff is diffs[0] for diff in diffs)


def test_a_warning_is_printed_once_and_names_its_nodes() -> None:
    made = translator()
    events = feed(
        made, *(outcome("ok", node, {"warnings": ["the disk is  nearly\nfull"]}) for node in "bdca")
    )
    notices = [event for event in events if isinstance(event, Notice)]
    assert [notice.text for notice in notices] == ["b: the disk is nearly full"]
    assert end(made).warnings == ("a, b, c and 1 more: the disk is nearly full",)


@pytest.mark.parametrize("action", ["plan", "protect_jobs", "launch_programs"])
def test_a_warning_about_the_cluster_names_no_node(action: str) -> None:
    made = translator()
    feed(made, outcome("ok", "a", {"nodes": {}, "warnings": ["not private"]}, f"rdm.provision.{action}"))
    assert end(made).warnings == ("not private",)


def test_a_group_of_workers_that_is_empty_is_no_reason_to_warn() -> None:
    made = translator()
    text = "[WARNING]: Could not match supplied host pattern, ignoring: workers"
    feed(made, {"event": "warning", "stdout": text})
    assert end(made).warnings == ()


def test_ansibles_statistics_decide_which_nodes_failed() -> None:
    made = translator()
    feed(
        made,
        outcome("failed", "a", {"msg": "oops"}),
        outcome("failed", "b", {"msg": "oops"}),
        {"event": "playbook_on_stats", "event_data": {"failures": {"b": 1}, "rescued": {"a": 1}, "dark": {}}},
    )
    result = end(made, 2)
    assert result.failed == ("b",)
    assert result.nodes["a"].why == ""


def test_an_end_without_a_root_cause_is_reported() -> None:
    made = translator()
    feed(
        made,
        {"event": "playbook_on_play_start"},
        {"event": "error", "stdout": "[ERROR]: Unexpected thing.\n"},
    )
    result = end(made, 250)
    assert result.exit_code == 1
    assert result.message == "Unexpected thing."


@pytest.mark.parametrize(
    ("kind", "res", "why"),
    [
        ("failed", {"msg": "Task failed: Module failed: no space left"}, "no space left"),
        (
            "failed",
            {"msg": "non-zero return code", "rc": 3, "stderr": "a\nlast words\n"},
            "exit code 3: last words",
        ),
        ("failed", {"rc": 3}, "exit code 3"),
        (
            "failed",
            {
                "msg": "Error creating network: 500 Server Error for http+docker://localhost/v1.41/networks/"
                'create: Internal Server Error ("network dm-1 is already using parent interface ib0")'
            },
            "Error creating network: network dm-1 is already using parent interface ib0",
        ),
        # ansible-core's message since 2.19, which hides the message of a shell, of sudo, or of Python.
        (
            "failed",
            {
                "msg": "Module result deserialization failed: No start of json char found",
                "module_stderr": (
                    "pyenv: python3.13: command not found\n\nThe `python3.13' command exists in these Python "
                    "versions:\n  3.13.0\n\nNote: See 'pyenv help global' for tips on allowing multiple\n"
                    "      Python versions to be found at the same time.\n"
                ),
                "rc": 127,
            },
            "pyenv: python3.13: command not found: set ansible_python_interpreter to a Python that the node "
            "has",
        ),
        (
            "failed",
            {
                "msg": "Module result deserialization failed: No start of json char found",
                "rc": 1,
                "module_stderr": "sudo: a password is required\n",
            },
            "exit code 1: sudo: a password is required",
        ),
        (
            "failed",
            {"msg": "Task failed: Timed out after 180 second(s)."},
            "it did not answer within 180 s: a file that the shell reads at login (.bashrc, .zshenv) may "
            "wait there, or a file system hangs",
        ),
        (
            "failed",
            {"msg": "Timeout (12s) waiting for privilege escalation prompt: "},
            "sudo did not begin within 12 s: it asks for a password, or a file that the shell reads at login "
            "(.bashrc, .zshenv) may wait there, or a file system hangs",
        ),
        (
            "failed",
            {"msg": "Task failed: Missing sudo password"},
            "sudo asks for a password there: give it with --ask-become-pass, or as "
            "ansible_become_password, encrypted with ansible-vault, or let the user do without one",
        ),
        ("failed", {"msg": "two\n  lines"}, "two lines"),
        (
            "unreachable",
            {"msg": "Task failed: Failed to connect to the host via ssh: ssh: connect to host h: No route"},
            "connect to host h: No route",
        ),
        ("unreachable", {"msg": ""}, "no connection"),
        (
            "unreachable",
            {"msg": 'Data could not be sent to remote host "h". Make sure it can be reached over ssh: '},
            "ssh to it ended without a word: its connection or the program there was killed, or sshd did not "
            "answer in time; run the same again",
        ),
        (
            "unreachable",
            {"msg": "Task failed: Failed to connect to the host via ssh: "},
            "ssh to it ended without a word: its connection or the program there was killed, or sshd did not "
            "answer in time; run the same again",
        ),
        (
            "unreachable",
            {
                "msg": 'Data could not be sent to remote host "h". Make sure this host can be reached over '
                "ssh: ssh: connect to host h port 22: Connection refused"
            },
            "connect to host h port 22: Connection refused",
        ),
        (
            "failed",
            {
                "msg": "One or more items failed",
                "results": [{"item": 1}, {"item": 2, "failed": True, "msg": "bad"}],
            },
            "2: bad",
        ),
        # As ansible-core 2.21 shows it to callbacks.
        (
            "failed",
            {
                "msg": "One or more items failed",
                "results": [{"item": 1}, {"item": 2, "exception": "(traceback unavailable)", "msg": "bad"}],
            },
            "2: bad",
        ),
    ],
)
def test_failure_reason_is_one_line(kind: str, res: dict[str, Any], why: str) -> None:
    (event,) = feed(translator(), outcome(kind, "a", res))
    assert isinstance(event, NodeResult)
    assert event.message == why


def test_a_hidden_result_shows_its_status_and_nothing_else() -> None:
    data = {**outcome("ok", "a", {"censored": "hidden"}), "stdout": "\x1b[0;33mchanged: [a]\x1b[0m\r\n"}
    events = [event for event in feed(translator(), data) if isinstance(event, NodeResult)]
    assert [event.status for event in events] == [Status.CHANGED]


@pytest.mark.parametrize(
    ("diff", "text"),
    [
        (None, ""),
        (
            {"before": "a\n", "after": "b\n", "before_header": "x", "after_header": "x"},
            "--- x\n+++ x\n@@ -1 +1 @@\n-a\n+b\n",
        ),
        ({"before": "a", "after": "a"}, ""),
        ({"prepared": "whatever"}, "whatever\n"),
        ([{"before": {"exists": False}, "after": {"exists": True}}], "-exists: false\n+exists: true\n"),
        (
            {
                "before": {"same": 1, "env": {"A": "x", "B": "y"}},
                "after": {"same": 1, "env": {"A": "z", "B": "y"}},
            },
            "-env.A: (hidden)\n+env.A: (another value)\n",
        ),
        (
            {
                "before": {"env": ["MY_IP=10.0.0.1", "OLD=o=ld", "SAME=same"], "image": "a"},
                "after": {"env": ["MY_IP=10.0.0.2", "NEW=new", "SAME=same"], "image": "b"},
            },
            "-image: a\n+image: b\n-env.MY_IP: 10.0.0.1\n+env.MY_IP: 10.0.0.2\n"
            "-env.OLD: (hidden)\n+env.NEW: (hidden)\n",
        ),
        ({"before": {"env": None}, "after": {"env": ["A=hush"]}}, "+env.A: (hidden)\n"),
        ({"before": {}, "after": {"new": [1]}}, "+new: [1]\n"),
        ({"src_binary": 1, "before": "a", "after": "b"}, ""),
    ],
)
def test_diffs_of_all_shapes(diff: Any, text: str) -> None:
    assert unified_diff({"diff": diff}) == text


def test_secret_values_are_recorded_for_removal() -> None:
    into = translator()
    diff = {"before": {"env": ["MY_IP=10.0.0.1", "KEY=old"]}, "after": {"env": ["KEY=hush"], "image": "a"}}
    feed(into, outcome("ok", "a", {"changed": True, "diff": diff}))
    assert into.hidden == {"KEY=old", "KEY=hush"}


def why_unreachable(message: str) -> str:
    """Return why a node was not reached, by what ssh reported."""
    made = translator()
    message = f"Task failed: Failed to connect to the host via ssh: {message}"
    feed(made, outcome("unreachable", "a", {"msg": message}))
    return end(made, rc=4).nodes["a"].why


BANNER = """@@@@@@@@@@@@@@@@@\r
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n@@@@@@@@@@@@@@@@@\r
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\r
Add correct host key in /my keys/known_hosts to get rid of this message.\r
Offending ED25519 key in /my keys/known_hosts:3\r
  remove with:\r\n  ssh-keygen -f "/my keys/known_hosts" -R "[10.0.0.1]:2222"\r
Host key for [10.0.0.1]:2222 has changed and you have requested strict checking.\r
Host key verification failed."""


def test_sshs_banner_about_a_changed_host_key_is_one_line() -> None:
    assert why_unreachable(BANNER) == (
        "the ssh host key of [10.0.0.1]:2222 is not the one in /my keys/known_hosts:3. If the host was "
        "reinstalled: ssh-keygen -f '/my keys/known_hosts' -R '[10.0.0.1]:2222'; if not, somebody else "
        "answers there"
    )


@pytest.mark.parametrize(
    "message",
    [
        "Host key verification failed.",
        "No ED25519 host key is known for [10.0.0.1]:2222 and you have requested strict checking.\r\n"
        "Host key verification failed.",
    ],
)
def test_unknown_host_key_has_a_hint(message: str) -> None:
    assert why_unreachable(message).startswith("ssh knows no key of this host: log in once by hand")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (
            "ssh: connect to host login port 22: Connection refused\r\n"
            "kex_exchange_identification: Connection closed by remote host\r\n",
            "its jump host cannot be reached: connect to host login port 22: Connection refused",
        ),
        (
            "ssh: Could not resolve hostname login: Name or service not known\r\n",
            "its jump host cannot be reached: Could not resolve hostname login: Name or service not known",
        ),
        (
            "ops@login: Permission denied (publickey).\r\n",
            "its jump host does not let it through: ops@login: Permission denied (publickey)",
        ),
        (
            "channel 0: open failed: connect failed: No route to host\r\nstdio forwarding failed\r\n",
            "its jump host does not let it through: channel 0: open failed: connect failed: No route to host",
        ),
        (
            "Host key verification failed.\r\n",
            "its jump host does not let it through: Host key verification failed",
        ),
        *(
            (
                message,
                "its jump host cannot be reached or does not let it through, and ssh does not say why: "
                "log in to the jump host by hand, and from there to the node",
            )
            for message in ("", "kex_exchange_identification: Connection closed by remote host\r\n")
        ),
    ],
)
def test_failed_jump_host_is_named_instead_of_the_node(message: str, why: str) -> None:
    assert why_unreachable(f"{message}Connection closed by UNKNOWN port 65535") == why


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("[WARNING]: x\n[ERROR]: no such thing.\n", "no such thing."),
        ("[ERROR]: bad colon\nOrigin: /x/y.yml:3:7\n\n3 - a: b: c\n", "bad colon (/x/y.yml:3:7)"),
        ("ERROR! old\nstyle\n\nmore", "old style"),
        ("ERROR: Error reading config file (a.cfg)\n\nTraceback", "Error reading config file (a.cfg)"),
        ("", ""),
    ],
)
def test_errors_are_cut_to_a_sentence(message: str, sentence: str) -> None:
    assert error_sentence(message) == sentence
