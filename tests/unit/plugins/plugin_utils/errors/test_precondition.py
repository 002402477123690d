"""The message of a precondition failure."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.errors.precondition import (
    PreconditionFailed,
    Problem,
    report,
)


def test_sentence_has_value_reason_and_hint() -> None:
    assert Problem("n", "x", "is bad", "use y").sentence == "x is bad: use y"
    assert Problem("n", "", "it burns", "").sentence == "it burns"


def test_nodes_with_the_same_problem_share_a_line() -> None:
    same = [Problem(f"n{number}", "rdm_accelerator", "is not set", "set it") for number in range(12)]
    text = report([Problem(None, "the group master", "has no host", "add one"), *same])
    assert text.splitlines() == [
        "Refused before anything was changed, because of 2 problems:",
        "- the group master has no host: add one",
        "- n0, n1, n2, n3, n4, n5, n6, n7 and 4 more: rdm_accelerator is not set: set it",
    ]


def test_error_carries_problems_and_reads_as_the_report() -> None:
    problem = Problem("n1", "x", "is bad", "use y")
    refused = PreconditionFailed([problem])
    assert refused.problems == [problem]
    assert str(refused) == "Refused before anything was changed, because of 1 problem:\n- n1: x is bad: use y"
