"""Which node sends which files of a directory that nodes have."""

from __future__ import annotations

import pytest
from ansible_collections.rdm.provision.plugins.plugin_utils.jobs.data_sources import (
    conflicts,
    fetched,
    holders,
    parts,
    source_nodes,
    to_hash,
    without_directory,
)

GROUPS = {"all": ["n1", "n2", "n3", "old"], "workers": ["n2", "n3"]}
LISTED = {"n1": {"a": 3, "manifest": 9}, "n2": {"b": 4, "manifest": 9}}
"""Two nodes with their own shards, and the manifest of all."""


@pytest.mark.parametrize(
    ("chosen", "nodes"),
    [(["n1"], ["n1"]), (["workers", "n2", "old"], ["n2", "n3", "old"]), (["all"], GROUPS["all"])],
)
def test_sources_are_hosts_and_groups_of_the_inventory(chosen: list[str], nodes: list[str]) -> None:
    assert source_nodes(chosen, GROUPS) == (nodes, [])


@pytest.mark.parametrize(("name", "reason"), [("n9", "is not in the inventory"), ("former", "has no hosts")])
def test_an_unknown_source_and_an_empty_group_are_named(name: str, reason: str) -> None:
    (problem,) = source_nodes(["n1", name], {**GROUPS, "former": []})[1]
    assert str(problem) == (
        f"{name} {reason}: name hosts or groups of the inventory, such as n1, n2, n3, old"
    )


@pytest.mark.parametrize(
    ("chosen", "listed", "words"),
    [
        (
            ["n1", "n2"],
            {"n1": {"a": 3}, "n2": None},
            ["n2: /c is no directory on this node: name nodes that"],
        ),
        (["all"], {"n1": {"a": 3}, "n2": None}, []),
        (["all"], {"n1": {}, "n2": None}, ["/c has no files on n1, n2: name nodes that"]),
    ],
)
def test_a_node_that_is_named_has_the_directory(
    chosen: list[str], listed: dict[str, dict[str, int] | None], words: list[str]
) -> None:
    problems = without_directory("/c", chosen, listed)
    assert [str(problem) for problem in problems] == [f"{one} have it" for one in words]


def test_two_different_files_of_one_name_are_named_with_their_nodes() -> None:
    assert conflicts("/c", LISTED) == []
    (problem,) = conflicts("/c", {**LISTED, "n3": {"manifest": 8, "a": 3}})
    assert str(problem) == (
        "/c/manifest is another file on n3 than on n1: remove the wrong one, or name only nodes that have "
        "the right one"
    )


def test_a_file_is_hashed_only_if_its_digest_decides_something() -> None:
    found = holders(LISTED)
    assert to_hash(found, {}) == {"n1": ["manifest"], "n2": ["manifest"]}
    assert to_hash(found, {"n3": {"b": "digest"}}) == {"n1": ["manifest"], "n2": ["manifest", "b"]}


def test_each_part_of_a_file_is_hashed_in_a_call_of_bounded_size() -> None:
    sizes = {"empty": 0, "a": 3, "b": 9, "c": 1, "d": 4}
    calls = list(parts(sizes, 4))
    assert all(sum(length for _begin, length in one.values()) <= 4 for one in calls)
    spans = {path: [one[path] for one in calls if path in one] for path in sizes}
    assert spans == {
        "empty": [[0, 0]],
        "a": [[0, 3]],
        "b": [[0, 4], [4, 4], [8, 1]],
        "c": [[0, 1]],
        "d": [[0, 4]],
    }
    assert len(calls) == 5


def test_each_node_fetches_only_missing_files() -> None:
    needed = {"n1": ["a", "b", "manifest"], "n2": ["a"], "n3": ["b", "manifest"], "old": []}
    assert fetched(holders(LISTED), needed) == {
        "n1": {"n2": {"a"}, "n3": {"manifest"}},
        "n2": {"n1": {"b"}, "n3": {"b"}},
    }
