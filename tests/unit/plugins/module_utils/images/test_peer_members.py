# SPDX-License-Identifier: GPL-3.0-or-later
"""What a source knows about the peers of its transfer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.rdm.provision.plugins.module_utils.images import peer_members
from ansible_collections.rdm.provision.plugins.module_utils.images.peer_members import DIRECT, Members
from ansible_collections.rdm.provision.plugins.module_utils.images.pieces import PieceList, count

from tests.unit.plugins.module_utils.images.peers import HOME, LONG_S


@pytest.fixture
def members() -> Members:
    return Members(PieceList(25, 1, [""] * 25, {}))


def announced(name: str, have: int = 0, **changes: Any) -> dict[str, Any]:
    given = {"name": name, "port": 1, "have": f"{have:x}", "wanted": 13, "missing": 13 - count(have)}
    return {**given, "error": "", "trouble": {}, "fetched": 0, "ended": False, **changes}


@pytest.fixture
def lost_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds after which a node is taken for lost: more than a test takes."""
    monkeypatch.setattr(peer_members, "silent_after_s", lambda _every_s: LONG_S)
    return LONG_S


def test_stalled_source_loses_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(peer_members, "time", SimpleNamespace(monotonic=lambda: now))
    members = Members(PieceList(3, 2, ["", ""], {}))
    members.announce(HOME, announced("a"))
    now += 40
    assert members.status()["a"]["silent_s"] == 0, "nor before it has noticed that it stood still"
    members.listen()
    assert members.status()["a"]["silent_s"] == 0
    for _tick in range(40):
        now += 0.5
        members.listen()
    assert members.status()["a"]["silent_s"] == 20


def test_invalid_announcement_is_ignored(members: Members) -> None:
    for wrong in ({"name": "b"}, announced("a", fetched="much"), announced("a", trouble=None)):
        with pytest.raises((KeyError, TypeError, ValueError)):
            members.announce(HOME, wrong)
    assert not members.announce(HOME, announced("a"))["finish"]
    assert list(members.status()) == ["a"]


def test_pieces_sent_only_to_a_lost_node_are_resent(members: Members, lost_s: float) -> None:
    everything = (1 << 13) - 1
    members.announce(HOME, announced("liar", everything))
    members.announce(HOME, announced("resumed", 0b111))
    names = ("lost", "full", "ended", "a")
    for name in names:
        members.announce(HOME, announced(name))
    sent = {members.next_piece(name, 0, everything) for name in names for _again in range(2)}
    assert len(sent) == 8
    assert not sent & {0, 1, 2}, "others have them from an earlier run"
    rest = [members.next_piece("a", 0, everything) for _again in range(3)]
    assert rest.index(None) == 2
    members.listen()  # as the source does all the time
    members.known["lost"]["at"] -= lost_s
    members.announce(HOME, announced("full", error="no space left"))
    members.announce(HOME, announced("ended", ended=True))
    again = {members.next_piece("a", 0, everything) for _again in range(6)}
    assert len(again) == 6
    assert again <= sent
    assert members.next_piece("a", 0, everything) is None


def test_pieces_of_unneeded_layers_do_not_count_as_progress(members: Members) -> None:
    members.announce(HOME, announced("a", 0b111, wanted=2, missing=1))
    status = members.status()["a"]
    assert (status["have"], status["wanted"], status["done"]) == (1, 2, False)


@pytest.mark.usefixtures("lost_s")
def test_failed_nodes_do_not_delay_others(members: Members) -> None:
    for number in range(DIRECT):
        members.announce(HOME, announced(f"full{number}", error="no space left"))
        members.announce(HOME, announced(f"ended{number}", ended=True))
    answer = members.announce(HOME, announced("a"))
    assert answer["direct"]
    assert answer["neighbours"] == []


@pytest.mark.usefixtures("lost_s")
def test_many_nodes_fetch_one_piece_each_from_the_source_and_few_fetch_more(members: Members) -> None:
    names = [f"n{number}" for number in range(DIRECT + 1)]
    fetches = [members.announce(HOME, announced(name))["direct"] for name in names]
    assert fetches == [8, 4, 2, 2, 1, 1, 1, 1, 0]
    assert members.announce(HOME, announced(names[0], missing=0))["direct"] == 0
    assert members.announce(HOME, announced(names[-1]))["direct"] == 1
