# SPDX-License-Identifier: GPL-3.0-or-later
"""The answer of a host with two execution environments of jobs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.action.job import joined, verb_of

SLURM: dict[str, Any] = {
    "changed": False,
    "jobs": [{"job": "a", "launcher": "slurm"}],
    "directory": "/shared",
}
NODE: dict[str, Any] = {"changed": False, "jobs": [{"job": "b", "launcher": "no_ssh"}], "directory": "/var"}
MISSING: dict[str, Any] = {"failed": True, "msg": "there is no training container", "no_environment": True}
BROKEN: dict[str, Any] = {"failed": True, "msg": "it has not ended within 130 s"}


@pytest.mark.parametrize(
    ("arguments", "verb"),
    [({"name": ""}, "list"), ({"name": "a"}, "state"), ({"name": "a", "verb": "report"}, "report")],
)
def test_one_job_is_shown_and_without_a_name_all_are_listed(arguments: dict[str, str], verb: str) -> None:
    assert verb_of(arguments) == verb


def test_all_jobs_are_those_of_both_execution_environments() -> None:
    found = joined([SLURM, NODE], "list", skip_missing=True)
    assert [one["job"] for one in found["jobs"]] == ["a", "b"]


def test_an_environment_may_be_missing_only_where_jobs_can_be_in_another() -> None:
    found = joined([SLURM, MISSING], "list", skip_missing=True)
    assert (found.get("failed"), found["warnings"]) == (None, ["there is no training container"])
    assert [one["job"] for one in found["jobs"]] == ["a"]
    assert joined([MISSING], "list", skip_missing=False) == MISSING


def test_a_host_without_an_environment_knows_no_job() -> None:
    found = joined([MISSING], "state", skip_missing=True)
    assert (found["known"], found["ended"], found.get("failed")) == (False, True, None)
    assert joined([MISSING], "list", skip_missing=True)["jobs"] == []


def test_suggested_jobs_come_from_both_execution_environments() -> None:
    unknown = {"changed": False, "known": False, "ended": True}
    found = joined(
        [{**unknown, "near": ["gpt-1"]}, {**unknown, "near": ["gpt-2"]}], "state", skip_missing=True
    )
    assert found["near"] == ["gpt-1", "gpt-2"]


def test_a_failure_in_one_environment_is_reported() -> None:
    assert joined([SLURM, BROKEN], "list", skip_missing=True) == BROKEN
    assert joined([{"unreachable": True}], "state", skip_missing=True) == {"unreachable": True}
