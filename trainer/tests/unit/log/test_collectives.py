# SPDX-License-Identifier: GPL-3.0-or-later
"""A hung job's verdict names the collective that its ranks wait in, and who has not entered it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rdm_core.heartbeat import HeartbeatWriter, collectives
from rdm_log.collectives import awaited
from rdm_log.peers import GroupState, RankHeartbeat
from rdm_log.verdict import Observed, evaluate

AT = time.mktime((2026, 11, 22, 14, 2, 11, 0, 0, -1))


def data(entered: int, waits: int = 0, operation: str = "all_reduce", since: float = AT) -> GroupState:
    """Return the state of a rank in the data-parallel group of eight."""
    return GroupState("4", 0, 8, "data-parallel", entered, waits, operation if waits else "", since)


def ranks(states: Sequence[Sequence[GroupState]]) -> list[RankHeartbeat]:
    return [RankHeartbeat(n, f"n{n}", collectives=groups) for n, groups in enumerate(states)]


WAITS = data(512, 512)


@pytest.mark.parametrize(
    ("states", "text", "rank"),
    [
        (
            [[WAITS]] * 3 + [[data(511)]] + [[WAITS]] * 4,
            "Rank 3 has not entered all_reduce 512 of the data-parallel group;"
            " 7 others have waited since 14:02:11.",
            3,
        ),
        (
            # NCCL's ranks enter further collectives before the first one is complete.
            [[data(520, 512)], [data(511)], [data(511)]],
            "Ranks 1, 2 have not entered all_reduce 512 of the data-parallel group;"
            " 1 other has waited since 14:02:11.",
            1,
        ),
        (
            [[WAITS], [WAITS], [data(512, 512, "broadcast")]],
            "Rank 2 has entered broadcast 512 instead of all_reduce 512 of the data-parallel group;"
            " 2 others have waited since 14:02:11.",
            2,
        ),
        # A stopped process reports nothing.
        (
            [[WAITS]] * 7,
            "7 of its 8 ranks have waited in all_reduce 512 of the data-parallel group since 14:02:11.",
            None,
        ),
        ([[data(512)]] * 8, None, None),
        ([[]] * 8, None, None),
    ],
)
def test_rank_that_has_not_entered_is_named(
    states: Sequence[Sequence[GroupState]], text: str | None, rank: int | None
) -> None:
    found = awaited(ranks(states))
    assert [(sign.text, sign.rank) for sign in found] == ([(text, rank)] if text else [])


def test_a_rank_that_waits_elsewhere_is_not_the_cause() -> None:
    """Rank 1 waits for rank 2 in their tensor-parallel group, and rank 0 for rank 1."""
    of_tensor = GroupState("2", 1, 2, "tensor-parallel", 30)
    first = [data(9, 9, since=AT - 60)]
    second = [data(8), of_tensor._replace(entered=31, waits=31, operation="all_gather", since=AT)]
    (sign,) = awaited(ranks([first, second, [of_tensor]]))
    assert (sign.node, sign.rank) == ("n2", 2)
    assert sign.text.startswith("Rank 2 has not entered all_gather 31 of the tensor-parallel group; 1 other")


def test_a_rank_that_waits_for_a_message_is_not_the_cause() -> None:
    """Rank 0 sleeps, and rank 2, the next stage of its pipeline, waits for its message."""
    stages = [GroupState("3", first, 2, "data-parallel", 8) for first in (0, 2)]
    late = [stage._replace(entered=9, waits=9, operation="all_reduce") for stage in stages]
    # The last stage is the first one to sum its gradients.
    states = [[stages[0]], [late[0]._replace(since=AT)], [stages[1]], [late[1]._replace(since=AT - 5)]]
    found = [
        replace(rank, waits=waits)
        for rank, waits in zip(ranks(states), (False, True, True, True), strict=True)
    ]
    (sign,) = awaited(found)
    assert sign.text == (
        "Rank 0 has not entered all_reduce 9 of the data-parallel group; 1 other has waited since 14:02:11."
    )


def test_groups_with_the_same_name_are_distinguished() -> None:
    """Groups that NCCL splits from the world at once have one name."""
    one, other = GroupState("3", 0, 2, "", 5, 5, "barrier", AT), GroupState("3", 2, 2, "", 4)
    (sign,) = awaited(ranks([[one], [one._replace(entered=4, waits=0)], [other], [other]]))
    assert sign.text == "Rank 1 has not entered barrier 5 of the group; 1 other has waited since 14:02:11."


def test_stalled_job_names_the_missing_ranks() -> None:
    waiting, late = ranks([[WAITS], [data(511)]])
    found = awaited([waiting, late])
    # Two sentences may name the same rank, which is one culprit.
    for holding in ([], [late]):
        seen = Observed("running", seconds_running=10_000.0, holding=holding, awaited=found)
        stalled = evaluate(seen)
        assert stalled.word == "stalled"
        assert stalled.evidence[1] == found[0].text
        assert [(one.kind, one.node, one.rank) for one in stalled.culprits] == [("late", "n1", 1)]


def test_reports_are_valid_for_their_step_alone(tmp_path: Path) -> None:
    path = tmp_path / "3.heartbeat"
    heartbeat = HeartbeatWriter(path)
    heartbeat.step(7)
    assert collectives(path, 7) == []
    heartbeat.hung([WAITS])
    shown = {"rank": 3, "iteration": 7, "collectives": collectives(path, 7)}
    assert RankHeartbeat.of("n1", shown).collectives == [WAITS]
    assert collectives(path, 8) == []
