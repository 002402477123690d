"""The nodes with work: those with a reason, dependents, and an extra host, so that a failure ends no play."""

from __future__ import annotations

from ansible_collections.rdm.provision.plugins.plugin_utils.desired.work import (
    BUNDLED,
    DEPENDENTS,
    ROLES,
    decide,
)
from hypothesis import given
from hypothesis import strategies as st

roles = st.sets(st.sampled_from(ROLES))
clusters = st.integers(1, 6).flatmap(
    lambda count: st.fixed_dictionaries({f"n{i}": st.tuples(roles, roles) for i in range(count)})
)


@given(clusters, st.booleans())
def test_every_reason_becomes_work_where_the_role_is_wanted_and_nothing_else(
    cluster: dict[str, tuple[set[str], set[str]]], recheck: bool
) -> None:
    found = {node: {role: ["a reason"] for role in has} for node, (has, _) in cluster.items()}
    wanted = {node: sorted(wants) for node, (_, wants) in cluster.items()}
    work = decide(found, wanted, {node: [] for node in cluster}, recheck=recheck)
    for node, (has, wants) in cluster.items():
        started = {role for role in (wants if recheck else has) if role in wants}
        moved = started | ({"images"} & has)
        expected = started | {
            dependent for role in moved for dependent in _all_dependents(role, wants) if dependent in wants
        }
        assert set(work.why.get(node, {})) == expected
        assert list(work.why.get(node, {})) == [role for role in ROLES if role in expected]
        assert all(work.why.get(node, {}).values())


def _all_dependents(role: str, wants: set[str]) -> set[str]:
    found: set[str] = set()
    for dependent in DEPENDENTS.get(role, ()):
        found |= {dependent} | (_all_dependents(dependent, wants) if dependent in wants else set())
    return found


def test_container_depends_on_an_image_without_a_source() -> None:
    found = {"a": {"images": ["the image training:1 is another one"]}}
    work = decide(found, {"a": ["network", "container"]}, {"a": []})
    assert work.why == {"a": {"container": ["it follows images"]}}


@given(clusters)
def test_a_play_has_the_nodes_with_work_and_at_most_one_other_at_its_end(
    cluster: dict[str, tuple[set[str], set[str]]],
) -> None:
    found = {node: {role: ["a reason"] for role in has} for node, (has, _) in cluster.items()}
    work = decide(found, {node: list(ROLES) for node in cluster}, {node: [] for node in cluster})
    assert work.plays["verify"] == list(cluster)
    for role in ROLES:
        with_work = [node for node in cluster if role in work.why.get(node, {})]
        hosts = work.plays[role]
        assert hosts[: len(with_work)] == with_work
        assert len(hosts) == (0 if not with_work else min(len(with_work) + 1, len(cluster)))
        assert len(set(hosts)) == len(hosts)


def test_nodes_that_are_right_are_in_no_play_but_the_verification() -> None:
    work = decide({"a": {}, "b": {}}, {"a": ROLES, "b": ROLES}, {"a": [], "b": []})
    assert work.why == {}
    assert {play: hosts for play, hosts in work.plays.items() if hosts} == {"verify": ["a", "b"]}


def test_in_a_dry_run_a_node_without_an_engine_has_no_other_work() -> None:
    found = {"a": {role: ["no engine"] for role in ROLES}, "b": {}}
    work = decide(found, {"a": ROLES, "b": ROLES}, {"a": ["container"], "b": []}, engineless=["a"])
    assert list(work.why["a"]) == ["docker_engine"]
    assert work.plays["absent"] == []
    assert work.plays["verify"] == ["b"]


def test_absent_roles_are_removed_in_a_separate_play() -> None:
    work = decide({"a": {}, "b": {}}, {"a": [], "b": []}, {"a": ["container"], "b": []})
    assert work.plays["absent"] == ["a", "b"]


@given(clusters)
def test_files_written_with_a_container_need_no_play(cluster: dict[str, tuple[set[str], set[str]]]) -> None:
    found = {node: {role: ["a reason"] for role in has} for node, (has, _) in cluster.items()}
    wanted = {node: list(ROLES) for node in cluster}
    absent: dict[str, list[str]] = {node: [] for node in cluster}
    unbundled = decide(found, wanted, absent)
    work = decide(found, wanted, absent, bundled=BUNDLED)
    assert unbundled.bundled == {}
    assert work.why == unbundled.why
    assert set(work.bundled) == {node for node, mine in work.why.items() if "container" in mine}
    for part in (*ROLES, "state_file"):
        due = [node for node, mine in work.why.items() if part in mine or part == "state_file"]
        bundled = [node for node in due if part in work.bundled.get(node, ())]
        alone = [node for node in due if node not in bundled]
        assert work.plays[part][: len(alone)] == alone
        assert set(bundled).isdisjoint(work.plays[part][: len(alone)])
        assert bundled == ([node for node in due if node in work.bundled] if part in BUNDLED else [])
