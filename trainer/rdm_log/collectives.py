# SPDX-License-Identifier: GPL-3.0-or-later
"""Which collective a hung job waits in, and who has not entered it. Pure functions.

The source is torch's flight recorder on each rank; see ``rdm_trainer.flight_recorder``.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rdm_log.peers import GroupState, RankHeartbeat
from rdm_log.signs import Sign
from rdm_log.wording import listed


class _Wait(NamedTuple):
    """Ranks that wait in a collective, those that are in another one instead, and those in none."""

    state: GroupState
    waiting: list[RankHeartbeat]
    elsewhere: list[tuple[RankHeartbeat, GroupState]]
    absent: list[RankHeartbeat]


def awaited(ranks: Iterable[RankHeartbeat]) -> list[Sign]:
    """Return in one sentence what the ranks of a hung job wait in, and for whom; empty if no rank waits.

    A rank that waits in one group, or for a message of another stage, is late in its other groups, too. So a
    group counts first whose late ranks wait nowhere.
    """
    all_ranks = list(ranks)
    waits = sorted(_waits(all_ranks), key=lambda wait: wait.state.since)
    if not waits:
        return []
    # Messages are not recorded, but a rank's mark says that it waits.
    stuck = {one.rank for one in all_ranks if one.waits}
    stuck |= {one.rank for wait in waits for one in wait.waiting}
    wait = next((wait for wait in waits if wait.elsewhere), None)
    wait = wait or next((wait for wait in waits if any(one.rank not in stuck for one in wait.absent)), None)
    wait = wait or next((wait for wait in waits if wait.absent), waits[0])
    state, count = wait.state, len(wait.waiting)
    what = f"{state.operation} {state.waits} of the {f'{state.kind} ' if state.kind else ''}group"
    since = datetime.datetime.fromtimestamp(state.since).strftime("%H:%M:%S")
    others = f"{count} other{' has' if count == 1 else 's have'} waited since {since}"
    if wait.elsewhere:
        rank, other = wait.elsewhere[0]
        text = f"Rank {rank.rank} has entered {other.operation} {other.waits} instead of {what}; {others}."
        return [Sign("late", text, rank.node, rank.rank)]
    late = [one for one in wait.absent if one.rank not in stuck] or wait.absent
    if late:
        names = listed(str(one.rank) for one in late)
        who = f"Rank {names} has" if len(late) == 1 else f"Ranks {names} have"
        return [Sign("late", f"{who} not entered {what}; {others}.", late[0].node, late[0].rank)]
    verb = "has" if count == 1 else "have"
    return [Sign("late", f"{count} of its {state.size} ranks {verb} waited in {what} since {since}.")]


def _waits(ranks: Sequence[RankHeartbeat]) -> Iterator[_Wait]:
    """Yield the oldest wait in each group."""
    groups: dict[tuple[str, int, int], list[tuple[RankHeartbeat, GroupState]]] = {}
    for rank in ranks:
        for state in rank.collectives:
            groups.setdefault((state.name, state.first, state.size), []).append((rank, state))
    for members in groups.values():
        oldest = min((state.waits for _, state in members if state.waits), default=0)
        if not oldest:
            continue
        within = [(rank, state) for rank, state in members if state.waits == oldest]
        (operation, _), *_ = Counter(state.operation for _, state in within).most_common(1)
        usual = [(rank, state) for rank, state in within if state.operation == operation]
        yield _Wait(
            min((state for _, state in usual), key=lambda state: state.since),
            [rank for rank, _ in usual],
            [pair for pair in within if pair[1].operation != operation],
            [rank for rank, state in members if state.entered < oldest],
        )
