# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts to query about jobs, and the order of their execution environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from ansible_collections.rdm.provision.plugins.filter.job_hosts import job_hosts
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.job_directory import both, ways

NODES = {"master": ["n1"], "workers": ["n2", "n3"]}


@pytest.mark.parametrize(
    ("groups", "hosts", "has_both"),
    [
        (NODES, "master:workers", False),
        (NODES | {"login": []}, "master:workers", False),
        (NODES | {"login": ["front", "front2"]}, "master:workers:front", True),
        ({"login": ["front"]}, "front", False),
        ({"login": ["front"], "master": [], "workers": []}, "front", False),
        # Ansible itself reports the missing groups.
        ({}, "master:workers", False),
    ],
)
def test_nodes_and_the_first_login_host_are_queried(
    groups: Mapping[str, Sequence[str]], hosts: str, has_both: bool
) -> None:
    assert (job_hosts(groups), both(groups)) == (hosts, has_both)


def test_a_node_that_submits_jobs_has_two_environments_unless_the_way_is_known() -> None:
    groups = NODES | {"login": ["n1", "n2"]}
    assert [ways(groups, name) for name in ("n1", "n2")] == [[True, False], [False]]
    assert ways(groups, "n1", False) == [False]
    assert ways(groups, "n1", True) == [True]
    assert ways(NODES | {"login": ["front"]}, "front") == [True]
