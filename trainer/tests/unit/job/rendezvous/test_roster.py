# SPDX-License-Identifier: GPL-3.0-or-later
"""The members of a rendezvous: ranks do not depend on the order of arrival, and a name is unique."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdm_job.rendezvous.roster import Member, Roster, differing

LAUNCHER = Member("n0", "n0", "10.0.0.1", 8)


def _worker(number: int, *, name: str = "") -> Member:
    # The order of addresses is the reverse of that of names.
    return Member(name or f"n{number}", "host", f"10.0.1.{250 - number}", 8)


@given(order=st.permutations(list(range(1, 12))), rank_by=st.sampled_from(["name", "address"]))
def test_ranks_do_not_depend_on_who_came_first(order: list[int], rank_by: str) -> None:
    roster = Roster(LAUNCHER, 12, rank_by)
    for number in order:
        assert not roster.is_complete
        roster.join(f"c{number}", _worker(number))
    assert roster.is_complete
    expected = [f"n{number}" for number in range(1, 12)]
    if rank_by == "address":
        expected.reverse()
    assert [member.name for member in roster.by_rank()] == ["n0", *expected]
    assert sorted(roster.ranks().values()) == list(range(1, 12))


def test_ranks_can_follow_the_order_of_arrival() -> None:
    roster = Roster(LAUNCHER, 4, "arrival")
    for number in (3, 1, 2):
        roster.join(f"c{number}", _worker(number))
    assert [member.name for member in roster.by_rank()] == ["n0", "n3", "n1", "n2"]


def test_ranks_can_follow_the_numbers_that_a_batch_system_gave() -> None:
    roster = Roster(LAUNCHER, 12, "connection")
    for number in range(11, 0, -1):
        roster.join(str(number), _worker(number, name=f"n{number * 7 % 11 + 1}"))
    assert roster.ranks() == {str(number): number for number in range(1, 12)}


def test_missing_members_are_named_unless_unexpected_ones_joined() -> None:
    roster = Roster(LAUNCHER, 4, expected=["n0", "n1", "n2", "n3"])
    roster.join("c2", _worker(2))
    assert roster.missing_names == ["n1", "n3"]
    roster.join("c7", _worker(7))
    assert (roster.missing, roster.missing_names) == (1, [])


def test_members_that_differ_are_named_unless_they_report_nothing() -> None:
    def member(number: int, **versions: str) -> Member:
        return Member(f"n{number}", "host", f"10.0.0.{number}", 1, versions=versions)

    same = member(1, Python="3.11", torch="2.6")
    assert differing([LAUNCHER, same, member(2), member(3, Python="3.11", torch="2.6")]) == ""
    assert differing([same, member(2, Python="3.11"), member(3, Python="3.11", torch="2.5")]) == (
        "The environments differ: n1 has torch 2.6, and n2 none; n3 2.5; make them the same on all nodes."
    )
    assert differing([member(1, Python="3.11"), member(2, Python="3.11", deepspeed="0.15")]) == (
        "The environments differ: n1 has deepspeed none, and n2 0.15; make them the same on all nodes."
    )


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["join", "leave", "again", "agree"]), st.integers(1, 6), st.integers(0, 2)),
        max_size=40,
    )
)
def test_names_are_unique_and_the_job_starts_only_when_complete(steps: list[tuple[str, int, int]]) -> None:
    roster = Roster(LAUNCHER, 4)
    for what, number, process in steps:
        connection, before = f"c{number}.{process}", roster.round
        members = [roster.member(one) for one in roster.connections]
        if what == "leave":
            roster.leave(connection)
        elif what == "agree":
            roster.acknowledge(connection, roster.round)
        else:
            roster.join(connection, _worker(number))
        after = [roster.member(one) for one in roster.connections]
        names = [member.name for member in after if member is not None]
        assert len(set(names)) == len(names) <= 3
        assert roster.missing == 3 - len(names) >= 0
        if after != members:
            assert roster.round > before
            assert not roster.is_acknowledged
        assert not roster.is_acknowledged or roster.is_complete


def test_repeated_join_of_a_member_counts_once() -> None:
    roster = Roster(LAUNCHER, 3)
    roster.join("c1", _worker(1))
    assert roster.join("c1", _worker(1)) is None
    assert roster.missing == 1


def test_successor_replaces_the_member_of_its_name() -> None:
    roster = Roster(LAUNCHER, 3)
    roster.join("c1", _worker(1))
    assert roster.join("c1-later", _worker(1)) == "c1"
    assert roster.connections == ["c1-later"]


def test_superfluous_member_waits_until_another_leaves() -> None:
    roster = Roster(LAUNCHER, 3)
    for number in (1, 2, 3):
        roster.join(f"c{number}", _worker(number))
    assert roster.waiting == ["c3"]
    roster.leave("c1")
    assert roster.waiting == []
    assert roster.is_complete
    assert sorted(roster.connections) == ["c2", "c3"]


def test_acknowledgements_are_void_after_a_change() -> None:
    roster = Roster(LAUNCHER, 3)
    roster.join("c1", _worker(1))
    roster.join("c2", _worker(2))
    first = roster.round
    roster.acknowledge("c1", first)
    roster.join("c2-later", _worker(2))
    roster.acknowledge("c2-later", first)
    assert not roster.is_acknowledged
    for connection in roster.connections:
        roster.acknowledge(connection, roster.round)
    assert roster.is_acknowledged


def test_launchers_name_is_refused_to_workers() -> None:
    with pytest.raises(ValueError, match="the launcher is called n0, too"):
        Roster(LAUNCHER, 3).join("c1", _worker(1, name="n0"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name"),
        ({"name": "two words"}, "name"),
        ({"name": "x" * 300}, "name"),
        ({"host": "a\nb"}, "host"),
        ({"address": "127.0.1.1"}, "127.0.1.1"),
        ({"address": "fe80::1"}, "fe80::1"),
        ({"address": "0.0.0.0"}, "0.0.0.0"),
        ({"gpus": 0}, "0 processes"),
        ({"gpus": "8"}, "'8' processes"),
        ({"versions": {"torch": 2}}, "versions of n1"),
    ],
)
def test_invalid_member_message_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Member.read(_worker(1).to_dict() | change)


def test_member_survives_serialisation() -> None:
    member = Member("n1", "host", "10.0.1.1", 8, "cuda GPU", {"torch": "2.6"})
    assert Member.read(member.to_dict()) == member
