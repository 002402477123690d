# SPDX-License-Identifier: GPL-3.0-or-later
"""Jobs that would be ended are refused by name."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.checks.running_jobs import ended_jobs
from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import sentences


def test_every_job_is_reported_once_with_its_nodes_and_the_ways_out() -> None:
    problems = ended_jobs({"n1": ["a", "b"], "n2": [], "n3": ["a"]})
    assert [(problem.node, problem.value) for problem in problems] == [
        ("n1", "the job a"),
        ("n1", "the job b"),
        ("n3", "the job a"),
    ]
    first, second = sentences(problems)
    assert first.startswith("n1, n3: the job a runs in the container, and would lose ")
    assert "rdm-provision stop b saves a checkpoint" in second
    assert second.endswith("container_protect_jobs=false")
    assert ended_jobs({"n1": []}) == []


def test_what_ends_with_the_node_cannot_be_allowed() -> None:
    (problem,) = ended_jobs({"n1": ["a"]}, whole_node=True)
    assert problem.reason.startswith("runs on the node, and would lose its steps")
    assert problem.hint == ("stop it first (rdm-provision stop a saves a checkpoint) and wait for its end")
