# SPDX-License-Identifier: GPL-3.0-or-later
"""Every problem of a job is reported at once: those of its plan together with those of its nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ansible_collections.rdm.provision.plugins.action.job_plan import ActionModule

OPTIONS: dict[str, Any] = {
    "nodes": {"n1": {"my_ip": "10.0.0.100", "slots": 2, "rank": 0, "accelerator": "cpu"}},
    "config": "",
    "overrides": ["nonsense"],
    "name": "",
    "resume": "tiny-1",
    "login": "",
    "before": "ran",
    "images": [],
    "accelerator": "",
    "checks": "checked",
}


def decide(problems: list[str], **options: Any) -> dict[str, Any]:
    answers = SimpleNamespace(raw_get=lambda _host: {"checked": {"problems": problems}})
    variables = {"ansible_play_hosts_all": ["n1"], "hostvars": answers}
    return ActionModule.__new__(ActionModule).decide({**OPTIONS, **options}, variables)


def test_resumed_job_stays_in_its_execution_environment() -> None:
    more = {"n2": {**OPTIONS["nodes"]["n1"], "my_ip": "10.0.0.101", "rank": 1}}
    ran = {"past": {"slurm": False, "nodes": ["n2"], "time": 1.0}}
    hosts = SimpleNamespace(raw_get=lambda host: {"ran": ran if host == "n2" else {"known": False}})
    variables = {"ansible_play_hosts_all": ["n1", "n2"], "hostvars": hosts}
    options = {**OPTIONS, "overrides": [], "stage": "inventory", "put_off": False}
    options["nodes"] = {**OPTIONS["nodes"], **more}
    planned = ActionModule.__new__(ActionModule).decide(options, variables)["job"]
    assert (planned["master"], len(planned["nodes"])) == ("n2", 1)


def test_deferred_problems_are_refused_with_those_of_nodes() -> None:
    planned = decide([], stage="inventory", put_off=True)["job"]
    refused = decide(["model.layers must be an integer."], stage="nodes", job=planned)
    assert [problem["value"] or problem["reason"] for problem in refused["problems"]] == [
        "'nonsense'",
        "model.layers must be an integer.",
    ]
    # It is bad input, whatever the nodes report.
    assert refused["rdm_refused"] == "inventory"
    assert decide([], stage="nodes", job=planned)["rdm_refused"] == "inventory"


def test_deferred_problems_are_refused_with_an_unknown_accelerator() -> None:
    nodes = {"n1": {**OPTIONS["nodes"]["n1"], "accelerator": ""}}
    refused = decide([], stage="inventory", put_off=True, nodes=nodes)
    assert [problem["value"] for problem in refused["problems"]] == ["'nonsense'", "rdm_accelerator"]
    assert refused["rdm_refused"] == "inventory"


def test_problems_that_cannot_be_deferred_are_refused_at_once() -> None:
    refused = decide([], stage="inventory", put_off=False)
    assert [problem["value"] for problem in refused["problems"]] == ["'nonsense'"]


def test_a_configuration_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gpt.yaml").write_bytes(b"\xff")
    refused = decide([], stage="inventory", put_off=True, config=str(tmp_path / "gpt.yaml"))
    assert [problem["reason"] for problem in refused["problems"]] == ["is not text in UTF-8"]


def test_problems_that_only_nodes_know_are_refused_by_them() -> None:
    planned = decide([], stage="inventory", put_off=True, overrides=[])["job"]
    assert decide([], stage="nodes", job=planned)["job"]["name"] == "tiny-1"
    refused = decide(["it has no torch"], stage="nodes", job=planned)
    assert refused["rdm_refused"] == "nodes"
