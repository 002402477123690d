"""Why an environment is not removed: every host is named, and the hint's limit only leaves hosts out."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.filter.environment_users import (
    environment_users,
    limit_without,
)

from rdm_provision.runner.selection import select

NODES = ("n1", "n2", "n3", "n4")
GROUPS = {"master": ["n1"], "workers": ["n2", "n3", "n4"]}
UNUSED: dict[str, Any] = {"changed": True, "failed": False}
USED = {"failed": False, "used_by": 12, "msg": "/env is in use by process 12: stop the job first"}
UNREACHABLE = {"changed": False, "unreachable": True, "msg": "no route"}


def test_hosts_that_do_not_use_the_environment_are_not_reported() -> None:
    assert environment_users({"n1": UNUSED, "n2": UNUSED}) == []


def test_users_of_the_environment_and_silent_hosts_are_reported() -> None:
    results = {
        "n1": USED,
        "n2": UNREACHABLE,
        "n3": USED,
        "n4": {},
        "n5": {"failed": True, "msg": "no Python"},
    }
    first, second, silent = environment_users(results)
    assert first == f"n1: {USED['msg']}"
    assert second == f"n3: {USED['msg']}"
    assert silent == (
        "a job may run on n2, n4, n5, which cannot be queried: repair that, or leave it out with "
        "--limit 'all,!n2,!n4,!n5'"
    )


def test_the_limit_is_one_word_of_a_shell() -> None:
    (message,) = environment_users({"n2": UNREACHABLE}, "workers:&rack1")
    assert shlex.split(message)[-2:] == ["--limit", "workers,&rack1,!n2"]


@pytest.mark.parametrize(
    ("limit", "left"),
    [
        ("", ("n1", "n3", "n4")),
        ("workers", ("n3", "n4")),
        ("master:workers", ("n1", "n3", "n4")),
        ("n1,n2", ("n1",)),
        ("workers:!n4", ("n3",)),
        ("workers,!n4", ("n3",)),
        ("workers[0:1]", ("n3",)),
        ("!n1", ("n3", "n4")),
        ("~n[12]", ("n1",)),
    ],
)
def test_limit_only_leaves_hosts_out(limit: str, left: tuple[str, ...]) -> None:
    assert select(limit_without(limit, ["n2"]), NODES, GROUPS) == left
